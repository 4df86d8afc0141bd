"""Which cells compare: worlds, the selector variants in each, and how worlds differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout.core.errors import InvalidInput
from turnout.core.names import shortened
from turnout.results.files import EXPERIMENT, DamagedFile, read_json
from turnout.results.reader import Cell, Problem
from turnout.results.scores import Scores, numbers_of
from turnout.results.settings import CellSettings

_SHOWN_DIFFERENCES = 6
#: Settings in which worlds may differ.
_COMPARED = ("kind", "n_clients", "cohort_size", "n_rounds", "world", "policy", "training")


@dataclass(frozen=True, slots=True)
class VariantCells:
    """A selector with its parameters, and its cells, one per seed.

    Attributes:
        name: The label, made unique inside the world.
        cells: Its cells, by seed.
    """

    name: str
    cells: tuple[Cell, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, ascending."""
        return tuple(cell.settings.seed for cell in self.cells)


@dataclass(frozen=True, slots=True)
class WorldGroup:
    """Cells that compare: same world, size, rounds and policy.

    Attributes:
        settings: The settings of the first cell.
        variants: Its selectors, in the order of their experiments.
        n_rounds: Rounds shown; runs that stopped at their target have fewer.
        is_partial: Nothing is complete: shown up to the round that all cells reached.
    """

    settings: CellSettings
    variants: tuple[VariantCells, ...]
    n_rounds: int
    is_partial: bool

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells that are shown."""
        return tuple(cell for variant in self.variants for cell in variant.cells)

    @property
    def is_live(self) -> bool:
        """Whether all its cells are live runs."""
        return all(cell.is_live for cell in self.cells)

    @property
    def title(self) -> str:
        """Its sizes in a few words."""
        settings, sizes = self.settings, self.cohort_sizes
        cohort = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        return f"{settings.n_rounds:,} rounds, {cohort} of {settings.n_clients:,} clients"

    @property
    def scores(self) -> Scores:
        """The numbers of its selectors."""
        runs = ((each.name, zip(each.seeds, each.cells, strict=True)) for each in self.variants)
        return Scores({name: {seed: numbers_of(c) for seed, c in cells} for name, cells in runs})

    @property
    def cohort_sizes(self) -> list[int]:
        """The numbers of clients wanted per round, ascending; usually there is only one."""
        return sorted({cell.settings.cohort_size for cell in self.cells})


def gather(cells: Sequence[Cell]) -> tuple[list[WorldGroup], list[Problem]]:
    """Return the worlds of the cells, in order of appearance, and what to know about them.

    Incomplete cells are left out as long as a world has a complete one; without any, all are cut
    to the round that all reached. Selectors stand in the order in which their experiment lists
    them; those of no experiment follow by name.

    Args:
        cells: Cells of any worlds, as they were read.

    Returns:
        The worlds that have a cell to show, and what the reader must know about them.
    """
    worlds: list[WorldGroup] = []
    problems: list[Problem] = []
    by_world: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        by_world.setdefault(_comparable(cell), []).append(cell)
    ranks = _listed_labels(cells)
    for same_world in by_world.values():
        complete = [cell for cell in same_world if cell.is_complete]
        started = complete or [cell for cell in same_world if cell.n_rounds]
        if not started:
            continue
        single, repeated = _without_repeats(started)
        lengths = [cell.n_rounds for cell in single]
        n_rounds = max(lengths) if complete else min(lengths)
        cut = [cell.first(min(n_rounds, cell.n_rounds)) for cell in single]
        world = WorldGroup(single[0].settings, tuple(_variants(cut, ranks)), n_rounds, not complete)
        worlds.append(world)
        problems += repeated + _remarks(world)
    return worlds, problems


def differences(worlds: Sequence[WorldGroup]) -> list[str]:
    """Return one line per setting that differs between worlds.

    Args:
        worlds: At least two worlds.
    """
    flat = [
        dict(_flat("", {key: getattr(world.settings, key) for key in _COMPARED}))
        for world in worlds
    ]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    lines = []
    for key in keys:
        values = list(dict.fromkeys(settings.get(key, "absent") for settings in flat))
        if len(values) > 1:
            lines.append(f"{key} is {' or '.join(values)}")
    return lines or [f"world_id is {' or '.join(w.settings.world_id for w in worlds)}"]


def refuse_mixed(worlds: Sequence[WorldGroup], advice: str) -> None:
    """Raise unless all cells are of one world.

    Args:
        worlds: The worlds of all cells.
        advice: What to do instead, as a sentence.

    Raises:
        InvalidInput: If there are several; the message names the settings that differ.
    """
    if len(worlds) < 2:
        return
    lines = differences(worlds)
    shown = "; ".join(lines[:_SHOWN_DIFFERENCES])
    more = len(lines) - _SHOWN_DIFFERENCES
    rest = f"; and {more} more" if more > 0 else ""
    raise InvalidInput(
        f"these runs are of {len(worlds)} different worlds and are not comparable: {shown}{rest}. "
        f"{advice}"
    )


def _comparable(cell: Cell) -> tuple[Any, ...]:
    """Return what cells must share to compare; cohort sizes and live clients may differ."""
    own = cell.settings
    return (own.kind, own.world_id, cell.is_live or own.n_clients, own.n_rounds)


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and short values of nested objects."""
    pending = [(key, value)]
    while pending:
        key, value = pending.pop(0)
        if isinstance(value, Mapping) and value:
            inner = [(f"{key}.{name}" if key else name, item) for name, item in value.items()]
            pending = inner + pending
        else:
            yield key, shortened(json.dumps(value, default=str), 60)


