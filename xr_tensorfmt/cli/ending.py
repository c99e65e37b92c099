"""Computing so that no thread of a computation outlives it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dask.config
import dask.threaded
from dask.system import CPU_COUNT


def threads_that_end() -> AbstractContextManager[Any]:
    """Let dask compute in threads that have ended when it returns or raises."""
    chosen = dask.config.get("scheduler", None)
    if chosen not in (None, "threads", "threading"):
        return nullcontext()  # the user's own choice, which may be no threads at all
    context: AbstractContextManager[Any] = dask.config.set(scheduler=_get)
    return context


def _get(graph: Mapping[Any, Any], keys: Any, **options: Any) -> Any:
    count = options.pop("num_workers", None) or dask.config.get("num_workers", None) or CPU_COUNT
    options.pop("pool", None)
    pool = ThreadPoolExecutor(count)
    try:
        return dask.threaded.get(graph, keys, pool=pool, **options)
    finally:
        pool.shutdown(cancel_futures=True)
