"""Between messages and tokens: chat templates, incremental text, stop strings."""
