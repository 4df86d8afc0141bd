"""A live run in the terminal: at a glance, clients by name, and why some gave no answer."""

from __future__ import annotations

import math
from typing import Any

from rich.markup import escape

from turnout.cli.output import console, fitted, text_table
from turnout.names import shortened
from turnout.report.live import live_view
from turnout.results.live import ENDS, LiveRun

#: Reasons that are printed; JSON has all.
_SHOWN = 15
#: Characters of a client's name in the table.
_WIDEST = 22


def print_live(run: LiveRun, name: str) -> None:
    """Print what happened in a live run.

    Args:
        run: The run.
        name: What it is called.
    """
    view = live_view(run, "", name)
    console.print(f"[bold]{escape(name)}[/], as it ran", highlight=False)
    for fact in view.facts:
        remark = f" ({fact.remark})" if fact.remark else ""
        console.print(f"  {fact.title}: {fact.text}{remark}", highlight=False, markup=False)
    if view.void:
        console.print(f"  Void, with too few answers: rounds {view.void}", highlight=False)
    for alert in view.alerts:
        text = f"  Alert after round {alert.round}, {alert.kind}: {alert.text}"
        console.print(text, highlight=False, markup=False)
    names = [escape(shortened(row.name, _WIDEST)) for row in view.rows]
    console.print("Clients, most trouble first", style="italic")
    for part in fitted(("client", names), view.headings, [row.cells for row in view.rows]):
        console.print(part)
    if view.complaints:
        lines = [
            [one.client, one.what, f"{one.times:,}", str(one.last), one.reason]
            for one in view.complaints[:_SHOWN]
        ]
        headings = ["client", "what", "times", "last in round", "reason"]
        console.print(text_table("Late, failed and silent", headings, lines))
        if view.n_complaints > _SHOWN:
            console.print(f"and {view.n_complaints - _SHOWN} more; --json has all", style="dim")
    if view.fairness:
        console.print(view.fairness, style="dim", highlight=False, markup=False)


def live_row(run: LiveRun) -> dict[str, Any]:
    """Return a live run for a program: every client and every reason.

    Args:
        run: The run.
    """
    shares = run.shares
    clients = []
    for i, client in enumerate(run.names):
        row: dict[str, Any] = {"client": client, "chosen": int(run.counts[i].sum())}
        row |= {kind.name.lower(): int(run.counts[i, kind]) for kind in ENDS}
        if shares is not None:
            row |= {"free_rounds": int(shares.free[i]), "fair_share": float(shares.fair[i])}
        clients.append(row)
    return {
        "seed": run.settings.seed,
        "n_rounds": run.n_rounds,
        "min_answers": run.min_answers,
        "void_rounds": [t + 1 for t, is_void in enumerate(run.answers.is_void.tolist()) if is_void],
        "wall_s": _known(run.answers.wall_s.tolist()),
        "training_s": _known(run.answers.length_s.tolist()),
        "alerts": [alert._asdict() for alert in run.alerts],
        "clients": clients,
        "complaints": [complaint._asdict() for complaint in run.complaints],
    }


def _known(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
