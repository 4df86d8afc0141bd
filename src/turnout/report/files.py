"""The files of a cell, read with suspicion: what is not usable raises ``Damaged``."""

from __future__ import annotations

import itertools
import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from turnout.types import Array, FloatArray, IntArray

__all__ = [
    "Choices",
    "Damaged",
    "Rounds",
    "number",
    "read_choices",
    "read_object",
    "read_rounds",
    "read_scores",
]

#: Larger numbers count as missing: sums and squares of the others stay finite.
_LARGEST = 1e30

#: Columns without which a round cannot be judged.
_REQUIRED = ("chosen", "completed", "length_s")
_UNREADABLE_JSON = (OSError, ValueError, RecursionError)
_UNREADABLE_NPZ = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    SyntaxError,
    RuntimeError,  # an encrypted or unknown compression, NotImplementedError included
    MemoryError,  # a header that promises more than there is
    OverflowError,
)


class Damaged(Exception):
    """A file of a run folder cannot be used; the message says which and why."""


def number(value: Any) -> float:
    """Return a JSON number of sane size as a float; NaN for null and for everything else."""
    is_number = type(value) in (int, float) and abs(value) <= _LARGEST
    return float(value) if is_number else math.nan


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except _UNREADABLE_JSON as error:
        raise Damaged(f"{path.name} is not readable JSON ({_reason(error)})") from error
    if not isinstance(found, dict):
        raise Damaged(f"{path.name} holds a {type(found).__name__}, not an object")
    return found


class Rounds(NamedTuple):
    """The rounds of ``rounds.jsonl`` up to the first gap, by column."""

    series: Mapping[str, FloatArray]  #: (T,) each; NaN = null
    n_rounds: int  #: T
    n_unreadable: int  #: lines that are no round, a torn last line included


def read_rounds(path: Path) -> Rounds:
    """Return the columns of ``rounds.jsonl``; a round written twice counts as written last."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({_reason(error)})") from error
    parsed = [_record(line) for line in lines if line.strip()]
    by_round = {record["round"]: record for record in parsed if record is not None}
    n_rounds = next(t for t in itertools.count() if t not in by_round)
    records = [by_round[t] for t in range(n_rounds)]
    names = dict.fromkeys(name for record in records for name in record)
    series = {name: np.array([number(record.get(name)) for record in records]) for name in names}
    for name in _REQUIRED:
        if records and not np.isfinite(series.get(name, np.zeros(0))).any():
            raise Damaged(f"{path.name} has no numbers under {name!r}")
    return Rounds(series, n_rounds, parsed.count(None))


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except _UNREADABLE_JSON:
        return None
    is_round = isinstance(found, dict) and type(found.get("round")) is int
    return found if is_round else None


@dataclass(frozen=True, slots=True)
class Choices:
    """Who was chosen when: round t holds entries ``offsets[t] .. offsets[t + 1] - 1``."""

    offsets: IntArray  #: (T + 1,)
    clients: IntArray  #: (choices,)
    class_of: IntArray | None  #: (n,)
    per_round: Mapping[str, FloatArray]  #: (T,) each: regret, bound, backlog_mean, backlog_max

    @property
    def n_rounds(self) -> int:
        """T."""
        return self.offsets.size - 1

    def first(self, n_rounds: int) -> Self:
        """Return the first rounds only."""
        offsets = self.offsets[: n_rounds + 1]
        per_round = {name: values[:n_rounds] for name, values in self.per_round.items()}
        return type(self)(offsets, self.clients[: offsets[-1]], self.class_of, per_round)


def read_choices(path: Path, n_clients: int) -> Choices:
    """Return the part of ``selections.npz`` that a report draws, checked against the settings."""
    required = ("offsets", "clients")
    others = _arrays(path, required, ("class_of", "regret", "bound", "backlog_mean", "backlog_max"))
    offsets, clients = (others.pop(name) for name in required)
    _check_record(path.name, offsets, clients, n_clients)
    class_of = others.pop("class_of", None)
    if class_of is not None and not (_is_index(class_of) and class_of.shape == (n_clients,)):
        raise Damaged(f"{path.name}: class_of is not one class for each of {n_clients} clients")
    per_round: dict[str, FloatArray] = {}
    for name, values in others.items():
        if values.dtype.kind not in "fiu" or values.shape != (offsets.size - 1,):
            raise Damaged(f"{path.name}: {name} is not one number per round")
        per_round[name] = _sane(values)
    return Choices(offsets.astype(np.int64), clients.astype(np.int64), class_of, per_round)


def read_scores(path: Path, n_clients: int) -> dict[str, FloatArray]:
    """Return (n,) loss and accuracy of the final model on each client's own examples."""
    found = _arrays(path, ("loss", "accuracy"))
    for name, values in found.items():
        if values.dtype.kind not in "fiu" or values.shape != (n_clients,):
            raise Damaged(f"{path.name}: {name} is not one number for each of {n_clients} clients")
    return {name: _sane(values) for name, values in found.items()}


def _arrays(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Array]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            found = {name: file[name] for name in required}
            return found | {name: file[name] for name in optional if name in file.files}
    except FileNotFoundError:
        raise Damaged(f"{path.name} is missing") from None
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({_reason(error)})") from error
    except _UNREADABLE_NPZ as error:
        raise Damaged(f"{path.name} is not a complete .npz of a run") from error


def _sane(values: Array) -> FloatArray:
    numbers = values.astype(np.float64)
    return np.where(np.abs(numbers) <= _LARGEST, numbers, np.nan)


def _check_record(name: str, offsets: Array, clients: Array, n_clients: int) -> None:
    if not (_is_index(offsets) and _is_index(clients) and offsets.size >= 1):
        raise Damaged(f"{name}: offsets and clients must be columns of integers")
    is_ordered = offsets[0] == 0 and offsets[-1] == clients.size
    if not is_ordered or (offsets[1:] < offsets[:-1]).any():
        raise Damaged(f"{name}: offsets do not fit the {clients.size} choices")
    if clients.size and not (clients.min() >= 0 and clients.max() < n_clients):
        raise Damaged(f"{name}: a chosen client is outside 0 .. {n_clients - 1}")


def _is_index(values: Array) -> bool:
    return values.ndim == 1 and values.dtype.kind in "iu"


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:120]}" if text else type(error).__name__
