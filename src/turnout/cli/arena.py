"""``turnout arena``: the same tasks for every selector."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.options import GridOptions, exit_on_problems, run_shown
from turnout.cli.output import AsJson, console, fitted, note, print_json
from turnout.core.errors import InvalidInput
from turnout.report.to_matplotlib import require_matplotlib
from turnout.studies import ArenaRun, run_arena
from turnout.studies.arena_tables import duels_table, energy_table, overall_table, task_table
from turnout.studies.arena_tasks import GROUPS, tasks_in
from turnout.studies.paper_tables import TextTable
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import sentence_of

_TASKS = (
    f"One of {', '.join(task.label for task in tasks_in(*GROUPS) if not task.plain)}, a group "
    f"({', '.join(GROUPS)}), or the TOML file of a world, such as one of turnout fit; "
    "default: the first and the harder ones whose data are there."
)


@documented
def arena(
    selectors: list[str] | None = None,
    *,
    task: Annotated[list[str] | None, typer.Option(help=_TASKS)] = None,
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    quick: bool = False,
    out: Path = Path("runs/arena"),
    results: Path | None = None,
    collect: bool = False,
    computing: GridOptions,
    as_json: AsJson = False,
) -> None:
    """Run selectors in the arena's tasks and measure them against random.

    Results are kept in arena.json, and runs whose results are kept are not repeated. To enter your
    own selector, give package.module:Class.

    Example: [bold]turnout arena random pace --task contexts --seeds 3[/]

    Args:
        selectors: Selectors, written as for compare; default: all built-in ones.
        task: The tasks.
        seeds: Runs per selector and task.
        first_seed: First seed; tuning uses 100 and above.
        quick: A quarter of the rounds, for a first look.
        out: Folder of the run folders.
        results: Folder of arena.json; default: as --out.
        collect: Run nothing; show the kept results.
        computing: How the runs are computed.
        as_json: For programs.
    """
    require_matplotlib()
    running = computing.for_run()
    if running["shard"] is not None:
        raise InvalidInput("--shard: the arena has no shards; use --task, or --backend ray.")
    found = run_arena(
        selectors or [],
        tasks=task or [],
        seeds=seeds,
        first_seed=first_seed,
        is_quick=quick,
        out=out,
        results=results,
        only_collect=collect,
        notify=functools.partial(note, soft_wrap=True),
        run=functools.partial(run_shown, quiet=as_json),
        **running,
    )
    exit_on_problems(*found.ran)
    drawn, pages = found.draw(), found.write_pages()
    if as_json:
        print_json(_content(found, [*drawn, *pages.values()]))
        return
    for item in found.tasks if task else ():
        _print_table(task_table(found.arena, item))
        if item.has_energy:
            _print_table(energy_table(found.arena, item))
    for label in pages:
        _print_table(duels_table(label, found.overall[label].duels))
    _print_table(overall_table(found.overall))
    for label, own in found.overall.items():
        if label != BASELINE:
            console.print(f"[bold]{label}[/]: {sentence_of(own.duels)}")
    made = f"Figures: {', '.join(map(str, drawn))}"
    made += f". Pages: {', '.join(map(str, pages.values()))}" if pages else ""
    console.print(f"Kept in {found.path}. {made}")


def _print_table(text: TextTable) -> None:
    """Print a table that is not empty, in parts if the terminal is narrow."""
    if text.rows:
        rows = [[escape(cell) for cell in row] for row in text.rows]
        console.print(f"\n{escape(text.title)}")
        console.print(*fitted(text.headings, rows))


def _content(found: ArenaRun, written: list[Path]) -> dict[str, Any]:
    """Return everything for JSON."""
    selectors: dict[str, dict[str, Any]] = {
        label: {
            "time_ratio": own.ratio._asdict(),
            "chance_to_be_faster": own.improvement._asdict(),
            "mean_rank": own.rank._asdict(),
            "least_share": own.least_share,
            "record": sentence_of(own.duels),
            "tasks": {duel.task.label: duel._asdict() for duel in own.duels},
        }
        for label, own in found.overall.items()
    }
    for row in (row for own in selectors.values() for row in own["tasks"].values()):
        del row["task"]
    files = [str(file) for file in written]
    return {"results": str(found.path), "files": files, "selectors": selectors}
