"""``turnout export``: tables and figures for papers and other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.comparison import Baseline, MetricKeys, named_metrics
from turnout.cli.options import print_json
from turnout.cli.output import AsJson, console
from turnout.cli.show import RunFolders, opened
from turnout.errors import InvalidInput, OutputError
from turnout.names import import_extra
from turnout.require import choice
from turnout.results import Results
from turnout.results.figures import WIDTHS, draw_results
from turnout.results.frames import FRAMES
from turnout.results.latex import latex_table
from turnout.results.tables import usual_metrics
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric
from turnout.storage import write_atomically


def export(
    runs: RunFolders,
    csv: Annotated[bool, typer.Option("--csv", help="Tidy tables as CSV.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Tidy tables as Parquet.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A table for a paper.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Figures for a paper.")] = False,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    width: Annotated[
        str, typer.Option("--width", help="Columns of the page that a figure fills: one or two.")
    ] = "two",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the files go.")] = Path("export"),
    as_json: AsJson = False,
) -> None:
    """Write tables and figures of run folders.

    CSV and Parquet have a table each of cells, rounds and choices. LaTeX marks the best of each
    column, and what is not different from it; with --baseline it has differences too. Figures show
    accuracy by round and by time, and metrics against everything that was swept.

    Example: [bold]turnout export runs/demo --latex --metrics success_ratio,cep --out paper[/]
    """
    wanted = named_metrics(metrics)
    columns = choice("--width", width, tuple(WIDTHS))
    if not (csv or parquet or latex or pdf):
        raise InvalidInput("nothing to write: give --csv, --parquet, --latex or --pdf.")
    results = opened(runs, baseline)
    _make(out)
    written = _frames(results, out, "csv") if csv else []
    written += _frames(results, out, "parquet") if parquet else []
    written += _tables(results, out, wanted, baseline) if latex else []
    written += draw_results(results, out, columns, metrics=wanted) if pdf else []
    if as_json:
        print_json([str(path) for path in written])
    else:
        console.print(f"Wrote {', '.join(map(str, written))}.", highlight=False, soft_wrap=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = error.strerror or error
        raise OutputError(f"cannot make {folder} ({fault}): choose another --out.") from error


def _frames(results: Results, out: Path, form: str) -> list[Path]:
    if form == "parquet":
        import_extra("pyarrow", "Parquet needs pyarrow: pip install 'turnout[frames]'.")
    paths = []
    for table in FRAMES:
        frame, path = results.to_frame(table), out / f"{table}.{form}"
        if form == "csv":
            write_atomically(path, frame.to_csv(index=False).encode())
        else:
            frame.to_parquet(path, index=False)
        paths.append(path)
    return paths


def _tables(
    results: Results, out: Path, wanted: Sequence[Metric[Facts]], baseline: str | None
) -> list[Path]:
    """Write the means of each world, and the differences to the baseline if one is given."""
    paths = []
    for number, world in enumerate(results.worlds, start=1):
        place = "" if len(results.worlds) == 1 else f"-{number}"
        scores, metrics = world.scores, wanted or usual_metrics(world)
        tables: dict[str, str | None] = {f"table{place}": None}
        if baseline in scores.labels:
            tables[f"differences{place}"] = baseline
        for name, compared_with in tables.items():
            text = latex_table(scores, metrics, world.title, name, compared_with)
            write_atomically(out / f"{name}.tex", text.encode())
            paths.append(out / f"{name}.tex")
    return paths
