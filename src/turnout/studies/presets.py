"""The papers' experiments as data: runs, figures and claims."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any, Self

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.experiment import Experiment
from turnout.studies.claims import Claim
from turnout.studies.measures import RELATIVE

#: Folder of the presets, one TOML file each.
_FOLDER = resources.files("turnout.studies").joinpath("papers")


@dataclass(frozen=True)
class Setting:
    """One of the settings in which a paper runs the same schemes, such as iid and non-iid data.

    Args:
        label: The name of the setting; empty if there is only one.
        training: Changes of the training table.
        experiment: Other changes of the experiment: ``n_clients``, ``seeds``.
        schemes: Labels of the schemes that run here; empty = all.
        has_published: Whether the published forms run here too.
        differs: How the setting deviates from the paper's protocol, or from our first reading of
            it; empty if it does not. Verdicts of a setting that deviates are shown, but not
            counted.
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
        number: The number in the paper, or an unused number if the figure shows a table.
        draws: A name of ``turnout.studies.paper_figures.DRAWINGS``.
        schemes: The schemes that are drawn.
        settings: Labels of the settings that are its panels; empty = all.
        caption: A sentence for the page.
        place: The table of the paper that has its numbers; empty = "Fig." and the number.
        against: One of its schemes. A second figure shows the difference of each scheme to this
            one, seed by seed. Empty = there is no second figure.
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
        """Its name in the paper."""
        return self.place or f"Fig. {self.number}"

    def is_of(self, setting: Setting) -> bool:
        """Return whether a setting is one of its panels.

        Args:
            setting: A setting of the preset.
        """
        return not self.settings or setting.label in self.settings


