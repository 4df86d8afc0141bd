"""One self-contained HTML page from run folders. Reads files only, so old results stay readable.

>>> from turnout.report import write_report
>>> written = write_report(["runs/e3cs"], "report.html")  # doctest: +SKIP
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from turnout.errors import InvalidInput, OutputError
from turnout.report.groups import differences, gather, refuse_mixed
from turnout.report.page import render
from turnout.report.summary import Row, summary_rows
from turnout.runs.catalogue import shown_in
from turnout.runs.reader import Problem, read_cells
from turnout.storage import write_atomically

__all__ = ["Problem", "Report", "Row", "write_report"]


class Report(NamedTuple):
    """What was written.

    Attributes:
        path: The page.
        rows: The summary tables, each row with its world_id.
        problems: What the page warns of.
        n_cells: Cells shown.
    """

    path: Path
    rows: list[tuple[str, Row]]
    problems: list[Problem]
    n_cells: int


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    allow_mixed: bool = False,
) -> Report:
    """Write the page for experiment folders and cell folders, and say what it is made of.

    Args:
        paths: Run folders: experiments, single cells or folders above them.
        out: The file to write; missing folders are made.
        allow_mixed: Whether runs of different worlds get a section each. They are refused else.

    Returns:
        Where the page is, the rows of its summary and what it warns of.

    Raises:
        InvalidInput: If nothing can be shown, or the runs do not compare.
        OutputError: If the file cannot be written.
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    folders = list(paths)
    if not folders:
        raise InvalidInput("no run folder was given: name at least one, such as runs/NAME.")
    cells, problems = read_cells(folders)
    worlds, remarks = gather(cells)
    if not worlds:
        raise InvalidInput(_nothing(folders, problems))
    if not allow_mixed:
        refuse_mixed(worlds)
    if len(worlds) > 1:
        text = "; ".join(differences(worlds))
        message = f"{len(worlds)} worlds: compare only inside a section. They differ: {text}."
        remarks.insert(0, Problem("mixed", "", message))
    problems += remarks
    rows = [summary_rows(world, shown_in("report")) for world in worlds]
    path = _write(Path(out), render(worlds, rows, problems))
    with_world = [
        (world.settings.world_id, row)
        for world, its_rows in zip(worlds, rows, strict=True)
        for row in its_rows
    ]
    return Report(path, with_world, problems, sum(len(world.cells) for world in worlds))


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
    """Write the page; a character that no file can hold, such as half an emoji, becomes ``?``."""
    try:
        if out.exists() and not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is read-only")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page.encode("utf-8", "replace"))
    except OSError as error:
        raise OutputError(
            f"cannot write {out} ({error.strerror or error}): choose another file with --out."
        ) from error
    return out
