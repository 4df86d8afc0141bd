"""Cells on a Ray cluster: data go out by the object store, run folders come back in parcels.

The caller writes what a worker sends into the cell's folder. So it always holds the last checkpoint
that reached it: the cell of a lost worker goes on from there, and so does an interrupted grid, on
Ray or without it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from turnout.errors import InvalidInput
from turnout.experiment.cell import run_cell
from turnout.experiment.pool import LOOK_EVERY_S, MOST_DEATHS, SINGLE_THREADED, Show, Watch
from turnout.experiment.ray_worker import Parcel, unpack, work
from turnout.experiment.task import CellResult, CellTask
from turnout.names import import_extra
from turnout.runs import files

#: A cluster must accept a connection within so many seconds.
ANSWER_WITHIN_S = 10.0

_START = (
    "Start a cluster by ray start --head. Without an address, Ray is started on this machine alone."
)

_LOST = f"its worker was lost {MOST_DEATHS} times in a row; run again to go on."


def check_cluster(address: str | None) -> None:
    """Check that Ray is installed and that a cluster accepts connections.

    Args:
        address: As for ``run_on_ray``.

    Raises:
        MissingExtra: If Ray is not installed.
        InvalidInput: If nobody answers at the address, where Ray itself would try for minutes; or
            if this machine has no cluster.
    """
    if _ray().is_initialized() or address is None:
        return
    place = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if place == "auto":
        with _connected(place):
            return  # Ray looks for a cluster of this machine
    host, _, port = place.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        wanted = "auto or HOST:PORT of the cluster's head, such as 10.0.0.1:6379"
        raise InvalidInput(f"address must be {wanted}; got {place!r}.", field="address")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"address {place} did not answer within {ANSWER_WITHIN_S:g} s ({error}): is the "
            "cluster up, and its port open?",
            field="address",
        ) from error


def run_on_ray(
    tasks: Sequence[CellTask], progress: Show, *, address: str | None, n_jobs: int | None
) -> list[CellResult]:
    """Run all cells on a Ray cluster; a lost worker's cell is run again from its last checkpoint.

    Args:
        tasks: The cells.
        progress: Called with how far they are.
        address: ``auto`` or ``HOST:PORT`` of a cluster; None starts Ray on this machine. Without
            effect if this process is connected to Ray already.
        n_jobs: Cells at the same time; None = as many as the cluster has processors for.

    Raises:
        InvalidInput: If the address does not answer.
    """
    watch = Watch(tasks, progress)
    for task in tasks:
        if (task.path / files.CONFIG).exists() and (task.path / files.SUMMARY).exists():
            watch.done[task.path] = run_cell(task)  # complete: only read
    if watch.missing():
        with _connected(address) as ray:
            _Dispatcher(ray, watch).run(n_jobs or len(tasks))
    return watch.results


class _Dispatcher:
    """Sends cells to workers and takes in their parcels."""

    def __init__(self, ray: Any, watch: Watch) -> None:
        self._ray = ray
        self._watch = watch
        self._waiting = deque(watch.missing())
        self._running: dict[Any, CellTask] = {}
        self._data: dict[int, Any] = {}  # by seed, in the object store
        self._losses: Counter[Path] = Counter()  # since the cell's last checkpoint

    def run(self, n_jobs: int) -> None:
        """Run all cells, at most so many at the same time."""
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < n_jobs:
                    self._send(self._waiting.popleft())
                ready, _ = self._ray.wait(list(self._running), timeout=LOOK_EVERY_S)
                for parcels in ready:
                    self._take(parcels)
                self._watch.show()
        finally:
            for parcels in self._running:
                self._ray.cancel(parcels, force=True)

    def _send(self, task: CellTask) -> None:
        remote = self._ray.remote(work).options(
            name=f"{task.variant.label}, seed {task.seed}",
            num_cpus=1,
            num_gpus=_n_gpus(task),
            max_retries=0,  # Ray would start from the beginning
            runtime_env={"env_vars": dict.fromkeys(SINGLE_THREADED, "1")},
        )
        held = {path.name: path.read_bytes() for path in task.path.glob("*") if path.is_file()}
        self._running[remote.remote(task, self._data_of(task), held)] = task

    def _data_of(self, task: CellTask) -> Any:
        """Return a reference to the data of the cell's seed, which its selectors share."""
        if task.experiment.training is None:
            return None
        if task.seed not in self._data:
            seeds = {left.seed for left in self._watch.missing()}
            self._data = {seed: data for seed, data in self._data.items() if seed in seeds}
            federation = task.experiment.federation(task.seed)
            assert federation is not None
            self._data[task.seed] = self._ray.put(federation.data)
        return self._data[task.seed]

    def _take(self, parcels: Any) -> None:
        """Take in the next parcel of a worker, or what there is instead."""
        task, is_going_on = self._running[parcels], False
        try:
            parcel: Parcel = self._ray.get(next(parcels))
        except self._ray.exceptions.RayTaskError as error:
            self._watch.fail(task, f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError:
            self._lose(task)
        else:
            is_going_on = self._keep(parcel, task)
        del self._running[parcels]
        if is_going_on:
            self._running[parcels] = task  # at the end: the others come first now

    def _lose(self, task: CellTask) -> None:
        """Try again elsewhere, unless it is hopeless."""
        self._losses[task.path] += 1
        if self._losses[task.path] < MOST_DEATHS:
            self._waiting.appendleft(task)
        else:
            self._watch.fail(task, _LOST)

    def _keep(self, parcel: Parcel, task: CellTask) -> bool:
        """Write a parcel; return whether there will be more."""
        unpack(parcel.pieces, task.path)
        if any(piece.name == files.PROGRESS for piece in parcel.pieces):
            del self._losses[task.path]
        if parcel.result is not None:
            self._watch.done[task.path] = parcel.result
        return parcel.result is None


def _n_gpus(task: CellTask) -> int:
    training = task.experiment.training
    return int(training is not None and training.device.startswith("cuda"))


def _ray() -> Any:
    return import_extra("ray", "backend 'ray' needs Ray: pip install 'turnout[ray]'.")


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one here; leave a connection that was there before."""
    ray = _ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"address": "local", "include_dashboard": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray about itself
        try:
            ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            is_missing = address == "auto" and isinstance(error, ConnectionError)
            advice = f" {_START}" if is_missing else ""
            raise InvalidInput(f"address {address!r}: {error}{advice}", field="address") from error
    try:
        yield ray
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.shutdown()
