"""``turnout report``: one HTML page from run folders."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.options import print_json
from turnout.cli.output import AsJson
from turnout.report import Report, Row, write_report


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Experiment folders or cell folders.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    allow_mixed: Annotated[
        bool,
        typer.Option(
            "--allow-mixed", help="One section per world if worlds differ; a sweep needs no word."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page that shows runs side by side; it needs no network to be read.

    Example: [bold]turnout report runs/demo --out demo.html[/]
    """
    written = write_report(runs, out, allow_mixed=allow_mixed)
    for problem in written.problems:
        typer.echo(f"warning: {problem}", err=True)
    if as_json:
        print_json(_encoded(written))
        return
    size = written.path.stat().st_size / 1e6
    labels = {row.name for _, row in written.rows}
    worlds = {world_id for world_id, _ in written.rows}
    where = f" in {len(worlds)} worlds" if len(worlds) > 1 else ""
    typer.echo(f"{len(labels)} selectors{where}, {written.n_cells} cells.")
    typer.echo(f"Wrote {written.path} ({size:.1f} MB).")


def _encoded(written: Report) -> dict[str, Any]:
    return {
        "report": str(written.path),
        "n_cells": written.n_cells,
        "rows": [
            {"world": world, "selector": row.name, "n_seeds": row.n_seeds} | _estimates(row)
            for world, row in written.rows
        ],
        "problems": [problem._asdict() for problem in written.problems],
    }


def _estimates(row: Row) -> dict[str, Any]:
    return {
        key: {
            "mean": estimate.mean,
            "half_width": estimate.half_width if math.isfinite(estimate.half_width) else None,
            "best": key in row.best,
        }
        for key, estimate in row.estimates.items()
    }
