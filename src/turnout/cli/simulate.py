"""``turnout simulate``: one run of one selector."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.experiments import experiment_of, variant_with
from turnout.cli.option_groups import with_groups
from turnout.cli.options import (
    Fresh,
    Param,
    Seed,
    WorldOptions,
    end_badly_on_problems,
    row_of,
    run_shown,
)
from turnout.cli.output import AsJson, console, metric_table, show
from turnout.runs.catalogue import shown_in


@with_groups
def simulate(
    *,
    selector: Annotated[str, typer.Argument(help="A name from turnout list, or module:Class.")],
    param: Param = None,
    federation: WorldOptions,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the run in this folder.")] = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Run one selector in a simulated federation and show its results.

    Example: [bold]turnout simulate e3cs --param quota=0.8 --world e3cs --rounds 500[/]
    """
    variant = variant_with(selector, param)
    experiment = experiment_of("simulate", [variant], [seed], federation)
    with contextlib.ExitStack() as at_end:
        folder = out or Path(tempfile.mkdtemp(prefix="turnout-"))
        if out is None:
            at_end.callback(shutil.rmtree, folder)
        grid = run_shown(experiment, folder, quiet=as_json, n_jobs=1, fresh=fresh)
        if grid.problems:
            at_end.pop_all()  # the traceback is in the folder
        end_badly_on_problems(grid)
    row = row_of(grid)
    title = f"{variant.label}, seed {seed}"
    show(metric_table(title, shown_in("simulate"), row), [row], as_json)
    if out is not None and not as_json:
        console.print(f"Run folder: {out}", highlight=False)
