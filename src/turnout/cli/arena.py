"""``turnout arena``: the same tasks for every selector."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from turnout.arena import Arena, tasks_named
from turnout.arena.figures import ACCURACY, TIME, draw_front, draw_profile
from turnout.arena.page import page_of
from turnout.arena.standing import BASELINE, Overall, overall_of, sentence_of
from turnout.arena.tables import duels_table, overall_table, task_table
from turnout.arena.tasks import task_labels
from turnout.cli.option_groups import with_groups
from turnout.cli.options import GridOptions, end_badly_on_problems, print_json, run_shown
from turnout.cli.output import AsJson, console, fitted
from turnout.errors import InvalidInput
from turnout.experiment.recommend import NOT_ASKED
from turnout.experiment.variants import variants_of
from turnout.papers.tables import TextTable
from turnout.registry import names
from turnout.results.drawing import FORMATS, require_matplotlib
from turnout.runs.files import slug
from turnout.runs.versions import tools
from turnout.storage import write_atomically

#: Names of the figures' files.
FIGURES = ("front", "accuracy", "profile")


@with_groups
def arena(
    *,
    selectors: Annotated[
        list[str] | None,
        typer.Argument(help="Selectors, written as for compare; default: all that are built in."),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help=f"One of {', '.join(task_labels())}; default: all."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Runs per selector and task.")] = 5,
    first_seed: Annotated[
        int, typer.Option("--first-seed", min=0, help="From 100 on for tuning, else 0.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A quarter of the rounds, for a first look.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Where the run folders go.")] = Path(
        "runs/arena"
    ),
    results: Annotated[
        Path | None,
        typer.Option("--results", help="Folder of arena.json; default: as --out."),
    ] = None,
    collect: Annotated[
        bool, typer.Option("--collect", help="Run nothing: show what is kept.")
    ] = False,
    computing: GridOptions,
    as_json: AsJson = False,
) -> None:
    """Run selectors in the arena's tasks and measure them against random.

    Results are kept in arena.json: what it has is not run again. Selectors of your own enter as
    package.module:Class.

    Example: [bold]turnout arena random pace --task contexts --seeds 3[/]
    """
    require_matplotlib()
    running = computing.for_run()
    if running["shard"] is not None:
        raise InvalidInput("--shard: the arena has no shards; use --task, or --backend ray.")
    tasks = tasks_named(task or [])
    chosen = selectors or [name for name in names(plugins=False) if name not in NOT_ASKED]
    texts = list(dict.fromkeys([BASELINE, *chosen]))
    variants = [variant for text in texts for variant in variants_of(text)]
    folder = out / "quick" if quick else out
    path = (results or folder) / "arena.json"
    kept = Arena.read(path)
    numbers = range(first_seed, first_seed + seeds)
    plans = [] if collect else kept.lacking(tasks, variants, numbers, folder, is_quick=quick)
    for plan in plans:
        for label, reason in plan.left_out.items():
            note = f"{plan.task.label}: {label} is left out: {reason}"
            Console(stderr=True).print(f"[dim]{escape(note)}[/]", highlight=False)
        if plan.experiment is None:
            continue
        grid = run_shown(plan.experiment, plan.folder, quiet=as_json, **running)
        kept.add(plan, grid)
        kept.file.made_with = tools(trains=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept.file.write(path)
        end_badly_on_problems(grid)
    overall = overall_of(kept, tasks)
    if not overall:
        raise InvalidInput(f"{path} has no results of these tasks: run without --collect.")
    folder.mkdir(parents=True, exist_ok=True)
    front, accuracy, profile = (
        [folder / f"{name}.{ending}" for ending in FORMATS] for name in FIGURES
    )
    drawn = draw_front(overall, TIME, front) + draw_front(overall, ACCURACY, accuracy)
    drawn += draw_profile(kept, tasks, tuple(overall), profile)
    entrants = [item.label for item in variants if selectors and item.label in overall]
    pages = {x: folder / f"{slug(x)}.md" for x in entrants if x != BASELINE}
    for label, page in pages.items():
        text = page_of(kept, tasks, label, figure=f"{FIGURES[0]}.png")
        write_atomically(page, text.encode())
    if as_json:
        print_json(_content(overall, path, [*drawn, *pages.values()]))
        return
    for item in tasks if task else ():
        _print_table(task_table(kept, item))
    for label in pages:
        _print_table(duels_table(label, overall[label].duels))
    _print_table(overall_table(overall))
    for label, own in overall.items():
        if label != BASELINE:
            console.print(f"[bold]{label}[/]: {sentence_of(own.duels)}", highlight=False)
    made = f"Figures: {', '.join(map(str, drawn))}"
    if pages:
        made += f". Pages: {', '.join(map(str, pages.values()))}"
    console.print(f"Kept in {path}. {made}", highlight=False)


def _print_table(text: TextTable) -> None:
    """Print a table, in parts if the terminal is narrow."""
    first, *headings = text.headings
    rows = [[escape(cell) for cell in row] for row in text.rows]
    console.print(f"\n{escape(text.title)}", highlight=False)
    for part in fitted((first, [row[0] for row in rows]), headings, [row[1:] for row in rows]):
        console.print(part)


def _content(overall: dict[str, Overall], path: Path, drawn: list[Path]) -> dict[str, Any]:
    return {
        "results": str(path),
        "files": [str(file) for file in drawn],
        "selectors": {
            label: {
                "time_ratio": _known(own.ratio._asdict()),
                "chance_to_be_faster": _known(own.improvement._asdict()),
                "mean_rank": _known(own.rank._asdict()),
                "least_share": own.least_share,
                "record": sentence_of(own.duels),
                "tasks": {duel.task.label: _known(duel._asdict()) for duel in own.duels},
            }
            for label, own in overall.items()
        },
    }


def _known(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON holds it: an interval of one run has no ends."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
        if name != "task"
    }
