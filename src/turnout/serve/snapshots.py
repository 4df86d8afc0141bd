"""Snapshots of federations. They are written beside the requests, so that none waits for one.

The log has everything that a snapshot has, so one that fails, or is lost with the process, costs
only the time of playing the log again.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from sqlalchemy import Connection, Engine, delete, func, insert, select

from turnout.serve.database import writing
from turnout.serve.machine import Machine, content_of
from turnout.serve.tables import EVENT, FEDERATION, SNAPSHOT
from turnout.session.checkpoint import Checkpoint

log = logging.getLogger("turnout.serve")

#: A snapshot is made when replaying would take so many times as long as making it ...
_WORTH = 5.0
#: ... but not for less than so many seconds.
_LEAST_S = 1.0


class Snapshots:
    """Makes snapshots, one at a time, on a thread of its own.

    Args:
        engine: The database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writer = ThreadPoolExecutor(1, "turnout-snapshots")
        self._written: dict[int, Future[None]] = {}  # the last of each federation

    def take_if_due(self, federation: int, machine: Machine) -> None:
        """Take a snapshot if it is worth it; the caller keeps the machine as it is meanwhile.

        Args:
            federation: Its number in the database.
            machine: Its state, no further than the log.
        """
        due = max(_LEAST_S, _WORTH * machine.snapshot_s)
        last = self._written.get(federation)
        if machine.chosen is not None or machine.spent_s < due or not (last is None or last.done()):
            return
        started = time.perf_counter()
        machine.spent_s = 0.0
        try:
            saved, seq = machine.checkpoint(), machine.seq
            taken_s = time.perf_counter() - started
            told = (federation, machine, saved, seq, taken_s)
            self._written[federation] = self._writer.submit(self._write, *told)
        except Exception:  # the request is done, and the log has everything
            log.exception("no snapshot of federation %d", federation)

    def wait(self) -> None:
        """Return when everything that was taken is written."""
        for written in list(self._written.values()):
            written.result()

    def close(self) -> None:
        """Write what was taken, and nothing any more."""
        self._writer.shutdown()

    def _write(
        self, federation: int, machine: Machine, saved: Checkpoint, seq: int, taken_s: float
    ) -> None:
        started = time.perf_counter()
        try:
            content = content_of(saved)
            with writing(self._engine) as connection:
                if _is_there(connection, federation, machine.created_at, seq):
                    save(connection, federation, seq, content)
            log.info("snapshot of federation %d: %.1f MB", federation, len(content) / 1e6)
        except Exception:  # the same
            log.exception("no snapshot of federation %d", federation)
        machine.snapshot_s = taken_s + time.perf_counter() - started


def latest(connection: Connection, federation: int) -> tuple[int, bytes] | None:
    """Return the last event in the last snapshot, and its content; None if there is none.

    Args:
        connection: A transaction.
        federation: Its number in the database.
    """
    row = connection.execute(
        select(SNAPSHOT.c.seq, SNAPSHOT.c.body)
        .where(SNAPSHOT.c.federation_id == federation)
        .order_by(SNAPSHOT.c.seq.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else (row.seq, row.body)


def save(connection: Connection, federation: int, seq: int, content: bytes) -> None:
    """Keep a snapshot and the one before it, and the enrolments that the older one lacks.

    Args:
        connection: A transaction that writes.
        federation: Its number in the database.
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


def _is_there(connection: Connection, federation: int, created_at: float, seq: int) -> bool:
    """Return whether the federation is still the one of a snapshot, and has come as far.

    It may have been deleted, and another one got its number; or the database was set back.
    """
    query = select(FEDERATION.c.created_at, FEDERATION.c.seq).where(FEDERATION.c.id == federation)
    row = connection.execute(query).one_or_none()
    return row is not None and row.created_at == created_at and row.seq >= seq
