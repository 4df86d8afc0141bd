"""A cell on a worker of a cluster: in a temporary folder, whose changes go back to the caller."""

from __future__ import annotations

import dataclasses
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from turnout.data import FederatedData
from turnout.errors import InvalidInput
from turnout.experiment.cell import run_cell
from turnout.experiment.code import code_of, files_of
from turnout.experiment.task import CellResult, CellTask
from turnout.runs import files
from turnout.runs.generations import PREVIOUS, drop_previous, keep_previous
from turnout.runs.settings import first_difference
from turnout.runs.versions import SAME_VERSION, versions
from turnout.storage import write_atomically

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
        pieces: What is new in the files of the cell, in the order of writing.
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
        here["code"] = code_of(task.experiment, task.variant)
        here["files"] = files_of(task.experiment, task.variant)
        _check_versions(task.versions, here)
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
        yield Parcel(packer.pieces(is_last=True), dataclasses.replace(result, message=message))


class _Packer:
    """Finds what has changed in the folder of a cell since it was filled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        held = (path for path in folder.iterdir() if path.name != files.ROUNDS)  # which may be cut
        self._seen = {path.name: _mark(path) for path in held}
        self._n_logged = 0  # bytes of the log that were sent
        self._sent = time.monotonic()

    def pieces(self, is_last: bool = False) -> list[Piece]:
        """Return what is new, if it is time: at a checkpoint, at the end, or after a while."""
        now = time.monotonic()
        changed = [path for path in self._folder.iterdir() if self._is_new(path)]
        is_checkpoint = any(path.name == files.PROGRESS for path in changed)
        if not (is_checkpoint or is_last) and now - self._sent < _TELL_EVERY_S:
            return []
        self._sent = now
        for path in changed:
            self._seen[path.name] = _mark(path)
        # What makes a checkpoint whole, and then a cell, is written last.
        changed.sort(key=lambda path: (path.name == files.SUMMARY, path.name == files.PROGRESS))
        return [self._piece(path) for path in changed]

    def _is_new(self, path: Path) -> bool:
        is_own = path.name.startswith(PREVIOUS)  # the caller keeps what was there before
        return not is_own and self._seen.get(path.name) != _mark(path)

    def _piece(self, path: Path) -> Piece:
        content = path.read_bytes()
        if path.name != files.ROUNDS:
            return Piece(path.name, 0, content)
        start, self._n_logged = self._n_logged, len(content)
        return Piece(path.name, start, content[start:])


def _mark(path: Path) -> tuple[int, int, int]:
    """Return what differs after a file was written again."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_versions(there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise if a node computes with other versions than the caller has."""
    names = [name for name in SAME_VERSION if name in there]
    difference = first_difference(
        {name: there[name] for name in names},
        {name: here[name] for name in names},
        saved_in="the caller's process",
        wanted_by=f"that of node {socket.gethostname()}",
    )
    if difference is not None:
        raise InvalidInput(f"{difference}. Install the same version on every node.")
