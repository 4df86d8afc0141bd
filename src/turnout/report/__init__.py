"""One self-contained HTML page from run folders. It reads only files, so old results stay readable.

>>> from turnout.report import write_report
>>> written = write_report(["runs/e3cs"], "report.html")  # doctest: +SKIP
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turnout.core.errors import OutputError
from turnout.core.files import write_atomically
from turnout.report.page import Row, advice_page, render, summary_rows
from turnout.results import open_runs
from turnout.results.catalogue import shown_in
from turnout.results.groups import WorldGroup, differences, refuse_mixed
from turnout.results.reader import Problem
from turnout.results.sensitivity import is_one_sweep
from turnout.results.tables import suitable

__all__ = ["Problem", "Report", "Row", "report_page", "write_advice", "write_report"]


#: The remedy for runs of several worlds.
_ONE_WORLD = (
    "Report them one at a time, or allow mixed worlds (--allow-mixed): one section per world."
)


class Report(NamedTuple):
    """A report that was written.

    Attributes:
        path: The page.
        rows: The summary tables, each row with its world_id.
        problems: The warnings of the page.
        n_cells: Cells shown.
    """

    path: Path
    rows: list[tuple[str, Row]]
    problems: list[Problem]
    n_cells: int


def write_advice(shown: Mapping[str, Any], out: str | os.PathLike[str]) -> Path:
    """Write the page of ``turnout recommend --from``, and return its path.

    Args:
        shown: Title, headings, rows, sentences and lines to change, as plain data.
        out: The file to write; missing folders are made.

    Raises:
        OutputError: If the file cannot be written.
        MissingExtra: If Jinja2 is not installed.
    """
    return _write(Path(out), advice_page(shown))


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    allow_mixed: bool = False,
) -> Report:
    """Write the page of experiment folders and cell folders.

    Args:
        paths: Run folders: experiments, single cells or folders above them.
        out: The file to write; missing folders are made.
        allow_mixed: Whether runs of different worlds get a section each. Otherwise they are
            refused, unless they are the points of one sweep.

    Returns:
        The path of the page, the rows of its summary and its warnings.

    Raises:
        InvalidInput: If nothing can be shown, or the runs do not compare.
        OutputError: If the file cannot be written.
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    worlds, problems = _read(paths, allow_mixed)
    path = _write(Path(out), render(worlds, problems))
    rows = [
        (world.settings.world_id, row)
        for world in worlds
        for row in summary_rows(world, suitable(world, shown_in("report")))
    ]
    return Report(path, rows, problems, sum(len(world.cells) for world in worlds))


def report_page(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Return the page, with a section for each world.

    Args:
        paths: Run folders, as ``write_report`` takes them.

    Raises:
        InvalidInput: If nothing can be shown.
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    return render(*_read(paths, allow_mixed=True))


def _read(
    paths: Iterable[str | os.PathLike[str]], allow_mixed: bool
) -> tuple[Sequence[WorldGroup], list[Problem]]:
    """Return the worlds to show, and the warnings."""
    results = open_runs(*paths)
    worlds, problems = results.worlds, list(results.problems)
    is_swept = is_one_sweep(worlds)
    if not (allow_mixed or is_swept):
        refuse_mixed(worlds, _ONE_WORLD)
    if len(worlds) > 1 and not is_swept:
        text = "; ".join(differences(worlds))
        message = f"{len(worlds)} worlds: compare only inside a section. They differ: {text}."
        problems.insert(0, Problem("mixed", "", message))
    return worlds, problems


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