def _without_repeats(cells: Iterable[Cell]) -> tuple[list[Cell], list[Problem]]:
    kept: dict[tuple[str, str, int], Cell] = {}
    problems = []
    for cell in cells:
        first = kept.setdefault((*_identity(cell), cell.settings.seed), cell)
        if first is not cell:
            message = f"left out, {first.path} has the same selector, parameters and seed."
            problems.append(Problem("duplicate", str(cell.path), message))
    return list(kept.values()), problems


def _identity(cell: Cell) -> tuple[str, str]:
    settings = cell.settings
    essence = [settings.selector, settings.parameters, settings.cohort_size]
    return settings.label, json.dumps(essence, sort_keys=True)


def _listed_labels(cells: Iterable[Cell]) -> dict[str, int]:
    """Return the rank of each label in the experiments that the cells belong to."""
    experiments = dict.fromkeys(cell.path.resolve().parent.parent for cell in cells)
    labels = dict.fromkeys(label for folder in experiments for label in plan_of(folder)[0])
    return {label: rank for rank, label in enumerate(labels)}


def plan_of(experiment: Path) -> tuple[list[str], int]:
    """Return the labels that an experiment lists, and how many runs it has.

    Args:
        experiment: Its folder; one whose file does not tell has none.
    """
    try:
        table = read_json(experiment / EXPERIMENT)
    except DamagedFile:
        return [], 0
    listed = (table.get(key) for key in ("selectors", "seeds"))
    selectors, seeds = (value if isinstance(value, list) else [] for value in listed)
    labels = [one.get("label") for one in selectors if isinstance(one, dict)]
    return [label for label in labels if isinstance(label, str)], len(selectors) * len(seeds)


def _variants(cells: Iterable[Cell], ranks: Mapping[str, int]) -> list[VariantCells]:
    by_identity: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_identity.setdefault(_identity(cell), []).append(cell)
    labels = [label for label, _ in by_identity]
    taken: dict[str, int] = {}
    variants = []
    for (label, _), members in by_identity.items():
        experiment = members[0].settings.experiment
        name = label if labels.count(label) == 1 else f"{label} ({experiment})"
        taken[name] = taken.get(name, 0) + 1
        name = name if taken[name] == 1 else f"{name} #{taken[name]}"
        members.sort(key=lambda cell: cell.settings.seed)
        variants.append(VariantCells(name, tuple(members)))
    return sorted(variants, key=lambda variant: _place(variant, ranks))


def _place(variant: VariantCells, ranks: Mapping[str, int]) -> tuple[int, list[tuple[int, str]]]:
    """Order by rank, then by name with numbers by size: pow-d-9 before pow-d-10."""
    parts = re.split(r"(\d+)", variant.name.lower())
    natural = [(int(part[:18]) if part.isdecimal() else 0, part) for part in parts]
    return ranks.get(variant.cells[0].settings.label, len(ranks)), natural


def _remarks(world: WorldGroup) -> list[Problem]:
    """Return what a reader must know about the comparison itself."""
    remarks, cells = [], world.cells
    differing: dict[str, Callable[[VariantCells], str]] = {
        "the selectors were not run with the same seeds, so means are not paired": (
            lambda variant: ", ".join(map(str, variant.seeds))
        ),
        "the selectors ask for different numbers of clients per round": (
            lambda variant: f"{variant.cells[0].settings.cohort_size:,}"
        ),
    }
    for text, value_of in differing.items():
        names: dict[str, list[str]] = {}
        for variant in world.variants:
            names.setdefault(value_of(variant), []).append(variant.name)
        if len(names) > 1:
            spelled = "; ".join(f"{', '.join(those)}: {value}" for value, those in names.items())
            remarks.append(f"{text} ({spelled}).")
    if world.is_partial:
        remarks.append(
            f"no cell is complete yet: everything is shown up to round {world.n_rounds} of "
            f"{world.settings.n_rounds}, which all {len(cells)} started cells reached."
        )
    n_stopped = sum(cell.has_stopped for cell in cells)
    if n_stopped:
        remarks.append(
            f"{n_stopped} of {len(cells)} runs stopped at their target before round "
            f"{world.settings.n_rounds}: curves end with the selector's first run to stop, and "
            "totals such as CEP are of unequal lengths."
        )
    broken = {
        variant.name: sum(max(0, int(c.summary.get("broken_answers", 0))) for c in variant.cells)
        for variant in world.variants
    }
    if any(broken.values()):
        counts = ", ".join(f"{name}: {count:,}" for name, count in broken.items() if count)
        remarks.append(
            "some clients trained to a loss or weights that are not finite; their replies count as "
            f"failed ({counts})."
        )
    written_by = {str(cell.versions.get("turnout")) for cell in cells}
    if len(written_by) > 1:
        text = "the cells were written by different versions of turnout"
        remarks.append(f"{text}: {', '.join(sorted(written_by))}.")
    return [Problem("note", "", remark) for remark in remarks]
