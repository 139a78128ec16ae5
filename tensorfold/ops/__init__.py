"""What models call. Every op keeps the row-invariance rule (docs/exactness.md)."""
