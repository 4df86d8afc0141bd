"""``turnout reproduce``: a paper's experiments, with ours beside its claims."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from turnout.cli.app import documented
from turnout.cli.options import GridOptions, exit_on_problems, print_shard, run_shown
from turnout.cli.output import AsJson, console, print_json, table, text_table
from turnout.cli.scores import numbers
from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray
from turnout.experiment import estimate
from turnout.experiment.variants import parse_parameters
from turnout.report.to_matplotlib import require_matplotlib
from turnout.studies import Reproduction, Verdict, preset_names
from turnout.studies import reproduce as run_paper
from turnout.studies.measures import comparable, measure_named
from turnout.studies.paper_tables import Judged, TextTable
from turnout.studies.plan import HEADLINE, Headlines, headline_table, run_plan

_COLOURS = {
    Verdict.HOLDS: "green",
    Verdict.UNDECIDED: "yellow",
    Verdict.FAILS: "bold red",
    Verdict.NOT_REACHED: "yellow",
}

_PAPERS = f"One of {', '.join(preset_names())}, or {HEADLINE}: the headline claims of all papers."


@documented
def reproduce(
    paper: Annotated[str, typer.Argument(help=_PAPERS)],
    more: Annotated[list[int] | None, typer.Argument(hidden=True)] = None,
    *,
    figure: list[int] | None = None,
    setting: list[str] | None = None,
    seeds: Annotated[int, typer.Option(min=0)] = 0,
    rounds: Annotated[int, typer.Option(min=0)] = 0,
    training: str = "",
    out: Path = Path("runs"),
    results: Path | None = None,
    collect: bool = False,
    only: list[str] | None = None,
    extras: Annotated[bool, typer.Option("--extras/--no-extras")] = True,
    computing: GridOptions,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments, judge its claims and draw its figures.

    Results are kept in a small JSON file. Figures are written as PDF, SVG and PNG beside the runs.
    The exit code is 1 if a claim fails.

    Example: [bold]turnout reproduce rbcs-f --figure 2 3 4[/]

    Args:
        paper: The paper.
        more: Further figures, behind ``--figure``.
        figure: Figures of the paper, e.g. --figure 2 3; default: all.
        setting: Label of a setting; can be repeated; default: all.
        seeds: Runs per scheme; 0 = as the preset says.
        rounds: Shorter runs for a quick look; 0 = as the paper.
        training: Change the training, e.g. aggregation=mean-returned,device=cuda.
        out: Folder of the run folders.
        results: Folder of the results file, for one process at a time; default: as --out.
        collect: Run nothing; judge and draw the runs that are complete.
        only: With headline: key of a claim; can be repeated; default: all.
        extras: Published forms, their cost, regret and bound.
        computing: How the runs are computed.
        as_json: For programs.
    """
    require_matplotlib()
    running = computing.for_run()
    shard = running["shard"]
    if paper == HEADLINE:
        changes = (figure, more, setting, seeds, rounds, training, shard, computing.fresh)
        if any(changes):
            raise InvalidInput(
                f"{HEADLINE} runs as it was planned: leave --figure, --setting, --seeds, --rounds, "
                "--training, --shard and --fresh out."
            )
        _reproduce_headline(only or [], out, results or Path("results"), collect, running, as_json)
        return
    if only:
        raise InvalidInput(f"--only chooses claims of the plan: turnout reproduce {HEADLINE}.")
    if collect and shard is not None:
        raise InvalidInput("--collect and --shard exclude each other: collect after turnout merge.")
    study = run_paper(
        paper,
        figures=[*(figure or []), *(more or [])],
        setting=setting or [],
        seeds=seeds,
        rounds=rounds,
        training=parse_parameters(training),
        extras=extras,
        out=out,
        results=results,
        only_collect=collect,
        run=functools.partial(run_shown, quiet=as_json),
        **running,
    )
    exit_on_problems(*study.ran)
    if shard is not None:
        print_shard(shard, out, study.ran, as_json)
        return
    written = study.draw()
    if as_json:
        print_json(_content(study, written))
    else:
        _print(study, written)
    if study.has_failed:
        raise typer.Exit(1)


