"""Tiers of the tests: ``make quick`` leaves out all marked slow here; ``make test`` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent

#: Files and folders of which one run takes seconds: Flower, browsers, training, whole contracts.
SLOW = (
    "contract/test_contract.py",
    "flower",
    "papers/test_results.py",
    "report",
    "test_cli_runs.py",
    "test_cli_train.py",
    "test_docs.py",
    "test_nccb.py",
    "test_ray.py",
    "test_shard.py",
    "test_training_runs.py",
    "training",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = tuple(HERE / name for name in SLOW)
    gone = [str(place) for place in slow if not place.exists()]
    if gone:
        raise pytest.UsageError(f"SLOW in tests/conftest.py names what is not there: {gone}")
    for item in items:
        if any(item.path.is_relative_to(place) for place in slow):
            item.add_marker(pytest.mark.slow)
