"""What a cell was run with: ``config.json``, and how it differs from what is wanted now."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from turnout.names import shortened
from turnout.runs.files import FORMAT, DamagedFile, read_json

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
        config = _Config(path, read_json(path))
        version = config.table.get("format", FORMAT)
        if type(version) is int and version > FORMAT:
            fault = f" has format {version}, this turnout reads up to {FORMAT}: upgrade turnout"
            raise DamagedFile(path, fault)
        label = config.text("label")
        return cls(
            experiment=config.text("experiment", ""),
            kind=config.text("kind", "simulation"),
            label=label,
            selector=config.text("selector", label),
            parameters=config.object("parameters"),
            seed=config.integer("seed", 0),
            n_clients=config.integer("n_clients", 1, _MOST_CLIENTS),
            cohort_size=config.integer("cohort_size", 1),
            n_rounds=config.integer("n_rounds", 1),
            world=config.object("world"),
            world_id=config.text("world_id"),
            policy=config.object("policy"),
            classes=config.object("classes"),
            training=config.object("training"),
            quorum=config.object("quorum"),
        )


class _Config(NamedTuple):
    """The fields of a ``config.json``, each checked as it is taken."""

    path: Path
    table: Mapping[str, Any]

    def text(self, key: str, default: str | None = None) -> str:
        value = self.table.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._wrong(key, "text")
        return value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be shown

    def integer(self, key: str, minimum: int, maximum: int = 2**63) -> int:
        value = self.table.get(key)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self._wrong(key, f"an integer >= {minimum}")
        return value

    def object(self, key: str) -> dict[str, Any]:
        value = self.table.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value or {}

    def _wrong(self, key: str, wanted: str) -> DamagedFile:
        fault = f": {key} must be {wanted}, got {_shown(self.table.get(key))}"
        return DamagedFile(self.path, fault)


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
