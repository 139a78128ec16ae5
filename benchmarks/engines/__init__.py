"""One driver an engine, each run in a process of its own and told what to do line by line."""
