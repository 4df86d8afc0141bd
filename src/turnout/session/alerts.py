"""What an operator should know at once: who is passed over, who keeps failing, rounds in vain.

A client is behind if it was chosen so rarely, while it could be, that the promise of the selector
cannot be believed. Let P be the sum of the chances that it was promised and X the times that it was
chosen. While the promise is kept, exp(s P) (1 - s)^X is below a non-negative supermartingale that
starts at 1, for every s in (0, 1), since E[(1 - s)^x] <= 1 - s p <= exp(-s p) in a round with a
chance of at least p. So is its mean over several s. By Ville's inequality it ever reaches n / a
with a chance of at most a / n, and by the union bound any of n clients does with at most a: over
the whole run, however long, and whatever depends on whatever. If clients join and n grows from n0
to n, it is at most a (1 + log(n / n0)). Who is never chosen is behind once P is about
log(n / a) + 2.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from turnout.domains import CheckedFields, Count, Fraction
from turnout.roster import Roster
from turnout.session.tally import Tally
from turnout.types import Array, FloatArray, IntArray

#: s: small ones see that a client is chosen a little too rarely, large ones that it never is.
_STEPS = np.array([0.1, 0.25, 0.5, 0.75, 0.99])

#: Clients that are named one by one after a round; more are one alert.
_MOST_NAMED = 20

BEHIND, FAILING, QUORUM, VOID = "behind", "failing", "quorum", "void-rounds"
#: Everything that an alert can be about.
KINDS = (BEHIND, FAILING, QUORUM, VOID)
#: The last line of the alerts of a run that did not reach its end; no rule leads to it.
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AlertRules(CheckedFields):
    """When a live run warns.

    Args:
        false_alarms: The chance that, in a whole run in which the selector keeps its promise, any
            client is ever said to be behind; 0 never says so.
        failures: So many failures of a client in a row, silence included, are an alert.
        void_rounds: So many rounds in a row with too few answers are an alert.

    >>> AlertRules(failures=3)
    AlertRules(false_alarms=0.01, failures=3, void_rounds=3)
    """

    false_alarms: Fraction = 0.01
    failures: Count = 5
    void_rounds: Count = 3


class Alert(NamedTuple):
    """Something that an operator should know.

    Attributes:
        round: The round after which it was found, counted from 0.
        kind: One of ``KINDS``, or ``STOPPED``.
        client: The stable id; None if it is not about one client.
        text: What is wrong, in one sentence.
        numbers: What it is judged by.
    """

    round: int
    kind: str
    client: Hashable | None
    text: str
    numbers: Mapping[str, float]

    def line(self, at: str) -> str:
        """Return it as a line of ``alerts.jsonl``; ``at`` is the time."""
        client = {} if self.client is None else {"client": self.client}
        about: dict[str, Any] = {"round": self.round, "at": at, "kind": self.kind} | client
        return json.dumps(about | {"text": self.text} | dict(self.numbers), default=str)


@dataclass
class Alerts:
    """Finds what to warn of after each round; a client is said to be behind once in a run.

    If there are more than 20 clients of a kind after a round, they are one alert.
    """

    rules: AlertRules
    told: set[int] = field(default_factory=set)  #: clients that were said to be behind
    n_void: int = 0  #: void rounds in a row, up to the last

    def after(
        self,
        round: int,
        tally: Tally,
        roster: Roster,
        ended: Mapping[int, str],
        void: str | None,
    ) -> tuple[Alert, ...]:
        """Return what is to be said after a round.

        Args:
            round: The round.
            tally: The counts, with this round.
            roster: Who is who.
            ended: Why there was no answer, by index of each chosen client that has just failed.
            void: Why the round is void; None if it is not.
        """
        alerts = [
            *_gathered(self._failing(round, tally, roster, ended)),
            *_gathered(self._behind(round, tally, roster)),
        ]
        self.n_void = 0 if void is None else self.n_void + 1
        if void is not None and self.n_void == 1:
            alerts.append(Alert(round, QUORUM, None, f"Round {round + 1} is void: {void}.", {}))
        if self.n_void == self.rules.void_rounds:
            text = f"{self.n_void} rounds in a row are void."
            alerts.append(Alert(round, VOID, None, text, {"rounds": self.n_void}))
        return tuple(alerts)

    def _failing(
        self, t: int, tally: Tally, roster: Roster, ended: Mapping[int, str]
    ) -> list[Alert]:
        alerts = []
        for client, reason in ended.items():
            if tally.failures[client] == self.rules.failures:
                n, who = self.rules.failures, roster.id_of(client)
                text = f"{who} has failed {n} times in a row, the last time: {reason}."
                alerts.append(Alert(t, FAILING, who, text, {"failures": n}))
        return alerts

    def _behind(self, t: int, tally: Tally, roster: Roster) -> list[Alert]:
        alerts = []
        for client in behind(tally, self.rules.false_alarms).tolist():
            if client in self.told:
                continue
            self.told.add(client)
            n, free = int(tally.chosen[client]), int(tally.free[client])
            least, who = float(tally.promised[client]), roster.id_of(client)
            text = (
                f"{who} is behind: chosen {n} times in {free} rounds in which it was free, "
                f"and {least:.1f} times were promised."
            )
            numbers = {"chosen": n, "free": free, "promised": round(least, 3)}
            alerts.append(Alert(t, BEHIND, who, text, numbers))
        return alerts

    def state(self) -> dict[str, Array]:
        """Return what was said already."""
        return {"told": np.array(sorted(self.told), dtype=np.int64)}

    def load_state(self, state: Mapping[str, Array], tally: Tally, n_void: int) -> None:
        """Go back to what was said; without that, who is behind already counts as told."""
        told = state["told"] if "told" in state else behind(tally, self.rules.false_alarms)
        self.told, self.n_void = set(told.tolist()), n_void


def _gathered(alerts: list[Alert]) -> list[Alert]:
    """Return one alert for many of a kind: a network that is down must not fill a disk."""
    if len(alerts) <= _MOST_NAMED:
        return alerts
    first, n = alerts[0], len(alerts)
    names = ", ".join(str(alert.client) for alert in alerts[:_MOST_NAMED])
    what = "behind" if first.kind == BEHIND else "failing"
    text = f"{n} clients are {what}, among them {names}."
    return [Alert(first.round, first.kind, None, text, {"clients": n})]


def behind(tally: Tally, false_alarms: float) -> IntArray:
    """Return who was chosen too rarely for the promise to be kept, ascending.

    Args:
        tally: The counts.
        false_alarms: The chance that this ever says so of anybody while the promise is kept.
    """
    if not false_alarms or not tally.free.size:
        return np.zeros(0, dtype=np.int64)
    threshold = np.log(tally.free.size / false_alarms)
    may_be = (tally.promised > threshold) & (tally.promised > tally.chosen)  # a quick look first
    suspects: IntArray = np.flatnonzero(may_be)
    evidence = log_evidence(tally.promised[suspects], tally.chosen[suspects])
    return suspects[np.flatnonzero(evidence >= threshold)]


def log_evidence(promised: FloatArray, chosen: Array) -> FloatArray:
    """Return the logarithm of the evidence that clients do not get what they were promised.

    Args:
        promised: (n,) P, the sums of the promised chances.
        chosen: (n,) X, how often they were chosen.
    """
    each = np.outer(promised, _STEPS) + np.outer(chosen, np.log1p(-_STEPS))
    most = each.max(axis=1, initial=-np.inf, keepdims=True)
    mean: FloatArray = np.log(np.mean(np.exp(each - most), axis=1)) + most[:, 0]
    return mean
