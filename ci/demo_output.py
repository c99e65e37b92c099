"""Headings and progress bars of the demos."""

from tqdm.dask import TqdmCallback


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n--- {text}", flush=True)


def progress(name: str) -> TqdmCallback:
    """Return a progress bar for dask. It is disabled if the output is not a terminal."""
    return TqdmCallback(desc=name, unit=" tasks", disable=None, leave=False)
