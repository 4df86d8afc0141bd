"""Alerts for operators: neglected clients, failing clients, void rounds, odd updates.

A client is behind if it was chosen so rarely, while it could be, that the promise of the selector
is not credible. Let P be the sum of the chances that it was promised and X the times that it was
chosen. While the promise is kept, exp(s P) (1 - s)^X is below a non-negative supermartingale that
starts at 1, for every s in (0, 1), since E[(1 - s)^x] <= 1 - s p <= exp(-s p) in a round with a
chance of at least p. So is its mean over several s. By Ville's inequality it ever reaches n / a
with a chance of at most a / n, and by the union bound any of n clients does with at most a: over
the whole run, however long, and whatever the dependencies. If clients join and n grows from n0
to n, it is at most a (1 + log(n / n0)). A client that is never chosen is behind once P is about
log(n / a) + 2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from turnout.core.domains import CheckedFields, Count, Fraction, Positive
from turnout.core.errors import StateFileError
from turnout.core.roster import Roster
from turnout.core.selector import Selector
from turnout.core.stateful import NOT_NEGATIVE
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, Status
from turnout.results.metrics import jain_of_counts
from turnout.results.run import Run

if TYPE_CHECKING:
    from turnout.live.round import ClosedRound

#: Rounding of chances that are equal.
_EQUAL = 1e-9
#: Statuses that count as a failure. A late client may only be slow, and does not count.
FAILED_STATUSES = (Status.FAILED, Status.SILENT)


class Tally:
    """How often each client could be chosen, was chosen and failed, over all rounds so far.

    Attributes:
        free: (n,) rounds in which it could be chosen.
        chosen: (n,) times that it was chosen.
        waited: (n,) rounds since then in which it could have been.
        failures: (n,) times in a row that it failed or fell silent, up to the last.
        promised: (n,) times that it should have been chosen at least, in expectation.
        n_completed: Answers in time of all clients.
    """

    def __init__(self) -> None:
        self.free, self.chosen, self.waited, self.failures = (
            np.zeros(0, dtype=np.int32) for _ in range(4)
        )
        self.promised = np.zeros(0)
        self.n_completed = 0

    @property
    def success_ratio(self) -> float:
        """Share of the chosen clients that answered in time; NaN before the first choice."""
        n_chosen = int(self.chosen.sum())
        return self.n_completed / n_chosen if n_chosen else float("nan")

    @property
    def fairness(self) -> float:
        """Jain's index of how often clients were chosen while they could be; NaN without any."""
        there = self.free > 0
        if not self.chosen.any():
            return float("nan")
        return jain_of_counts(self.chosen[there] / self.free[there])

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        for name in _PER_CLIENT:
            more = n_clients - getattr(self, name).size
            if more > 0:
                setattr(self, name, np.pad(getattr(self, name), (0, more)))

    def add(self, clients: IntArray, status: Array, available: BoolArray, promise: float) -> None:
        """Count a round.

        Args:
            clients: (s,) the chosen clients.
            status: (s,) how it ended for them.
            available: (n,) who could be chosen; shorter if clients have joined since.
            promise: The chance that every available client was promised; 0 without a promise.
        """
        self.grow(available.size)
        there = slice(0, available.size)
        self.free[there] += available
        self.waited[there] += available
        self.promised[there] += promise * available
        np.add.at(self.chosen, clients, 1)  # a merged client may be there twice
        self.waited[clients] = 0
        failed = np.isin(status, FAILED_STATUSES)
        np.add.at(self.failures, clients[failed], 1)
        completed = status == Status.COMPLETED
        self.failures[clients[completed]] = 0
        self.n_completed += int(np.count_nonzero(completed))

    def ages(self, clients: IntArray, shares: tuple[float, ...]) -> FloatArray:
        """Return quantiles of the rounds that some clients have waited; 0 if there are none."""
        if not clients.size:
            return np.zeros(len(shares))
        return np.quantile(self.waited[clients], shares, method="higher").astype(np.float64)

    def state(self) -> dict[str, Array]:
        """Return the counts."""
        return {name: getattr(self, name) for name in _PER_CLIENT} | {
            "n_completed": np.array(self.n_completed)
        }

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Continue from saved counts of this many clients, or raise ``StateFileError``."""
        for name in _PER_CLIENT:
            saved, kind = state[name], getattr(self, name).dtype
            if saved.dtype != kind or saved.ndim != 1 or saved.size > n_clients:
                raise StateFileError(f"{name} must be {kind} of {n_clients} clients.")
            NOT_NEGATIVE.check(name, saved)
            setattr(self, name, np.array(saved))
        self.n_completed = int(state["n_completed"])
        self.grow(n_clients)

    @classmethod
    def of_run(cls, run: Run, selector: Selector) -> Tally:
        """Return the tally of recorded rounds, for a checkpoint that has none."""
        tally = cls()
        tally.grow(run.n_clients)
        if not run.knows_available:  # an older file does not say who could be chosen
            return tally
        for t in range(run.n_rounds):
            clients = run.chosen_in(t)
            at = slice(run.offsets[t], run.offsets[t + 1])
            chance, available = run.probability[at], run.available_in(t)
            known = None if np.isnan(chance).any() else chance
            promise = promised_chance(selector, t, available, clients, known)
            tally.add(clients, run.status[at], available, promise)
        return tally


_PER_CLIENT = ("free", "chosen", "waited", "failures", "promised")


def promised_chance(
    selector: Selector,
    round: int,
    available: BoolArray,
    clients: IntArray,
    probability: FloatArray | None,
) -> float:
    """Return the chance that a selector promised to every available client in a round.

    It is the larger one of ``guaranteed_rate`` and ``promised_share`` of the fair share. If all
    chosen clients had the fair share as their chance, the draw was uniform and promised just that.

    Args:
        selector: Its promises count.
        round: The round, counted from 0.
        available: (n,) who could be chosen.
        clients: (s,) who was chosen.
        probability: (s,) their inclusion probabilities; None if they are not known.
    """
    n_free = int(np.count_nonzero(available))
    if not n_free:
        return 0.0
    share = min(1.0, clients.size / n_free)
    is_equal = (
        probability is not None
        and clients.size > 0
        and bool(np.all(np.abs(probability - share) <= _EQUAL))
    )
    promised = 1.0 if is_equal else selector.promised_share(round)
    rate = selector.guaranteed_rate() or 0.0
    return min(1.0, max(promised * share, rate))


#: s: small ones detect that a client is chosen a little too rarely, large ones that it never is.
_STEPS = np.array([0.1, 0.25, 0.5, 0.75, 0.99])

#: Clients that get an alert each after a round; more clients share one.
_MOST_NAMED = 20

BEHIND, FAILING, QUORUM, VOID = "behind", "failing", "quorum", "void-rounds"
SHORT, UPDATE, MODEL = "short-cohort", "update-size", "model"
#: Everything that an alert can be about.
KINDS = (BEHIND, FAILING, QUORUM, VOID, SHORT, UPDATE, MODEL)
#: The last alert of a run that did not reach its end; no rule causes it.
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AlertRules(CheckedFields):
    """When a live run warns.

    Args:
        false_alarms: The chance of a false alert that a client is behind, over a whole run in which
            the selector keeps its promise; 0 switches these alerts off.
        failures: Consecutive failures of a client, silence included, that cause an alert.
        void_rounds: Consecutive rounds with too few answers that cause an alert.
        update_size: How many times as large as usual an update may be without an alert.
        worse: Consecutive measurements of a model with less than half of the accuracy that it had
            gained that cause an alert.

    >>> AlertRules(failures=3)
    AlertRules(false_alarms=0.01, failures=3, void_rounds=3, update_size=30.0, worse=3)
    """

    false_alarms: Fraction = 0.01
    failures: Count = 5
    void_rounds: Count = 3
    update_size: Positive = 30.0
    worse: Count = 3


class Alert(NamedTuple):
    """A problem that an operator should know about.

    Attributes:
        round: The round after which it was found, counted from 0.
        kind: One of ``KINDS``, or ``STOPPED``.
        client: The stable id; None if it is not about one client.
        text: The problem in one sentence.
        numbers: The numbers behind it.
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
    """Finds the alerts after each round; a client is reported as behind once in a run.

    More than 20 clients with the same problem after a round share one alert.
    """

    rules: AlertRules
    min_answers: int  #: answers that a round needs
    reported: set[int] = field(default_factory=set)  #: clients that were reported as behind
    n_void: int = 0  #: void rounds in a row, up to the last
    is_short: bool = False  #: whether the last round had fewer clients than wanted

    def after(
        self, result: ClosedRound, clients: IntArray, tally: Tally, roster: Roster
    ) -> tuple[Alert, ...]:
        """Return the alerts after a round.

        Args:
            result: How the round ended.
            clients: (s,) the chosen clients.
            tally: The counts, with this round.
            roster: The stable ids.
        """
        t, status = result.round, result.closed.status
        alerts = [
            *_gathered(self._failing(result, clients, tally, roster)),
            *_gathered(self._behind(t, tally, roster)),
            *_gathered(self._large(result)),
            *self._short(result),
        ]
        self.n_void = self.n_void + 1 if result.is_void else 0
        if self.n_void == 1:
            n = np.count_nonzero(status == Status.COMPLETED)
            few = f"{n} of the {self.min_answers} answers that it needs"
            why = few if result.ids else "no client could be chosen"
            alerts.append(Alert(t, QUORUM, None, f"Round {t + 1} is void: {why}.", {}))
        if self.n_void == self.rules.void_rounds:
            text = f"{self.n_void} rounds in a row are void."
            alerts.append(Alert(t, VOID, None, text, {"rounds": self.n_void}))
        return tuple(alerts)

    def _failing(
        self, result: ClosedRound, clients: IntArray, tally: Tally, roster: Roster
    ) -> list[Alert]:
        alerts, status, n = [], result.closed.status, self.rules.failures
        failing = np.isin(status, FAILED_STATUSES) & (tally.failures[clients] == n)
        for i in np.flatnonzero(failing).tolist():
            reason = result.reasons.get(i, Status(int(status[i])).name.lower())
            who = roster.id_of(int(clients[i]))
            text = f"{who} has failed {n} times in a row, the last time: {reason}."
            alerts.append(Alert(result.round, FAILING, who, text, {"failures": n}))
        return alerts

    def _behind(self, t: int, tally: Tally, roster: Roster) -> list[Alert]:
        alerts = []
        for client in behind(tally, self.rules.false_alarms).tolist():
            if client in self.reported:
                continue
            self.reported.add(client)
            n, free = int(tally.chosen[client]), int(tally.free[client])
            least, who = float(tally.promised[client]), roster.id_of(client)
            text = (
                f"{who} is behind: chosen {n} times in {free} rounds in which it was free, "
                f"and {least:.1f} times were promised."
            )
            numbers = {"chosen": n, "free": free, "promised": round(least, 3)}
            alerts.append(Alert(t, BEHIND, who, text, numbers))
        return alerts

    def _large(self, result: ClosedRound) -> list[Alert]:
        alerts = []
        for i, multiple in result.sizes.items():
            if multiple > self.rules.update_size:
                is_known, who = math.isfinite(multiple), result.ids[i]
                than = (
                    f"{multiple:.3g} times as large as usual" if is_known else "of impossible size"
                )
                end = ": it was refused" if i in result.reasons else ""
                text = f"{who} sent an update {than}{end}."
                numbers = {"multiple": multiple} if is_known else {}
                alerts.append(Alert(result.round, UPDATE, who, text, numbers))
        return alerts

    def _short(self, result: ClosedRound) -> list[Alert]:
        was_short, n, wanted = self.is_short, len(result.ids), result.n_wanted
        self.is_short = n < wanted
        if was_short or not 0 < n < wanted:  # without any client, the round is void
            return []
        text = f"Round {result.round + 1} has {n} of the {wanted} clients that it should have"
        numbers = {"chosen": n, "wanted": wanted}
        return [Alert(result.round, SHORT, None, f"{text}: too few were free.", numbers)]

    def state(self) -> dict[str, Array]:
        """Return which clients were reported, and whether the last round was short."""
        reported = np.array(sorted(self.reported), dtype=np.int64)
        return {"told": reported, "short": np.array(self.is_short)}

    def load_state(self, state: Mapping[str, Array], tally: Tally, n_void: int) -> None:
        """Continue from saved alerts; without any, clients that are behind count as reported."""
        reported = state["told"] if "told" in state else behind(tally, self.rules.false_alarms)
        self.reported, self.n_void = set(reported.tolist()), n_void
        self.is_short = bool(state.get("short", False))


