"""Which selectors can run in a world at all, and which of them to take."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from turnout.errors import InvalidInput, TurnoutError
from turnout.experiment.config import Experiment
from turnout.experiment.grid import checker
from turnout.experiment.variants import Variant, variants_of
from turnout.registry import names
from turnout.results.scores import Scores
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.selector import Selector

#: Needs nothing: another selector must be better than this one.
BASELINE = "random"

#: Selectors that nobody is recommended unless they ask for them, and why.
NOT_ASKED: Mapping[str, str] = {
    "dirichlet": "it is unfair on purpose, to measure what that costs",
    "guarded": "it wraps another selector: name one, such as guarded:inner=oort",
}


class Candidates(NamedTuple):
    """Who takes part in a recommendation.

    Attributes:
        experiment: The experiment with those who fit.
        left_out: Why each of the others does not, by label.
    """

    experiment: Experiment
    left_out: Mapping[str, str]


class Recommendation(NamedTuple):
    """What to take.

    Attributes:
        winner: The label of the selector to take: of those that are alike, the one that needs
            least; the baseline before others that need as little.
        best: Those with the best mean; empty if all are equal or cannot be ranked.
        alike: Those whose difference to the best may be chance, the best included.
    """

    winner: str
    best: frozenset[str]
    alike: frozenset[str]


def needs_of(selector: Selector) -> tuple[str, ...]:
    """Return what a selector must be told: columns, reports of clients, and ``poll``.

    Args:
        selector: The selector.

    >>> from turnout import make
    >>> needs_of(make("pow-d"))
    ('num_samples', 'poll')

    """
    polls = ("poll",) if selector.polls else ()
    return (*sorted(selector.needs_columns | selector.needs_metrics), *polls)


def candidates(
    selectors: Sequence[str], without: Collection[str] = (), **settings: Any
) -> Candidates:
    """Return the selectors whose declared needs fit what there is.

    Args:
        selectors: Texts such as ``"e3cs:quota=0.8"``; none = all that are known.
        without: Columns, reports or ``poll`` that the server will not have, whatever the
            simulated world offers.
        settings: Where they run, as ``Experiment`` takes it.

    Raises:
        InvalidInput: Nobody is left, or the settings are wrong.

    """
    left_out = {} if selectors else dict(NOT_ASKED)
    variants: list[Variant] = []
    for text in selectors or [name for name in names() if name not in NOT_ASKED]:
        try:
            variants += variants_of(text)
        except TurnoutError as error:  # somebody's plug-in, or an extra that is not installed
            if selectors:
                raise
            left_out[text] = str(error)
    experiment = Experiment(variants, **settings)
    check = checker(experiment)
    fitting = []
    for variant in experiment.selectors:
        missing = [need for need in needs_of(variant.make()) if need in without]
        try:
            check(variant)
        except TurnoutError as error:
            left_out[variant.label] = str(error)
            continue
        if missing:
            left_out[variant.label] = f"it needs {', '.join(missing)}"
        else:
            fitting.append(variant)
    if not fitting:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise InvalidInput(f"no selector fits. {reasons}", field="selectors")
    return Candidates(Experiment(fitting, **settings), left_out)


def verdict(scores: Scores, metric: Metric[Facts], variants: Iterable[Variant]) -> Recommendation:
    """Return what to take.

    Args:
        scores: The numbers of all candidates.
        metric: What they are judged by.
        variants: The candidates.

    """
    ranking = scores.ranking(metric)
    alike = ranking.best | ranking.tied or frozenset(scores.labels)
    means = scores.estimate(metric)
    sign = -1.0 if metric.better == "higher" else 1.0
    winner = min(
        (variant for variant in variants if variant.label in alike),
        key=lambda variant: (
            len(needs_of(variant.make())),
            variant.name != BASELINE,
            sign * means[variant.label].mean,
        ),
    )
    return Recommendation(winner.label, ranking.best, alike)
