"""One self-contained HTML page from run folders. Reads files only, so old results stay readable.

>>> from turnout.report import write_report
>>> written = write_report(["runs/e3cs"], "report.html")  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from turnout.errors import InvalidInput
from turnout.report.groups import differences, gather, refuse_mixed
from turnout.report.page import render
from turnout.report.reading import Problem, read_cells
from turnout.report.summary import Row, summary_rows

__all__ = ["Problem", "Report", "Row", "write_report"]


class Report(NamedTuple):
    """What was written."""

    path: Path
    rows: list[tuple[str, Row]]  #: the summary tables, each row with its world_id
    problems: list[Problem]  #: what the page warns of
    n_cells: int  #: cells shown


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    allow_mixed: bool = False,
) -> Report:
    """Write the page for experiment folders and cell folders, and say what it is made of.

    Runs of different worlds are refused, or get a section each with ``allow_mixed=True``.
    """
    given = list(paths)
    if not given:
        raise InvalidInput("no run folder was given: name at least one, such as runs/NAME.")
    cells, problems = read_cells(given)
    worlds, remarks = gather(cells)
    if not worlds:
        raise InvalidInput(_nothing(given, problems))
    if not allow_mixed:
        refuse_mixed(worlds)
    if len(worlds) > 1:
        text = "; ".join(differences(worlds))
        message = f"{len(worlds)} worlds: compare only inside a section. They differ: {text}."
        remarks.insert(0, Problem("mixed", "", message))
    problems += remarks
    rows = [summary_rows(world) for world in worlds]
    path = _write(Path(out), render(worlds, rows, problems))
    all_rows = [
        (world.settings.world_id, row) for world, of in zip(worlds, rows, strict=True) for row in of
    ]
    return Report(path, all_rows, problems, sum(len(world.cells) for world in worlds))


def _nothing(paths: Iterable[str | os.PathLike[str]], problems: list[Problem]) -> str:
    where = ", ".join(str(path) for path in paths)
    if not problems:
        return (
            f"no run was found under {where}: a run is a folder with config.json and rounds.jsonl, "
            "as an experiment writes it."
        )
    listed = "\n".join(f"  {problem}" for problem in problems[:10])
    return f"no cell under {where} can be shown; run the experiment again.\n{listed}"


def _write(out: Path, page: str) -> Path:
    part = out.with_name(f".{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(page.encode("utf-8"))
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InvalidInput(
            f"cannot write {out} ({error.strerror or error}): choose another file with --out."
        ) from error
    return out
