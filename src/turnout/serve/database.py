"""The database: tables, connections to SQLite or PostgreSQL, and upgrades by Alembic.

The history of a federation is a log of events. A snapshot is the state after one of the events, so
that the earlier ones need not be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Column,
    Connection,
    Double,
    Engine,
    ForeignKey,
    Index,
    Integer,
    Label,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    literal_column,
    make_url,
    select,
)
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from turnout.core.errors import InvalidInput, MissingExtra, TurnoutError

DEFAULT_URL = "sqlite:///turnout.db"

#: The folder with Alembic's migrations.
_MIGRATIONS = Path(__file__).parent / "migrations"
#: The version of the database, as a column of queries; Alembic stores it.
VERSION: Label[str] = literal_column("(SELECT version_num FROM alembic_version)").label("version")
_VERSION = select(VERSION)
#: Seconds that a writer waits for another writer.
_WAIT_S = 60.0
#: The advisory lock of PostgreSQL that a server holds while it prepares the database.
_START_LOCK = 7_210_517
#: The execution option that marks a writing connection, since SQLite locks when it begins.
_WRITES = "turnout_writes"
#: Pages of SQLite's log after which a commit moves them to the database, if ``tidy`` has not.
_MOST_PAGES = 16_384
#: Where the writers of this process wait for each other, by SQLite database. SQLite itself lets
#: them try again after pauses, and some would try for seconds.
_TURNS: WeakKeyDictionary[Engine, Lock] = WeakKeyDictionary()
#: More connections than a server has threads, so that no thread waits for one with a lock held.
_POOL = {"pool_size": 20, "max_overflow": 80, "pool_use_lifo": True}


# --------------------------------------------------------------------------------------------------
# The tables, as they are now; ``migrations`` has the steps that lead to them.
# --------------------------------------------------------------------------------------------------

METADATA = MetaData()


def _federation_key() -> Column[int]:
    return Column("federation_id", Integer, ForeignKey("federation.id"), primary_key=True)


FEDERATION = Table(
    "federation",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("definition", Text, nullable=False),  # JSON of ``schemas.Definition``
    Column("seq", Integer, nullable=False),  # of its last event; writers lock this row
    Column("created_at", Double, nullable=False),
)

EVENT = Table(
    "event",
    METADATA,
    _federation_key(),
    Column("seq", Integer, primary_key=True),
    Column("at", Double, nullable=False),  # seconds since 1970
    Column("kind", String(16), nullable=False),
    Column("round", Integer),
    Column("body", LargeBinary, nullable=False),  # compressed JSON, see ``store``
    Index("event_of_round", "federation_id", "round"),
)

ROUND = Table(
    "round",
    METADATA,
    _federation_key(),
    Column("number", Integer, primary_key=True),
    Column("key", String(256)),  # idempotency key of the request that opened it
    Column("opened_at", Double, nullable=False),
    Column("closes_at", Double),  # at the latest; null: when all clients are reported
    Column("closed_at", Double),
    Column("chosen", Text, nullable=False),  # JSON, as in the response
    Column("result", Text),
    UniqueConstraint("federation_id", "key", name="one_round_by_key"),
)

#: The clients that got work together, in federations whose rounds overlap.
CHOICE = Table(
    "choice",
    METADATA,
    _federation_key(),
    Column("number", Integer, primary_key=True),
    Column("key", String(256)),  # idempotency key of the request that made it
    Column("at", Double, nullable=False),
    Column("chosen", Text, nullable=False),  # JSON, as in the response
    UniqueConstraint("federation_id", "key", name="one_choice_by_key"),
)

SNAPSHOT = Table(
    "snapshot",
    METADATA,
    _federation_key(),
    Column("seq", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),  # a checkpoint of the session
)

TOKEN = Table(
    "token",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("federation_id", Integer, ForeignKey("federation.id")),  # null: all federations
    Column("name", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of the token
    Column("scope", String(16), nullable=False),
    Column("created_at", Double, nullable=False),
)

#: Names and no keys: an entry outlives its token and its federation.
AUDIT = Table(
    "audit",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("actor", String(64), nullable=False),  # the name of the token
    Column("action", String(32), nullable=False),
    Column("federation", String(64)),
    Column("version", Integer),  # of the federation, after it
    Column("round", Integer),
    Column("subject", String(256)),  # what else it is about, such as another token
    Column("request_id", String(64)),
    Column("address", String(64)),
    Index("audit_of_round", "federation", "round"),
)


# --------------------------------------------------------------------------------------------------
# Connections and transactions.
# --------------------------------------------------------------------------------------------------


class DatabaseError(TurnoutError, RuntimeError):
    """The database cannot be used: unreachable, not turnout's, or of a newer turnout."""


