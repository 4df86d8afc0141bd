"""A checkpoint with changed bytes and valid checksums is refused by name, or the run goes on."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam

from tests.live.flower.fake import cohorts, federation, model
from tests.live.flower.test_resume import flaky, selecting
from tests.results.test_damaged_files import flipped
from turnout import StateFileError
from turnout.live.checkpoint import read_checkpoint


@pytest.mark.parametrize("selector", ["e3cs", "oort"])
def test_flips_under_a_valid_checksum(ticking, tmp_path, n_tries, selector):
    whole, damaged = tmp_path / "whole.npz", tmp_path / "damaged.npz"
    selecting(whole, FedAdam(), selector).start(flaky(), model(), num_rounds=2)
    rng = np.random.default_rng(13)
    messages: list[str] = []
    n_usable = 0
    for _ in range(n_tries(60, 2_000)):
        flipped(whole, damaged, rng)
        grid = federation(9)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                selecting(damaged, FedAdam(), selector).start(grid, model(), num_rounds=3)
        except StateFileError as error:
            messages.append(str(error))
        else:
            n_usable += 1
    assert all("damaged.npz" in message for message in messages)
    assert min(len(messages), n_usable) > 1


def test_a_checkpoint_of_format_1_is_gone_on_with(ticking, tmp_path):
    """Written at commit 4b97097 after two rounds of the run that is made here."""
    path = tmp_path / "run.npz"
    shutil.copy(Path(__file__).with_name("old_checkpoint.npz"), path)
    strategy = selecting(path, FedAdam())
    result = strategy.start(federation(9), model(), num_rounds=3)
    assert read_checkpoint(path, "turnout-flower").rounds_done == 3
    assert len(cohorts(strategy)) == 3
    assert result.arrays is not None