def _gathered(alerts: list[Alert]) -> list[Alert]:
    """Return one alert for many of a kind: a broken network must not fill a disk."""
    if len(alerts) <= _MOST_NAMED:
        return alerts
    first, n = alerts[0], len(alerts)
    names = ", ".join(str(alert.client) for alert in alerts[:_MOST_NAMED])
    what = {UPDATE: "have sent updates far larger than usual"}.get(first.kind, f"are {first.kind}")
    text = f"{n} clients {what}, among them {names}."
    return [Alert(first.round, first.kind, None, text, {"clients": n})]


def behind(tally: Tally, false_alarms: float) -> IntArray:
    """Return which clients were chosen too rarely for the promise to be kept, ascending.

    Args:
        tally: The counts.
        false_alarms: The chance that this ever names a client while the promise is kept.
    """
    if not false_alarms or not tally.free.size:
        return np.zeros(0, dtype=np.int64)
    threshold = np.log(tally.free.size / false_alarms)
    may_be = (tally.promised > threshold) & (tally.promised > tally.chosen)  # cheap test first
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


# Quality that is lost. Updates far larger than usual are noticed by ``turnout.live.reports``.

#: A model that never gained this much accuracy has none to lose.
_LEAST_GAIN = 0.1
#: A loss of this many times the lowest one means that the model is of no use.
_HUGE = 100.0


