"""The papers' experiments as data: what is run, drawn and claimed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any, Self

from turnout.errors import InvalidInput
from turnout.experiment import Experiment
from turnout.names import nearest
from turnout.papers.claims import Claim
from turnout.papers.measures import RELATIVE


@dataclass(frozen=True)
class Setting:
    """One of the settings in which a paper runs the same schemes, such as iid and non-iid data.

    Args:
        label: Its name; empty if there is only one.
        training: What it changes in the training table.
        experiment: What else it changes in the experiment: ``n_clients``, ``seeds``.
        schemes: Labels of the schemes that are run here; empty = all.
        has_published: Whether the published forms are run here too.
        differs: In which way it leaves the paper's protocol, or our first reading of it; empty =
            it does not. Verdicts here are shown, but not counted.
    """

    label: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    experiment: Mapping[str, Any] = field(default_factory=dict)
    schemes: tuple[str, ...] = ()
    has_published: bool = True
    differs: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    Args:
        number: As in the paper; another one that is free if it draws what stands in a table.
        draws: A name of ``turnout.papers.plots.DRAWINGS``.
        schemes: What is drawn.
        settings: Labels of the settings that are its panels; empty = all.
        caption: A sentence for the page.
        place: Where its numbers stand, if that is a table; empty = "Fig." and the number.
        against: One of its schemes: all are drawn once more as their difference to it, seed by
            seed. Empty = they are not.
    """

    number: int
    draws: str
    schemes: tuple[str, ...]
    settings: tuple[str, ...] = ()
    caption: str = ""
    place: str = ""
    against: str = ""

    @property
    def name(self) -> str:
        """How the paper calls it."""
        return self.place or f"Fig. {self.number}"

    def is_of(self, setting: Setting) -> bool:
        """Return whether a setting is one of its panels.

        Args:
            setting: One of the preset's.
        """
        return not self.settings or setting.label in self.settings


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
    """A table of the paper: some numbers per scheme, each shown beside ours.

    Args:
        title: Heading.
        measures: What ours are measured by.
        rows: Scheme, and what the paper prints for each measure: a number, or "never".
        settings: Labels of the settings that are shown beside it; empty = all.
    """

    title: str
    measures: tuple[str, ...]
    rows: tuple[tuple[float | str, ...], ...]
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != 1 + len(self.measures):
                raise InvalidInput(
                    f"{self.title}: {row[0]} needs {len(self.measures)} numbers, one per measure.",
                    field="rows",
                )


