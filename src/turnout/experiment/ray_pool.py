"""Cells on a Ray cluster: data go out by the object store, run folders come back in parcels.

The caller writes what a worker sends into the cell's folder. So it always holds the last checkpoint
that reached it. The cell of a lost worker resumes from there, and so does an interrupted grid, on
Ray or without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from turnout.core.errors import InvalidInput
from turnout.core.files import write_atomically
from turnout.core.names import import_extra
from turnout.data import FederatedData
from turnout.experiment.cell import CellTask, run_cell
from turnout.experiment.code import sources_of
from turnout.experiment.pool import LOOK_EVERY_S, MOST_DEATHS, SINGLE_THREADED, Show, Watch
from turnout.results import files
from turnout.results.files import PREVIOUS, drop_previous, keep_previous
from turnout.results.results import CellResult
from turnout.results.settings import SAME_VERSION, first_difference, versions

#: A cluster must accept a connection within so many seconds.
ANSWER_WITHIN_S = 10.0

_START = (
    "Start a cluster by ray start --head. Without an address, Ray is started on this machine alone."
)

_LOST = f"its worker was lost {MOST_DEATHS} times in a row; run again to resume."


def check_cluster(address: str | None) -> None:
    """Check that Ray is installed and that a cluster accepts connections.

    Args:
        address: As for ``run_on_ray``.

    Raises:
        MissingExtra: If Ray is not installed.
        InvalidInput: If the address does not answer (Ray itself would try for minutes), or
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
        progress: Called with their progress.
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
        recipe = task.experiment.training
        remote = self._ray.remote(work).options(
            name=f"{task.variant.label}, seed {task.seed}",
            num_cpus=1,
            num_gpus=int(recipe is not None and recipe.device.startswith("cuda")),
            max_retries=0,  # Ray would start from the beginning
            runtime_env={"env_vars": dict.fromkeys(SINGLE_THREADED, "1")},
        )
        held = {path.name: path.read_bytes() for path in task.path.glob("*") if path.is_file()}
        self._running[remote.remote(task, self._data_of(task), held)] = task

    def _data_of(self, task: CellTask) -> Any:
        """Return a reference to the data of the cell's seed, which its selectors share."""
        if task.seed not in self._data:
            federation = task.experiment.federation(task.seed)
            if federation is None:
                return None
            seeds = {left.seed for left in self._watch.missing()}
            self._data = {seed: data for seed, data in self._data.items() if seed in seeds}
            self._data[task.seed] = self._ray.put(federation.data)
        return self._data[task.seed]

    def _take(self, parcels: Any) -> None:
        """Take in the next parcel of a worker, or what there is instead."""
        task = self._running.pop(parcels)
        try:
            parcel: Parcel = self._ray.get(next(parcels))
        except self._ray.exceptions.RayTaskError as error:
            self._watch.fail(task, f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError:
            self._losses[task.path] += 1
            if self._losses[task.path] < MOST_DEATHS:
                self._waiting.appendleft(task)  # try again elsewhere
            else:
                self._watch.fail(task, _LOST)
        else:
            unpack(parcel.pieces, task.path)
            if any(piece.name == files.PROGRESS for piece in parcel.pieces):
                del self._losses[task.path]
            if parcel.result is None:
                self._running[parcels] = task  # at the end: the others come first now
            else:
                self._watch.done[task.path] = parcel.result


def _ray() -> Any:
    return import_extra("ray", "backend 'ray' needs Ray: pip install 'turnout[ray]'.")


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start one here; an existing connection stays open."""
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


# --------------------------------------------------------------------------------------------------
# On the worker: a cell runs in a temporary folder, whose changes go back to the caller.
# --------------------------------------------------------------------------------------------------

#: Seconds between two parcels that hold new lines of the log only.
_TELL_EVERY_S = 1.0


class Piece(NamedTuple):
    """New content of a file.

    Attributes:
        name: The file.
        start: The byte at which the content begins; it reaches to the end of the file.
        content: The bytes.
    """

    name: str
    start: int
    content: bytes


class Parcel(NamedTuple):
    """What a worker sends.

    Attributes:
        pieces: The changes of the cell's files, in the order of writing.
        result: How the cell ended; only in the last parcel.
    """

    pieces: Sequence[Piece]
    result: CellResult | None = None


def unpack(pieces: Sequence[Piece], folder: Path) -> None:
    """Write what a worker sent.

    Args:
        pieces: New content of files.
        folder: The folder of the cell; made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(piece.name == files.PROGRESS for piece in pieces):
        keep_previous(folder)
    for piece in pieces:
        if piece.name == files.SUMMARY:
            drop_previous(folder)
        if not piece.start:
            write_atomically(folder / piece.name, piece.content)
            continue
        with (folder / piece.name).open("rb+") as file:
            file.seek(piece.start)
            file.write(piece.content)
            file.truncate()


def work(task: CellTask, data: FederatedData | None, held: Mapping[str, bytes]) -> Iterator[Parcel]:
    """Run a cell in a temporary folder and yield what is new in it.

    Args:
        task: The cell.
        data: The data of its seed; None without training.
        held: The files of the cell that the caller holds, by name.

    Yields:
        At each checkpoint what has changed; in between new lines of the log; at the end the result.
    """
    with tempfile.TemporaryDirectory(prefix="turnout-") as name, ThreadPoolExecutor(1) as thread:
        folder = Path(name)
        for file, content in held.items():
            (folder / file).write_bytes(content)
        here = versions(*(["torch"] if "torch" in task.versions else []))
        here |= sources_of(task.experiment, task.variant)
        names = [name for name in SAME_VERSION if name in task.versions]
        difference = first_difference(
            {name: task.versions[name] for name in names},
            {name: here[name] for name in names},
            saved_in="the caller's process",
            wanted_by=f"that of node {socket.gethostname()}",
        )
        if difference is not None:  # the node would compute other numbers
            raise InvalidInput(f"{difference}. Install the same version on every node.")
        packer = _Packer(folder)
        parcels: SimpleQueue[Parcel | None] = SimpleQueue()

        def on_rounds(n_done: int, measured: Mapping[str, float]) -> None:
            pieces = packer.pieces()
            if pieces:
                parcels.put(Parcel(pieces))

        own = dataclasses.replace(task, path=folder, versions=here, data=data)
        running = thread.submit(run_cell, own, on_rounds)
        running.add_done_callback(lambda _: parcels.put(None))
        while (parcel := parcels.get()) is not None:
            yield parcel
        result = running.result()
        message = result.message.replace(name, str(task.path))
        ended = dataclasses.replace(result, path=task.path, message=message)
        yield Parcel(packer.pieces(is_last=True), ended)


class _Packer:
    """Finds what has changed in the folder of a cell since it was filled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._marks()
        self._seen.pop(files.ROUNDS, None)  # which may be cut
        self._n_logged = 0  # bytes of the log that were sent
        self._sent = time.monotonic()

    def pieces(self, is_last: bool = False) -> list[Piece]:
        """Return what is new, if it is time: at a checkpoint, at the end, or after a while."""
        now, marks = time.monotonic(), self._marks()
        changed = [name for name, mark in marks.items() if self._seen.get(name) != mark]
        is_due = files.PROGRESS in changed or is_last or now - self._sent >= _TELL_EVERY_S
        if not is_due:
            return []
        self._sent, self._seen = now, marks
        # What makes a checkpoint whole, and then a cell, is written last.
        changed.sort(key=lambda name: (name == files.SUMMARY, name == files.PROGRESS))
        return [self._piece(name) for name in changed]

    def _marks(self) -> dict[str, tuple[int, int, int]]:
        """Return what differs after a file was written again, for each file."""
        found = ((path.name, path.stat()) for path in self._folder.iterdir())
        return {
            name: (status.st_ino, status.st_size, status.st_mtime_ns)
            for name, status in found
            if not name.startswith(PREVIOUS)  # the caller keeps what was there before
        }

    def _piece(self, name: str) -> Piece:
        content = (self._folder / name).read_bytes()
        if name != files.ROUNDS:
            return Piece(name, 0, content)
        start, self._n_logged = self._n_logged, len(content)
        return Piece(name, start, content[start:])
