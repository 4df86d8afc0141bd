"""What a checkpoint keeps of the parts of a session, and how they go back to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.errors import StateFileError
from turnout.roster import Roster
from turnout.session import clock
from turnout.session.checkpoint import Checkpoint
from turnout.session.chooser import Chooser
from turnout.session.journal import Journal
from turnout.session.members import Members
from turnout.session.reports import Reports


def checkpoint_of(
    settings: Mapping[str, Any],
    members: Members,
    chooser: Chooser,
    journal: Journal,
    reports: Reports,
) -> Checkpoint:
    """Return everything that the next round depends on, at the end of one.

    Args:
        settings: What the checkpoint belongs to.
        members: Who is who.
        chooser: What chooses and learns.
        journal: What happened so far.
        reports: What clients have reported.
    """
    return Checkpoint(
        settings=settings,
        rounds_done=journal.n_rounds,
        roster=members.roster.to_json(),
        busy=[[c, until, until - clock.wall()] for c, until in members.busy_clients().items()],
        bindings=members.bindings,
        seen=sorted(reports.seen),
        metrics=journal.metrics,
        void=sorted(journal.void),
        arrays={
            **chooser.state(),
            "columns": members.columns.state(),
            "run": journal.columns(),
        },
    )


def restore(
    saved: Checkpoint, members: Members, chooser: Chooser, journal: Journal, reports: Reports
) -> None:
    """Let the parts go back to a checkpoint.

    Args:
        saved: The checkpoint.
        members: Who is who.
        chooser: What chooses and learns.
        journal: What happened so far.
        reports: What clients have reported.

    Raises:
        StateFileError: The checkpoint's clients are in another order than those that are known.
    """
    roster = Roster.from_json(saved.roster)
    first = members.roster.ids
    if roster.ids[: len(first)] != first:
        raise StateFileError("its clients are in another order than roster or world.")
    members.restore(roster, saved.busy, saved.bindings, saved.arrays.get("columns", {}))
    chooser.load_state(saved.arrays, len(roster))
    journal.restore(saved.arrays["run"], saved.metrics, set(saved.void))
    journal.n_clients = max(1, len(roster))
    reports.seen.update(saved.seen)