@dataclass(frozen=True)
class Preset:
    """A paper's section with experiments.

    Args:
        name: By which it is asked for.
        title: For people.
        paper: Where it stands.
        base: The experiment as plain data, before a setting changes it.
        figures: What is drawn.
        claims: What is judged.
        overview: Measures shown for every scheme.
        settings: At least one.
        notes: Sentences shown with it.
        published: Scheme -> its published form.
        cost: A table of variants side by side.
        regret: Schemes whose regret is shown.
        numbers: Tables of the paper beside ours.
        n_seeds: Runs per scheme; 0 = as ``base`` says.
        n_rounds: Length of a run; 0 = as ``base`` says. Schedules keep their place.
        changes: Entries of the training table that replace those of base and setting.
    """

    name: str
    title: str
    paper: str
    base: Mapping[str, Any]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]
    overview: tuple[str, ...]
    settings: tuple[Setting, ...] = (Setting(),)
    notes: tuple[str, ...] = ()
    published: Mapping[str, str] = field(default_factory=dict)
    cost: CostTable | None = None
    regret: RegretTable | None = None
    numbers: tuple[NumbersTable, ...] = ()
    n_seeds: int = 0
    n_rounds: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any], **changed: Any) -> Self:
        """Return the preset of a table.

        Args:
            name: By which it is asked for.
            table: As the TOML file has it.
            **changed: ``n_seeds``, ``n_rounds``, ``changes``.
        """
        tables = dict(table)
        several = {"figures": Figure, "claims": Claim, "settings": Setting, "numbers": NumbersTable}
        single = {"cost": CostTable, "regret": RegretTable}
        parts: dict[str, Any] = {
            key: tuple(_made(kind, part) for part in tables.pop(key))
            for key, kind in several.items()
            if key in tables
        }
        parts |= {
            key: _made(kind, tables.pop(key)) for key, kind in single.items() if key in tables
        }
        base = tables.pop("experiment")
        plain = {key: _frozen(value) for key, value in tables.items()}
        return cls(name=name, base=base, **parts, **plain, **changed)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment of the first setting."""
        return self.experiment_of(self.settings[0])

    def experiment_of(
        self, setting: Setting, times: int = 1, seeds: Sequence[int] = ()
    ) -> Experiment:
        """Return the experiment of a setting.

        Args:
            setting: One of ``settings``.
            times: How many times as long as the paper's; schedules keep their place.
            seeds: Some of its seeds; empty = all.
        """
        table = {**self.base, **setting.experiment}
        if setting.training or self.changes:
            table = _retrained(table, {**setting.training, **self.changes})
        n_rounds = times * (self.n_rounds or table["n_rounds"])
        resized = _resized(table, self.n_seeds, n_rounds)
        return Experiment.from_table(resized | ({"seeds": list(seeds)} if seeds else {}))

    def setting(self, label: str) -> Setting:
        """Return a setting by its label, or say which there are.

        Args:
            label: Its label.
        """
        for setting in self.settings:
            if setting.label == label:
                return setting
        labels = [setting.label for setting in self.settings]
        raise InvalidInput(f"{self.title} has no setting {label!r}.{nearest(label, labels)}")

    def drawn(self, number: int) -> tuple[str, ...]:
        """Return the schemes of a figure, for claims that speak of all others.

        Args:
            number: Of the figure.
        """
        return self.figure(number).schemes

    def figure(self, number: int) -> Figure:
        """Return a figure, or say which there are."""
        for figure in self.figures:
            if figure.number == number:
                return figure
        numbers = ", ".join(str(figure.number) for figure in self.figures)
        raise InvalidInput(f"{self.title} has no figure {number} here; choose from {numbers}.")

    def schemes_for(
        self, setting: Setting, numbers: tuple[int, ...], *, times: int, extras: bool
    ) -> list[str]:
        """Return the schemes that must run for some figures, in the preset's order.

        Args:
            setting: In which they run.
            numbers: Of the figures.
            times: 1 is the paper's own length; longer runs serve only the claims that ask for
                them.
            extras: Adds what no figure draws: published forms, the cost and the regret table.
        """
        claims = [claim for claim in self.claims_in(setting, numbers) if claim.times == times]
        wanted = {label for claim in claims for label in claim.labels(self.drawn(claim.figure))}
        labels = self.experiment.labels
        if times == 1:
            shown = [figure for figure in self.figures if figure.is_of(setting)]
            wanted.update(
                label for figure in shown if figure.number in numbers for label in figure.schemes
            )
        if times == 1 and extras:
            drawn = {label for figure in self.figures for label in figure.schemes}
            drawn.update(() if setting.has_published else self.published.values())
            wanted.update(label for label in labels if label not in drawn)
        here = self.schemes_in(setting)
        return [label for label in labels if label in wanted and label in here]

    def schemes_in(self, setting: Setting) -> tuple[str, ...]:
        """Return the schemes that a setting has.

        Args:
            setting: One of ``settings``.
        """
        return setting.schemes or tuple(self.experiment.labels)

    def claims_in(self, setting: Setting, numbers: tuple[int, ...]) -> tuple[Claim, ...]:
        """Return the claims about some of the figures that are judged in a setting.

        Args:
            setting: One of ``settings``.
            numbers: Of the figures.
        """
        return tuple(
            claim
            for claim in self.claims
            if claim.figure in numbers
            if not claim.settings or setting.label in claim.settings
        )

    def relative_measures(self, setting: str) -> tuple[str, ...]:
        """Return the measures of a setting that compare with another scheme.

        Args:
            setting: Its label.
        """
        claims = [claim for claim in self.claims if setting in (claim.settings or (setting,))]
        names = dict.fromkeys(claim.measure for claim in claims)
        return tuple(name for name in names if name.startswith(RELATIVE))

    def measures(self) -> tuple[str, ...]:
        """Return every measure of single runs that claims and tables need."""
        names = [*self.overview, *(claim.measure for claim in self.claims)]
        names += [name for table in self.numbers for name in table.measures]
        names += [] if self.cost is None else [self.cost.measure]
        names += [] if self.regret is None else ["regret", "regret-bound"]
        names += ["total-time"] if any(name.startswith("time-to") for name in names) else []
        return tuple(dict.fromkeys(name for name in names if not name.startswith(RELATIVE)))


def preset_names() -> tuple[str, ...]:
    """Return the names of the papers that can be reproduced."""
    folder = resources.files("turnout.papers")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_preset(
    name: str, *, seeds: int = 0, rounds: int = 0, training: Mapping[str, Any] | None = None
) -> Preset:
    """Return a preset by name.

    Args:
        name: One of ``preset_names()``.
        seeds: Runs per scheme; 0 = as the preset says.
        rounds: Length of a run; 0 = as the preset says.
        training: Entries that replace those of its training table, e.g.
            ``{"aggregation": "keep-global"}``.
    """
    if name not in preset_names():
        raise InvalidInput(f"unknown paper {name!r}.{nearest(name, preset_names())}")
    text = resources.files("turnout.papers").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    if training and "training" not in table["experiment"]:
        raise InvalidInput(f"{name} trains nothing: leave --training out.", field="training")
    changed = {"n_seeds": seeds, "n_rounds": rounds, "changes": dict(training or {})}
    return Preset.from_table(name, table, **changed)


def _resized(experiment: dict[str, Any], seeds: int, rounds: int) -> dict[str, Any]:
    """Change seeds and rounds; schedules keep their place in the run."""
    resized = experiment | ({"seeds": seeds} if seeds else {})
    before = experiment["n_rounds"]
    if rounds == before:
        return resized
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
    return experiment | {"training": experiment["training"] | dict(training)}


def _made(cls: type, table: Mapping[str, Any]) -> Any:
    return cls(**{name: _frozen(value) for name, value in table.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
