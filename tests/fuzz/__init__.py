"""Mutated files of every format: nothing but `TensorFormatError` may come of them."""
