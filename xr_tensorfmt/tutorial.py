"""Small files of all formats, for documentation and first steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xarray as xr

from xr_tensorfmt.errors import build_choice_error

__all__ = ["get_path", "open_dataset"]

_FILES = {
    "LiH": "LiH/CoulombVertex.yaml",
    "causal_set": "causal_set.pycauset",
    "circle": "circle.safetensors",
    "snapshot": "snapshot.mag",
    "cities": "cities.tbf",
    "integrals": "PPHHCoulombIntegrals.bin",
    "model": "model",
}


def get_path(name: str) -> Path:
    """Return the path of a small file or directory of this package. Do not change it.

    Parameters
    ----------
    name : str
        One of

        - ``"LiH"``: the Coulomb vertex of lithium hydride in a directory of cc4s.
        - ``"integrals"``: Coulomb integrals of this molecule (a, b, i, j) in TENS 0.9.
        - ``"causal_set"``: the causal order of 64 random events as a matrix of PyCauset.
        - ``"circle"``: the weights of a network that recognises points in a circle, in safetensors.
        - ``"snapshot"``: the same weights in MAG, written by magnetron 0.2.2.
        - ``"cities"``: the positions of cities on the unit sphere as a tensor of Vespa.
        - ``"model"``: a directory with random weights in two safetensors files with an index.

    Returns
    -------
    Path
        The path in the installed package.

    Examples
    --------
    >>> from xr_tensorfmt import tutorial
    >>> tutorial.get_path("cities").name
    'cities.tbf'
    """
    if name not in _FILES:
        raise build_choice_error("name", name, _FILES)
    return Path(__file__).with_name("tutorial_files") / _FILES[name]


def open_dataset(name: str, **keywords: Any) -> xr.Dataset:
    """Open a small file of this package as a lazy Dataset.

    Parameters
    ----------
    name : str
        Name of the file, as for `get_path`.
    **keywords
        Keywords of `xarray.open_dataset`.

    Returns
    -------
    Dataset
        The content of the file.

    Examples
    --------
    >>> from xr_tensorfmt import tutorial
    >>> tutorial.open_dataset("cities").tensor.sel(city="Vienna").shape
    (3,)
    """
    return xr.open_dataset(get_path(name), engine="tensorfmt", **keywords)
