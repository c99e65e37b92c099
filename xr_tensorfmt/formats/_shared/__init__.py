"""Code shared by several formats."""
