"""The database: made, brought up to date, and refused if it is too new or none of ours."""

import sqlite3

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from turnout.errors import InvalidInput, MissingExtra
from turnout.serve import DatabaseError, open_database
from turnout.serve.tables import METADATA


def test_the_steps_make_the_tables_that_the_code_uses(engine):
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_database_of_a_newer_version_is_refused_and_left_alone(engine):
    path = engine.url.database
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99'")
        before = list(connection.iterdump())
    with pytest.raises(DatabaseError, match=r"'v99', and this turnout knows up to 'v1'.* upgrade"):
        open_database(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert list(connection.iterdump()) == before


def test_an_older_database_is_brought_up_to_date(tmp_path):
    """The oldest version is an empty file."""
    path = tmp_path / "old.db"
    path.touch()
    engine = open_database(f"sqlite:///{path}")
    assert set(METADATA.tables) < set(inspect(engine).get_table_names())
    engine.dispose()
    open_database(f"sqlite:///{path}").dispose()  # and once more, with nothing to do


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "x", ""])
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidInput, match="database must be") as error:
        open_database(url)
    assert error.value.field == "database"


def test_what_cannot_be_reached_is_named(tmp_path):
    (tmp_path / "text.db").write_text("this is not a database" * 100)
    for url in (f"sqlite:///{tmp_path}/none/x.db", f"sqlite:///{tmp_path}/text.db",
                "postgresql://u:secret@127.0.0.1:1/none"):  # fmt: skip
        with pytest.raises(DatabaseError, match="check --database") as error:
            open_database(url)
        assert "secret" not in str(error.value)


def test_postgresql_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[postgres\]'"):
        open_database("postgresql://u@127.0.0.1/none")
