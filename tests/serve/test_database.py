"""The database: made, brought up to date, and refused if it is too new or none of ours."""

import contextlib
import shutil
import sqlite3

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect

from tests.serve.conftest import client_of
from turnout.core.errors import InvalidInput, MissingExtra
from turnout.serve import DatabaseError, database, open_database
from turnout.serve.database import METADATA


def test_the_steps_make_the_tables_that_the_code_uses(engine):
    with engine.begin() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []


def test_a_database_of_a_newer_version_is_refused_and_left_alone(engine):
    path = engine.url.database
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99'")
        before = list(connection.iterdump())
    with pytest.raises(DatabaseError, match=r"'v99', and this turnout knows up to 'v3'.* upgrade"):
        open_database(f"sqlite:///{path}")
    with sqlite3.connect(path) as connection:
        assert list(connection.iterdump()) == before


def test_an_older_database_is_brought_up_to_date(tmp_path):
    """The oldest is an empty file."""
    path = tmp_path / "old.db"
    path.touch()
    engine = open_database(f"sqlite:///{path}")
    assert set(METADATA.tables) < set(inspect(engine).get_table_names())
    engine.dispose()
    open_database(f"sqlite:///{path}").dispose()  # and once more, with nothing to do


#: A step of the future: a column that old rows get a value for.
NEXT_STEP = """
import sqlalchemy as sa
from alembic import op

revision = "v4"
down_revision = "v3"


def upgrade():
    op.add_column("round", sa.Column("n_chosen", sa.Integer))
    op.execute("UPDATE round SET n_chosen = json_array_length(chosen, '$.clients')")
"""


@pytest.fixture
def future(tmp_path, monkeypatch):
    """A turnout with one more step; calling it with a text makes that the step."""
    steps = tmp_path / "migrations"
    shutil.copytree(database._MIGRATIONS, steps, ignore=shutil.ignore_patterns("__pycache__"))

    def enter(step=NEXT_STEP):
        (steps / "versions" / "v4_next.py").write_text(step)
        monkeypatch.setattr(database, "_MIGRATIONS", steps)

    return enter


def dump(engine):
    engine.dispose()
    with contextlib.closing(sqlite3.connect(engine.url.database)) as connection:
        return list(connection.iterdump())


def test_a_database_of_the_step_before_is_upgraded_with_its_content(
    http, demo, engine, future, monkeypatch
):
    chosen = http.post(f"{demo}/rounds").json()["clients"]
    before = http.get(demo).json()
    url = f"sqlite:///{engine.url.database}"
    future()
    upgraded = open_database(url)
    with upgraded.begin() as connection:
        assert connection.exec_driver_sql("SELECT n_chosen FROM round").scalar() == 5
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version")
        assert version.scalars().all() == ["v4"]
    again = client_of(upgraded, http.portal)
    assert again.get(demo).json() == before
    assert again.get(f"{demo}/rounds/0").json()["clients"] == chosen
    left = dump(upgraded)
    monkeypatch.undo()  # back in the present, that database is of a newer version
    with pytest.raises(DatabaseError, match=r"'v4', and this turnout knows up to 'v3'.* upgrade"):
        open_database(url)
    assert dump(engine) == left


def test_a_step_that_fails_half_way_leaves_the_database_as_it_was(http, demo, engine, future):
    http.post(f"{demo}/rounds")
    before = dump(engine)
    future(NEXT_STEP + '    op.execute("UPDATE nowhere SET x = 1")\n')
    with pytest.raises(DatabaseError, match=r"no such table: nowhere.* check --database"):
        open_database(f"sqlite:///{engine.url.database}")
    assert dump(engine) == before


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "x", ""])
def test_other_urls_are_refused(url):
    with pytest.raises(InvalidInput, match="database must be") as error:
        open_database(url)
    assert error.value.field == "database"


@pytest.mark.parametrize("kind", ["mysql", "postgre", "postgresql+psycopg3x"])
def test_no_message_has_the_password_of_a_database(kind):
    with pytest.raises(InvalidInput) as error:
        open_database(f"{kind}://user:sec/r@t@host/name")
    assert "sec/r@t" not in str(error.value)
    assert f"begins with '{kind}:'" in str(error.value)


@pytest.mark.parametrize("url", ["postgre://host/db?user=a&password=sec", "mysql+no:u:sec@h/db"])
def test_no_part_of_a_wrong_url_can_be_a_secret(url):
    with pytest.raises(InvalidInput) as error:
        open_database(url)
    assert "sec" not in str(error.value)


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
