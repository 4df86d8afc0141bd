"""``turnout reproduce``: a paper's numerical figures, with ours beside its claims."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.options import (
    Jobs,
    end_badly_on_problems,
    numbers,
    plus_minus,
    print_json,
    run_shown,
)
from turnout.cli.output import AsJson, console, table
from turnout.experiment import Experiment, Grid, estimate
from turnout.experiment.variants import parse_parameters
from turnout.papers import (
    Claim,
    Finding,
    Preset,
    Results,
    Verdict,
    judge,
    load_preset,
    preset_names,
)
from turnout.papers.measures import MEASURES
from turnout.papers.plots import draw, require_matplotlib
from turnout.papers.presets import NumbersTable

__all__ = ["reproduce"]

_COLOURS = {Verdict.HOLDS: "green", Verdict.WITHIN: "yellow", Verdict.FAILS: "bold red"}

Paper = Annotated[str, typer.Argument(help=f"One of {', '.join(preset_names())}.")]
More = Annotated[list[int] | None, typer.Argument(hidden=True)]
FigureNumbers = Annotated[
    list[int] | None,
    typer.Option("--figure", help="Figures of the paper, e.g. --figure 2 3; default: all."),
]
Seeds = Annotated[int, typer.Option("--seeds", min=2, help="Runs per scheme.")]
Rounds = Annotated[
    int, typer.Option("--rounds", min=0, help="Shorter runs for a quick look; 0 = as the paper.")
]
Out = Annotated[Path, typer.Option("--out", help="Where the run folder goes.")]
Extras = Annotated[
    bool,
    typer.Option("--extras/--no-extras", help="Published forms, their cost, regret and bound."),
]

Retrained = Annotated[
    str,
    typer.Option(
        "--training", help="Change what is trained, e.g. aggregation=mean-returned,device=cuda."
    ),
]


@dataclass(frozen=True)
class _Judged:
    claim: Claim
    ours: Finding
    published: Finding | None


def reproduce(
    paper: Paper,
    more: More = None,
    figure: FigureNumbers = None,
    seeds: Seeds = 10,
    rounds: Rounds = 0,
    training: Retrained = "",
    out: Out = Path("runs"),
    extras: Extras = True,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Run a paper's numerical experiments, judge its claims and draw its figures.

    Exit code 1 if a claim fails. Figures are written as PDF, SVG and PNG into the run folder.

    Example: [bold]turnout reproduce rbcs-f --figure 2 3 4[/]
    """
    require_matplotlib()
    changes = parse_parameters(training)
    preset = load_preset(paper, seeds=seeds, rounds=rounds, training=changes)
    chosen = tuple(dict.fromkeys([*(figure or []), *(more or [])]))
    wanted = chosen or tuple(one.number for one in preset.figures)
    drawings = [preset.figure(number) for number in wanted]
    results = _run(preset, paper, wanted, changes, out, extras, jobs, as_json)
    folder = results[1].grid.folder
    files = [path for drawing in drawings for path in draw(drawing, results[1], folder)]
    judged = [_judged(claim, preset, results, extras) for claim in preset.claims_of(wanted)]
    if as_json:
        print_json(_content(preset, results, judged, files, extras))
    else:
        _print(preset, results[1], judged, files, extras)
    if any(one.ours.verdict == Verdict.FAILS for one in judged):
        raise typer.Exit(1)


def _run(
    preset: Preset,
    paper: str,
    wanted: tuple[int, ...],
    changes: dict[str, Any],
    out: Path,
    extras: bool,
    jobs: int | None,
    quiet: bool,
) -> dict[int, Results]:
    """Run what is needed at each length, the paper's own first; complete runs are kept."""
    lengths = sorted({1} | {claim.times for claim in preset.claims_of(wanted)})
    base = preset.experiment
    grids: dict[int, Grid] = {}
    for times in lengths:
        sized = preset
        if times > 1:
            seeds = len(base.seed_numbers)
            longer = times * base.n_rounds
            sized = load_preset(paper, seeds=seeds, rounds=longer, training=changes)
        experiment: Experiment = sized.experiment
        name = f"{paper}-{experiment.n_rounds}x{len(experiment.seed_numbers)}"
        name += f"-{experiment.world_id[:6]}" if changes else ""
        labels = sized.schemes_for(wanted, times=times, extras=extras)
        grids[times] = run_shown(experiment, out / name, quiet=quiet, n_jobs=jobs, labels=labels)
    end_badly_on_problems(*grids.values())
    return {times: Results(grid) for times, grid in grids.items()}


def _judged(claim: Claim, preset: Preset, results: dict[int, Results], extras: bool) -> _Judged:
    runs = results[claim.times]
    has_published = extras and claim.has_published
    published = judge(claim, runs, preset.published) if has_published else None
    return _Judged(claim, judge(claim, runs), published)


