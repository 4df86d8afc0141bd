"""The checkpoint of a run: selector, roster, and everything else that the next round depends on.

It is an ``.npz`` of arrays with a JSON header, rewritten after each round; a crash leaves the old
file or the new one. Clients are stored by stable id; addresses occur only as bindings of ids. What
the framework saves (the model, the state of a strategy) is stored unopened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import StateFileError
from turnout.core.files import UNREADABLE, npz_bytes, read_npz, write_atomically
from turnout.core.types import Array
from turnout.results.settings import first_difference

#: Version of the file format; a file with a larger number was written by a newer turnout.
FORMAT = 1
_HEADER = "header"

#: What may differ between the checkpoint and the run that resumes from it.
MAY_CHANGE = ("cohort_size", "policy", "bounds")


@dataclass(frozen=True)
class Checkpoint:
    """What is saved after a round."""

    settings: Mapping[str, Any]  #: what a checkpoint belongs to, see ``LiveSettings.identity``
    rounds_done: int
    roster: str  #: as JSON
    #: Stable id, the wall time until which it is busy at most, and the seconds until then.
    busy: list[list[Any]]
    seen: list[str]  #: metrics that clients have reported
    metrics: Mapping[str, Any]  #: aggregated metrics, by kind and round
    #: Arrays by owner: selector, observed, columns, run, world, bounds.
    arrays: Mapping[str, Mapping[str, Array]]
    bindings: list[list[Any]] = field(default_factory=list)  #: stable id and address
    void: list[int] = field(default_factory=list)  #: rounds with too few answers, from 1
    host: Mapping[str, Any] = field(default_factory=dict)  #: the framework's own, plain
    host_arrays: Mapping[str, Array] = field(default_factory=dict)  #: by names without a slash
    kind: str = ""  #: of the run, in a checkpoint that was read


_NEEDED = ("settings", "rounds_done", "roster", "busy", "seen", "metrics")
_PLAIN = (*_NEEDED, "bindings", "void")


def write_checkpoint(path: str | os.PathLike[str], saved: Checkpoint, kind: str) -> None:
    """Write the file; a crash leaves the old one or the new one."""
    write_atomically(Path(path), checkpoint_bytes(saved, kind))


def checkpoint_bytes(saved: Checkpoint, kind: str) -> bytes:
    """Return the content of the file."""
    header: dict[str, Any] = {"format": FORMAT, "kind": kind, **saved.host}
    header |= {name: getattr(saved, name) for name in _PLAIN}
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    arrays: dict[str, Array] = {_HEADER: text, **saved.host_arrays}
    for owner, table in saved.arrays.items():
        arrays |= {f"{owner}/{name}": values for name, values in table.items()}
    return npz_bytes(arrays)


def read_checkpoint(source: str | os.PathLike[str] | bytes, kind: str | None = None) -> Checkpoint:
    """Return what a file, or its content, holds, or raise ``StateFileError``.

    Args:
        source: The file, or its bytes.
        kind: The kind of run that it must be of; None takes every kind.
    """
    path = "the checkpoint" if isinstance(source, bytes) else source
    try:
        saved = read_npz(source)
        text = saved.pop(_HEADER)  # earlier versions wrote four bytes for each letter
        header = json.loads(str(text) if text.dtype.kind == "U" else text.tobytes())
        found = str(header.pop("kind"))
        if kind not in (None, found):
            raise StateFileError(f"{path} is not a checkpoint of a run of kind {kind!r}.")
        version = header.pop("format")
        if version > FORMAT:
            raise StateFileError(
                f"{path} has format {version}, this turnout reads up to {FORMAT}: upgrade turnout."
            )
        plain = {name: header.pop(name) for name in _NEEDED}
        plain |= {name: header.pop(name) for name in _PLAIN if name in header}
        arrays: dict[str, dict[str, Array]] = {}
        host: dict[str, Array] = {}
        for name, values in saved.items():
            owner, slash, own = name.partition("/")
            (arrays.setdefault(owner, {}) if slash else host)[own or name] = values
        return Checkpoint(arrays=arrays, host=header, host_arrays=host, kind=found, **plain)
    except StateFileError:
        raise
    except UNREADABLE as error:
        raise StateFileError(
            f"{path} is not a complete checkpoint ({type(error).__name__}: {error}); delete it to "
            "start again, or restore it from an earlier copy."
        ) from error


def check_settings(
    path: str | os.PathLike[str], saved: Mapping[str, Any], here: Mapping[str, Any]
) -> str | None:
    """Refuse a checkpoint of another selector; return a change that is allowed, in words."""
    compare = partial(first_difference, saved_in="the checkpoint", wanted_by="this run")
    for name in here:
        if name in MAY_CHANGE:
            continue
        difference = compare(saved.get(name), here.get(name), name)
        if difference is not None:
            raise StateFileError(
                f"{path} belongs to another run: {difference}. Give another checkpoint, or delete "
                "it to start again."
            )
    return compare(saved, here)
