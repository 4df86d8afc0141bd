"""Run folders: what is written for a cell, and how it is read back.

A cell is one selector with one seed. ``summary.json`` is written last: its presence means that the
cell is complete. ``progress.npz`` is written last of a checkpoint and holds digests of the other
files, so that a checkpoint torn by a crash is noticed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import subprocess
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import turnout
from turnout.errors import TurnoutError
from turnout.persist import write_atomically
from turnout.simulate import Run
from turnout.types import Array

__all__ = ["Cell", "FolderError", "first_difference", "read_cell", "read_json", "versions"]

#: Version of the run folder's format.
FORMAT = 1

CONFIG, VERSIONS, ROUNDS = "config.json", "versions.json", "rounds.jsonl"
SELECTIONS, STATE, PROGRESS = "selections.npz", "state.npz", "progress.npz"
SUMMARY, EXPERIMENT = "summary.json", "experiment.json"
#: Only with training: the global model of the last checkpoint, every client's scores at the end.
MODEL, CLIENT_SCORES = "model.npz", "client_scores.npz"

#: Columns of a run in ``selections.npz``, by what they have one entry for.
PER_CHOICE: Mapping[str, type] = {
    "clients": np.int64,
    "status": np.int8,
    "duration": np.float64,
    "spent": np.float64,
    "probability": np.float64,
}
PER_ROUND: Mapping[str, type] = {"length_s": np.float64, "n_available": np.int64}
#: How the names of what training measured begin there; (T,) each, NaN = not measured.
MEASURED = "measured."


class FolderError(TurnoutError, ValueError):
    """A run folder is damaged, or belongs to another experiment."""


@dataclass(frozen=True)
class Cell:
    """A complete cell, read back."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    columns: dict[str, Array]

    @property
    def run(self) -> Run:
        """The run in columns."""
        names = (*PER_CHOICE, *PER_ROUND, "offsets")
        given: dict[str, Any] = {name: self.columns[name] for name in names}
        given["measured"] = measured_of(self.columns)
        return Run(self.config["n_clients"], self.config["cohort_size"], **given)


def read_cell(path: Path) -> Cell:
    """Return a complete cell, or raise ``FolderError`` naming the file that is damaged."""
    if not (path / SUMMARY).exists():
        raise FolderError(f"{path} is not complete: it has no {SUMMARY}; run it again to go on.")
    cell = Cell(
        path, read_json(path / CONFIG), read_json(path / SUMMARY), read_arrays(path / SELECTIONS)
    )
    try:
        _check_columns(cell.run)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _damaged(path / SELECTIONS, error) from error
    return cell


def measured_of(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the columns that training measured, under their own names."""
    return {
        name.removeprefix(MEASURED): values
        for name, values in columns.items()
        if name.startswith(MEASURED)
    }


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, or raise ``FolderError``."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _damaged(path, error) from error
    if not isinstance(table, dict):
        raise _damaged(path, TypeError(f"an object is expected, got {type(table).__name__}"))
    return table


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of an ``.npz``, or raise ``FolderError``."""
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, error) from error


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a JSON object; numbers that are not finite become null."""
    text = json.dumps(_finite(table), indent=2, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> str:
    """Write an ``.npz`` and return the digest of its bytes."""
    buffer = io.BytesIO()
    given: dict[str, Any] = dict(arrays)
    np.savez(buffer, **given)
    content = buffer.getvalue()
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def digest_of(path: Path) -> str:
    """Return the digest of a file's bytes; empty if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def first_difference(there: Any, here: Any, key: str = "") -> str | None:
    """Return where two plain values differ, in words, or None.

    >>> first_difference({"n_rounds": 500}, {"n_rounds": 900})
    'n_rounds is 500 there and 900 here'
    """
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys((*there, *here)):
            inner = f"{key}.{name}" if key else str(name)
            found = first_difference(there.get(name), here.get(name), inner)
            if found is not None:
                return found
        return None
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = enumerate(zip(there, here, strict=True))
        steps = (first_difference(a, b, f"{key}[{i}]") for i, (a, b) in pairs)
        return next((step for step in steps if step is not None), None)
    return None if there == here else f"{key} is {_short(there)} there and {_short(here)} here"


def versions(*packages: str) -> dict[str, Any]:
    """Return what ran: versions, platform, and the state of turnout's own repository if any."""
    sha, dirty = _git_state(Path(turnout.__file__).parent)
    return {
        "turnout": turnout.__version__,
        "numpy": np.__version__,
        **{name: metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": sha,
        "dirty": dirty,
    }


def _git_state(package: Path) -> tuple[str | None, bool | None]:
    """Return commit and dirtiness if the package itself is tracked by git, else (None, None)."""
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    sha = _git(package, "rev-parse", "HEAD") if tracked else None
    if sha is None:
        return None, None
    changed = _git(package, "status", "--porcelain")
    return sha, None if changed is None else bool(changed)


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _check_columns(run: Run) -> None:
    """Raise if columns of a run do not fit together."""
    sizes = {name: getattr(run, name).shape for name in (*PER_CHOICE, *PER_ROUND)}
    n_choices, n_rounds = int(run.offsets[-1]), run.n_rounds
    sizes |= {f"{MEASURED}{name}": values.shape for name, values in run.measured.items()}
    for name, shape in sizes.items():
        expected = (n_choices,) if name in PER_CHOICE else (n_rounds,)
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, expected {expected}")


def _damaged(path: Path, error: Exception) -> FolderError:
    what = "is missing" if isinstance(error, FileNotFoundError) else f"is damaged ({error})"
    return FolderError(f"{path} {what}; delete the folder {path.parent} and run again.")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: Any) -> str:
    text = json.dumps(value) if value is not None else "not given"
    return text if len(text) <= 60 else f"{text[:57]}..."
