"""A federation in memory. Only events change it, so replaying them gives the same federation.

Nothing here checks whether an event may happen: a request is checked before it becomes an event.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain

import numpy as np
from pydantic import BaseModel, ConfigDict

from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.names import nearest
from turnout.core.registry import list_selectors, make
from turnout.core.roster import Roster
from turnout.core.selector import Selector
from turnout.core.types import BoolArray, FloatArray, IntArray, Status
from turnout.experiment.codec import decode_parameter
from turnout.experiment.variants import parsed, variants_of
from turnout.live import (
    ClosedRound,
    Cohort,
    Guard,
    Kind,
    LiveSettings,
    OverlappingSession,
    Reply,
    Session,
)
from turnout.live.checkpoint import Checkpoint, check_settings, checkpoint_bytes, read_checkpoint
from turnout.live.client import NUM_EXAMPLES
from turnout.live.members import Enrolled
from turnout.live.monitor import Follower
from turnout.live.reports import Hints
from turnout.live.transport import clock
from turnout.serve.schemas import (
    MOST_SHADOWS,
    Bits,
    ClientOutcome,
    Definition,
    Enrolment,
    Outcomes,
    Terms,
    Withdrawal,
)
from turnout.worlds import Closed, Observed, RoundPolicy

#: The name of the policy that lets the caller decide which clients were in time.
REPORTED = "reported"
#: The kind of run in checkpoints of a server.
CHECKPOINT_KIND = "serve"
#: The parts of a definition that a checkpoint belongs to.
_IDENTITY = {
    *("selector", "parameters", "seed", "guard", "cohort_size", "policy", "bounds"),
    "schedule",
}
#: A whole number in the parameters of a selector, which may be the size of an array ...
_MAX_INTEGER = 10_000
#: ... and bytes that a selector may need for one client.
_MAX_STATE = 64 * 2**20
_KINDS = {
    "completed": Kind.ANSWERED,
    "late": Kind.ANSWERED,
    "failed": Kind.FAILED,
    "silent": Kind.LOST,
}

# --------------------------------------------------------------------------------------------------
# Events: everything that can happen to a federation.
# --------------------------------------------------------------------------------------------------


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True)


class RoundOpened(_Recorded):
    """A round was opened."""

    round: int
    terms: Terms


class RoundReported(_Recorded):
    """Outcomes were reported; only new ones are recorded."""

    round: int
    report: Outcomes


class RoundClosed(_Recorded):
    """A round was closed."""

    round: int


class PlacesFilled(_Recorded):
    """Clients got work, where rounds overlap; ``round`` is the number of the choice."""

    round: int
    terms: Terms


class WorkAnswered(_Recorded):
    """Outcomes of work were reported; only new ones are recorded."""

    round: int
    report: Outcomes


class TimePassed(_Recorded):
    """The time of a round, or of a client at work, was over."""


class StateImported(_Recorded):
    """The state was replaced by the snapshot of the same number."""


Content = (
    Enrolment
    | Withdrawal
    | RoundOpened
    | RoundReported
    | RoundClosed
    | PlacesFilled
    | WorkAnswered
    | TimePassed
    | StateImported
)


# --------------------------------------------------------------------------------------------------
# The parts of a live session that are special to the server.
# --------------------------------------------------------------------------------------------------


class Reported(RoundPolicy):
    """The policy ``reported``: the caller sets sizes, deadlines and statuses."""

    force_stop = False

    def __init__(self) -> None:
        self.cohort_size: int | None = None
        self.deadline_s = math.inf
        #: What was reported of the cohort, in its order; None = nothing.
        self.outcomes: Sequence[ClientOutcome | None] = ()

    def select_size(self, cohort_size: int, observed: Observed | None = None) -> int:
        """Return the size that the caller asked for."""
        return cohort_size if self.cohort_size is None else self.cohort_size

    def deadline(self, observed: Observed | None = None) -> float:
        """Return the caller's deadline."""
        return self.deadline_s

    def close(
        self,
        duration: FloatArray,
        survived: BoolArray,
        observed: Observed | None = None,
        *,
        cohort_size: int | None = None,
        reports_failure: BoolArray | bool = False,
    ) -> Closed:
        """Return what the caller reported; a client without a report is late.

        The session knows how long the round took, and the clients with it.
        """
        status = [Status.LATE if o is None else Status[o.status.upper()] for o in self.outcomes]
        seconds = as_array([None if o is None else o.seconds for o in self.outcomes])
        return Closed(np.array(status, dtype=np.int8), seconds, 0.0, seconds, False)


