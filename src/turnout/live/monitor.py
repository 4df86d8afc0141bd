"""What monitors a live run: counts, alerts, trackers, traces, metrics and your own code.

Nothing here influences the selection, and after the start no follower can stop a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from turnout.core.roster import Roster
from turnout.core.selector import Selector
from turnout.core.types import Array, Status
from turnout.core.version import __version__
from turnout.live.alerts import MODEL, Alert, Alerts, Quality, Tally, promised_chance
from turnout.live.members import Members
from turnout.live.transport import log
from turnout.results.callbacks import Callback
from turnout.results.run import RoundRow, Run

if TYPE_CHECKING:
    from turnout.live.round import ClosedRound
    from turnout.live.settings import LiveSettings

#: The quantiles of how long clients wait that followers see.
AGE_SHARES = (0.5, 0.9, 1.0)
#: What trackers show of a run's ``config.json``.
_SHOWN = (
    *("kind", "experiment", "label", "selector", "parameters", "seed", "cohort_size"),
    *("n_rounds", "policy"),
)


class People(NamedTuple):
    """How many clients there are at a moment.

    Attributes:
        known: Clients that have ever connected.
        connected: Clients that are connected.
        free: Connected clients that can be chosen.
        busy: Clients with an unanswered request, connected or not.
    """

    known: int
    connected: int
    free: int
    busy: int

    @classmethod
    def of(cls, members: Members) -> People:
        """Return the current numbers."""
        n_free = int(np.count_nonzero(members.selectable()))
        return cls(len(members.roster), members.n_connected, n_free, len(members.busy_clients()))


class Numbers(NamedTuple):
    """A round in numbers.

    Attributes:
        people: How many clients there were at its end.
        statuses: How many of the chosen clients have each status, by its name.
        train_s: Seconds from sending the work to the end of the round.
        wait_s: Seconds before that: waiting for clients, asking them, choosing.
        success_ratio: Share of all choices so far that were answered in time.
        fairness: Jain's index of how often clients were chosen while they could be.
        ages: Rounds since their last choice in which connected clients could have been chosen, the
            quantiles of ``AGE_SHARES``.
        n_wanted: How many clients were to be chosen, if enough had been free.
    """

    people: People
    statuses: Mapping[str, int]
    train_s: float
    wait_s: float
    success_ratio: float
    fairness: float
    ages: tuple[float, ...]
    n_wanted: int = 0

    @property
    def is_short(self) -> bool:
        """Whether fewer clients were chosen than wanted."""
        return sum(self.statuses.values()) < self.n_wanted

    def values(self) -> dict[str, float]:
        """Return them by name, as trackers show them."""
        values = {name: float(n) for name, n in self.statuses.items()}
        values |= {"chosen": sum(values.values())}
        values |= {name: float(n) for name, n in self.people._asdict().items()}
        values |= {"train_s": self.train_s, "wait_s": self.wait_s, "longest_wait": self.ages[-1]}
        values |= {"success_ratio": self.success_ratio, "fairness": self.fairness}
        values |= {"wanted": float(self.n_wanted)}
        return {name: value for name, value in values.items() if math.isfinite(value)}


class Follower:
    """Sees what happens in live runs. Its methods do nothing: override those that you need.

    An error in ``start`` stops the run before it begins. Errors in the others are logged, and the
    run continues.
    """

    def start(self, run: str, about: Mapping[str, Any]) -> None:
        """Start to follow the run of this name; ``about`` describes it."""

    def opened(self, run: str, round: int, people: People) -> None:
        """Process the start of a round, counted from 0, after the selection."""

    def ended(self, run: str, ended: ClosedRound, numbers: Numbers) -> None:
        """Process the end of a round, with its alerts."""

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Process the metrics of the model after a round; again when more are known."""

    def alerted(self, run: str, alert: Alert) -> None:
        """Process an alert about the model, which comes between two rounds."""

    def end(self, run: str) -> None:
        """Stop following: the run is over, or has failed."""


