"""Federations in the database: a log of events for each, and copies in memory that follow it.

Every process keeps a copy of each federation in use. It replays the events that other processes
have added before it adds one itself. A writer locks the federation's row, so that each round is
selected once, and a response is sent only after its changes are committed.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, Path, Request
from sqlalchemy import Connection, Engine, Row, bindparam, delete, func, insert, select, update

from turnout.live import Prometheus
from turnout.live.checkpoint import Checkpoint
from turnout.live.monitor import Numbers, People
from turnout.live.transport import clock, one_line
from turnout.live.transport import log as live_log
from turnout.serve.database import (
    CHOICE,
    EVENT,
    FEDERATION,
    ROUND,
    SNAPSHOT,
    VERSION,
    check_version,
    writing,
    writing_unchecked,
)
from turnout.serve.federation import (
    Content,
    LiveFederation,
    PlacesFilled,
    RoundClosed,
    RoundOpened,
    RoundReported,
    StateImported,
    TimePassed,
    WorkAnswered,
    content_of,
)
from turnout.serve.logs import note
from turnout.serve.problems import Diverged, HttpProblem
from turnout.serve.schemas import ClientOutcome, Definition, Enrolment, Withdrawal

log = logging.getLogger("turnout.serve")
log.addFilter(one_line)

#: The kinds of events, as the database has them.
_KINDS: dict[str, type[Content]] = {
    "enrolled": Enrolment,
    "withdrawn": Withdrawal,
    "opened": RoundOpened,
    "reported": RoundReported,
    "closed": RoundClosed,
    "filled": PlacesFilled,
    "answered": WorkAnswered,
    "passed": TimePassed,
    "imported": StateImported,
}
_KIND_OF = {content: kind for kind, content in _KINDS.items()}
#: An entry of the log: its number, when it happened, and what.
_Event: TypeAlias = tuple[int, float, Content]
#: The statements of every request. Making one takes longer than the database needs for it.
_NAMED = select(FEDERATION, VERSION).where(FEDERATION.c.name == bindparam("wanted"))
_ROW_OF = {
    False: _NAMED,
    # Except for its key: rows that refer to it, such as a snapshot, can be added.
    True: _NAMED.with_for_update(key_share=True),
}
_ADD = insert(EVENT)
_THIS = FEDERATION.c.id == bindparam("number")
_MOVE_END = update(FEDERATION).where(_THIS).values(seq=bindparam("end"))
#: How often a federation is loaded while another server deletes what is being loaded.
_LOADS = 5
#: A snapshot is taken when replaying would take this many times as long as taking it ...
_WORTH = 5.0
#: ... and at least this many seconds.
_LEAST_S = 1.0


class Transaction:
    """A transaction on one federation, which is up to date; only ``Store.write`` allows events.

    Args:
        connection: To the database.
        federation: The federation.
        copies: The copies in memory, without those that are ahead of the log.
    """

    def __init__(
        self, connection: Connection, federation: LiveFederation, copies: dict[int, LiveFederation]
    ) -> None:
        self.connection, self.federation, self._copies = connection, federation, copies
        self.at = max(time.time(), federation.at)  # the log never goes back in time
        self.is_changed = False

    def add(self, content: Content) -> None:
        """Apply an event and append it to the log."""
        self.is_changed = True
        self._copies.pop(self.federation.id, None)  # until the event is committed
        self.federation.apply(self.federation.seq + 1, self.at, content)
        kind, t = _KIND_OF[type(content)], getattr(content, "round", None)
        name, version = self.federation.definition.name, self.federation.seq
        note(self.connection, kind, name, version=version, round=t)
        body = zlib.compress(content.model_dump_json(exclude_defaults=True).encode(), 1)
        values = {"federation_id": self.federation.id, "seq": version, "at": self.at}
        self.connection.execute(_ADD, values | {"kind": kind, "round": t, "body": body})


class Store:
    """All federations of a database.

    Args:
        engine: The database, with its tables.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.metrics, self.snapshots = Metrics(), Snapshots(engine)
        #: What is to be done once no round of a federation is open; it must not raise.
        self.when_idle: dict[str, Callable[[], int]] = {}
        self._federations: dict[int, LiveFederation] = {}
        self._locks: dict[str, RLock] = {}

    @contextmanager
    def write(self, name: str) -> Iterator[Transaction]:
        """Enter a transaction that may change a federation; other writers wait.

        Args:
            name: The federation.

        Raises:
            HttpProblem: There is no such federation.
        """
        with self._locks.setdefault(name, RLock()):
            with writing_unchecked(self.engine) as connection:
                tx = self._transaction(connection, _row(connection, name, locked=True))
                yield tx
                if tx.is_changed:
                    end = {"number": tx.federation.id, "end": tx.federation.seq}
                    connection.execute(_MOVE_END, end)
            if tx.is_changed:
                self._federations[tx.federation.id] = tx.federation
                self.snapshots.take_if_due(tx.federation)
                if tx.federation.cohort is None and (act := self.when_idle.pop(name, None)):
                    act()  # here, since the next round may be opened at once

    @contextmanager
    def read(self, name: str) -> Iterator[Transaction]:
        """Enter a transaction that reads a federation.

        Args:
            name: The federation.

        Raises:
            HttpProblem: There is no such federation.
        """
        with self._locks.setdefault(name, RLock()), self.engine.begin() as connection:
            yield self._transaction(connection, _row(connection, name))

    def catch_up(self) -> None:
        """Load all federations, and replay what other servers have added to them."""
        with self.engine.begin() as connection:
            query = select(FEDERATION.c.name, FEDERATION.c.id, FEDERATION.c.seq)
            rows = connection.execute(query).all()
        for row in rows:
            federation = self._federations.get(row.id)
            if federation is None or federation.seq < row.seq:
                try:
                    with self.read(row.name):
                        pass
                except (HttpProblem, Diverged) as error:  # it may be deleted meanwhile
                    log.warning("no metrics of federation %s: %s", row.name, error)

    def show_open_rounds(self, at: float) -> None:
        """Show how long the round of each federation has been open, for the next reader."""
        for federation in list(self._federations.values()):
            seconds = 0.0 if federation.cohort is None else at - federation.opened_at
            self.metrics.show_open_round(federation.definition.name, seconds)

    def forget(self, federation: LiveFederation, *, is_deleted: bool = False) -> None:
        """Drop a federation from memory; unless it is deleted, it is loaded again when needed."""
        self._federations.pop(federation.id, None)
        if is_deleted:
            self.metrics.forget(federation.definition.name)

    def _transaction(self, connection: Connection, row: Row[Any]) -> Transaction:
        """Return a transaction on a federation, after the events that it has missed."""
        federation = self._federations.pop(row.id, None)  # until it has caught up
        if federation is not None and federation.created_at != row.created_at:
            federation = None  # it was deleted, and SQLite reuses numbers
        events = [] if federation is None else _events(connection, row, federation.seq)
        is_new = federation is None or not _continues(federation, events, row.seq)
        if federation is None or is_new:
            federation, events = self._whole(connection, row)
        spans = federation.session.spans
        spans.is_quiet = True  # the server on which the round took place has traced it
        # Events from before this process knew the federation are not counted or logged again.
        replay = _is_replay.set(is_new)
        try:
            for seq, at, content in events:
                federation.apply(seq, at, content)
                if isinstance(content, RoundOpened | PlacesFilled):
                    _check_choice(connection, federation, content.round)
        finally:
            spans.is_quiet = False
            _is_replay.reset(replay)
        self._federations[row.id] = federation
        if is_new:
            self.metrics.show(federation)
        return Transaction(connection, federation, self._federations)

    def _whole(self, connection: Connection, row: Row[Any]) -> tuple[LiveFederation, list[_Event]]:
        """Return a federation at its last snapshot, and all later events.

        Events are only deleted after a later snapshot was stored. PostgreSQL shows each statement
        what is committed by then, so another server may have done both in between.
        """
        for _ in range(_LOADS):
            federation = self._loaded(connection, row)
            events = _events(connection, row, federation.seq)
            if _continues(federation, events, max(row.seq, federation.seq)):
                return federation, events
        raise Diverged(
            f"the log of federation {row.name!r} lacks events between {federation.seq} and "
            f"{row.seq}: restore a backup."
        )

    def _loaded(self, connection: Connection, row: Row[Any]) -> LiveFederation:
        """Return a federation at its last snapshot."""
        definition = Definition.model_validate_json(row.definition)
        federation = LiveFederation(definition, row.id, row.created_at, (self.metrics,))
        until = (EVENT.c.federation_id == row.id) & (EVENT.c.seq <= SNAPSHOT.c.seq)
        at = select(func.max(EVENT.c.at)).where(until).correlate(SNAPSHOT).scalar_subquery()
        saved = connection.execute(  # one statement, so that both are of one moment
            select(SNAPSHOT.c.seq, SNAPSHOT.c.body, at.label("at"))
            .where(SNAPSHOT.c.federation_id == row.id)
            .order_by(SNAPSHOT.c.seq.desc())
            .limit(1)
        ).one_or_none()
        if saved is not None:
            at = row.created_at if saved.at is None else saved.at
            federation.load(saved.body, saved.seq, at)
        return federation


