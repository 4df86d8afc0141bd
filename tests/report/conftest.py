import pytest

from tests.report.browser import Browser
from tests.report.folders import config_of, learning, write_cell, write_experiment
from turnout.report import write_report


@pytest.fixture(scope="session")
def experiment(tmp_path_factory):
    """Seven selectors with three seeds each; read only."""
    return write_experiment(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="session")
def report(experiment, tmp_path_factory):
    return write_report([experiment], tmp_path_factory.mktemp("out") / "report.html")


@pytest.fixture
def small(tmp_path):
    """Two selectors with two seeds each, for tests that damage something."""
    return write_experiment(tmp_path / "small", ("random", "e3cs-0.5"), (0, 1), n_rounds=12)


@pytest.fixture
def training(tmp_path):
    """A training run: accuracy and loss in every fifth round."""
    for label in ("random", "e3cs-0.5"):
        for seed in (0, 1):
            config = config_of(label, seed, n_rounds=21, kind="training", world_id="aaaaaaaaaaaa")
            write_cell(tmp_path / "training", config, extra=learning(seed))
    return tmp_path / "training"


@pytest.fixture(scope="session")
def browser():
    browser = Browser()
    yield browser
    browser.close()