class Tracker(Follower):
    """Lets a callback of training follow a live run; it may see a round twice.

    Args:
        callback: TensorBoard, MLflow, WandB or your own.
    """

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def start(self, run: str, about: Mapping[str, Any]) -> None:
        """Start the callback."""
        self.callback.start(about)

    def ended(self, run: str, ended: ClosedRound, numbers: Numbers) -> None:
        """Pass on the numbers of a round, and how many alerts it caused."""
        extra = {"void": float(ended.is_void), "alerts": float(len(ended.alerts))}
        self.callback.round(ended.round, numbers.values() | extra)

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Pass on the metrics of the model."""
        self.callback.round(round, values)

    def end(self, run: str) -> None:
        """End the callback."""
        self.callback.end()


class Monitor:
    """Counts rounds by client, raises alerts and notifies followers.

    Args:
        settings: The name of the run, its followers, and when to raise an alert.
        selector: Its promises are compared with what clients get.
        warns: Whether alerts are raised at all.
    """

    def __init__(self, settings: LiveSettings, selector: Selector, *, warns: bool) -> None:
        self.tally = Tally()
        self._run, self._selector = str(settings.label), selector
        rules, min_answers = settings.alerts, settings.quorum.min_answers
        self._alerts = Alerts(rules, min_answers) if warns and rules is not None else None
        self._quality = None if rules is None else Quality(rules.worse)
        self.unwritten: list[Alert] = []  #: alerts about the model that are not recorded yet
        self._followers = [
            Tracker(one) if isinstance(one, Callback) else one for one in settings.followers
        ]
        self._started = ExitStack()

    def start(self, config: Mapping[str, Any]) -> None:
        """Start all followers, or none; their errors are errors of their setup.

        Args:
            config: The run's ``config.json``.
        """
        about = {name: config[name] for name in _SHOWN if name in config}
        with ExitStack() as started:
            for follower in self._followers:
                follower.start(self._run, about)
                started.callback(self._call, follower, "end")
            self._started = started.pop_all()

    def opened(self, round: int, members: Members) -> None:
        """Notify followers that a round is open."""
        if self._followers:
            self._notify("opened", round, People.of(members))

    def count(self, row: RoundRow, result: ClosedRound, roster: Roster) -> ClosedRound:
        """Count a round; return its result with alerts, which are logged."""
        clients, available, promise = row.clients, row.available, 0.0
        if row.overlap is None:  # a promise by rounds is no promise by choices
            promise = promised_chance(
                self._selector, result.round, available, clients, row.probability
            )
        self.tally.add(clients, row.status, available, promise)
        self.tally.grow(len(roster))
        if self._alerts is None:
            return result
        alerts = self._alerts.after(result, clients, self.tally, roster)
        for alert in alerts:
            log.warning("alert: %s", alert.text)
        return result._replace(alerts=alerts)

    def numbers(self, result: ClosedRound, members: Members) -> Numbers | None:
        """Return a round in numbers; None if there are no followers."""
        if not self._followers:
            return None
        status, train_s = result.closed.status, result.closed.length_s
        ages = self.tally.ages(members.connected_clients, AGE_SHARES)
        return Numbers(
            People.of(members),
            {kind.name.lower(): int(np.count_nonzero(status == kind)) for kind in Status},
            train_s,
            max(0.0, result.closed_at - result.began_at - train_s),
            self.tally.success_ratio,
            self.tally.fairness,
            tuple(ages.tolist()),
            result.n_wanted,
        )

    def ended(self, result: ClosedRound, numbers: Numbers | None) -> None:
        """Notify followers of a round that has ended."""
        if numbers is not None:
            self._notify("ended", result, numbers)

    def measured(self, round: int, values: Mapping[str, float]) -> None:
        """Notify followers of the metrics of the model after a round."""
        if values:
            self._notify("measured", round, values)
        wrong = None if self._quality is None else self._quality.measured(round, values)
        if wrong is not None:
            alert = Alert(round, MODEL, None, wrong[0].upper() + wrong[1:], {})
            log.warning("alert: %s", alert.text)
            self.unwritten.append(alert)
            self._notify("alerted", alert)

    def end(self) -> None:
        """End those that were started; a second call does nothing."""
        self._started.pop_all().close()

    def state(self) -> dict[str, Mapping[str, Array]]:
        """Return counts and alerts, by owner."""
        alerts = {} if self._alerts is None else self._alerts.state()
        return {"tally": self.tally.state(), "alerts": alerts}

    def load_state(self, state: Mapping[str, Mapping[str, Array]], run: Run, n_void: int) -> None:
        """Continue from saved counts; a checkpoint without counts is counted from its rounds."""
        if "tally" in state:
            self.tally.load_state(state["tally"], run.n_clients)
        else:
            self.tally = Tally.of_run(run, self._selector)
        if self._alerts is not None:
            self._alerts.load_state(state.get("alerts", {}), self.tally, n_void)
        if self._quality is not None:
            for t in range(run.n_rounds):
                before = {name: float(values[t]) for name, values in run.measured.items()}
                known = {name: x for name, x in before.items() if not math.isnan(x)}
                self._quality.measured(t, known)

    def _notify(self, event: str, *arguments: Any) -> None:
        for follower in self._followers:
            self._call(follower, event, *arguments)

    def _call(self, follower: Follower, event: str, *arguments: Any) -> None:
        """Call a method of a follower; after the start, none of them can stop the run."""
        try:
            getattr(follower, event)(self._run, *arguments)
        except Exception as error:  # whatever a library of others raises
            who = follower.callback if isinstance(follower, Tracker) else follower
            name = type(who).__name__
            log.warning("%s failed to follow this run: %s: %s", name, type(error).__name__, error)


class Spans:
    """The span of the current round, with its parts as children, for OpenTelemetry.

    A round lasts until its result is saved. There is nothing to switch on: with ``pip install
    'turnout[otel]'`` and a tracer provider of the application, spans are exported; without them,
    they cost nothing.

    Args:
        run: The name of the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._round: Any = None
        self._is_closed = False
        self.is_quiet = False  #: whether rounds are replayed and begin no span
        self._trace: Any = None
        with suppress(ImportError):
            self._trace = import_module("opentelemetry.trace")

    def begin(self, round: int) -> None:
        """Begin a round, unless it has begun already; the span of the round before ends now.

        Args:
            round: The round, counted from 0.
        """
        is_open = self._round is not None and not self._is_closed
        if self._trace is None or self.is_quiet or is_open:
            return
        self.finish()
        about = {"turnout.run": self._run, "turnout.round": round}
        self._round = self._tracer.start_span("turnout.round", attributes=about)

    def part(self, name: str) -> Any:
        """Return the span of a part of the round, as a context; it is current meanwhile.

        Args:
            name: What is done: wait, ask, choose, train, learn, aggregate, save.
        """
        if self._round is None:
            return nullcontext()
        context = self._trace.set_span_in_context(self._round)
        return self._tracer.start_as_current_span(f"turnout.{name}", context=context)

    def close(self, result: ClosedRound) -> None:
        """Add the result of the round to its span.

        Args:
            result: How the round ended.
        """
        self._is_closed = True
        if self._round is not None:
            status = result.closed.status
            numbers = {"chosen": len(status), "completed": int((status == Status.COMPLETED).sum())}
            about = {f"turnout.{name}": n for name, n in numbers.items()}
            self._round.set_attributes(about | {"turnout.void": result.is_void})

    def finish(self) -> None:
        """End the span of the round, if there is one."""
        span, self._round, self._is_closed = self._round, None, False
        if span is not None:
            span.end()

    @property
    def _tracer(self) -> Any:
        return self._trace.get_tracer("turnout", __version__)
