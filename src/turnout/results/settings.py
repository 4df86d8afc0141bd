"""What a cell was run with: ``config.json``, and how it differs from what is wanted now."""

from __future__ import annotations

import functools
import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np

from turnout.core.names import shortened
from turnout.core.version import __version__
from turnout.results.files import FORMAT, DamagedFile, read_json

#: Plausible size of a federation: larger numbers are taken for damage, not for memory.
_MOST_CLIENTS = 100_000_000
_MOST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class CellSettings:
    """What a cell was run with.

    Attributes:
        experiment: Name of the experiment.
        kind: simulation, training or flower.
        label: The selector's label.
        selector: The selector's name.
        parameters: The selector's parameters.
        seed: The seed.
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
        n_rounds: Rounds planned.
        world: The models of the world.
        world_id: Equal for cells whose clients fare the same.
        policy: How a round ends.
        classes: Names of the clients' classes and what they mean; empty if there are none.
        training: What was trained; empty for a simulation.
        quorum: How many answers a round of a live run needs; empty for others.
    """

    experiment: str
    kind: str
    label: str
    selector: str
    parameters: Mapping[str, Any]
    seed: int
    n_clients: int
    cohort_size: int
    n_rounds: int
    world: Mapping[str, Any]
    world_id: str
    policy: Mapping[str, Any]
    classes: Mapping[str, Any]
    training: Mapping[str, Any]
    quorum: Mapping[str, Any] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[float, ...]:
        """Accuracies of which the run was asked when it reached them."""
        written = self.training.get("target_accuracy")
        several: list[Any] = written if isinstance(written, list) else [written]
        return tuple(
            float(target)
            for target in several
            if type(target) in (int, float) and 0.0 < target <= 1.0
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the settings in a file, checked.

        Args:
            path: The ``config.json`` of a cell.

        Raises:
            DamagedFile: If the file or a field of it cannot be used.
        """
        table = read_json(path)
        version = table.get("format", FORMAT)
        if type(version) is int and version > FORMAT:
            fault = f" has format {version}, this turnout reads up to {FORMAT}: upgrade turnout"
            raise DamagedFile(path, fault)
        usual = {"experiment": "", "kind": "simulation", "selector": table.get("label")}
        values: dict[str, Any] = {}
        for each in fields(cls):
            value = table.get(each.name, usual.get(each.name))
            wanted = _wanted(each.name, str(each.type), value)
            if wanted:
                fault = f": {each.name} must be {wanted}, got {_shown(value)}"
                raise DamagedFile(path, fault)
            if isinstance(value, str):  # a lone surrogate cannot be shown
                value = value.encode("utf-8", "replace").decode()
            values[each.name] = {} if value is None else value
        return cls(**values)


#: The smallest integers that make sense, and the largest.
_RANGES = {"seed": (0, 2**63), "n_clients": (1, _MOST_CLIENTS)}


def _wanted(name: str, kind: str, value: Any) -> str:
    """Return what a field of a ``config.json`` should have been; empty if it is that."""
    if kind == "str":
        is_right = isinstance(value, str) and (bool(value) or name == "experiment")
        return "" if is_right else "text"
    if kind == "int":
        low, high = _RANGES.get(name, (1, 2**63))
        return "" if type(value) is int and low <= value <= high else f"an integer >= {low}"
    return "" if value is None or isinstance(value, dict) else "an object"


def first_difference(
    there: Any,
    here: Any,
    key: str = "",
    *,
    saved_in: str = "the folder",
    wanted_by: str = "the experiment",
) -> str | None:
    """Return where two plain values differ first, in words, or None.

    Args:
        there: What was saved.
        here: What is wanted now.
        key: Name of the values; nested names are joined by dots.
        saved_in: What holds the first value, in words.
        wanted_by: What has the second one, in words.

    >>> first_difference({"n_rounds": 500}, {"n_rounds": 900})
    'n_rounds is 500 in the folder and 900 in the experiment'

    """
    compare = functools.partial(first_difference, saved_in=saved_in, wanted_by=wanted_by)
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in dict.fromkeys((*there, *here)):
            inner = f"{key}.{name}" if key else str(name)
            difference = compare(there.get(name), here.get(name), inner)
            if difference is not None:
                return difference
        return None
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = enumerate(zip(there, here, strict=True))
        differences = (compare(a, b, f"{key}[{i}]") for i, (a, b) in pairs)
        return next((each for each in differences if each is not None), None)
    if there == here:
        return None
    return f"{key} is {_shown(there)} in {saved_in} and {_shown(here)} in {wanted_by}"


def _shown(value: Any) -> str:
    return "nothing" if value is None else shortened(json.dumps(value), _MOST_SHOWN)


# --------------------------------------------------------------------------------------------------
# What ran: versions, platform, and the state of the repository.
# --------------------------------------------------------------------------------------------------

#: What must be the same in all cells of an experiment: another version may compute other numbers.
SAME_VERSION = ("turnout", "numpy", "torch", "code", "files")

_PACKAGE = Path(__file__).parents[1]


def versions(*packages: str) -> dict[str, Any]:
    """Return what ran: versions, platform, and the state of turnout's own repository if any.

    Args:
        packages: Names of further packages whose version counts.

    """
    sha, dirty = _git_state(_PACKAGE)
    return {
        "turnout": __version__,
        "numpy": np.__version__,
        **{name: metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": sha,
        "dirty": dirty,
    }


def tools(*, trains: bool) -> dict[str, Any]:
    """Return the versions that kept results depend on, without details of the machine.

    Args:
        trains: Whether models are trained.
    """
    own = ("turnout", "numpy", "torch", "python")
    installed = versions(*(["torch"] if trains else []))
    return {name: version for name, version in installed.items() if name in own}


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
