"""A server in this process, over a SQLite file of its own."""

import shutil

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient

from turnout.serve import create_app, open_database

LOCAL = {"base_url": "http://127.0.0.1:8717", "client": ("127.0.0.1", 50_000)}


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """A database with its tables, to be copied."""
    path = tmp_path_factory.mktemp("empty") / "turnout.db"
    open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture
def engine(tmp_path, empty):
    shutil.copy(empty, tmp_path)
    engine = open_database(f"sqlite:///{tmp_path}/turnout.db")
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def portal():
    """One event loop for all requests, which saves most of their time."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def http(engine, portal):
    return client_of(engine, portal)


def client_of(engine, portal):
    client = TestClient(create_app(engine, no_auth=True), **LOCAL)
    client.portal = portal
    return client


@pytest.fixture
def demo(http):
    """A federation of ten clients, five a round."""
    return create(http)


def create(http, name="demo", n_clients=10, **definition):
    body = {"name": name, "selector": "e3cs", "cohort_size": 5, "seed": 1} | definition
    answer = http.post("/federations", json=body)
    assert answer.status_code == 201, answer.text
    if n_clients:
        clients = [f"c{i}" for i in range(n_clients)]
        body = {"clients": clients, "columns": {"num_samples": list(range(1, n_clients + 1))}}
        assert http.put(f"/federations/{name}/clients", json=body).status_code == 200
    return f"/federations/{name}"
