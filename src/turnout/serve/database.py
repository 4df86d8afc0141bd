"""The connection to SQLite or PostgreSQL, and its tables brought up to date by Alembic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from turnout.errors import InvalidInput, MissingExtra, TurnoutError

DEFAULT_URL = "sqlite:///turnout.db"

#: The steps of Alembic.
_MIGRATIONS = Path(__file__).parent / "migrations"
#: The last step that was played, where Alembic keeps it.
_VERSION = text("SELECT version_num FROM alembic_version")
#: Seconds that a writer waits for another one.
_WAIT_S = 60.0
#: The lock, among PostgreSQL's advisory ones, of who changes tables.
_MIGRATION_LOCK = 7_210_517
#: Execution option of connections that write; SQLite must know it when a transaction begins.
_WRITES = "turnout_writes"
#: More connections than a server has threads, so that nobody waits for one while holding a lock.
_POOL: Mapping[str, Any] = MappingProxyType({"pool_size": 20, "max_overflow": 80})


class DatabaseError(TurnoutError, RuntimeError):
    """The database cannot be used: unreachable, foreign, or of a newer turnout."""


def open_database(url: str = DEFAULT_URL) -> Engine:
    """Return the database with its tables up to date; an empty one gets them.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user@host/database``.

    Raises:
        DatabaseError: It cannot be reached, or a newer turnout has written it.
        InvalidInput: It is no such URL.
        MissingExtra: The driver is not installed.
    """
    engine = _engine(url)
    try:
        with _transaction(engine) as connection:
            _migrate(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        cause = getattr(error, "orig", None) or error
        raise DatabaseError(
            f"the database {engine.url!r} cannot be used ({str(cause).strip()}): check --database."
        ) from error
    return engine


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Enter a transaction that writes; in SQLite it is the only one.

    Args:
        engine: The database.

    Raises:
        DatabaseError: Another turnout has changed its tables since it was opened.
    """
    with _transaction(engine) as connection:
        _check_version(connection)
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Enter a transaction that only reads.

    Args:
        engine: The database.

    Raises:
        DatabaseError: Another turnout has changed its tables since it was opened.
    """
    with engine.begin() as connection:
        _check_version(connection)
        yield connection


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection = connection.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in {"postgres", "postgresql"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError):
        backend = ""
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise InvalidInput("database must be a file: sqlite:///turnout.db.", field="database")
        engine = create_engine(parsed, connect_args={"timeout": _WAIT_S}, **_POOL)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        return engine
    if backend != "postgresql":
        raise InvalidInput(
            f"database must be sqlite:///FILE or postgresql://USER@HOST/NAME, got {url!r}.",
            field="database",
        )
    try:
        return create_engine(parsed, pool_pre_ping=True, **_POOL)
    except ImportError as error:
        raise MissingExtra("PostgreSQL needs psycopg: pip install 'turnout[postgres]'") from error


def _prepare(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _scripts() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config, ScriptDirectory.from_config(config)


@lru_cache
def _head(_: Path) -> str | None:
    """Return the last step of those in a folder."""
    return _scripts()[1].get_current_head()


def _check_version(connection: Connection) -> None:
    there = connection.execute(_VERSION).scalar()
    if there != _head(_MIGRATIONS):
        raise _wrong_version(there, "restart this server with")


def _wrong_version(there: str | None, what: str) -> DatabaseError:
    return DatabaseError(
        f"the database has version {there!r}, and this turnout knows up to "
        f"{_head(_MIGRATIONS)!r}: {what} the turnout that wrote it, or name another --database. "
        "Nothing was changed."
    )


def _migrate(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":  # two servers may start at once
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
    config, scripts = _scripts()
    there = MigrationContext.configure(connection).get_current_revision()
    known = {step.revision for step in scripts.walk_revisions()}
    if there is not None and there not in known:
        raise _wrong_version(there, "upgrade to")
    if there != scripts.get_current_head():
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
