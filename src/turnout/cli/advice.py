"""The page of ``turnout recommend --from``: what a switch would change, by the records."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.markup import escape

from turnout.cli.output import console, fitted, print_json
from turnout.report import write_advice
from turnout.studies.advice import Advice, AdviceCell


def show_advice(found: Advice, html: Path | None, as_json: bool) -> None:
    """Print the advice, and write its page.

    Args:
        found: The advice.
        html: The page to write; None writes none.
        as_json: For programs.
    """
    headings, rows = _table(found)
    if html is not None:
        write_advice(_page(found, headings, rows), html)
    if as_json:
        print_json(_row(found))
        return
    console.print(f"[bold]{escape(found.why)}[/]")
    console.print(_about(found), markup=False)
    for shown in fitted(headings, [[escape(text) for text in row] for row in rows]):
        console.print(shown)
    console.print(
        "Candidates: the difference to now; * is more than chance. The intervals of the twin leave "
        "out errors of its model.",
        style="dim",
    )
    changes = found.changes()
    if changes:
        console.print("\nThe line to change:")
    for place, line in changes.items():
        console.print(f"  {place}: {line}", markup=False, soft_wrap=True)
    if found.missing:
        console.print("\nWhat would make it surer:")
        for text in found.missing:
            console.print(f"  - {text}", markup=False)
    if html is not None:
        console.print(f"\nPage: {html}", markup=False)


def _about(found: Advice) -> str:
    log = found.replay.log
    return (
        f"In charge: {found.charge.label}; {log.n_rounds:,} rounds, {log.n_clients:,} clients, "
        f"{log.clients.size:,} places."
    )


def _table(found: Advice) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows: now, and what each candidate changes."""
    labels = found.replay.labels
    rows = []
    for line in found.lines:
        unit = f" [{line.unit}]" if line.unit else ""
        now = "-" if line.now is None else _number(line.now.mean, line.unit)
        cells = [_change(line.change[x], line.unit) if x in line.change else "-" for x in labels]
        rows.append([f"{line.title}{unit}, {line.source}", now, *cells])
    return ["by", f"now: {found.charge.label}", *labels], rows


def _change(cell: AdviceCell, unit: str) -> str:
    mark = "*" if cell.is_less or cell.is_more else ""
    low, high = (_number(x, unit, sign="+") for x in (cell.low, cell.high))
    return f"{_number(cell.mean, unit, sign='+')}{mark} ({low}, {high})"


def _number(value: float, unit: str, sign: str = "") -> str:
    if not math.isfinite(value):
        return "-"
    decimals = 2 if not unit or abs(value) < 10.0 else 0 if abs(value) >= 1_000.0 else 1
    return format(value, f"{sign},.{decimals}f")


def _page(found: Advice, headings: list[str], rows: list[list[str]]) -> dict[str, Any]:
    """Return what the page shows."""
    return {
        "title": f"{found.charge.label}: what another selector would change",
        "why": found.why,
        "about": _about(found),
        "headings": headings,
        "rows": rows,
        "changes": found.changes(),
        "missing": found.missing,
    }


def _row(found: Advice) -> dict[str, Any]:
    """Return everything for JSON."""
    return {
        "in_charge": found.charge.label,
        "take": found.take,
        "why": found.why,
        "answers": found.replay.n_answers,
        "rounds": found.replay.log.n_rounds,
        "lines": [
            {
                "key": line.key,
                "source": line.source,
                "unit": line.unit,
                "now": None if line.now is None else line.now.row,
                "change": {label: cell.row for label, cell in line.change.items()},
            }
            for line in found.lines
        ],
        "line_to_change": found.changes(),
        "missing": list(found.missing),
    }
