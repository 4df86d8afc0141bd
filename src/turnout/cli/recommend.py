"""``turnout recommend``: the selectors that fit a world, ranked, and the one to take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.options import (
    Jobs,
    Out,
    TrainingOptions,
    WorldOptions,
    exit_on_problems,
    recipe_options,
    run_shown,
    settings_of,
)
from turnout.cli.output import AsJson, console, fitted, print_json, text_table
from turnout.cli.scores import print_scores, score_row
from turnout.core.errors import InvalidInput
from turnout.experiment import Experiment, Results, Variant
from turnout.report import write_advice
from turnout.studies import Recommendation, advise
from turnout.studies import recommend as run_recommendation
from turnout.studies.advice import Advice, AdviceCell
from turnout.studies.recommendation import BASELINE, UNKNOWN, needs_of
from turnout.studies.standings import Standing, standings
from turnout.twin.forecast import SEEDS


@documented
def recommend(
    selectors: list[str] | None = None,
    *,
    train: bool = False,
    training: TrainingOptions,
    federation: WorldOptions,
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    metric: str | None = None,
    without: str = UNKNOWN,
    out: Out = None,
    jobs: Jobs = None,
    fresh: bool = False,
    records: Annotated[list[Path] | None, typer.Option("--from")] = None,
    html: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Run the selectors that fit a world, rank them, and recommend one.

    First, the command shows the standings of these selectors in the arena, on its first tasks
    without those that served for tuning. Then it runs them in your world. If their differences may
    be chance, it recommends the selector that needs least. Give the same command again to resume an
    interrupted run.

    With --from it reads the records of your own federation instead. It says what each candidate
    would change, by the recorded chances of choice and in the world that fits the records, and the
    line to change.

    Example: [bold]turnout recommend --world e3cs --rounds 100 --without success_rate,poll[/]

    Args:
        selectors: Candidates, written as for compare; default: all that fit.
        train: Train a real model.
        training: What is trained.
        federation: Which world, and how large.
        seeds: Runs per selector.
        metric: Key of the metric to judge by; default: accuracy, or success_ratio without --train.
        without: What your server will lack, separated by commas: columns, client reports, poll.
        out: The run folder.
        jobs: Number of concurrent runs.
        fresh: Repeat all runs, even complete ones.
        records: The run folder of a federation, to judge by its records. Give it again for more.
        html: With --from, write a page, too.
        as_json: For programs.
    """
    if records:
        show_advice(advise(records, selectors or (), n_seeds=max(seeds, SEEDS)), html, as_json)
        return
    if html is not None:
        raise InvalidInput("--html needs --from, the records of a federation.", field="html")
    recipe = recipe_options(training)
    if recipe and not train:
        raise InvalidInput("options of training were given without --train.")

    def run(experiment: Experiment, folder: Path, **options: Any) -> Results:
        if not as_json:
            _print_known(_known(experiment.selectors))
        return run_shown(experiment, folder, quiet=as_json, **options)

    found = run_recommendation(
        selectors or [],
        without=[name.strip() for name in without.split(",") if name.strip()],
        metric=metric,
        out=out,
        run=run,
        n_jobs=jobs,
        fresh=fresh,
        **settings_of("recommend", seeds, federation, recipe if train else None),
    )
    exit_on_problems(found.results)
    if as_json:
        print_json(_row(found))
    else:
        _print(found)


def _print(found: Recommendation) -> None:
    for label, reason in found.left_out.items():
        console.print(f"[dim]Left out: {escape(label)}: {escape(reason)}[/]")
    ranking, metric = found.ranking, found.metric
    print_scores(ranking, found.experiment.title, [metric], [metric], ranking.labels[0])
    needs = ", ".join(needs_of(found.winner.make())) or "nothing"
    console.print(f"\n{_sentence(found)} It needs: {needs}.")
    known = _known([found.winner])
    if known and found.winner.name != BASELINE:
        console.print(f"In the arena: {known[found.winner.label].record}")
    console.print("\nIn a Flower app (docs/howto/flower-selection.md):")
    console.print(_flower_line(found), markup=False, soft_wrap=True)
    console.print(f"\nRun folder: {found.results.folder}")


def _known(variants: Sequence[Variant]) -> dict[str, Standing]:
    """Return how selectors with default parameters stand in the arena, the fastest first."""
    plain = {item.name: item.label for item in variants if not item.parameters}
    return {plain[name]: found for name, found in standings().items() if name in plain}


def _print_known(known: Mapping[str, Standing]) -> None:
    """Print what the arena says, before anything runs."""
    rows = []
    for label, standing in known.items():
        value, low, high = standing.time
        time = "1" if label == BASELINE else f"{value:.2f} ({low:.2f} to {high:.2f})"
        unfair = f"{standing.n_unfair} of {standing.n_tasks}"
        rows.append((escape(label), time, f"{standing.least_share:.2f}", unfair))
    time_to = f"time to target / {BASELINE}"
    headings = ("selector", time_to, "least share of fair", "unfair in tasks")
    if rows:
        console.print(text_table("In the arena (docs/arena.md)", headings, rows))


