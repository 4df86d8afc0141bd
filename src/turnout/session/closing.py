"""The end of a round: everyone learns, it is written down and counted."""

from __future__ import annotations

import numpy as np

from turnout.policies import Closed
from turnout.session.parts import Parts
from turnout.session.round import Ended, OpenRound, Times, nobody
from turnout.types import Status


def close(
    parts: Parts, opened: OpenRound, closed: Closed, times: Times, *, counts_once: bool
) -> Ended:
    """Let everyone learn, keep who is late from being chosen, and write it down.

    Args:
        parts: The session.
        opened: The round.
        closed: How it ended for everybody.
        times: When it began, and when it was closed.
        counts_once: Whether the answer of a client that was drawn twice counts once.
    """
    settings, selection = parts.settings, opened.selection
    available, deadline = opened.context.available, opened.context.deadline
    answers, members = opened.cohort.answers, parts.members
    ended = opened.ended(
        closed,
        times,
        settings.quorum.min_answers,
        lambda client, heard: parts.chooser.believed_weight(client, heard, members),
        counts_once=counts_once,
    )
    duration = parts.chooser.learn(selection, closed, answers, members.columns, deadline)
    if parts.chooser.world is None:
        left = settings.busy_s(deadline) - closed.length_s
        for i in np.flatnonzero(closed.status == Status.LATE).tolist():
            members.hold(opened.addresses[i], left)
    parts.journal.add(selection, ended, duration, available)
    return parts.oversight.count(selection, available, ended, members.roster)


def close_empty(parts: Parts, times: Times) -> Ended:
    """Write down a round in which nobody could be chosen.

    Args:
        parts: The session.
        times: When it began, and when it was closed.
    """
    t = parts.journal.n_rounds
    empty, available, ended = nobody(t, parts.chooser.policy, times)
    parts.journal.add(empty, ended, ended.closed.duration, available)
    return parts.oversight.count(empty, available, ended, parts.members.roster)
