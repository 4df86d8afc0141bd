"""Tiers of the tests: ``make quick`` leaves out what takes seconds; ``make test`` runs all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Files and folders that take long as a whole; ``--quick`` does not even import them. Single long
#: tests of other files are marked slow.
SLOW = (
    "cli/test_new.py",
    "cli/test_runs.py",
    "cli/test_train.py",
    "core/test_bad_input.py",
    "data/test_figure.py",
    "docs/test_docs.py",
    "docs/test_faults.py",
    "experiment/test_crash_points.py",
    "experiment/test_experiment.py",
    "experiment/test_folder.py",
    "experiment/test_ray.py",
    "experiment/test_shard.py",
    "experiment/test_sweep.py",
    "experiment/test_training_runs.py",
    "live/flower",
    "live/nvflare",
    "report",
    "results/test_damaged_files.py",
    "results/test_export.py",
    "results/test_lock.py",
    "results/test_sensitivity.py",
    "sampling/test_properties.py",
    "selectors/test_guarded_histories.py",
    "selectors/test_nccb.py",
    "serve",
    "studies/test_results.py",
    "testing",
    "training",
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