def _sentence(found: Recommendation) -> str:
    """Return which selector to take, and whether the differences are more than chance."""
    decision, metric = found.decision, found.metric.short
    take = f"Take [bold]{escape(decision.winner)}[/]."
    others = ", ".join(escape(name) for name in sorted(decision.alike - {decision.winner}))
    if not decision.best:
        return f"{take} No selector is ahead in {metric}: all are equal, or runs are missing."
    if not others:
        return f"{take} Its lead in {metric} is more than chance."
    best = ", ".join(escape(name) for name in sorted(decision.best))
    if decision.winner in decision.best:
        return f"{take} It has the best mean; these may be as good, but need no less: {others}."
    return f"{take} {best} has the best mean, but the difference may be chance, as for: {others}."


def _flower_line(found: Recommendation) -> str:
    """Return the lines that use the winner in a Flower app."""
    values = found.winner.make().parameters
    given = [f"{name}={values[name]!r}" for name in found.winner.parameters]
    return (
        "import turnout\n"
        "from turnout.live.flower import SelectingStrategy\n"
        f"strategy = SelectingStrategy(FedAvg(), turnout.make("
        f"{', '.join([repr(found.winner.name), *given])}), "
        f"cohort_size={found.winner.cohort_size or found.experiment.cohort_size})"
    )


def _row(found: Recommendation) -> dict[str, Any]:
    """Return everything for JSON."""
    decision, ranking, keys = found.decision, found.ranking, [found.metric.key]
    known = _known(found.experiment.selectors)
    return {
        "metric": found.metric.key,
        "take": decision.winner,
        "alike": sorted(decision.alike),
        "is_clear": len(decision.alike) == 1 and bool(decision.best),
        "ranking": [score_row(ranking, each, keys, ranking.labels[0]) for each in ranking.labels],
        "left_out": dict(found.left_out),
        "folder": str(found.results.folder),
        "flower": _flower_line(found),
        "arena": {label: standing._asdict() for label, standing in known.items()},
    }


# Advice from records ------------------------------------------------------------------------------


def show_advice(found: Advice, html: Path | None, as_json: bool) -> None:
    """Print the advice, and write its page.

    Args:
        found: The advice.
        html: The page to write; None writes none.
        as_json: For programs.
    """
    headings, rows = _table(found)
    if html is not None:
        write_advice(_page(found, headings, rows), html)
    if as_json:
        print_json(_advice_row(found))
        return
    console.print(f"[bold]{escape(found.why)}[/]")
    console.print(_about(found), markup=False)
    for shown in fitted(headings, [[escape(text) for text in row] for row in rows]):
        console.print(shown)
    console.print(
        "Candidates: the difference to now; * is more than chance. The intervals of the twin leave "
        "out errors of its model.",
        style="dim",
    )
    changes = found.changes()
    if changes:
        console.print("\nThe line to change:")
    for place, line in changes.items():
        console.print(f"  {place}: {line}", markup=False, soft_wrap=True)
    if found.missing:
        console.print("\nWhat would make it surer:")
        for text in found.missing:
            console.print(f"  - {text}", markup=False)
    if html is not None:
        console.print(f"\nPage: {html}", markup=False)


def _about(found: Advice) -> str:
    log = found.replay.log
    return (
        f"In charge: {found.charge.label}; {log.n_rounds:,} rounds, {log.n_clients:,} clients, "
        f"{log.clients.size:,} places."
    )


def _table(found: Advice) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows: now, and what each candidate changes."""
    labels = found.replay.labels
    rows = []
    for line in found.lines:
        unit = f" [{line.unit}]" if line.unit else ""
        now = "-" if line.now is None else _number(line.now.mean, line.unit)
        cells = [_change(line.change[x], line.unit) if x in line.change else "-" for x in labels]
        rows.append([f"{line.title}{unit}, {line.source}", now, *cells])
    return ["by", f"now: {found.charge.label}", *labels], rows


def _change(cell: AdviceCell, unit: str) -> str:
    mark = "*" if cell.is_less or cell.is_more else ""
    low, high = (_number(x, unit, sign="+") for x in (cell.low, cell.high))
    return f"{_number(cell.mean, unit, sign='+')}{mark} ({low}, {high})"


def _number(value: float, unit: str, sign: str = "") -> str:
    if not math.isfinite(value):
        return "-"
    decimals = 2 if not unit or abs(value) < 10.0 else 0 if abs(value) >= 1_000.0 else 1
    return format(value, f"{sign},.{decimals}f")


def _page(found: Advice, headings: list[str], rows: list[list[str]]) -> dict[str, Any]:
    """Return what the page shows."""
    return {
        "title": f"{found.charge.label}: what another selector would change",
        "why": found.why,
        "about": _about(found),
        "headings": headings,
        "rows": rows,
        "changes": found.changes(),
        "missing": found.missing,
    }


def _advice_row(found: Advice) -> dict[str, Any]:
    """Return everything for JSON."""
    return {
        "in_charge": found.charge.label,
        "take": found.take,
        "why": found.why,
        "answers": found.replay.n_answers,
        "rounds": found.replay.log.n_rounds,
        "lines": [
            {
                "key": line.key,
                "source": line.source,
                "unit": line.unit,
                "now": None if line.now is None else line.now._asdict(),
                "change": {label: cell._asdict() for label, cell in line.change.items()},
            }
            for line in found.lines
        ],
        "line_to_change": found.changes(),
        "missing": list(found.missing),
    }
