"""The plan: the papers' headline claims, fixed before the runs that decide them.

Each claim has one measure, one margin and its settings, which are pooled with the seed as block. It
is judged once all its fresh seeds have run, never before, so that no look at the results can decide
when to stop. All claims form one family for Holm's correction. A plan that was changed after its
runs is refused.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.experiment import Results, run_experiment
from turnout.results.files import slug
from turnout.results.settings import first_difference
from turnout.results.statistics import LEVEL
from turnout.studies.claims import (
    Claim,
    Finding,
    Place,
    Verdict,
    corrected,
    joined,
    judge_pooled,
    seeds_for,
)
from turnout.studies.measures import measure_named
from turnout.studies.paper_tables import TextTable
from turnout.studies.presets import Preset, load_preset, made
from turnout.studies.results_file import ResultsFile, by_seeds
from turnout.studies.trials import ResultsError, Trials, gathered

#: Name of the plan's results file, and of what the command reproduces.
HEADLINE = "headline"

#: What describes a plan in words and decides nothing: it can be mended after the runs.
_WORDS = frozenset({"short", "says", "place", "reading", "stand_in", "hours"})


@dataclass(frozen=True)
class Group:
    """Runs that several claims share: some settings of a preset.

    Args:
        preset: The preset.
        settings: Labels of its settings.
        suffixes: A claim about X is about X with each of these endings, such as ", m=1".
        target: What ``{target}`` stands for in the measures of claims.
        rounds: Length of a run; 0 = as the preset says.
        training: Entries that replace those of the preset's training table.
        stand_in: What stands in for the paper's task, in words.
    """

    preset: str
    settings: tuple[str, ...] = ("",)
    suffixes: tuple[str, ...] = ("",)
    target: str = ""
    rounds: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = ""

    @cached_property
    def loaded(self) -> Preset:
        """The preset with these changes."""
        return load_preset(self.preset, rounds=self.rounds, training=self.training)


@dataclass(frozen=True)
class Headline:
    """A claim of the plan.

    Args:
        key: Its name.
        paper: The page of its paper.
        claim: The claim.
        measure: Its measure; the groups fill in ``{target}``.
        groups: Names of the groups whose settings are pooled.
        short: The claim in a few words, for a row of a table or a figure.
        settings: Labels of the only settings that count; empty = all of the groups.
        printed: Pairs of numbers that the paper prints for the two sides of its order. Their mean
            difference, or log ratio for times, is the paper's effect.
        effect: The effect to be found if the paper prints no numbers: our choice.
        spread: Standard deviation of the pooled difference between seeds, in the pilot.
        seeds: The number of fresh seeds.
        hours: What its runs take on one core, about; 0 = not measured. Claims share runs.
    """

    key: str
    paper: str
    claim: Claim
    measure: str
    groups: tuple[str, ...]
    short: str = ""
    settings: tuple[str, ...] = ()
    printed: tuple[tuple[float, float], ...] = ()
    effect: float = 0.0
    spread: float = 0.0
    seeds: int = 0
    hours: float = 0.0

    @property
    def is_time(self) -> bool:
        """Whether effects are logarithms of ratios of times."""
        return measure_named(self.claim.measure).is_time_to

    @property
    def planned(self) -> float:
        """The effect that the sample size is meant for: the paper's own if it prints one."""
        if not self.printed:
            return self.effect
        pairs = np.array(self.printed, dtype=np.float64)
        return float((-np.diff(np.log(pairs) if self.is_time else pairs)).mean())

    @property
    def border(self) -> float:
        """The effect that separates "holds" from "fails"."""
        return math.log(self.claim.factor) if self.is_time else -self.claim.margin

    def shown(self, *effects: float) -> str:
        """Return effects as text: ratios of times and losses, differences of other measures.

        Args:
            effects: One effect, or the two ends of an interval.
        """
        measure = self.claim.measure
        if self.is_time or measure.startswith("log-"):
            return " to ".join(f"{math.exp(effect):.2f}x" for effect in effects)
        if "accuracy" in measure or "hold-out" in measure:
            return " to ".join(f"{100 * effect:+.1f}" for effect in effects) + " pt"
        unit = " s" if measure == "total-time" else ""
        form = measure_named(measure).form
        return " to ".join(format(effect, f"+{form}") for effect in effects) + unit

    def measure_in(self, group: Group) -> str:
        """Return its measure in a group."""
        return self.measure.format(target=group.target)