def _reproduce_headline(
    only: list[str], out: Path, results: Path, collect: bool, running: dict[str, Any], as_json: bool
) -> None:
    """Run and print the headline claims; the exit code is 1 if one of them fails."""
    study = run_plan(
        only=only,
        out=out,
        results=results,
        only_collect=collect,
        run=functools.partial(run_shown, quiet=as_json),
        **running,
    )
    exit_on_problems(*study.ran)
    if as_json:
        print_json(_headline_content(study))
    else:
        console.print(_rich(headline_table(study.rulings)))
    if any(one.verdict == Verdict.FAILS for one in study.rulings):
        raise typer.Exit(1)


def _headline_content(study: Headlines) -> dict[str, Any]:
    return {
        "claims": [
            {
                "key": one.headline.key,
                "says": one.headline.claim.says,
                "seeds": one.n_done,
                "seeds_planned": one.headline.seeds,
                "planned_effect": one.headline.planned,
                "effect": one.finding and numbers(one.finding.effect),
                "verdict": one.verdict and one.verdict.value,
            }
            for one in study.rulings
        ]
    }


def _print(study: Reproduction, written: list[Path]) -> None:
    preset = study.preset
    console.print(f"[bold]{preset.title}[/]: {preset.paper}")
    for note in preset.notes:
        console.print(f"  {note}")
    for text in study.tables:
        console.print(_rich(text))
    if written:
        console.print("Figures: " + ", ".join(str(path) for path in written))


def _rich(text: TextTable) -> Table:
    if not {"verdict", "alone"} & set(text.headings):
        return text_table(text.title, text.headings, text.rows)
    shown = table(text.title, *text.headings)
    for row in text.rows:
        styles = (
            next((style for verdict, style in _COLOURS.items() if cell.startswith(verdict)), "")
            for cell in row
        )
        shown.add_row(*map(Text, row, styles))
    return shown


def _content(study: Reproduction, written: list[Path]) -> dict[str, Any]:
    """Return everything for JSON."""
    return {
        "paper": study.preset.paper,
        "folder": str(study.folder),
        "figures": [str(path) for path in written],
        "settings": [
            {
                "setting": setting,
                "times": times,
                "n_rounds": results.n_rounds,
                "schemes": {
                    label: _scheme(study, setting, results, label) for label in results.schemes
                },
            }
            for (setting, times), results in study.file.parts.items()
        ],
        "claims": [_claim(entry) for entry in study.claims],
    }


def _scheme(study: Reproduction, setting: str, results: Any, label: str) -> dict[str, Any]:
    scheme = results.schemes[label]
    names = (*scheme.measures, *study.preset.relative_measures(setting))
    measured = {name: _measured(results.values(label, name), name) for name in names}
    return {"seeds": list(scheme.seeds), **measured}


def _measured(values: FloatArray, name: str) -> dict[str, Any]:
    """Return a measure over all seeds, including runs that diverged or never reached a target."""
    measure = measure_named(name)
    values = comparable(values, measure)
    lost = {"diverged": int(np.isnan(values).sum()), "seeds": values.size}
    if not measure.is_time_to:
        return numbers(estimate(values)) | lost
    known = values[~np.isnan(values)]
    median = float(np.median(known)) if known.size else math.inf
    never = int(np.isinf(known).sum())
    return {"median": median, "never": never} | lost


def _claim(entry: Judged) -> dict[str, Any]:
    form = entry.published
    published = form and {"found": form.deciding, "verdict_alone": form.verdict.value}
    return {
        "figure": entry.claim.figure,
        "place": entry.place,
        "setting": entry.setting,
        "says": entry.claim.says,
        "reading": entry.claim.reading,
        "by_construction": entry.claim.by_construction,
        "differs": entry.differs,
        "ours": entry.ours.ours,
        "effect": numbers(entry.ours.effect),
        "verdict_alone": entry.ours.verdict.value,
        "seeds": entry.ours.n_seeds,
        "seeds_needed_alone": entry.ours.seeds_needed,
        "as_published": published,
    }