async def _store_of(request: Request) -> Store:  # one that waits for nothing needs no thread
    store: Store = request.app.state.store
    return store


#: Arguments of routes.
Stored = Annotated[Store, Depends(_store_of)]
#: PostgreSQL has no text with NUL.
WITHOUT_NUL = r"^[^\x00]*$"
Name = Annotated[str, Path(description="The federation.", max_length=64, pattern=WITHOUT_NUL)]


def reports_on(tx: Transaction, t: int) -> list[ClientOutcome]:
    """Return the outcomes that were reported on a round, or on a choice where rounds overlap."""
    which = (EVENT.c.round == t) & EVENT.c.kind.in_(["reported", "answered"])
    return [
        outcome
        for _, _, content in _read(tx.connection, tx.federation.id, which)
        if isinstance(content, RoundReported | WorkAnswered)
        for outcome in content.report.outcomes
    ]


def reported_outcomes(tx: Transaction, t: int) -> dict[Hashable, ClientOutcome]:
    """Return the first outcome that was reported of each client, as ``reports_on`` has them."""
    return {outcome.client: outcome for outcome in reversed(reports_on(tx, t))}


def _row(connection: Connection, name: str, *, locked: bool = False) -> Row[Any]:
    row = connection.execute(_ROW_OF[locked], {"wanted": name}).one_or_none()
    check_version(connection, row)
    if row is None:
        raise HttpProblem("unknown-federation", f"there is no federation {name!r}.")
    return row