class Ruling(NamedTuple):
    """What the runs say about a headline claim.

    Attributes:
        headline: The claim.
        n_done: The number of its seeds that are complete in every setting.
        finding: What was measured; None before the last seed is complete.
        verdict: The verdict with Holm's correction; None before the last seed is complete.
    """

    headline: Headline
    n_done: int
    finding: Finding | None = None
    verdict: Verdict | None = None

    @property
    def text(self) -> str:
        """The verdict in words, or how far the runs are."""
        if self.verdict is not None:
            return str(self.verdict)
        return "still running" if self.n_done else "not run yet"

    @property
    def cost(self) -> str:
        """What its runs take, in words; empty after them, or if it is not known."""
        hours = 0.0 if self.verdict else self.headline.hours
        return f"{hours:g} h" if hours else ""

    @property
    def effect(self) -> str:
        """Our effect as text; empty before the last seed is complete."""
        return self.headline.shown(self.finding.effect.mean) if self.finding else ""

    @property
    def interval(self) -> str:
        """The 95 % interval of the effect as text; empty before the last seed is complete."""
        found = self.finding
        return self.headline.shown(found.effect.low, found.effect.high) if found else ""


@dataclass(frozen=True)
class Plan:
    """All headline claims with their runs.

    Args:
        groups: The runs, by name.
        headlines: The claims, in the order in which they run.
        power: Chance that a claim with the planned effect is found.
        first_seed: The first fresh seed.
        fewest_seeds: The smallest sample.
        most_seeds: The largest sample, even if the power is then lower.
    """

    groups: Mapping[str, Group]
    headlines: tuple[Headline, ...]
    power: float
    first_seed: int
    fewest_seeds: int
    most_seeds: int

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return a plan and check it.

        Args:
            table: The content of ``plan.toml``.

        Raises:
            InvalidInput: An entry is unknown or wrong; the error names it.
        """
        limits = {name: value for name, value in table.items() if name not in {"groups", "claims"}}
        groups = {
            name: _made(Group, f"groups.{name}", entry)
            for name, entry in table.get("groups", {}).items()
        }
        own = {one.name for one in fields(Headline)}
        headlines = []
        for entry in table.get("claims", ()):
            where = f"claims.{entry.get('key', '?')}"
            about = {name: entry[name] for name in entry if name not in own}
            about["measure"] = str(entry.get("measure", "")).format(target="0.5")
            claim = _made(Claim, where, {"figure": 0, "relation": "order", **about})
            rest = {name: entry[name] for name in entry if name in own}
            headlines.append(_made(Headline, where, {"claim": claim, **rest}))
        plan: Self = _made(cls, "the plan", {"groups": groups, "headlines": headlines, **limits})
        for headline in plan.headlines:
            plan._check(headline)
        return plan

    def _check(self, headline: Headline) -> None:
        where = f"claims.{headline.key}"
        if [one.key for one in self.headlines].count(headline.key) > 1:
            raise InvalidInput("two claims have this key.", field=where)
        for name in headline.groups:
            if name not in self.groups:
                known = nearest(name, tuple(self.groups))
                raise InvalidInput(f"there is no group {name!r}.{known}", field=f"{where}.groups")
        for name in headline.groups:
            group = self.groups[name]
            for setting in group.settings:
                group.loaded.setting(setting)
            measure_named(headline.measure_in(group))
            there = group.loaded.experiment.labels
            for label in (
                label + end for label in headline.claim.labels(()) for end in group.suffixes
            ):
                if label not in there:
                    message = f"{name} has no scheme {label!r}.{nearest(label, there)}"
                    raise InvalidInput(message, field=f"{where}.order")
        if not list(self.places(headline)):
            raise InvalidInput("none of its groups has these settings.", field=f"{where}.settings")
        if not self.fewest_seeds <= headline.seeds <= self.most_seeds:
            limits = f"from {self.fewest_seeds} to {self.most_seeds}"
            raise InvalidInput(f"must be {limits}, got {headline.seeds}.", field=f"{where}.seeds")

    @property
    def level(self) -> float:
        """Level of one side of a test at the first step of Holm's correction."""
        return LEVEL / 2 / len(self.headlines)

    def places(self, headline: Headline) -> Iterator[tuple[str, Group, str]]:
        """Yield name, group and setting of the runs that a claim needs.

        Args:
            headline: The claim.
        """
        for name in headline.groups:
            group = self.groups[name]
            for setting in group.settings:
                if setting in (headline.settings or (setting,)):
                    yield name, group, setting

    def seeds_of(self, headline: Headline) -> range:
        """Return the fresh seeds of a claim."""
        return range(self.first_seed, self.first_seed + headline.seeds)

    def pilot(self, headline: Headline, results: Path) -> Finding:
        """Return what the presets' own runs say about a claim. They are not counted.

        Args:
            headline: The claim.
            results: The folder with the results of the presets.
        """

        def find(name: str, group: Group, setting: str) -> Trials:
            file = ResultsFile.read(results / f"{group.preset}.json", group.preset)
            return file.parts[(setting, 1)]

        return _judged(headline, self._pooled(headline, find)[1])

    def _pooled(
        self,
        headline: Headline,
        find: Callable[[str, Group, str], Trials],
        among: Iterable[int] | None = None,
    ) -> tuple[list[int], list[Place]]:
        """Return the seeds that all runs of a claim have, and its places with these seeds."""
        parts = [
            (find(*place), place[1], end)
            for place in self.places(headline)
            for end in place[1].suffixes
        ]
        has = [
            set(trials.schemes[label + end].seeds if label + end in trials.schemes else ())
            for trials, _, end in parts
            for label in headline.claim.labels(())
        ]
        seeds = sorted(set.intersection(*has, *([] if among is None else [set(among)])))
        return seeds, [
            Place(trials.only(seeds), headline.measure_in(group), end)
            for trials, group, end in parts
        ]

    def sampled(self, headline: Headline, results: Path) -> tuple[float, int]:
        """Return the spread of a claim in the pilot, and the number of seeds that follows from it.

        Args:
            headline: The claim.
            results: The folder with the results of the presets.
        """
        spread = self.pilot(headline, results).effect.deviation
        distance = abs(headline.planned - headline.border)
        is_equivalence = "~" in headline.claim.order  # two tests share the risk of missing it
        power = (1.0 + self.power) / 2 if is_equivalence else self.power
        n = seeds_for(distance, spread, self.level, power=power, most=self.most_seeds)
        return spread, max(n or self.most_seeds, self.fewest_seeds)

    def kept(self, name: str) -> tuple[list[str], list[str]]:
        """Return the measures and the curves that the claims of a group need of its runs.

        Args:
            name: Name of the group.
        """
        claims = [one for one in self.headlines if name in one.groups]
        measures = dict.fromkeys(one.measure_in(self.groups[name]) for one in claims)
        if any(measure.startswith("time-to") for measure in measures):
            measures["total-time"] = None
        wanted = [one.measure for one in claims if one.is_time or one.claim.is_eventual]
        curves = ("hold-out accuracy" if "hold-out" in each else "accuracy" for each in wanted)
        return list(measures), list(dict.fromkeys(curves))

    def decided_by(self) -> dict[str, Any]:
        """Return everything in the plan that decides a verdict, as plain data."""
        table = asdict(self)
        entries = [*table["groups"].values(), *table["headlines"]]
        for entry in (*entries, *(one["claim"] for one in table["headlines"])):
            for name in _WORDS & entry.keys():
                del entry[name]
        table["headlines"] = {one.pop("key"): one for one in table["headlines"]}
        decides: dict[str, Any] = _plain(table)
        return decides

    def rulings(self, file: ResultsFile) -> list[Ruling]:
        """Return what the runs say about every claim.

        Args:
            file: The results.
        """
        found = [self._ruling(headline, file) for headline in self.headlines]
        findings = [one.finding for one in found if one.finding is not None]
        verdicts = iter(corrected(findings, len(self.headlines)))
        return [one._replace(verdict=next(verdicts)) if one.finding else one for one in found]

    def _ruling(self, headline: Headline, file: ResultsFile) -> Ruling:
        def find(name: str, group: Group, setting: str) -> Trials:
            return file.parts.get((part_name(name, setting), 1)) or Trials({}, {}, {})

        seeds, places = self._pooled(headline, find, self.seeds_of(headline))
        is_complete = len(seeds) == headline.seeds
        return Ruling(headline, len(seeds), _judged(headline, places) if is_complete else None)


