"""One file per run: selector, roster, model and everything else that the next round depends on.

An ``.npz`` of arrays with a JSON header, written anew after each round; a crash leaves the old file
or the new one. Clients stand in it by stable id, never by node id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from turnout.errors import StateFileError
from turnout.integrations.flower.inner_state import decode_arrays, encode_arrays
from turnout.runs.settings import first_difference
from turnout.storage import UNREADABLE, read_npz, write_npz
from turnout.types import Array

__all__ = ["Checkpoint", "check_settings", "read_checkpoint", "write_checkpoint"]

#: Version of the file format; a file with a larger number was written by a newer turnout.
FORMAT = 1
_KIND = "turnout-flower"
_HEADER = "header"

#: What must be the same here and there; the rest may be changed between two runs.
_FIXED = ("selector", "parameters", "seed", "strategy", "model")


@dataclass(frozen=True)
class Checkpoint:
    """What is saved after a round."""

    settings: Mapping[str, Any]  #: what a checkpoint belongs to, see ``Settings.identity``
    rounds_done: int
    is_evaluated: bool  #: whether the last round's evaluation is part of it
    model: ArrayRecord
    roster: str  #: as JSON
    busy: list[list[Any]]  #: stable id and the wall time until which it is busy at most
    seen: list[str]  #: metrics that clients have reported
    metrics: Mapping[str, Any]  #: aggregated metrics, by kind and round
    inner: Mapping[str, Any]  #: state of the inner strategy
    inner_arrays: list[Array]
    #: Arrays by owner: selector, observed, columns, run, world, bounds.
    arrays: Mapping[str, Mapping[str, Array]]


_PLAIN = ("settings", "rounds_done", "is_evaluated", "roster", "busy", "seen", "metrics", "inner")


def write_checkpoint(path: str | os.PathLike[str], saved: Checkpoint) -> None:
    """Write the file; a crash leaves the old one or the new one."""
    parts: list[Array] = []
    header: dict[str, Any] = {"format": FORMAT, "kind": _KIND}
    header |= {name: getattr(saved, name) for name in _PLAIN}
    header["model"] = encode_arrays(saved.model, parts)
    header["counts"] = [len(parts), len(saved.inner_arrays)]
    arrays: dict[str, Array] = {_HEADER: np.array(json.dumps(header))}
    arrays |= {f"model.{i}": part for i, part in enumerate(parts)}
    arrays |= {f"inner.{i}": part for i, part in enumerate(saved.inner_arrays)}
    for owner, table in saved.arrays.items():
        arrays |= {f"{owner}/{name}": values for name, values in table.items()}
    write_npz(path, arrays)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return what a file holds, or raise ``StateFileError``."""
    try:
        saved = read_npz(path)
        header = json.loads(str(saved[_HEADER]))
        if header["kind"] != _KIND:
            raise StateFileError(f"{path} is not a checkpoint of a Flower run.")
        if header["format"] > FORMAT:
            raise StateFileError(
                f"{path} has format {header['format']}, this turnout reads up to {FORMAT}: "
                "upgrade turnout."
            )
        n_model, n_inner = header["counts"]
        model = decode_arrays(header["model"], [saved[f"model.{i}"] for i in range(n_model)])
        inner = [saved[f"inner.{i}"] for i in range(n_inner)]
        arrays: dict[str, dict[str, Array]] = {}
        for name, values in saved.items():
            owner, slash, own = name.partition("/")
            if slash:
                arrays.setdefault(owner, {})[own] = values
        plain = {name: header[name] for name in _PLAIN}
        return Checkpoint(model=model, inner_arrays=inner, arrays=arrays, **plain)
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
    for name in _FIXED:
        difference = compare(saved.get(name), here.get(name), name)
        if difference is not None:
            raise StateFileError(
                f"{path} belongs to another run: {difference}. Give another checkpoint, or delete "
                "it to start again."
            )
    return compare(saved, here)
