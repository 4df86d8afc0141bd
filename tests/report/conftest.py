import shutil

import pytest

from tests.live.ticking import Ticking
from tests.report.folders import LABELS, RECIPE, run_folder
from turnout.report import write_report


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """Seven selectors with three seeds each; read only."""
    return run_folder(tmp_path_factory.mktemp("runs") / "demo", *LABELS)


@pytest.fixture(scope="session")
def report(experiment, tmp_path_factory):
    return write_report([experiment], tmp_path_factory.mktemp("out") / "report.html")


@pytest.fixture(scope="session")
def training(tmp_path_factory):
    """A training run with accuracy and loss in every fifth round; read only."""
    root = tmp_path_factory.mktemp("runs") / "training"
    labels = ("random", "e3cs-0.5", "fedcs")
    return run_folder(root, *labels, seeds=2, n_rounds=40, training=RECIPE, name="training")


@pytest.fixture(scope="session")
def small_original(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / "small"
    return run_folder(root, "e3cs-0.5", "random", seeds=2, n_rounds=12)


@pytest.fixture
def small(small_original, tmp_path):
    """Two selectors with two seeds each, for tests that damage something."""
    return shutil.copytree(small_original, tmp_path / "small")


@pytest.fixture
def trained(training, tmp_path):
    """A training run, for tests that change something."""
    return shutil.copytree(training, tmp_path / "trained")


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    return Ticking.installed(monkeypatch)
