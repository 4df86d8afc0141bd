"""Which selector to switch to, by the records of a federation: the log and the fitted world."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnout.core.errors import TurnoutError
from turnout.core.registry import make
from turnout.experiment.variants import Variant, variants_of
from turnout.results.shadows import read_shadows
from turnout.twin.fit import fit_log
from turnout.twin.forecast import SEEDS, Forecast, forecast
from turnout.twin.log import Log, read_log
from turnout.twin.replay import Replay, Replayed, replay_log
from turnout.twin.world import FittedWorld

#: Candidates if none are named; what was in the shadow of the run comes with them.
USUAL = ("random", "pace", "e3cs")
#: Draws of chances without a closed form, in each round.
DRAWS = 50
#: Fewer rounds than these are too few for advice, whatever the intervals say.
FEW_ROUNDS = 30
#: Half an interval of success that is narrow enough to decide by.
NARROW = 0.03
LOG, WORLD = "log", "twin"


class AdviceCell(NamedTuple):
    """One number of one candidate, or of the selector in charge.

    Attributes:
        mean: The number; of a candidate the difference to now.
        low: Lower end of the 95 % interval.
        high: Upper end of it.
    """

    mean: float
    low: float
    high: float

    @property
    def is_less(self) -> bool:
        """Whether its interval is below 0."""
        return self.high < 0.0

    @property
    def is_more(self) -> bool:
        """Whether its interval is above 0."""
        return self.low > 0.0


class Comparison(NamedTuple):
    """One thing that is compared.

    Attributes:
        key: time_s, success, least_share or wasted.
        title: What it is.
        source: Whether the log or the fitted world says it.
        unit: Its unit.
        now: The number of the selector in charge; None if it is not known.
        change: What each candidate changes, by label; candidates without a number are missing.
    """

    key: str
    title: str
    source: str
    unit: str
    now: AdviceCell | None
    change: Mapping[str, AdviceCell]


@dataclass(frozen=True)
class Advice:
    """What the records of a federation say about a switch.

    Attributes:
        replay: What the log alone says.
        forecast: What the fitted world says; None if nothing could be fitted.
        lines: What is compared.
        take: The label to take; the selector in charge if nothing is clearly better.
        why: Why, in a sentence or two.
        missing: What would make the answer surer.
    """

    replay: Replay
    forecast: Forecast | None
    lines: tuple[Comparison, ...]
    take: str
    why: str
    missing: tuple[str, ...]

    @property
    def charge(self) -> Variant:
        """The selector in charge."""
        return self.replay.charge

    @property
    def taken(self) -> Variant:
        """The selector to take."""
        found = [each.variant for each in self.replay.candidates if each.label == self.take]
        return found[0] if found else self.charge

    def changes(self) -> dict[str, str]:
        """Return the one line to change, by framework; empty if there is nothing to change."""
        if self.take == self.charge.label:
            return {}
        variant, size = self.taken, self.replay.log.records[-1].cell.settings.cohort_size
        values, usual = variant.make().parameters, make(variant.name).parameters
        given = {name: x for name, x in values.items() if x != usual[name]}
        named = "".join(f", {name}={value!r}" for name, value in given.items())
        table = f", parameters={given!r}" if given else ""
        body = (
            f', "parameters": {json.dumps({name: variant.parameters[name] for name in given})}'
            if given
            else ""
        )
        return {
            "Flower": f"SelectingStrategy(FedAvg(), turnout.make({variant.name!r}{named}), "
            f"cohort_size={size})",
            "NVFlare": f"SelectingFedAvg({variant.name!r}, cohort_size={size}{table})",
            "serve": f'POST /federations {{"selector": "{variant.name}"{body}, '
            f'"cohort_size": {size}, ...}}',
        }


def advise(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    selectors: Sequence[str] = (),
    *,
    n_seeds: int = SEEDS,
    draws: int | None = DRAWS,
) -> Advice:
    """Return which selector to switch to, by the records of a federation.

    Args:
        runs: Run folders of one federation, with one selector in charge.
        selectors: Candidates such as ``"e3cs:quota=0.8"``; none = random, pace, e3cs and the
            shadows of the run.
        n_seeds: Seeds of the fitted world.
        draws: Draws in each round, for chances that have no closed form; None leaves them out.

    Raises:
        InvalidInput: The records cannot be used, or a selector is unknown.
    """
    log = read_log(runs)
    variants = [each for text in selectors or USUAL for each in variants_of(text)]
    if not selectors:
        variants += _shadows_of(log, {each.label for each in variants})
    found = replay_log(log, variants, draws)
    world: FittedWorld | None = None
    twin, reason = None, ""
    try:
        world = fit_log(log)
        asked = [found.charge, *(each.variant for each in found.candidates)]
        twin = forecast(world, asked, found.n_answers, n_seeds)
    except TurnoutError as error:
        reason = str(error)
    lines = _lines(found, twin)
    take, why = _verdict(found, twin, lines)
    return Advice(found, twin, lines, take, why, _missing(found, world, twin, reason))


def _shadows_of(log: Log, known: set[str]) -> list[Variant]:
    """Return the shadows of the latest run that are not named yet."""
    cell = log.records[-1].cell
    found = []
    for label in read_shadows(cell.path, cell.run):
        try:
            found += [each for each in variants_of(_spec(label)) if each.label not in known]
        except TurnoutError:  # a label of somebody's own
            continue
    return found


def _spec(label: str) -> str:
    """Return the text that gives a label: ``e3cs quota=0.5`` is ``e3cs:quota=0.5``."""
    name, _, parameters = label.partition(" ")
    return f"{name}:{parameters.replace(', ', ',')}" if parameters else name


# --------------------------------------------------------------------------------------------------
# The numbers, line by line.
# --------------------------------------------------------------------------------------------------


def _lines(found: Replay, twin: Forecast | None) -> tuple[Comparison, ...]:
    titles = {
        "time_s": (f"time to {found.n_answers:,} answers", "s"),
        "success": ("success", ""),
        "least_share": ("least served, of fair", ""),
        "wasted": ("wasted per place", "s"),
    }
    lines = []
    for key, (title, unit) in titles.items():
        if key in found.now and any(not each.problem for each in found.candidates):
            change = {
                each.label: AdviceCell(one.mean, one.low, one.high)
                for each in found.candidates
                if (one := each.differences.get(key)) is not None
            }
            now = found.now[key]
            own = AdviceCell(now.mean, now.low, now.high)
            lines.append(Comparison(key, title, LOG, unit, own, change))
        if twin is not None and found.charge.label in twin.runs:
            mean = twin.estimate(found.charge.label, key)
            own = AdviceCell(mean.mean, mean.low, mean.high)
            change = {}
            for label in found.labels:
                if label in twin.runs:
                    step = twin.difference(label, found.charge.label, key)
                    change[label] = AdviceCell(step.mean, step.low, step.high)
            lines.append(Comparison(key, title, WORLD, unit, own, change))
    return tuple(lines)


def _verdict(found: Replay, twin: Forecast | None, lines: Sequence[Comparison]) -> tuple[str, str]:
    """Return the label to take, and why: it must be clearly sooner and do no clear harm."""
    now = found.charge.label
    by = {(line.key, line.source): line.change for line in lines}
    if found.log.n_rounds < FEW_ROUNDS:
        return now, (
            f"Keep {now} for now: {found.log.n_rounds} rounds are too few to advise a switch. "
            f"Record at least {FEW_ROUNDS}."
        )
    if twin is None or not by.get(("time_s", WORLD)):
        return now, _not_timed(found, twin)
    sooner = {label: one.mean for label, one in by["time_s", WORLD].items() if one.is_less}
    against = {label: _harm(label, by) for label in sooner}
    good = [label for label in sooner if not against[label]]
    if good:
        shares = by.get(("least_share", WORLD), {})
        fastest = min(good, key=sooner.__getitem__)
        alike = [label for label in good if not twin.difference(label, fastest, "time_s").low > 0.0]
        fair = [label for label in alike if label not in shares or not shares[label].is_less]
        best = min(fair or alike, key=sooner.__getitem__)
        price = ""
        if best in shares and shares[best].is_less:
            lost = -shares[best].mean
            price = f" Its price: the least served client gets {lost:.2f} less of its fair share."
        elif best != fastest:
            price = f" {fastest} is as fast, but serves the least served client less."
        support = by.get(("success", LOG), {}).get(best)
        seen = (
            "the log confirms its success"
            if support is not None and support.is_more
            else "the log neither confirms nor contradicts it"
        )
        return best, (
            f"Take {best}: it has {found.n_answers:,} answers sooner, by more than chance, and "
            f"{seen}.{price}"
        )
    if sooner:
        label = min(sooner, key=sooner.__getitem__)
        return now, f"Keep {now}: {label} looks faster, but {against[label]}."
    return now, f"Keep {now}: no candidate is faster by more than chance."


def _not_timed(found: Replay, twin: Forecast | None) -> str:
    """Return why no candidate's time can be compared."""
    now = found.charge.label
    if not found.candidates:
        return f"Keep {now}: no candidate is left besides the selector in charge."
    if twin is None:
        return f"Keep {now} for now: without a fitted world, nobody can say how long it takes."
    failed = now if now in twin.problems else "every candidate"
    return (
        f"Keep {now} for now: {failed} failed in the fitted world, so nobody can say how long it "
        "takes."
    )