@dataclass(frozen=True)
class CostTable:
    """A table that shows one measure of several variants of the same schemes."""

    title: str
    measure: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]  #: name of the row, then a scheme per column

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that the table needs."""
        return tuple(label for row in self.rows for label in row[1:])


@dataclass(frozen=True)
class RegretTable:
    """A table that shows the regret of schemes beside its bound."""

    title: str
    schemes: tuple[str, ...]


@dataclass(frozen=True)
class NumbersTable:
    """A table of the paper, whose numbers are shown beside ours.

    Args:
        title: The title.
        measures: Our measures for its columns.
        rows: The scheme, and what the paper prints for each measure: a number, or "never".
        settings: Labels of the settings that are shown; empty = all.
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
        name: The name of the preset.
        title: A title for people.
        paper: The reference of the paper.
        base: The experiment as plain data, before a setting changes it.
        figures: The figures.
        claims: The claims that are judged.
        overview: Measures that are shown for every scheme.
        settings: At least one.
        notes: Sentences that are shown with the results.
        in_part: Why a figure or table of the paper is reproduced only in part, by its name.
        published: The published form of each scheme that has one.
        cost: A table of the cost of published forms.
        regret: A table of regrets.
        numbers: Tables of the paper.
        n_seeds: Runs per scheme; 0 = as ``base`` says.
        n_rounds: Length of a run; 0 = as ``base`` says. Schedules keep their place.
        changes: Entries that replace those of the training tables of base and setting.
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
    in_part: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    cost: CostTable | None = None
    regret: RegretTable | None = None
    numbers: tuple[NumbersTable, ...] = ()
    n_seeds: int = 0
    n_rounds: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any], **changed: Any) -> Self:
        """Return the preset that a table describes.

        Args:
            name: The name of the preset.
            table: The content of the TOML file.
            **changed: ``n_seeds``, ``n_rounds``, ``changes``.
        """
        parts = {key: made(_PARTS.get(key), value) for key, value in table.items()}
        parts["base"] = table["experiment"]
        del parts["experiment"]
        return cls(name=name, **parts, **changed)

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
            times: Length as a multiple of the paper's. Schedules keep their place.
            seeds: Some of its seeds; empty = all.
        """
        table = {**self.base, **setting.experiment}
        if "training" in table:
            table["training"] = {**table["training"], **setting.training, **self.changes}
        before = table["n_rounds"]
        table["n_rounds"] = times * (self.n_rounds or before)
        table["seeds"] = list(seeds) or self.n_seeds or table["seeds"]
        return Experiment.from_table(_rescaled(table, table["n_rounds"], before))

    def setting(self, label: str) -> Setting:
        """Return a setting by its label; an error suggests the nearest label.

        Args:
            label: Label of the setting.
        """
        for setting in self.settings:
            if setting.label == label:
                return setting
        labels = [setting.label for setting in self.settings]
        raise InvalidInput(f"{self.title} has no setting {label!r}.{nearest(label, labels)}")

    def drawn(self, number: int) -> tuple[str, ...]:
        """Return the schemes of a figure, for claims about "others".

        Args:
            number: Number of the figure.
        """
        return self.figure(number).schemes

    def figure(self, number: int) -> Figure:
        """Return a figure by its number; an error lists all numbers."""
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
            setting: The setting.
            numbers: Numbers of the figures.
            times: 1 is the paper's own length. Only claims that need longer runs have others.
            extras: Whether to add schemes that no figure draws: published forms, and those of the
                cost and the regret table.
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

    def plans(
        self, settings: Iterable[Setting], numbers: tuple[int, ...], *, extras: bool
    ) -> Iterator[tuple[Setting, int, list[str]]]:
        """Yield each setting, length and list of schemes that must run for some figures.

        Args:
            settings: Some of ``settings``.
            numbers: Numbers of the figures.
            extras: As for ``schemes_for``.
        """
        for setting in settings:
            for times in sorted({1, *(claim.times for claim in self.claims_in(setting, numbers))}):
                labels = self.schemes_for(setting, numbers, times=times, extras=extras)
                yield setting, times, labels

    def schemes_in(self, setting: Setting) -> tuple[str, ...]:
        """Return the schemes that a setting has.

        Args:
            setting: One of ``settings``.
        """
        return setting.schemes or tuple(self.experiment.labels)

    def claims_in(self, setting: Setting, numbers: tuple[int, ...]) -> tuple[Claim, ...]:
        """Return the claims about some figures that are judged in a setting.

        Args:
            setting: One of ``settings``.
            numbers: Numbers of the figures.
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
            setting: Label of the setting.
        """
        claims = [claim for claim in self.claims if setting in (claim.settings or (setting,))]
        names = dict.fromkeys(claim.measure for claim in claims)
        return tuple(name for name in names if name.startswith(RELATIVE))

    def measures(self) -> tuple[str, ...]:
        """Return every measure of a single run that claims and tables need."""
        names = [*self.overview, *(claim.measure for claim in self.claims)]
        names += [name for table in self.numbers for name in table.measures]
        names += [] if self.cost is None else [self.cost.measure]
        names += [] if self.regret is None else ["regret", "regret-bound"]
        names += ["total-time"] if any(name.startswith("time-to") for name in names) else []
        return tuple(dict.fromkeys(name for name in names if not name.startswith(RELATIVE)))


def preset_names() -> tuple[str, ...]:
    """Return the names of the papers that can be reproduced."""
    names = (entry.name for entry in _FOLDER.iterdir())
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
    table = tomllib.loads(_FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    if training and "training" not in table["experiment"]:
        raise InvalidInput(f"{name} trains nothing: leave --training out.", field="training")
    changed = {"n_seeds": seeds, "n_rounds": rounds, "changes": dict(training or {})}
    return Preset.from_table(name, table, **changed)


def _rescaled(value: Any, rounds: int, before: int) -> Any:
    """Return a table whose schedules keep their place in runs of another length."""
    if isinstance(value, list):
        return [_rescaled(item, rounds, before) for item in value]
    if not isinstance(value, Mapping):
        return value
    scaled = {name: _rescaled(item, rounds, before) for name, item in value.items()}
    if "schedule" in value and "rounds" in value:
        scaled["rounds"] = max(1, value["rounds"] * rounds // before)
    if "schedule" in value and "at" in value:
        scaled["at"] = [change * rounds // before for change in value["at"]]
    return scaled


#: The classes of a preset's tables.
_PARTS: Mapping[str, type] = {
    "figures": Figure,
    "claims": Claim,
    "settings": Setting,
    "numbers": NumbersTable,
    "cost": CostTable,
    "regret": RegretTable,
}


def made(kind: type | None, value: Any) -> Any:
    """Return lists as tuples, and tables of a kind as instances of it.

    Args:
        kind: The class of a table; None = it stays as it is.
        value: Plain data.
    """
    if isinstance(value, list):
        return tuple(made(kind, item) for item in value)
    if kind is not None and isinstance(value, Mapping):
        return kind(**{name: made(None, part) for name, part in value.items()})
    return value