class _Hints(Hints):
    """Tells callers of the API how to provide what a selector needs."""

    def columns(self, names: Sequence[str]) -> str:
        """Name the request that fills columns."""
        return f"PUT .../clients with columns {', '.join(names)}"

    def loss(self) -> str:
        """Name the request that polls."""
        return "POST .../poll and send the losses with POST .../rounds"


class LiveFederation:
    """The session of a federation, its open round, and the position in the log.

    Args:
        definition: The body of the request that created it.
        id: Its number in the database.
        created_at: When it was created, which tells it from a deleted one of the same number.
        followers: Observers of its rounds.

    Raises:
        TurnoutError: The definition has an unknown name or an impossible value.
    """

    def __init__(
        self,
        definition: Definition,
        id: int = 0,
        created_at: float = 0.0,
        followers: Sequence[Follower] = (),
    ) -> None:
        self.definition, self.id, self.created_at = definition, id, created_at
        settings = definition.model_dump(exclude={"name", "selector", "parameters"})
        for text in definition.shadow:
            _check_name("shadow", parsed(text)[0])
        self.reported = Reported() if settings["policy"] == REPORTED else None
        if self.reported is not None:
            settings["policy"] = self.reported
        live = LiveSettings.of({**settings, "label": definition.name, "followers": followers})
        live, self.selector = live.for_selector(_selector(definition))
        self.selector.check_parameters()
        if self.reported is not None:  # the caller decides when a round ends
            if live.overlaps:
                raise InvalidInput(
                    "schedule: the server decides when overlapping rounds end, so the policy "
                    f'"{REPORTED}" does not go with it.',
                    field="schedule",
                )
            live = replace(live, limit_s=math.inf)
        self.members = Enrolled()
        kind = OverlappingSession if live.overlaps else Session
        with clock.held(0.0):  # the log has the times
            self.session = kind(live, self.selector, members=self.members, hints=_Hints())
        #: The session again, if rounds overlap.
        self.work = self.session if isinstance(self.session, OverlappingSession) else None
        self.given: Cohort | None = None  #: the last choice, if rounds overlap
        self.ended: list[ClosedRound] = []  #: the rounds that the last event has closed there
        self.refused: dict[Hashable, str] = {}  #: reports in it that do not count, and why
        self.seq = 0  #: of the last event
        self.at = 0.0  #: when it happened
        self.cohort: Cohort | None = None  #: of the open round
        self.opened_at = 0.0
        self.outcomes: dict[Hashable, ClientOutcome] = {}  #: reported so far, of the open round
        self.length_s: float | None = None  #: of the open round, as reported
        self.result: ClosedRound | None = None  #: the last round that was closed
        self.replay_s = 0.0  #: the time that replaying from the last snapshot would take
        self.snapshot_s = 0.0  #: the time that the last snapshot took

    @property
    def roster(self) -> Roster:
        """The clients, by stable id."""
        return self.members.roster

    def selection_counts(self, status: Status | None = None) -> IntArray:
        """Return (n,) how often each client was selected, or had this status in the end."""
        columns = self.session.journal.columns()
        which = slice(None) if status is None else columns["status"] == status
        return np.bincount(columns["clients"][which], minlength=len(self.roster))

    def apply(self, seq: int, at: float, content: Content) -> None:
        """Let the next event of the log happen.

        Args:
            seq: Its number, from 1.
            at: When it happened, in seconds since 1970.
            content: What happened.
        """
        started = time.perf_counter()
        self.ended, self.refused = [], {}
        with clock.held(at):
            if isinstance(content, Enrolment):
                columns = {name: as_array(values) for name, values in content.columns.items()}
                self.members.enrol(content.clients, columns)
                self.session.sync(())
            elif isinstance(content, Withdrawal):
                self.members.withdraw(content.clients)
            elif isinstance(content, RoundOpened):
                self._open(content.terms, at)
            elif isinstance(content, RoundReported):
                self._report(content.round, content.report, at)
            elif isinstance(content, RoundClosed):
                self._close(at)
            elif isinstance(content, PlacesFilled):
                self._fill(content.terms)
            elif isinstance(content, WorkAnswered):
                self._take_in(content.round, content.report)
            elif isinstance(content, TimePassed):
                self._give_up()
        self.seq, self.at = seq, at
        self.replay_s += time.perf_counter() - started

    def is_over(self, at: float) -> bool:
        """Return whether a round is open that is to be closed.

        That is when all clients are reported, when its policy has enough answers, or when its time
        is over by the server's own clock. The seconds of a report judge only the client in it.
        """
        if self.work is not None:
            return self.is_working and self._ends_in(self.work, at) <= 0.0
        if self.cohort is None:
            return False
        if len(self.outcomes) == len(self.cohort.ids):
            return True
        ends = self.session.closes_at()
        has_enough = ends < self.cohort.deadline
        return self.reported is None and (has_enough or at - self.opened_at >= ends)

    @property
    def is_working(self) -> bool:
        """Whether a client is at work, or has been in this round, where rounds overlap."""
        flights = None if self.work is None else self.work.flights
        return flights is not None and (flights.n_busy > 0 or flights.ended.size > 0)

    def closes_at(self, at: float) -> float | None:
        """Return when a round that overlaps others ends, or a client is given up; None: never."""
        if self.work is None or not self.is_working:
            return None
        ends_in = self._ends_in(self.work, at)
        return at + ends_in if math.isfinite(ends_in) else None

    @staticmethod
    def _ends_in(work: OverlappingSession, at: float) -> float:
        with clock.held(at), work.looking():
            return 0.0 if work.is_over() or work.has_overdue else work.left_s()

    def free(self, terms: Terms, at: float) -> BoolArray:
        """Return (n,) the clients that could be selected under these terms."""
        with self._under(terms, at):
            free = self.members.selectable()
            return free if self.work is None else free & ~self.work.flights.busy(free.size)

    def polled(self, terms: Terms, at: float) -> list[Hashable]:
        """Return the clients whose losses the selector needs before it selects."""
        with self._under(terms, at):
            return self.session.to_poll()

    def checkpoint(self) -> Checkpoint:
        """Return a copy of the state, which later events do not change; no round is open."""
        with clock.held(self.at):
            saved = self.session.state(self._identity)
        arrays = {
            owner: {name: np.array(values) for name, values in table.items()}
            for owner, table in saved.arrays.items()
        }
        return replace(saved, arrays=arrays)

    def load(self, content: bytes, seq: int, at: float) -> None:
        """Restore a checkpoint, before any event.

        Args:
            content: A checkpoint of a federation with the same definition, as a file.
            seq: The last event in it.
            at: When that happened.

        Raises:
            StateFileError: The checkpoint is damaged, or of another federation.
        """
        saved = read_checkpoint(content, CHECKPOINT_KIND)
        check_settings("the checkpoint", saved.settings, self._identity)
        with clock.held(at):
            self.session.load(saved)
        self.seq, self.at, self.replay_s = seq, at, 0.0

    @property
    def _identity(self) -> Mapping[str, object]:
        identity = self.definition.model_dump(mode="json", include=_IDENTITY)
        if identity["guard"] is not None:  # earlier versions had no limits
            usual = asdict(Guard())
            for name in ("min_gap", "max_times"):
                if identity["guard"][name] == usual[name]:
                    del identity["guard"][name]
        if identity["schedule"] is None:  # nor schedules
            del identity["schedule"]
        return identity

    def _set(self, terms: Terms) -> None:
        self.members.available = self._available(terms)
        if self.reported is not None:
            self.reported.cohort_size = terms.cohort_size
            self.reported.deadline_s = math.inf if terms.deadline_s is None else terms.deadline_s

    @contextmanager
    def _under(self, terms: Terms, at: float) -> Iterator[None]:
        """Assume terms and a time for a while, as if the round was opened."""
        self._set(terms)
        try:
            with clock.held(at):
                yield
        finally:
            self.members.available = None

    def _open(self, terms: Terms, at: float) -> None:
        self._set(terms)
        self.session.begin()
        self._use_losses(terms)
        self.cohort = self.session.open()
        self.opened_at, self.outcomes, self.length_s = at, {}, None

    def _use_losses(self, terms: Terms) -> None:
        polled, given = self.session.to_poll(), terms.losses
        if polled and given is not None:
            known: dict[Hashable, float | None] = dict(
                zip(given.clients, given.losses, strict=True)
            )
            self.session.receive_losses(polled, as_array([known.get(c) for c in polled]), 0)

    def _fill(self, terms: Terms) -> None:
        self._set(terms)
        self._use_losses(terms)
        self.given = self.session.open()
        self.members.available = None

    def _take_in(self, choice: int, report: Outcomes) -> None:
        work, roster = self._overlapping, self.roster
        for outcome in report.outcomes:
            why = work.flights.refusal(roster.index_of(outcome.client), choice)
            if why is None:
                work.receive(outcome.client, _reply(outcome, math.nan), choice)
                self._end_if_over(work)  # an answer behind a full buffer counts in the next round
            else:
                self.refused[outcome.client] = f"it belongs to {why}"

    def _give_up(self) -> None:
        work = self._overlapping
        present = {one.client for one in work.at_work if self.members.is_there(one.client)}
        work.give_up(present)
        self._end_if_over(work)

    def _end_if_over(self, work: OverlappingSession) -> None:
        if work.is_over():
            present = [one.client for one in work.at_work if self.members.is_there(one.client)]
            self.ended.append(work.close(present))
            work.spans.finish()

    @property
    def _overlapping(self) -> OverlappingSession:
        assert self.work is not None
        return self.work

    def _report(self, t: int, report: Outcomes, at: float) -> None:
        is_open = self.cohort is not None and t == self.cohort.round
        for outcome in report.outcomes:
            if is_open:
                self.outcomes[outcome.client] = outcome
            elapsed = at - self.opened_at if is_open else math.nan
            self.session.receive(outcome.client, _reply(outcome, elapsed), round=t)
        if is_open and report.length_s is not None:
            self.length_s = report.length_s

    def _close(self, at: float) -> None:
        assert self.cohort is not None
        ids = self.cohort.ids
        length: float | None = None
        if self.reported is not None:
            self.reported.outcomes = [self.outcomes.get(client) for client in ids]
            known = [o.seconds for o in self.outcomes.values() if o.seconds is not None]
            length = max(known, default=0.0) if self.length_s is None else self.length_s
        elif len(self.outcomes) < len(ids):  # a reported minute has passed on the caller's clock
            claims = [outcome.seconds or 0.0 for outcome in self.outcomes.values()]
            length = min(max(at - self.opened_at, *claims, 0.0), self.session.closes_at())
        present = [client for client in ids if self.members.is_there(client)]
        self.result = self.session.close(present, length)
        self.session.spans.finish()
        if self.reported is not None:  # the caller decides which clients are free
            self.members.reserved = {}
        self.cohort, self.outcomes, self.members.available = None, {}, None

    def _available(self, terms: Terms) -> BoolArray | None:
        if terms.available is None:
            return None
        n = len(self.roster)
        if isinstance(terms.available, Bits):
            packed = np.frombuffer(base64.b64decode(terms.available.bits), dtype=np.uint8)
            return np.unpackbits(packed, count=n).astype(np.bool_)
        mask = np.zeros(n, dtype=np.bool_)
        mask[self.members.roster.indices(terms.available)] = True
        return mask