def _harm(label: str, by: Mapping[tuple[str, str], Mapping[str, AdviceCell]]) -> str:
    """Return what speaks against a candidate that is faster; empty if nothing does."""
    seen = by.get(("success", LOG), {}).get(label)
    made = by.get(("success", WORLD), {}).get(label)
    if seen is not None and seen.is_less:
        if made is not None and made.is_more:
            return "the log and the fitted world contradict each other about its success"
        return "it has fewer successes in the log, by more than chance"
    return ""


# --------------------------------------------------------------------------------------------------
# What would make the answer surer.
# --------------------------------------------------------------------------------------------------


def _missing(
    found: Replay, world: FittedWorld | None, twin: Forecast | None, reason: str
) -> tuple[str, ...]:
    parts = [*found.notes]
    if world is None and reason:
        parts.append(f"there is no fitted world: {reason}")
    if twin is not None:
        parts += [f"{label} failed in the fitted world: {x}" for label, x in twin.problems.items()]
    if found.log.n_rounds < FEW_ROUNDS:
        parts.append(f"only {found.log.n_rounds} rounds are recorded; {FEW_ROUNDS} are a start.")
    if found.n_used:
        parts += [text for each in found.candidates if (text := _wish(each, found.log.n_rounds))]
    if world is not None:
        guesses = [each.name for each in world.quantities if each.is_guess]
        if guesses:
            parts.append(f"the fitted world guesses: {', '.join(guesses)}.")
    return tuple(dict.fromkeys(parts))


def _wish(each: Replayed, n_rounds: int) -> str:
    """Return what would make a candidate's numbers surer; empty if they are sure."""
    if each.problem:
        return f"{each.label}: {each.problem}."
    half = each.differences["success"].half_width
    if math.isfinite(half) and half > NARROW:
        more = math.ceil(n_rounds * ((half / NARROW) ** 2 - 1.0))
        rounds = "1 more round narrows" if more == 1 else f"about {more:,} more rounds narrow"
        return (
            f"{each.label}: {rounds} its success to ± {NARROW:g}; so does a mix with it in charge, "
            "or a shadow of it."
        )
    return ""
