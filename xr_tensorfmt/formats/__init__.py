"""File formats: a registry, recognition, and one folder per format."""
