"""Which selectors can run in a world, and which of them to take."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.registry import list_selectors
from turnout.core.selector import Selector
from turnout.experiment import Experiment, Results, Variant, run_experiment
from turnout.experiment.grid import checker
from turnout.experiment.variants import variants_of
from turnout.results.catalogue import metric_named
from turnout.results.metric import Facts, Metric
from turnout.results.scores import Scores

#: Needs nothing: another selector must be better than this one.
BASELINE = "random"

#: What a simulated world knows and a server does not.
UNKNOWN = "success_rate"

#: Selectors that are recommended only to users who ask for them, and why.
NOT_ASKED: Mapping[str, str] = {
    "dirichlet": "it is unfair on purpose, to measure what that costs",
    "guarded": "it wraps another selector: name one, such as guarded:inner=oort",
    "mix": "it draws one of other selectors: name them, such as mix:members={pace=0.9,random=0.1}",
}


class Decision(NamedTuple):
    """Which selector to take.

    Attributes:
        winner: Label of the selector to take: the one that needs least among those that are alike.
            The baseline comes before others that need as little.
        best: The selectors with the best mean; empty if all are equal or cannot be ranked.
        alike: The selectors whose difference to the best may be chance, including the best.
    """

    winner: str
    best: frozenset[str]
    alike: frozenset[str]


@dataclass(frozen=True)
class Recommendation:
    """The selectors that fit a world, ranked, and the one to take.

    Attributes:
        experiment: The experiment that was run.
        left_out: The reason why each of the other selectors does not fit, by label.
        metric: The metric that selectors are judged by.
        results: The results. Look at ``failed``: a run may have failed.
    """

    experiment: Experiment
    left_out: Mapping[str, str]
    metric: Metric[Facts]
    results: Results

    @cached_property
    def decision(self) -> Decision:
        """Which selector to take, and which ones may be as good."""
        return verdict(self.results.scores, self.metric, self.experiment.selectors)

    @property
    def winner(self) -> Variant:
        """The selector to take."""
        label = self.decision.winner
        return next(item for item in self.experiment.selectors if item.label == label)

    @property
    def ranking(self) -> Scores:
        """The scores, with the best mean first."""
        scores, sign = self.results.scores, _sign(self.metric)
        means = {label: sign * mean.mean for label, mean in scores.estimate(self.metric).items()}
        return Scores({label: scores.runs[label] for label in sorted(means, key=means.__getitem__)})


def recommend(
    selectors: Sequence[str] = (),
    *,
    without: Collection[str] = (UNKNOWN,),
    metric: str | None = None,
    out: str | os.PathLike[str] | None = None,
    run: Callable[..., Results] = run_experiment,
    n_jobs: int | None = None,
    fresh: bool = False,
    **settings: Any,
) -> Recommendation:
    """Run the selectors that fit a world, and return which one to take.

    Args:
        selectors: Candidates such as ``"e3cs:quota=0.8"``; none = all that are known.
        without: Columns, reports or ``poll`` that the server will not have.
        metric: Key of the metric to judge by; None = accuracy, or success_ratio without training.
        out: Run folder; None = a folder in ``runs``, named after the settings.
        run: Runs the experiment in a folder.
        n_jobs: Runs at the same time.
        fresh: Whether to repeat complete runs.
        **settings: The world and its size, as ``Experiment`` takes them.

    Raises:
        InvalidInput: No selector fits, nothing can be ranked by the metric, or a setting is wrong.

    """
    judged_by = _ranking_metric(metric, settings.get("training") is not None)
    experiment, left_out = candidates(selectors, without, **{"name": "recommend", **settings})
    folder = Path(out or Path("runs") / f"recommend-{experiment.digest[:8]}")
    results = run(experiment, folder, n_jobs=n_jobs, fresh=fresh)
    return Recommendation(experiment, left_out, judged_by, results)


def needs_of(selector: Selector) -> tuple[str, ...]:
    """Return what a selector needs: columns, reports of clients, and ``poll``.

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
) -> tuple[Experiment, dict[str, str]]:
    """Return the experiment with all selectors that fit, and the reason why each other does not.

    Args:
        selectors: Texts such as ``"e3cs:quota=0.8"``; none = all that are known.
        without: Columns, reports or ``poll`` that the server will not have, even if the simulated
            world offers them.
        settings: The world and its size, as ``Experiment`` takes them.

    Raises:
        InvalidInput: No selector fits, or the settings are wrong.

    """
    left_out = {} if selectors else dict(NOT_ASKED)
    variants: list[Variant] = []
    for text in selectors or [name for name in list_selectors() if name not in NOT_ASKED]:
        try:
            variants += variants_of(text)
        except TurnoutError as error:  # a broken plug-in, or an extra that is not installed
            if selectors:
                raise
            left_out[text] = str(error)
    experiment = Experiment(variants, **settings)
    left_out |= unfit(experiment)
    fitting = []
    for variant in experiment.selectors:
        missing = [need for need in needs_of(variant.make()) if need in without]
        if missing:
            left_out.setdefault(variant.label, f"it needs {', '.join(missing)}")
        if variant.label not in left_out:
            fitting.append(variant)
    if not fitting:
        reasons = "; ".join(f"{label}: {reason}" for label, reason in left_out.items())
        raise InvalidInput(f"no selector fits. {reasons}", field="selectors")
    return Experiment(fitting, **settings), left_out


def unfit(experiment: Experiment) -> dict[str, str]:
    """Return the reason why each selector that cannot run in an experiment cannot, by label.

    Args:
        experiment: The experiment.

    Raises:
        DataMissing: The experiment needs data that are not there.
        InvalidInput: The model does not fit the data.
    """
    check = checker(experiment)
    reasons = {}
    for variant in experiment.selectors:
        try:
            check(variant)
        except TurnoutError as error:
            reasons[variant.label] = str(error)
    return reasons


def verdict(scores: Scores, metric: Metric[Facts], variants: Iterable[Variant]) -> Decision:
    """Return which selector to take.

    Args:
        scores: The numbers of all candidates.
        metric: The metric that they are judged by.
        variants: The candidates.

    """
    ranking = scores.ranking(metric)
    alike = ranking.best | ranking.tied or frozenset(scores.labels)
    means = scores.estimate(metric)
    winner = min(
        (variant for variant in variants if variant.label in alike),
        key=lambda variant: (
            len(needs_of(variant.make())),
            variant.name != BASELINE,
            _sign(metric) * means[variant.label].mean,
        ),
    )
    return Decision(winner.label, ranking.best, alike)


def _sign(metric: Metric[Facts]) -> float:
    """Return the factor that makes lower values better."""
    return -1.0 if metric.better == "higher" else 1.0


def _ranking_metric(key: str | None, is_trained: bool) -> Metric[Facts]:
    """Return a metric by its key; raise if it ranks no selector."""
    metric = metric_named(key or ("accuracy" if is_trained else "success_ratio"))
    if metric.better == "neither":
        problem = "has no better side, so it ranks no selector: choose another one"
        raise InvalidInput(f"--metric {metric.key} {problem}.", field="metric")
    if metric.group == "learning" and not is_trained:
        raise InvalidInput(f"--metric {metric.key} needs training: give --train.", field="metric")
    return metric
