"""What a checkpoint keeps of the parts of a session, and how they go back to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.errors import StateFileError
from turnout.roster import Roster
from turnout.session import clock
from turnout.session.checkpoint import Checkpoint
from turnout.session.parts import Parts


def checkpoint_of(settings: Mapping[str, Any], parts: Parts) -> Checkpoint:
    """Return everything that the next round depends on, at the end of one.

    Args:
        settings: What the checkpoint belongs to.
        parts: The session.
    """
    members, journal = parts.members, parts.journal
    return Checkpoint(
        settings=settings,
        rounds_done=journal.n_rounds,
        roster=members.roster.to_json(),
        busy=[[c, until, until - clock.wall()] for c, until in members.busy_clients().items()],
        bindings=members.bindings,
        seen=sorted(parts.reports.seen),
        metrics=journal.metrics,
        void=sorted(journal.void),
        arrays={
            **parts.chooser.state(),
            **parts.oversight.state(),
            "columns": members.columns.state(),
            "run": journal.columns(),
        },
    )


def restore(saved: Checkpoint, parts: Parts) -> None:
    """Let the parts of a session go back to a checkpoint.

    Args:
        saved: The checkpoint.
        parts: The session.

    Raises:
        StateFileError: The checkpoint's clients are in another order than those that are known.
    """
    roster, members, journal = Roster.from_json(saved.roster), parts.members, parts.journal
    first = members.roster.ids
    if roster.ids[: len(first)] != first:
        raise StateFileError("its clients are in another order than roster or world.")
    members.restore(roster, saved.busy, saved.bindings, saved.arrays.get("columns", {}))
    parts.chooser.load_state(saved.arrays, len(roster))
    journal.restore(saved.arrays["run"], saved.metrics, set(saved.void))
    journal.n_clients = max(1, len(roster))
    parts.reports.seen.update(saved.seen)
    n_void = journal.n_last_below(parts.settings.quorum.min_answers)
    parts.oversight.load_state(saved.arrays, journal.run, n_void)