def open_database(url: str = DEFAULT_URL) -> Engine:
    """Open a database; its tables are created or upgraded if necessary.

    Args:
        url: ``sqlite:///file.db`` or ``postgresql://user@host/database``.

    Raises:
        DatabaseError: The database cannot be reached, or a newer turnout has written it.
        InvalidInput: The URL is not of this form.
        MissingExtra: The driver is not installed.
    """
    return migrated(url)[0]


def migrated(url: str) -> tuple[Engine, str | None, str]:
    """Open a database as ``open_database`` does; also return its version before and after."""
    engine = _engine(url)
    try:
        with engine.execution_options(**{_WRITES: True}).begin() as connection:
            before = _migrate(connection)
    except SQLAlchemyError as error:
        engine.dispose()
        cause = getattr(error, "orig", None) or error
        raise DatabaseError(
            f"the database {engine.url!r} cannot be used ({str(cause).strip()}): check --database."
        ) from error
    return engine, before, _versions(_MIGRATIONS)[0]


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Enter a writing transaction; SQLite allows one at a time.

    Args:
        engine: The database.

    Raises:
        DatabaseError: Another version of turnout has changed the tables since then.
    """
    with writing_unchecked(engine) as connection:
        check_version(connection)
        yield connection


@contextmanager
def writing_unchecked(engine: Engine) -> Iterator[Connection]:
    """Enter a writing transaction whose first query has to read and check ``VERSION``.

    Args:
        engine: The database.
    """
    with _TURNS.get(engine, nullcontext()), engine.connect() as connection:
        connection.execution_options(**{_WRITES: True})
        with connection.begin():
            yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Enter a reading transaction.

    Args:
        engine: The database.

    Raises:
        DatabaseError: Another version of turnout has changed the tables since then.
    """
    with engine.begin() as connection:
        check_version(connection)
        yield connection


def tidy(engine: Engine) -> None:
    """Move what SQLite has logged to the database file, so that no request has to wait for it.

    Args:
        engine: The database.
    """
    if engine.dialect.name == "sqlite":
        with closing(engine.raw_connection()) as connection:  # it must be in no transaction
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()


def lock_starts(connection: Connection) -> None:
    """Wait for other servers that are starting; they wait until this transaction ends.

    Args:
        connection: A writing transaction.
    """
    if connection.dialect.name == "postgresql":  # SQLite has one writer
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_START_LOCK})")


def check_version(connection: Connection, row: Row[Any] | None = None) -> None:
    """Reject a database that another version of turnout has changed since it was opened.

    Args:
        connection: A transaction.
        row: What a query has returned that reads ``VERSION`` too; None: it is read now.

    Raises:
        DatabaseError: The version is another one.
    """
    there = connection.execute(_VERSION).scalar() if row is None else row.version
    if there != _versions(_MIGRATIONS)[0]:
        raise _wrong_version(there, "restart this server with")


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername in {"postgres", "postgresql"}:
            parsed = parsed.set(drivername="postgresql+psycopg")
        backend = parsed.get_backend_name()
        parsed.get_dialect()
    except ImportError:  # the driver is not installed, which says more below
        pass
    except (ArgumentError, NoSuchModuleError, ValueError):
        backend = ""
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise InvalidInput("database must be a file: sqlite:///turnout.db.", field="database")
        engine = create_engine(parsed, connect_args={"timeout": _WAIT_S}, **_POOL)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        _TURNS[engine] = Lock()
        return engine
    if backend != "postgresql":
        raise InvalidInput(
            "database must be sqlite:///FILE or postgresql://USER@HOST/NAME, got one that begins "
            f"with {url[: url.find(':') + 1]!r}.",  # the rest may hold a password
            field="database",
        )
    try:
        return create_engine(parsed, pool_pre_ping=True, **_POOL)
    except ImportError as error:
        raise MissingExtra("PostgreSQL needs psycopg: pip install 'turnout[postgres]'") from error


def _prepare(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the handler of "begin" starts transactions
    pages = f"wal_autocheckpoint = {_MOST_PAGES}"
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", pages):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@lru_cache
def _versions(folder: Path) -> list[str]:
    """Return all versions of the database that this turnout knows, the newest first."""
    return [step.revision for step in ScriptDirectory(str(folder)).walk_revisions()]


def _wrong_version(there: str | None, what: str) -> DatabaseError:
    newest = _versions(_MIGRATIONS)[0]
    return DatabaseError(
        f"the database has version {there!r}, and this turnout knows up to {newest!r}: {what} the "
        "turnout that wrote it, or give another --database. Nothing was changed."
    )


def _migrate(connection: Connection) -> str | None:
    """Bring a database up to date; return the version that it had."""
    lock_starts(connection)
    there = MigrationContext.configure(connection).get_current_revision()
    if there not in (None, *_versions(_MIGRATIONS)):
        raise _wrong_version(there, "upgrade to")
    if there != _versions(_MIGRATIONS)[0]:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.set_main_option("path_separator", "os")
        command.upgrade(config, "head")
    return there
