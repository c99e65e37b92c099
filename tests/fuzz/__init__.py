"""Mutated files of every format: opening raises only documented errors."""