class Quality:
    """Follows accuracy and loss of the model, and says when they are lost.

    Accuracy is lost if, in several measurements in a row, the model has less than half of what it
    had gained: the best accuracy minus the lowest one before it. A loss is lost at once if it is
    not finite, or a hundred times the lowest one.

    Args:
        patience: Measurements in a row that show a loss of accuracy.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._round = -1  # of the last measurement
        self._lowest = self._base = self._best = math.nan
        self._n_worse = 0
        self._least_loss = math.nan
        self._is_reported = False  # whether the loss was reported, and was not fine since

    def measured(self, round: int, values: Mapping[str, float]) -> str | None:
        """Return what is wrong with a model, in one sentence; None if nothing is new.

        Args:
            round: The round after which it was measured, from 0.
            values: Its accuracy, its loss, and others.
        """
        loss = self._of_loss(round, values["loss"]) if "loss" in values else None
        if "accuracy" not in values or round <= self._round:
            return loss
        self._round = round
        return loss or self._of_accuracy(round, values["accuracy"])

    def _of_accuracy(self, round: int, accuracy: float) -> str | None:
        self._lowest = np.fmin(self._lowest, accuracy)
        if math.isnan(self._best) or accuracy > self._best:
            self._best, self._base = accuracy, self._lowest
        gained = self._best - self._base
        is_worse = gained >= _LEAST_GAIN and not accuracy >= self._base + gained / 2.0
        self._n_worse = self._n_worse + 1 if is_worse else 0
        if self._n_worse != self._patience:
            return None
        return (
            f"the accuracy has fallen from {self._best:.3g} to {accuracy:.3g}, for "
            f"{self._n_worse} measurements in a row up to round {round + 1}."
        )

    def _of_loss(self, round: int, loss: float) -> str | None:
        is_fine = math.isfinite(loss) and not loss > _HUGE * max(self._least_loss, 0.0)
        was_reported, self._is_reported = self._is_reported, not is_fine
        if is_fine:
            self._least_loss = float(np.fmin(self._least_loss, loss))
        if is_fine or was_reported:
            return None
        before = "" if math.isnan(self._least_loss) else f", and was {self._least_loss:.3g} before"
        return f"the loss of the model is {loss:.3g} after round {round + 1}{before}."
