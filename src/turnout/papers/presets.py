"""The papers' numerical experiments as data: what is run, drawn and claimed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Self

from turnout.errors import InvalidInput
from turnout.experiment import Experiment
from turnout.names import nearest
from turnout.papers.claims import Claim

__all__ = [
    "CostTable",
    "Figure",
    "NumbersTable",
    "Preset",
    "RegretTable",
    "load_preset",
    "preset_names",
]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    number: int
    draws: str  #: a name of ``turnout.papers.plots.DRAWINGS``
    schemes: tuple[str, ...]


@dataclass(frozen=True)
class CostTable:
    """One measure of variants of the same schemes, side by side."""

    title: str
    measure: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  #: name of the row, then a scheme per column

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that must have been run."""
        return tuple(label for row in self.rows for label in row[1:])


@dataclass(frozen=True)
class RegretTable:
    """Schemes whose regret is shown beside its bound."""

    title: str
    schemes: tuple[str, ...]


@dataclass(frozen=True)
class NumbersTable:
    """A table of the paper: one number per scheme, shown beside ours."""

    title: str
    measure: str
    rows: tuple[tuple[str, float], ...]  #: scheme, what the paper prints


@dataclass(frozen=True)
class Preset:
    """A paper's numerical section."""

    title: str
    paper: str
    experiment: Experiment
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]
    overview: tuple[str, ...]  #: measures shown for every scheme
    notes: tuple[str, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)  #: scheme -> its published form
    cost: CostTable | None = None
    regret: RegretTable | None = None
    numbers: NumbersTable | None = None

    @classmethod
    def from_table(
        cls,
        table: Mapping[str, Any],
        *,
        seeds: int,
        rounds: int,
        training: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the preset of a table, changed as ``load_preset`` says."""
        tables = dict(table)
        experiment = _resized(tables.pop("experiment"), seeds, rounds)
        if training:
            experiment = _retrained(experiment, training)
        figures = tuple(_made(Figure, figure) for figure in tables.pop("figures"))
        claims = tuple(_made(Claim, claim) for claim in tables.pop("claims"))
        optional = {"cost": CostTable, "regret": RegretTable, "numbers": NumbersTable}
        shown = {
            name: _made(kind, tables.pop(name)) for name, kind in optional.items() if name in tables
        }
        return cls(
            experiment=Experiment.from_table(experiment),
            figures=figures,
            claims=claims,
            **shown,
            **{name: _frozen(value) for name, value in tables.items()},
        )

    def figure(self, number: int) -> Figure:
        """Return a figure, or say which there are."""
        for figure in self.figures:
            if figure.number == number:
                return figure
        known = ", ".join(str(figure.number) for figure in self.figures)
        raise InvalidInput(f"{self.title} has no figure {number} here; choose from {known}.")

    def claims_of(self, numbers: tuple[int, ...]) -> tuple[Claim, ...]:
        """Return the claims about some of the figures."""
        return tuple(claim for claim in self.claims if claim.figure in numbers)

    def schemes_for(self, numbers: tuple[int, ...], *, times: int, extras: bool) -> list[str]:
        """Return the schemes that must run for some figures, in the preset's order.

        ``times`` = 1 is the paper's own length; longer runs serve only the claims that ask for
        them. ``extras`` adds the published forms, the cost table and the regret table.
        """
        claims = [claim for claim in self.claims_of(numbers) if claim.times == times]
        wanted = {label for claim in claims for label in claim.labels}
        if times == 1:
            for number in numbers:
                wanted.update(self.figure(number).schemes)
            if extras:
                wanted.update(self.experiment.labels)
        return [label for label in self.experiment.labels if label in wanted]


def preset_names() -> tuple[str, ...]:
    """Return the names of the papers that can be reproduced."""
    folder = resources.files("turnout.papers")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_preset(
    name: str, *, seeds: int = 0, rounds: int = 0, training: Mapping[str, Any] | None = None
) -> Preset:
    """Return a preset by name; ``seeds`` and ``rounds`` change its size, 0 leaves it.

    ``training`` replaces entries of its training table, e.g. ``{"aggregation": "keep-global"}``.
    """
    if name not in preset_names():
        raise InvalidInput(f"unknown paper {name!r}.{nearest(name, preset_names())}")
    text = resources.files("turnout.papers").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return Preset.from_table(table, seeds=seeds, rounds=rounds, training=training)


def _resized(experiment: dict[str, Any], seeds: int, rounds: int) -> dict[str, Any]:
    """Change seeds and rounds; schedules keep their place in the run."""
    resized = experiment | ({"seeds": seeds} if seeds else {})
    if not rounds:
        return resized
    before = experiment["n_rounds"]
    selectors = [
        {name: _rescaled(value, rounds, before) for name, value in selector.items()}
        for selector in experiment["selectors"]
    ]
    resized |= {"n_rounds": rounds, "selectors": selectors}
    if "training" in experiment:
        local = experiment["training"].get("local", {})
        local = {name: _rescaled(value, rounds, before) for name, value in local.items()}
        resized["training"] = experiment["training"] | {"local": local}
    return resized


def _rescaled(value: Any, rounds: int, before: int) -> Any:
    if not isinstance(value, Mapping) or "schedule" not in value:
        return value
    scaled = dict(value)
    if "rounds" in value:
        scaled["rounds"] = max(1, value["rounds"] * rounds // before)
    if "at" in value:
        scaled["at"] = [change * rounds // before for change in value["at"]]
    return scaled


def _retrained(experiment: dict[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    if "training" not in experiment:
        raise InvalidInput(f"{experiment['name']} trains nothing: leave --training out.")
    return experiment | {"training": experiment["training"] | dict(training)}


def _made(cls: type, table: Mapping[str, Any]) -> Any:
    return cls(**{name: _frozen(value) for name, value in table.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
