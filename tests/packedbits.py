"""Matrices of packed bits: the bytes, the layout that reads them, and the values."""

from __future__ import annotations

import numpy as np

from tests import pycausetfiles as pf
from xr_tensorfmt.core.elements import Boolean, Element
from xr_tensorfmt.core.layout import Layout
from xr_tensorfmt.formats.pycauset.packed import Packed

Case = tuple[bytes, Layout, np.ndarray]
BIT = Boolean()


def make_random_bits(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows * columns).random((rows, columns)) < 0.5


def make_dense_bits(rows: int, columns: int, multiple: int = 8) -> Case:
    values = make_random_bits(rows, columns)
    layout = Packed(rows, columns, BIT, multiple, 16)
    return bytes(16) + pf.pack_bits(values, multiple, dirty=True), layout, values


def make_triangle(
    order: int,
    offset: int,
    element: Element = BIT,
    *,
    diagonal: bool = False,
    unit: int = 8,
) -> Packed:
    return Packed(order, order, element, unit, offset, 0 if diagonal else 1)


def make_causal(order: int) -> Case:
    values = np.triu(make_random_bits(order, order), 1)
    layout = make_triangle(order, 64)
    return bytes(64) + pf.pack_triangle(values, dirty=True), layout, values
