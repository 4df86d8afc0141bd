"""Worker threads that each use one core.

PyTorch releases Python's lock inside its kernels. So two threads, each running kernels on one core,
keep two cores busy. Kernels that share their own work among cores wait for each other many times
per mini-batch, each time for a core that another process may use. These threads wait once per tile
of clients.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by threads of one core each.

    A single item is computed in the calling thread, by one core as well.

    Args:
        function: What is computed.
        items: For what.
        threads: How many threads.

    """
    items = list(items)
    if len(items) == 1:
        with _one_core():
            return [function(items[0])]
    return list(_pool(threads, os.getpid()).map(function, items))


@contextmanager
def _one_core() -> Iterator[None]:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the workers of this process; a forked child has none of its parent's threads."""
    threads_before = torch.get_num_threads()
    are_ready = threading.Barrier(threads + 1)

    def use_one_core() -> None:
        torch.get_num_threads()  # the first call in a thread would undo the setting
        torch.set_num_threads(1)
        are_ready.wait()

    pool = ThreadPoolExecutor(threads, f"turnout-{process}", initializer=use_one_core)
    for _ in range(threads):  # no worker is idle before all are ready, so each call starts one
        pool.submit(int)
    are_ready.wait()
    torch.set_num_threads(threads_before)  # the call in a worker also set it for new threads
    return pool
