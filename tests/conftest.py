"""Tiers of the tests: ``make quick`` leaves out what takes seconds; ``make test`` runs all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Files and folders that take long as a whole; ``--quick`` does not even import them. Single long
#: tests of other files are marked slow.
SLOW = (
    "contract",
    "data/test_figure.py",
    "flower",
    "nvflare",
    "papers/test_results.py",
    "property",
    "report",
    "results/test_export.py",
    "results/test_sensitivity.py",
    "runs/test_lock.py",
    "serve",
    "test_bad_input.py",
    "test_cli_new.py",
    "test_cli_runs.py",
    "test_cli_train.py",
    "test_crash_points.py",
    "test_damaged_files.py",
    "test_docs.py",
    "test_faults.py",
    "test_experiment.py",
    "test_folder.py",
    "test_nccb.py",
    "test_ray.py",
    "test_shard.py",
    "test_sweep.py",
    "test_training_runs.py",
    "training",
    "watch",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes seconds")
    parser.addoption("--long", action="store_true", help="try far more random cases")


@pytest.fixture
def n_tries(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[int, int], int]:
    """How often a random case is tried, of two numbers: usually, and with ``--long``.

    The report of the test has it, for ``benchmarks/faults.py``.
    """
    is_long = bool(request.config.getoption("--long"))

    def chosen(usual: int, many: int) -> int:
        n = many if is_long else usual
        record_property("tries", n)
        return n

    return chosen


def pytest_configure(config: pytest.Config) -> None:
    gone = [name for name in SLOW if not (HERE / name).exists()]
    if gone:
        raise pytest.UsageError(f"SLOW in tests/conftest.py names files that do not exist: {gone}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_slow = any(collection_path == HERE / name for name in SLOW)
    return True if is_slow and config.getoption("--quick") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        items[:] = [item for item in items if item not in slow]
        config.hook.pytest_deselected(items=slow)
