"""Datasets from files: lazy arrays, groups, open options and explanations."""

from __future__ import annotations
