"""Code that several formats share, but not all."""
