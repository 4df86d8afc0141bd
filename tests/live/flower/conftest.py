import os

#: Nothing phones home from tests, and nothing is installed at run time.
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # otherwise Ray warns
)

import logging

import pytest

from tests.live.ticking import Ticking


@pytest.fixture(scope="session", autouse=True)
def _flower_home(tmp_path_factory):
    before = os.environ.get("FLWR_HOME")
    os.environ["FLWR_HOME"] = str(tmp_path_factory.mktemp("flwr-home"))
    yield
    if before is None:
        del os.environ["FLWR_HOME"]
    else:
        os.environ["FLWR_HOME"] = before


@pytest.fixture
def identity(monkeypatch):
    """What Flower sets in the process of a ServerApp; messages cannot be made without."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def ticking(monkeypatch, identity):
    """A clock that moves only when somebody sleeps."""
    return Ticking.installed(monkeypatch)


@pytest.fixture
def logged():
    """The lines that the integration has logged."""
    lines = []

    class Keeper(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    keeper = Keeper()
    logger = logging.getLogger("turnout.live")
    logger.addHandler(keeper)
    yield lines
    logger.removeHandler(keeper)
