"""Checkpoints: find them, read them, and hand over weights, tokenizer and settings."""
