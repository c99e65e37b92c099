"""What the demos print beside their results."""

from tqdm.dask import TqdmCallback


def say(text: str) -> None:
    """A heading between outputs."""
    print(f"\n--- {text}", flush=True)


def progress(name: str) -> TqdmCallback:
    """A bar of what dask computes; without a terminal, None disables it."""
    return TqdmCallback(desc=name, unit=" tasks", disable=None, leave=False)
