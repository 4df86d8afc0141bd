"""Federations in the database: a log of events for each, and machines that follow it.

Every process keeps a machine for each federation in use and plays what others have added to the
log before it adds anything itself. Who adds holds the federation's row, so a round has one owner,
and what is answered was committed before.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock, RLock
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, insert, select, update

from turnout.errors import TurnoutError
from turnout.serve.counter import Counter
from turnout.serve.database import writing
from turnout.serve.events import Content, Event, packed, unpacked
from turnout.serve.machine import Machine
from turnout.serve.problems import unknown_federation
from turnout.serve.schemas import Definition
from turnout.serve.snapshots import Snapshots, latest
from turnout.serve.tables import EVENT, FEDERATION, ROUND


class Diverged(TurnoutError, RuntimeError):
    """Playing the log again chose other clients than those on record."""


class Transaction:
    """A transaction on one federation: its machine, up to date, and the way to change it."""

    def __init__(self, connection: Connection, row: Row[Any], machine: Machine) -> None:
        self.connection, self.id, self.machine = connection, row.id, machine
        self.at = max(time.time(), machine.at)  # the log never goes back in time
        self.is_changed = False

    def add(self, content: Content) -> None:
        """Let something happen, and write it down."""
        self.is_changed = True
        event = Event(self.machine.seq + 1, self.at, content)
        self.machine.apply(event)
        values = {"seq": event.seq, "at": event.at, "kind": event.kind, "round": event.round}
        self.connection.execute(
            insert(EVENT).values(federation_id=self.id, body=packed(content), **values)
        )


class Store:
    """All federations of a database.

    Args:
        engine: The database, with its tables.
        counter: What counts rounds from now on; None counts nothing.
    """

    def __init__(self, engine: Engine, counter: Counter | None = None) -> None:
        self.engine, self._counter = engine, counter
        self.snapshots = Snapshots(engine)
        self._machines: dict[int, Machine] = {}
        self._guard = Lock()
        self._locks: defaultdict[str, RLock] = defaultdict(RLock)

    @contextmanager
    def write(self, name: str) -> Iterator[Transaction]:
        """Enter a transaction that may change a federation; others wait.

        Args:
            name: Of the federation.

        Raises:
            Refusal: There is none.
        """
        with self._lock(name):
            work: Transaction | None = None
            try:
                with writing(self.engine) as connection:
                    row = _row(connection, name, locked=True)
                    work = Transaction(connection, row, self._caught_up(connection, row))
                    yield work
                    if work.is_changed:
                        connection.execute(
                            update(FEDERATION)
                            .where(FEDERATION.c.id == row.id)
                            .values(seq=work.machine.seq)
                        )
            except BaseException:
                if work is not None and work.is_changed:  # the machine is ahead of the log
                    self._machines.pop(work.id, None)
                raise
            if work.is_changed:
                self.snapshots.take_if_due(work.id, work.machine)

    @contextmanager
    def read(self, name: str) -> Iterator[tuple[Connection, int, Machine]]:
        """Enter a transaction that only looks at a federation.

        Args:
            name: Of the federation.

        Raises:
            Refusal: There is none.
        """
        with self._lock(name), self.engine.begin() as connection:
            row = _row(connection, name)
            yield connection, row.id, self._caught_up(connection, row)

    def catch_up(self) -> None:
        """Play what other servers have added to the federations that are in memory."""
        with self.engine.begin() as connection:
            query = select(FEDERATION.c.name, FEDERATION.c.id, FEDERATION.c.seq)
            rows = connection.execute(query).all()
        for row in rows:
            machine = self._machines.get(row.id)
            if machine is not None and machine.seq < row.seq:
                with self.read(row.name):
                    pass

    def forget(self, federation: int, name: str | None = None) -> None:
        """Drop what is in memory, so that it is read again.

        Args:
            federation: Its number in the database.
            name: Of a federation that is no more, and whose metrics go as well.
        """
        self._machines.pop(federation, None)
        if name is not None and self._counter is not None:
            self._counter.metrics.forget(name)

    def _lock(self, name: str) -> RLock:
        with self._guard:
            return self._locks[name]

    def _caught_up(self, connection: Connection, row: Row[Any]) -> Machine:
        machine = self._machines.get(row.id)
        if machine is not None and machine.created_at != row.created_at:
            machine = None  # another one was deleted, and SQLite uses numbers again
        events = [] if machine is None else _events(connection, row, machine.seq)
        is_new = machine is None or not _continues(machine, events, row.seq)
        if machine is None or is_new:
            machine = self._loaded(connection, row)
            events = _events(connection, row, machine.seq)
        spans = machine.session.spans
        spans.is_quiet = True  # the server at which it happened has traced it
        try:
            # What happened before this process knew the federation is not counted again.
            with nullcontext() if self._counter is None or not is_new else self._counter.quiet():
                for event in events:
                    machine.apply(event)
                    if event.kind == "opened":
                        _check_choice(connection, row.id, machine)
        except BaseException:
            self._machines.pop(row.id, None)
            raise
        finally:
            spans.is_quiet = False
        self._machines[row.id] = machine
        return machine

    def _loaded(self, connection: Connection, row: Row[Any]) -> Machine:
        """Return a machine at the last snapshot."""
        followers = () if self._counter is None else (self._counter,)
        machine = Machine(Definition.model_validate_json(row.definition), followers)
        machine.created_at = row.created_at
        saved = latest(connection, row.id)
        if saved is not None:
            seq, content = saved
            of_federation = EVENT.c.federation_id == row.id
            last = select(func.max(EVENT.c.at)).where(of_federation, EVENT.c.seq <= seq)
            machine.load(content, seq, connection.execute(last).scalar() or row.created_at)
        return machine


def _row(connection: Connection, name: str, *, locked: bool = False) -> Row[Any]:
    query = select(FEDERATION).where(FEDERATION.c.name == name)
    if locked:  # only the key stays free: rows that point to it, such as a snapshot, can be added
        query = query.with_for_update(key_share=True)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise unknown_federation(name)
    return row


def _events(connection: Connection, row: Row[Any], after: int) -> list[Event]:
    """Return what happened since, as far as the row says: others may be adding to it."""
    since = (EVENT.c.seq > after) & (EVENT.c.seq <= row.seq)
    rows = connection.execute(
        select(EVENT.c.seq, EVENT.c.at, EVENT.c.kind, EVENT.c.body)
        .where(EVENT.c.federation_id == row.id, since)
        .order_by(EVENT.c.seq)
    )
    return [unpacked(*row) for row in rows]


def _continues(machine: Machine, events: list[Event], seq: int) -> bool:
    """Return whether a machine can play these events to be where the log is."""
    numbers = [event.seq for event in events]
    is_whole = numbers == list(range(machine.seq + 1, seq + 1))
    return machine.seq <= seq and is_whole and all(event.kind != "imported" for event in events)


def _check_choice(connection: Connection, federation: int, machine: Machine) -> None:
    """Raise if a round that was played again is not the one on record."""
    assert machine.chosen is not None
    t = machine.chosen.round
    recorded = connection.execute(
        select(ROUND.c.chosen).where(ROUND.c.federation_id == federation, ROUND.c.number == t)
    ).scalar_one()
    if json.loads(recorded)["clients"] != list(machine.chosen.ids):
        raise Diverged(
            f"this server chooses other clients for round {t} than those on record: run the "
            "versions of turnout and numpy that the other servers run."
        )
