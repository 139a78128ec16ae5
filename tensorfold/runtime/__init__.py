"""Arrays: the compiled step function, its row buckets and its state."""