def _judged(headline: Headline, places: Sequence[Place]) -> Finding:
    """Judge a claim over all places at once, or, if it says "up to", in each of them."""
    if not headline.claim.is_anywhere:
        return judge_pooled(headline.claim, places)
    each = {str(i): judge_pooled(headline.claim, [place]) for i, place in enumerate(places, 1)}
    return joined(each, len(each))


def headline_table(rulings: Sequence[Ruling]) -> TextTable:
    """Return every claim with the effect, its interval and the verdict, for 80 columns.

    Args:
        rulings: What the runs say.
    """
    return TextTable.of(
        "Headline claims",
        (
            {
                "claim": one.headline.key,
                "paper": one.headline.shown(one.headline.planned) if one.headline.printed else "",
                "ours": one.effect,
                "95 % interval": one.interval,
                "verdict": one.verdict or f"{one.n_done}/{one.headline.seeds} seeds",
            }
            for one in rulings
        ),
    )


@lru_cache(maxsize=1)
def load_plan() -> Plan:
    """Return the plan that turnout ships."""
    text = resources.files("turnout.studies").joinpath("plan.toml").read_text(encoding="utf-8")
    return Plan.from_table(tomllib.loads(text))


def part_name(group: str, setting: str) -> str:
    """Return the name of a setting of a group in the results file."""
    return f"{group}: {setting}" if setting else group


