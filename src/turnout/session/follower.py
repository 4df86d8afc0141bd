"""Whoever follows a live run from outside: trackers, metrics, your own code. It cannot disturb it.

Followers are given to ``Settings``, so that every stack has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from turnout.session.members import Members
from turnout.session.post import log
from turnout.session.tally import Tally
from turnout.training.callbacks import Callback
from turnout.types import Status

if TYPE_CHECKING:  # settings have followers, and rounds have settings
    from turnout.session.round import Ended

#: The quantiles of how long clients wait that are told.
AGE_SHARES = (0.5, 0.9, 1.0)


class People(NamedTuple):
    """How many clients there are at a moment.

    Attributes:
        known: Clients that have ever been there.
        connected: Those that are connected.
        free: Those of them that can be chosen.
        busy: Clients with something unanswered, connected or not.
    """

    known: int
    connected: int
    free: int
    busy: int

    @classmethod
    def of(cls, members: Members) -> People:
        """Return the numbers of now."""
        n_free = int(np.count_nonzero(members.selectable()))
        return cls(len(members.roster), members.n_connected, n_free, len(members.busy_clients()))


class Numbers(NamedTuple):
    """A round in numbers.

    Attributes:
        people: Who was there when it had ended.
        statuses: How many of the chosen ended how, by the name of the status.
        train_s: Seconds from sending the work to the end of the round.
        wait_s: Seconds before that: waiting for clients, asking them, choosing.
        success_ratio: Share of all choices so far that were answered in time.
        fairness: Jain's index of how often clients were chosen while they could be.
        ages: Rounds since the last choice in which connected clients could have been chosen, the
            quantiles of ``AGE_SHARES``.
    """

    people: People
    statuses: Mapping[str, int]
    train_s: float
    wait_s: float
    success_ratio: float
    fairness: float
    ages: tuple[float, ...]

    @classmethod
    def of(cls, ended: Ended, members: Members, tally: Tally) -> Numbers:
        """Return the numbers of a round that has just ended."""
        status = ended.closed.status
        train_s = ended.closed.length_s
        ages = tally.ages(members.connected_clients, AGE_SHARES)
        return cls(
            People.of(members),
            {kind.name.lower(): int(np.count_nonzero(status == kind)) for kind in Status},
            train_s,
            max(0.0, ended.closed_at - ended.began_at - train_s),
            tally.success_ratio,
            tally.fairness,
            tuple(ages.tolist()),
        )

    def values(self) -> dict[str, float]:
        """Return them by name, as trackers show them."""
        values = {name: float(n) for name, n in self.statuses.items()}
        values |= {"chosen": sum(values.values())}
        values |= {name: float(n) for name, n in self.people._asdict().items()}
        values |= {"train_s": self.train_s, "wait_s": self.wait_s, "longest_wait": self.ages[-1]}
        values |= {"success_ratio": self.success_ratio, "fairness": self.fairness}
        return {name: value for name, value in values.items() if math.isfinite(value)}


class Follower:
    """Is told what happens in live runs. It does nothing: override the methods that you need.

    What ``start`` raises stops the run before it begins. What the others raise is logged, and the
    run goes on.
    """

    def start(self, run: str, about: Mapping[str, Any]) -> None:
        """Begin to follow the run of this name; ``about`` describes it."""

    def opened(self, run: str, round: int, people: People) -> None:
        """Take in that somebody was chosen for a round, which is counted from 0."""

    def ended(self, run: str, ended: Ended, numbers: Numbers) -> None:
        """Take in how a round ended, with its alerts."""

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Take in what the model was measured at after a round; again when more is known."""

    def end(self, run: str) -> None:
        """Stop following: the run is over, or has failed."""


class Tracker(Follower):
    """Lets a callback of training follow a live run; it may be told twice of a round.

    Args:
        callback: TensorBoard, MLflow, WandB or your own.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def start(self, run: str, about: Mapping[str, Any]) -> None:
        """Start the callback."""
        self.callback.start(about)

    def ended(self, run: str, ended: Ended, numbers: Numbers) -> None:
        """Pass on the numbers of a round, and those of the alerts."""
        extra = {"void": float(ended.is_void), "alerts": float(len(ended.alerts))}
        self.callback.round(ended.round, numbers.values() | extra)

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Pass on what was measured."""
        self.callback.round(round, values)

    def end(self, run: str) -> None:
        """End the callback."""
        self.callback.end()


class Followers:
    """Everyone who follows a run; after the start nobody of them can stop it.

    Args:
        run: The name of the run.
        followers: Who follows it; callbacks of training do, too.
    """

    def __init__(self, run: str, followers: Sequence[Follower | Callback]) -> None:
        self._run = run
        self._all = [Tracker(one) if isinstance(one, Callback) else one for one in followers]
        self._started = ExitStack()

    def __bool__(self) -> bool:
        """Return whether there is anybody."""
        return bool(self._all)

    def start(self, about: Mapping[str, Any]) -> None:
        """Start all of them, or none."""
        with ExitStack() as started:
            for follower in self._all:
                follower.start(self._run, about)
                started.callback(self._guarded, follower, lambda one: one.end(self._run))
            self._started = started.pop_all()

    def opened(self, round: int, people: People) -> None:
        """Tell that a round is open."""
        self._tell(lambda follower: follower.opened(self._run, round, people))

    def ended(self, ended: Ended, numbers: Numbers) -> None:
        """Tell that a round has ended."""
        self._tell(lambda follower: follower.ended(self._run, ended, numbers))

    def measured(self, round: int, values: Mapping[str, float]) -> None:
        """Tell what was measured after a round."""
        if values:
            self._tell(lambda follower: follower.measured(self._run, round, values))

    def end(self) -> None:
        """End those that were started; a second call does nothing."""
        self._started.pop_all().close()

    def _tell(self, tell: Callable[[Follower], None]) -> None:
        for follower in self._all:
            self._guarded(follower, tell)

    def _guarded(self, follower: Follower, tell: Callable[[Follower], None]) -> None:
        try:
            tell(follower)
        except Exception as error:  # whatever somebody else's library raises
            who = follower.callback if isinstance(follower, Tracker) else follower
            name = type(who).__name__
            log.warning("%s does not follow this run: %s: %s", name, type(error).__name__, error)