def _print(
    preset: Preset, results: Results, judged: list[_Judged], files: list[Path], extras: bool
) -> None:
    console.print(f"[bold]{preset.title}[/]: {preset.paper}", highlight=False)
    for note in preset.notes:
        console.print(f"  {note}", highlight=False)
    console.print(_overview(preset, results), _claims(judged))
    if extras and preset.cost is not None:
        console.print(_cost(preset, results))
    if extras and preset.regret is not None:
        console.print(_regret(preset, results))
    if preset.numbers is not None:
        console.print(_numbers(preset.numbers, results))
    console.print("Figures: " + ", ".join(str(path) for path in files), highlight=False)


def _overview(preset: Preset, results: Results) -> Table:
    """Return every scheme of the figures, and of the extras those that no other table shows."""
    experiment = results.grid.experiment
    headings = tuple(MEASURES[name].what for name in preset.overview)
    title = f"{experiment.n_rounds} rounds, {len(experiment.seed_numbers)} seeds, mean ± 95 %"
    made = table(title, "scheme", *headings, numbers=headings)
    for label in _overview_labels(preset, results):
        values = (plus_minus(results.estimate(label, n), MEASURES[n].form) for n in preset.overview)
        made.add_row(escape(label), *values)
    return made


def _overview_labels(preset: Preset, results: Results) -> list[str]:
    drawn = {label for figure in preset.figures for label in figure.schemes}
    elsewhere = set(() if preset.cost is None else preset.cost.schemes) - drawn
    return [label for label in results.grid.labels if label not in elsewhere]


def _claims(judged: list[_Judged]) -> Table:
    has_published = any(one.published for one in judged)
    last = ("as published",) if has_published else ()
    made = table("Claims", "fig.", "the paper says", "ours", "verdict", *last)
    for one in judged:
        reading = f"\n[dim]{escape(one.claim.reading)}[/]" if one.claim.reading else ""
        cells = [escape(one.claim.says) + reading, escape(one.ours.ours), _coloured(one.ours)]
        if has_published:
            cells.append(_of_published(one.published))
        made.add_row(str(one.claim.figure), *cells)
    return made


def _coloured(finding: Finding) -> str:
    return f"[{_COLOURS[finding.verdict]}]{finding.verdict}[/]"


def _of_published(finding: Finding | None) -> str:
    """Return the verdict on the published form, with its numbers where it fails."""
    if finding is None:
        return ""
    numbers_too = f"\n[dim]{escape(finding.ours)}[/]" if finding.verdict == Verdict.FAILS else ""
    return _coloured(finding) + numbers_too


def _cost(preset: Preset, results: Results) -> Table:
    assert preset.cost is not None
    cost = preset.cost
    form = MEASURES[cost.measure].form
    made = table(cost.title, "scheme", *cost.columns, numbers=cost.columns)
    for name, *labels in cost.rows:
        values = (plus_minus(results.estimate(label, cost.measure), form) for label in labels)
        made.add_row(name, *values)
    return made


def _regret(preset: Preset, results: Results) -> Table:
    assert preset.regret is not None
    headings = ("regret", "bound", "regret / bound")
    made = table(preset.regret.title, "scheme", *headings, numbers=headings)
    for label in preset.regret.schemes:
        found, bound = (results.values(label, name) for name in ("regret", "regret-bound"))
        parts = ((found, ".0f"), (bound, ".0f"), (found / bound, ".3f"))
        made.add_row(label, *(plus_minus(estimate(values), form) for values, form in parts))
    return made


def _numbers(printed: NumbersTable, results: Results) -> Table:
    """Return the paper's numbers beside ours, for the schemes that were run."""
    headings = ("the paper", "ours")
    made = table(printed.title, "scheme", *headings, numbers=headings)
    form = MEASURES[printed.measure].form
    for label, value in printed.rows:
        if label in results.grid.labels:
            ours = plus_minus(results.estimate(label, printed.measure), form)
            made.add_row(escape(label), f"{value:g}", ours)
    return made


def _content(
    preset: Preset,
    results: dict[int, Results],
    judged: list[_Judged],
    files: list[Path],
    extras: bool,
) -> dict[str, Any]:
    runs = results[1]
    shown = [*preset.overview, *(("regret", "regret-bound") if extras else ())]
    return {
        "paper": preset.paper,
        "n_rounds": runs.grid.experiment.n_rounds,
        "seeds": list(runs.grid.experiment.seed_numbers),
        "folder": str(runs.grid.folder),
        "figures": [str(path) for path in files],
        "schemes": {
            label: {name: numbers(runs.estimate(label, name)) for name in shown}
            for label in runs.grid.labels
        },
        "claims": [
            {
                "figure": one.claim.figure,
                "says": one.claim.says,
                "reading": one.claim.reading,
                "ours": one.ours.ours,
                "verdict": one.ours.verdict.value,
                "as_published": None
                if one.published is None
                else {"found": one.published.ours, "verdict": one.published.verdict.value},
            }
            for one in judged
        ],
    }
