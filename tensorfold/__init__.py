"""TensorFold: a server for language models whose speculative decoding is exact."""

__version__ = "0.1.0"
