"""Writing a Dataset to a file of any format, on the local disk or in a store."""

from __future__ import annotations
