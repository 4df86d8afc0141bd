"""Backups: a copy of all tables in one SQLite file, from and to any database.

A backup is a database of its own. It can be restored into SQLite or PostgreSQL, so it also moves a
server from one to the other, and ``turnout serve --database sqlite:///BACKUP`` can serve it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, func, insert, select, text

from turnout.core.errors import InvalidInput, OutputError
from turnout.serve.database import (
    FEDERATION,
    METADATA,
    ROUND,
    TOKEN,
    DatabaseError,
    open_database,
    reading,
    writing,
)
from turnout.serve.logs import note

#: Rows that are held in memory at the same time; some have hundreds of megabytes.
_ROWS = 20


def back_up(engine: Engine, path: Path) -> dict[str, int]:
    """Copy a database into a new file, while servers go on; return how much there is.

    The copy shows one moment. On PostgreSQL no request waits. On SQLite none waits either, since
    readers and writers do not block each other there.

    Args:
        engine: The database.
        path: The file, which must not exist.

    Raises:
        InvalidInput: The file exists.
        OutputError: It cannot be written.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists: choose another name for the backup.", field="path")
    try:
        handle, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from error
    os.close(handle)  # only its owner can read it: it has digests of tokens
    part = Path(made)
    try:
        target = open_database(f"sqlite:///{part}")
        try:
            snapshot = engine
            if engine.dialect.name == "postgresql":
                snapshot = engine.execution_options(isolation_level="REPEATABLE READ")
            with reading(snapshot) as source, writing(target) as sink:
                counts = _copy(source, sink)
            with target.connect() as connection:  # one file, without a second one beside it
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
        finally:
            target.dispose()
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.link(part, path)  # fails if another backup was faster
    except FileExistsError as error:
        raise InvalidInput(f"{path} exists: choose another name for the backup.") from error
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        for left in part.parent.glob(f"{part.name}*"):
            with suppress(OSError):
                left.unlink()
    return counts


def restore(engine: Engine, path: Path) -> dict[str, int]:
    """Fill an empty database from a backup, also one of an older turnout; return how much it has.

    Args:
        engine: The database.
        path: The backup.

    Raises:
        DatabaseError: The file is no backup, or a newer turnout has made it.
        InvalidInput: There is no such file, or the database is not empty.
    """
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}.", field="path")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        copy = _copy_of_file(path, Path(folder))  # the backup itself is not upgraded
        backup = open_database(f"sqlite:///{copy}")
        try:
            with reading(backup) as source, writing(engine) as sink:
                if any(_count(sink, table) for table in (FEDERATION, TOKEN)):
                    raise InvalidInput(
                        "the database has federations or tokens: give an empty one with "
                        "--database. Nothing was changed.",
                        field="database",
                    )
                for table in reversed(METADATA.sorted_tables):
                    sink.execute(table.delete())  # entries of the audit log
                counts = _copy(source, sink)
                # Servers that know the database from before recognise copies in memory by this.
                newer = FEDERATION.c.created_at + 1e-3
                sink.execute(FEDERATION.update().values(created_at=newer))
                note(sink, "restored", subject=path.name[:256])
        finally:
            backup.dispose()
    return counts


def _copy_of_file(path: Path, folder: Path) -> Path:
    """Copy a SQLite file; if it was not closed, with what SQLite has in the files beside it."""
    path, copy = path.resolve(), folder / path.name  # SQLite looks beside the file itself
    if not any(path.with_name(path.name + end).exists() for end in ("-wal", "-journal")):
        shutil.copy(path, copy)
        return copy
    try:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise DatabaseError(
            f"{path} and the file of SQLite beside it cannot be read ({error}): give a file that "
            "'turnout serve backup' has made. Nothing was changed."
        ) from error
    return copy


def _copy(source: Connection, sink: Connection) -> dict[str, int]:
    """Copy all tables into empty ones; return the numbers of federations, rounds and tokens."""
    for table in METADATA.sorted_tables:
        rows = source.execution_options(yield_per=_ROWS).execute(select(table)).mappings()
        for part in rows.partitions():
            sink.execute(insert(table), [dict(row) for row in part])
        if sink.dialect.name == "postgresql" and "id" in table.c:  # where its numbers go on
            last = f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) FROM "
            sink.execute(text(f'{last} "{table.name}" HAVING max(id) IS NOT NULL'))
    return {table.name: _count(sink, table) for table in (FEDERATION, ROUND, TOKEN)}


def _count(connection: Connection, table: Table) -> int:
    return connection.execute(select(func.count()).select_from(table)).scalar_one()
