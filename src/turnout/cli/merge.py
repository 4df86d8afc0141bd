"""``turnout merge``: the shards of a grid become one run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.options import print_json
from turnout.cli.output import AsJson, console, note
from turnout.runs import merge as join


def merge(
    out: Annotated[Path, typer.Argument(help="The folder to fill; it may hold some runs already.")],
    folders: Annotated[
        list[Path], typer.Argument(help="Run folders of the same experiment, or folders of such.")
    ],
    as_json: AsJson = False,
) -> None:
    """Join run folders of the same experiment, such as the shards of a grid.

    Nothing is written if a folder belongs to another experiment, runs were made by different
    versions, one is damaged, or two copies of one differ. Runs that are not complete are left out.
    The command can be repeated.

    Example: [bold]turnout merge runs/all runs/shard-0 runs/shard-1[/]
    """
    merged = join.merge(out, folders)
    if as_json:
        fields = merged._asdict().items()
        print_json({name: [str(path) for path in paths] for name, paths in fields})
        return
    for path in merged.incomplete:
        note(f"{path} is not complete and was left out; run its shard again to go on.")
    n_added, n_present = len(merged.added), len(merged.present)
    console.print(f"{out}: {n_added} runs added, {n_present} were there already.", highlight=False)