def read_headline(path: Path, plan: Plan) -> ResultsFile:
    """Read the results of the plan.

    Args:
        path: The results file; it may be missing.
        plan: The plan.

    Raises:
        ResultsError: The plan was changed after its runs; the error says where.
    """
    if not path.exists():
        return ResultsFile(HEADLINE, plan=plan.decided_by())
    file = ResultsFile.read(path, HEADLINE)
    there, here = _plain(file.plan), plan.decided_by()
    difference = first_difference(there, here, saved_in=path.name, wanted_by="the plan")
    if difference is not None:
        raise ResultsError(
            f"the plan was changed after its runs: {difference}. Restore the plan, or move "
            f"{path} away and run every claim again."
        )
    return file


class Headlines(NamedTuple):
    """The headline claims after a run.

    Attributes:
        plan: The plan.
        file: The kept results.
        rulings: What they say about every claim.
        ran: The results of what was run now. Look at ``failed`` of each: a run may have failed.
    """

    plan: Plan
    file: ResultsFile
    rulings: list[Ruling]
    ran: list[Results]


def run_plan(
    *,
    only: Sequence[str] = (),
    out: str | os.PathLike[str] = "runs",
    results: str | os.PathLike[str] = "results",
    only_collect: bool = False,
    plan: Plan | None = None,
    run: Callable[..., Results] = run_experiment,
    **computing: Any,
) -> Headlines:
    """Run what the headline claims lack, claim by claim, and keep the results of each setting.

    An interrupted run continues from its run folders.

    Args:
        only: Keys of claims; none = all.
        out: Folder of the run folders.
        results: Folder of the results file.
        only_collect: Run nothing: judge what is kept.
        plan: The plan; None = the one that turnout ships.
        run: Runs one experiment in a folder.
        **computing: Options of ``run``, such as ``n_jobs`` and ``progress``.

    Raises:
        ResultsError: The plan was changed after its runs, or another version made the results.
    """
    plan = plan or load_plan()
    known = tuple(headline.key for headline in plan.headlines)
    for key in only:
        if key not in known:
            raise InvalidInput(f"the plan has no claim {key!r}.{nearest(key, known)}", field="only")
    path = Path(results) / f"{HEADLINE}.json"
    file, ran = read_headline(path, plan), []
    for headline in plan.headlines:
        if only_collect or headline.key not in (only or known):
            continue
        for name, group, setting in plan.places(headline):
            part, chosen = part_name(name, setting), group.loaded.setting(setting)
            labels = [label + end for label in headline.claim.labels(()) for end in group.suffixes]
            missing = by_seeds(file.missing(part, 1, labels, plan.seeds_of(headline)))
            for seeds, alike in missing.items():
                experiment = group.loaded.experiment_of(chosen, seeds=seeds)
                file.check(part, 1, experiment.table())
                file.check_version()
                folder = Path(out) / HEADLINE / slug(part)
                try:
                    ran.append(run(experiment, folder, labels=alike, **computing))
                finally:
                    kept = dict.fromkeys(alike, plan.kept(name)).__getitem__
                    found = gathered(experiment, folder, alike, kept, skip_bad=True)
                    file.update(part, 1, found)
                    if found.schemes:
                        file.keep(path, trains="training" in group.loaded.base)
    return Headlines(plan, file, plan.rulings(file), ran)


def _made(kind: type, where: str, entry: Mapping[str, Any]) -> Any:
    """Return a part of the plan."""
    try:
        return made(kind, entry)
    except TypeError as error:
        raise InvalidInput(str(error).partition("() ")[2] + ".", field=where) from None
    except InvalidInput as error:
        raise InvalidInput(str(error), field=where) from None


def _plain(value: Any) -> Any:
    """Return plain data as JSON gives it back, without empty entries: a new field changes none."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items() if part}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
