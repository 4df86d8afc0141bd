"""A session to and from its checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turnout.errors import StateFileError
from turnout.integrations.flower.checkpoint import (
    Checkpoint,
    check_settings,
    read_checkpoint,
    write_checkpoint,
)
from turnout.integrations.flower.mailbox import log
from turnout.roster import Roster

if TYPE_CHECKING:
    from turnout.integrations.flower.session import Session

__all__ = ["restore", "save"]


def save(session: Session, *, is_evaluated: bool) -> None:
    """Write the checkpoint, if one is wanted."""
    path, inner_state = session.settings.checkpoint, session.inner_state
    if path is None or inner_state is None:
        return
    plain, inner_arrays = inner_state.changed()
    members, world, bounds = session.members, session.world, session.rounds.bounds
    saved = Checkpoint(
        settings=session.identity,
        rounds_done=session.journal.n_rounds,
        is_evaluated=is_evaluated,
        model=session.arrays,
        roster=members.roster.to_json(),
        busy=[[client, until] for client, until in members.busy_clients().items()],
        seen=sorted(session.reports.seen),
        metrics=session.journal.plain_metrics(),
        inner=plain,
        inner_arrays=inner_arrays,
        arrays={
            "selector": session.selector.state() if len(members.roster) else {},
            "observed": session.rounds.observed.state(),
            "columns": members.columns.state(),
            "run": session.journal.columns(),
            "world": {} if world is None else world.state(),
            "bounds": bounds.state() if bounds is not None and len(members.roster) else {},
        },
    )
    write_checkpoint(path, saved)


def restore(session: Session, path: Path) -> None:
    """Go back to the end of the last round that was saved."""
    saved = read_checkpoint(path)
    change = check_settings(path, saved.settings, session.identity)
    if change is not None:
        log.warning("from now on other settings than before: %s", change)
    try:
        _load(session, saved)
    except StateFileError as error:
        raise StateFileError(f"{path}: {error}") from error
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise StateFileError(
            f"{path} is damaged ({type(error).__name__}: {error}); delete it to start again."
        ) from error
    log.info("going on after round %d, saved in %s", session.offset, path)


def _load(session: Session, saved: Checkpoint) -> None:
    roster = Roster.from_json(saved.roster)
    given = session.members.roster.ids
    if roster.ids[: len(given)] != given:
        raise StateFileError("it has its clients in another order than the roster or the world.")
    session.members.restore(roster, saved.busy, saved.arrays.get("columns", {}))
    if len(roster):
        session.selector.prepare(len(roster), session.settings.seed)
        session.selector.load_state(saved.arrays["selector"])
        if session.rounds.bounds is not None:
            session.rounds.bounds.reset(len(roster))
            if "bounds" in saved.arrays:  # they were on
                session.rounds.bounds.load_state(saved.arrays["bounds"])
    session.rounds.observed.load_state(saved.arrays["observed"])
    session.rounds.continue_with(len(roster))
    session.journal.restore(saved.arrays["run"], saved.metrics)
    session.journal.n_clients = max(1, len(roster))
    session.reports.seen.update(saved.seen)
    if session.world is not None:
        session.world.load_state(saved.arrays.get("world", {}))
    if session.inner_state is not None:
        session.inner_state.restore(saved.inner, saved.inner_arrays)
    session.arrays = saved.model
    session.offset, session.is_evaluated = saved.rounds_done, saved.is_evaluated