def _events(connection: Connection, row: Row[Any], after: int) -> list[_Event]:
    """Return later events, up to the one that the row names: others may be adding more."""
    if after == row.seq:
        return []
    return _read(connection, row.id, (EVENT.c.seq > after) & (EVENT.c.seq <= row.seq))


def _read(connection: Connection, federation: int, which: Any) -> list[_Event]:
    query = select(EVENT.c.seq, EVENT.c.at, EVENT.c.kind, EVENT.c.body)
    query = query.where(EVENT.c.federation_id == federation, which).order_by(EVENT.c.seq)
    return [
        (seq, at, _KINDS[kind].model_validate_json(zlib.decompress(body)))
        for seq, at, kind, body in connection.execute(query)
    ]


def _continues(federation: LiveFederation, events: list[_Event], seq: int) -> bool:
    """Return whether a federation can replay these events to reach the end of the log."""
    is_whole = [number for number, _, _ in events] == list(range(federation.seq + 1, seq + 1))
    has_import = any(isinstance(content, StateImported) for _, _, content in events)
    return federation.seq <= seq and is_whole and not has_import


def _check_choice(connection: Connection, federation: LiveFederation, t: int) -> None:
    """Raise if a replayed round, or choice where rounds overlap, is not the one on record."""
    table, what, replayed = ROUND, "round", federation.cohort
    if federation.work is not None:
        table, what, replayed = CHOICE, "choice", federation.given
    assert replayed is not None
    recorded = connection.execute(
        select(table.c.chosen).where(table.c.federation_id == federation.id, table.c.number == t)
    ).scalar()
    if recorded is None:  # another server has just forgotten it
        return
    if json.loads(recorded)["clients"] != list(replayed.ids):
        raise Diverged(
            f"this server selects other clients for {what} {t} than those on record: run the "
            "versions of turnout and numpy that the other servers run."
        )


# --------------------------------------------------------------------------------------------------
# Metrics of rounds. Rounds that are replayed are neither counted nor logged again.
# --------------------------------------------------------------------------------------------------

#: Whether this thread replays old events, without metrics and without the log of live rounds.
_is_replay: ContextVar[bool] = ContextVar("is_replay", default=False)


def _is_news(_: logging.LogRecord) -> bool:
    return not _is_replay.get()


#: Statuses that rules for alerts ask for, even if the first requests have them.
_ALARMING = (401, 429, 500, 503)


