"""``turnout recommend``: the selectors that fit a world, ranked, and the one to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.arena.standing import BASELINE
from turnout.arena.standings import Standing, standings
from turnout.cli.comparison import print_scores, score_row
from turnout.cli.experiments import settings_of
from turnout.cli.option_groups import with_groups
from turnout.cli.options import (
    Fresh,
    Jobs,
    Out,
    WorldOptions,
    end_badly_on_problems,
    print_json,
    run_shown,
)
from turnout.cli.output import AsJson, console, text_table
from turnout.cli.training_options import TrainingOptions, recipe_options
from turnout.errors import InvalidInput
from turnout.experiment import Grid, Variant
from turnout.experiment.recommend import Recommendation, candidates, needs_of, verdict
from turnout.results.scores import Scores
from turnout.runs.catalogue import metric_named
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric

#: What a simulated world knows and a server does not.
_UNKNOWN = "success_rate"


@with_groups
def recommend(
    *,
    selectors: Annotated[
        list[str] | None,
        typer.Argument(help="Candidates, written as for compare; default: all that fit."),
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Train a real model.")] = False,
    training: TrainingOptions,
    federation: WorldOptions,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Runs per selector.")] = 5,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            help="What counts, by its key; default: accuracy, without training success_ratio.",
        ),
    ] = None,
    without: Annotated[
        str,
        typer.Option(
            "--without",
            help="What your server will not know: columns, reports of clients, poll; with commas.",
        ),
    ] = _UNKNOWN,
    out: Out = None,
    jobs: Jobs = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Run the selectors that fit a world, rank them, and say which one to take.

    It first shows how they stand in the arena, nine tasks in which all of them trained. Then your
    world decides. Of those whose differences may be chance there, the one that needs least is
    taken. The numbers are in the run folder; the same command goes on where it stopped.

    Example: [bold]turnout recommend --world e3cs --rounds 100 --without success_rate,poll[/]
    """
    recipe = recipe_options(training)
    if recipe and not train:
        raise InvalidInput("options of training were given without --train.")
    judged_by = _metric(metric, train)
    settings = settings_of("recommend", seeds, federation, recipe if train else None)
    unknown = [name.strip() for name in without.split(",") if name.strip()]
    experiment, left_out = candidates(selectors or [], unknown, **settings)
    folder = out or Path("runs") / f"recommend-{experiment.digest[:8]}"
    known = _known(experiment.selectors)
    if known and not as_json:
        _print_known(known)
    grid = run_shown(experiment, folder, quiet=as_json, n_jobs=jobs, fresh=fresh)
    end_badly_on_problems(grid)
    decision = verdict(grid.scores, judged_by, experiment.selectors)
    winner = next(item for item in experiment.selectors if item.label == decision.winner)
    line = _flower_line(winner, experiment.cohort_size)
    if as_json:
        arena = {label: standing._asdict() for label, standing in known.items()}
        print_json(_row(grid, judged_by, decision, left_out) | {"flower": line, "arena": arena})
        return
    for label, reason in left_out.items():
        console.print(f"[dim]Left out: {escape(label)}: {escape(reason)}[/]", highlight=False)
    title = (
        f"{experiment.n_rounds:,} rounds, {experiment.cohort_size:,} of "
        f"{experiment.n_clients:,} clients"
    )
    ranked = _ranked(grid.scores, judged_by)
    print_scores(ranked, title, [judged_by], [judged_by], ranked.labels[0])
    needs = ", ".join(needs_of(winner.make())) or "nothing"
    console.print(f"\n{_sentence(decision, judged_by)} It needs: {needs}.", highlight=False)
    if decision.winner in known and decision.winner != BASELINE:
        console.print(f"In the arena: {known[decision.winner].record}", highlight=False)
    console.print("\nIn a Flower app (docs/howto/flower-selection.md):", highlight=False)
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nRun folder: {folder}", highlight=False)


def _known(variants: Sequence[Variant]) -> dict[str, Standing]:
    """Return how selectors with default parameters stand in the arena, the fastest first."""
    plain = {item.name: item.label for item in variants if not item.parameters}
    return {plain[name]: found for name, found in standings().items() if name in plain}


def _print_known(known: Mapping[str, Standing]) -> None:
    """Print what the arena says before anything runs."""
    rows = []
    for label, standing in known.items():
        value, low, high = standing.time
        time = "1" if label == BASELINE else f"{value:.2f} ({low:.2f} to {high:.2f})"
        unfair = f"{standing.n_unfair} of {standing.n_tasks}"
        rows.append((escape(label), time, f"{standing.least_share:.2f}", unfair))
    headings = (
        "selector",
        f"time to target / {BASELINE}",
        "least share of fair",
        "unfair in tasks",
    )
    console.print(text_table("In the arena (docs/arena.md)", headings, rows))


def _metric(key: str | None, train: bool) -> Metric[Facts]:
    """Return what counts; raise if nobody can be ranked by it."""
    metric = metric_named(key or ("accuracy" if train else "success_ratio"))
    if metric.better == "neither":
        problem = "is neither better high nor low, so it ranks nobody: choose another"
        raise InvalidInput(f"--metric {metric.key} {problem}.", field="metric")
    if metric.group == "learning" and not train:
        raise InvalidInput(f"--metric {metric.key} is learned: give --train.", field="metric")
    return metric


def _ranked(scores: Scores, metric: Metric[Facts]) -> Scores:
    """Return the scores with the best mean first."""
    sign = -1.0 if metric.better == "higher" else 1.0
    means = {label: sign * mean.mean for label, mean in scores.estimate(metric).items()}
    return Scores({label: scores.runs[label] for label in sorted(means, key=means.__getitem__)})


def _sentence(decision: Recommendation, metric: Metric[Facts]) -> str:
    """Return what to take, and whether the differences are more than chance."""
    take = f"Take [bold]{escape(decision.winner)}[/]."
    others = ", ".join(escape(name) for name in sorted(decision.alike - {decision.winner}))
    if not decision.best:
        return f"{take} Nobody is ahead in {metric.short}: all are equal, or runs are missing."
    if not others:
        return f"{take} Its lead in {metric.short} is more than chance."
    best = ", ".join(escape(name) for name in sorted(decision.best))
    if decision.winner in decision.best:
        return f"{take} It has the best mean; these may be as good, and need no less: {others}."
    return f"{take} {best} has the best mean, but the difference may be chance, as for: {others}."


def _flower_line(variant: Variant, cohort_size: int) -> str:
    """Return the lines that put a selector into a Flower app."""
    values = variant.make().parameters
    shown = [repr(variant.name), *(f"{name}={values[name]!r}" for name in variant.parameters)]
    return (
        "import turnout\n"
        "from turnout.integrations.flower import SelectingStrategy\n"
        f"strategy = SelectingStrategy(FedAvg(), turnout.make({', '.join(shown)}), "
        f"cohort_size={variant.cohort_size or cohort_size})"
    )


def _row(
    grid: Grid, metric: Metric[Facts], decision: Recommendation, left_out: Mapping[str, str]
) -> dict[str, Any]:
    ranked = _ranked(grid.scores, metric)
    keys: Sequence[str] = [metric.key]
    return {
        "metric": metric.key,
        "take": decision.winner,
        "alike": sorted(decision.alike),
        "is_clear": len(decision.alike) == 1 and bool(decision.best),
        "ranking": [score_row(ranked, each, keys, ranked.labels[0]) for each in ranked.labels],
        "left_out": dict(left_out),
        "folder": str(grid.folder),
    }
