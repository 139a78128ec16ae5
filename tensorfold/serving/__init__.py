"""The HTTP server: one file per API, all of them speaking to one `Engine`."""