class Metrics(Prometheus):
    """Counts the rounds and the requests of this process."""

    def __init__(self) -> None:
        super().__init__()
        live_log.addFilter(_is_news)  # several servers in a process add it only once
        library, here = self._library, {"registry": self.registry}
        self._requests = library.Histogram(
            "turnout_request_seconds", "Requests, by status.", ["status"], **here
        )
        for status in _ALARMING:  # an increase needs a 0 before
            self._requests.labels(status)
        self._metrics["open_round_seconds"] = library.Gauge(
            "turnout_open_round_seconds",
            "How long the round has been open; 0 without one.",
            ["run"],
            **here,
        )
        clock_s = library.Gauge("turnout_clock_seconds", "The server's clock.", **here)
        clock_s.set_function(lambda: time.time())
        library.ProcessCollector(**here)

    def count_request(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(status).observe(seconds)

    def show_open_round(self, run: str, seconds: float) -> None:
        """Show how long a round has been open; 0: none is."""
        self._metrics["open_round_seconds"].labels(run).set(max(0.0, seconds))

    def show(self, federation: LiveFederation) -> None:
        """Show a federation of which no round was counted yet."""
        name = federation.definition.name
        self.start(name, {})
        with clock.held(federation.at):
            people = People.of(federation.members)
        self.opened(name, federation.session.round - (federation.cohort is None), people)

    def opened(self, run: str, round: int, people: People) -> None:
        """Show how many clients there are."""
        if not _is_replay.get():
            super().opened(run, round, people)

    def ended(self, run: str, ended: Any, numbers: Numbers) -> None:
        """Count a round."""
        if not _is_replay.get():
            super().ended(run, ended, numbers)


# --------------------------------------------------------------------------------------------------
# Snapshots. They are written in parallel with the requests, so that no request waits for one.
#
# The log has everything that a snapshot has. If one fails, or is lost with the process, only the
# time for replaying the log is lost.
# --------------------------------------------------------------------------------------------------


class Snapshots:
    """Takes snapshots, one at a time, in a thread of its own.

    Args:
        engine: The database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = ThreadPoolExecutor(1, "turnout-snapshots")
        self._written: dict[int, Future[None]] = {}  # the last one of each federation

    def take_if_due(self, federation: LiveFederation) -> None:
        """Take a snapshot if it is worth it; the caller must not change the federation meanwhile.

        Args:
            federation: The federation, not ahead of the log.
        """
        due = max(_LEAST_S, _WORTH * federation.snapshot_s)
        last = self._written.get(federation.id)
        is_busy = last is not None and not last.done()
        if federation.cohort is not None or federation.replay_s < due or is_busy:
            return
        started = time.perf_counter()
        federation.replay_s = 0.0
        try:
            saved, seq = federation.checkpoint(), federation.seq
            taken_s = time.perf_counter() - started
            self._written[federation.id] = self._writer.submit(
                self._write, federation, saved, seq, taken_s
            )
        except Exception:  # the request is done, and the log has everything
            log.exception("no snapshot of federation %d", federation.id)

    def wait(self) -> None:
        """Return when all snapshots that were taken are written."""
        for written in list(self._written.values()):
            written.result()

    def close(self) -> None:
        """Write the snapshots that were taken, and take no more."""
        self._writer.shutdown()

    def _write(
        self, federation: LiveFederation, saved: Checkpoint, seq: int, taken_s: float
    ) -> None:
        started = time.perf_counter()
        try:
            content = content_of(saved)
            with writing(self._engine) as connection:
                query = select(FEDERATION.c.created_at, FEDERATION.c.seq)
                row = connection.execute(query.where(FEDERATION.c.id == federation.id)).first()
                # It may have been deleted and its number reused, or a backup was restored.
                if row and row.created_at == federation.created_at and row.seq >= seq:
                    save(connection, federation.id, seq, content)
            log.info("snapshot of federation %d: %.1f MB", federation.id, len(content) / 1e6)
        except Exception:  # as above
            log.exception("no snapshot of federation %d", federation.id)
        federation.snapshot_s = taken_s + time.perf_counter() - started


def save(connection: Connection, federation: int, seq: int, content: bytes) -> None:
    """Store a snapshot; the one before it is kept, and the enrolments after that one.

    Args:
        connection: A writing transaction.
        federation: The number of the federation in the database.
        seq: The last event in the snapshot.
        content: The checkpoint.
    """
    of_federation = SNAPSHOT.c.federation_id == federation
    before = connection.execute(select(func.max(SNAPSHOT.c.seq)).where(of_federation)).scalar()
    if before is not None and before >= seq:  # another server was faster
        return
    connection.execute(insert(SNAPSHOT).values(federation_id=federation, seq=seq, body=content))
    if before is not None:
        connection.execute(delete(SNAPSHOT).where(of_federation, SNAPSHOT.c.seq < before))
        connection.execute(
            delete(EVENT).where(
                EVENT.c.federation_id == federation,
                EVENT.c.seq <= before,
                EVENT.c.kind.in_(["enrolled", "withdrawn"]),
            )
        )
