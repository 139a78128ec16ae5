"""Tool calls in a reply's text: one incremental parser for each format that models write."""
