"""``turnout audit``: whether everyone got a fair share of the places."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from turnout.cli.output import AsJson, note, show, table
from turnout.errors import InvalidInput
from turnout.metrics import Guarantee, guarantee
from turnout.runs import read_cells

#: Clients that the table names; JSON names all.
_SHOWN = 20


def audit(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Experiment folders or cell folders.")
    ],
    floor: Annotated[
        float, typer.Option(help="Share of its fair share that each client should get at least.")
    ] = 0.5,
    cap: Annotated[
        float, typer.Option(help="Multiple of its fair share that each should get at most; or inf.")
    ] = 2.0,
    slack: Annotated[
        float, typer.Option(help="Places that a client may be short or ahead in any window.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Certify runs: name every client that fell short of its floor or exceeded its cap.

    All windows of rounds are checked. The exit code is 1 if a client is named.

    Example: [bold]turnout audit runs/demo --floor 0.5 --cap 2[/]
    """
    cells, problems = read_cells(runs)
    for problem in problems:
        note(str(problem), "warning")
    if not cells:
        raise InvalidInput(f"{', '.join(map(str, runs))}: there is no run to audit.")
    rows: list[dict[str, Any]] = []
    for cell in cells:
        where = {"selector": cell.settings.label, "seed": cell.settings.seed}
        rows += [where | row for row in _offences(guarantee(cell.run, floor, cap, slack))]
    columns = ("what", "client", "places", "from round", "to round", "chosen", "fair share")
    title = f"{len(cells)} runs, floor {floor:g}, cap {cap:g}, slack {slack:g}: "
    offences = table(
        title + (f"{len(rows)} offences" if rows else "the guarantee holds"),
        *("selector", "seed", *columns),
        numbers=columns[1:],
    )
    for row in rows[:_SHOWN]:
        offences.add_row(*(escape(_written(value)) for value in row.values()))
    if len(rows) > _SHOWN:
        offences.caption = f"and {len(rows) - _SHOWN} more; --json names all"
    show(offences, rows, as_json)
    raise typer.Exit(1 if rows else 0)


def _offences(certificate: Guarantee) -> list[dict[str, Any]]:
    """Return who fell short and who was ahead, the worst first."""
    kinds = (
        ("short", certificate.is_short, certificate.shortfall, certificate.short_in),
        ("ahead", certificate.is_ahead, certificate.excess, certificate.ahead_in),
    )
    offences = []
    for what, is_named, places, windows in kinds:
        clients = np.flatnonzero(is_named)
        for client in clients[np.argsort(-places[clients], kind="stable")].tolist():
            first, last = windows[client].tolist()
            offences.append(
                {
                    "what": what,
                    "client": client,
                    "places": float(places[client]),
                    "from_round": first,
                    "to_round": last,
                    "chosen": int(certificate.chosen[client]),
                    "fair_share": float(certificate.share[client]),
                }
            )
    return offences


def _written(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