def _reply(outcome: ClientOutcome, elapsed: float) -> Reply:
    seconds = elapsed if outcome.seconds is None else outcome.seconds
    metrics = {
        NUM_EXAMPLES if name == "num_examples" else name: value
        for name, value in outcome.metrics.items()
    }
    return Reply(_KINDS[outcome.status], seconds, metrics, outcome.reason)


def content_of(saved: Checkpoint) -> bytes:
    """Return a checkpoint as a file."""
    return checkpoint_bytes(saved, CHECKPOINT_KIND)


def as_array(values: object) -> FloatArray:
    """Return numbers as an array, with NaN for None."""
    return np.array(values, dtype=np.float64)


def check_new(definition: Definition) -> None:
    """Reject a new federation that is impossible, or needs too much memory for one client.

    Args:
        definition: The body of the request that creates it.

    Raises:
        TurnoutError: What is wrong, and the fix.
    """
    shadows = [parsed(text)[2] for text in definition.shadow]
    for field, tables in (("parameters", [definition.parameters]), ("shadow", shadows)):
        largest = max((x for x in _numbers(tables) if isinstance(x, int)), default=0)
        if largest > _MAX_INTEGER:  # making the arrays could take all memory, or minutes
            raise InvalidInput(
                f"{field}: whole numbers must be at most {_MAX_INTEGER} over HTTP, got {largest}.",
                field=field,
            )
    for field in ("schedule", "policy"):
        most = max(_numbers(getattr(definition, field)), default=0)
        if most >= 2**31:  # a round of so many clients could never be opened
            raise InvalidInput(f"{field}: numbers must be below {2**31}.", field=field)
    lists = [[x for x in table.values() if isinstance(x, list)] for table in shadows]
    if sum(math.prod(map(len, swept)) for swept in lists) > MOST_SHADOWS:
        raise InvalidInput(
            f"shadow must name at most {MOST_SHADOWS} selectors, those of lists included.",
            field="shadow",
        )
    _try("parameters", LiveFederation(definition).selector.clone())
    for variant in chain.from_iterable(map(variants_of, definition.shadow)):
        _try("shadow", variant.make())


def _try(field: str, trial: Selector) -> None:
    """Reject a selector that cannot be reset, or needs too much memory for one client."""
    wrong = ""
    try:
        trial.reset(1)  # finds errors that only a reset shows
        if sum(getattr(value, "nbytes", 0) for value in vars(trial).values()) > _MAX_STATE:
            wrong = f"it needs more than {_MAX_STATE // 2**20} MB for one client"
    except TurnoutError:
        raise
    except (MemoryError, OverflowError, ValueError) as error:  # from numpy
        wrong = str(error).rstrip(".")
    if wrong:
        detail = f"{trial!r} cannot be used ({wrong}): use smaller parameters."
        raise InvalidInput(detail, field=field)


def _numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a table, at any depth."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)


def _check_name(field: str, name: str) -> None:
    known = list_selectors()
    if name not in known:  # a path would be imported: it could be any code
        hint = nearest(name, known)
        raise InvalidInput(f"{field} must be a name, got {name!r}.{hint}", field=field)


def _selector(definition: Definition) -> Selector:
    name = definition.selector
    _check_name("selector", name)
    parameters = {
        key: decode_parameter(value, ("parameters", key))
        for key, value in definition.parameters.items()
    }
    return make(name, **parameters)
