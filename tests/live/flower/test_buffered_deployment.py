"""Flower deployed, with rounds that overlap; ``make deployment`` runs it, and CI does not yet."""

import numpy as np
import pytest

from tests.live.flower.test_deployment import COMPLETED, federation, kill_server_app

__all__ = ["federation"]  # a fixture
pytestmark = pytest.mark.deployment


def test_buffered_rounds_do_not_wait_and_a_killed_server_repeats_the_work_in_flight(federation):
    """Client 1 is slow on its first model. Every model in the record follows from its columns."""
    run = federation.submit(
        num_rounds=5, cohort_size=1, buffer=1, concurrency=3, faults="1:sleep60@1", seed=3
    )
    run.wait_for_round(1)  # although client 1 sleeps
    kill_server_app(run)
    assert len(run.rounds) < 5
    run.submit()
    done = run.finish()
    assert done.overlaps
    assert done.n_rounds == 5
    pieces = list(zip(done.choice.tolist(), done.clients.tolist(), strict=True))
    assert len(set(pieces)) == len(pieces)  # no work counts twice
    assert done.stale.max() > 0
    model, models = 0.0, []
    for t in range(done.n_rounds):
        at = slice(done.offsets[t], done.offsets[t + 1])
        is_in = done.status[at] == COMPLETED
        steps = 10.0 ** done.clients[at] / np.sqrt(1.0 + done.staleness[at])
        model += steps[is_in].mean() if is_in.any() else 0.0
        models.append(model)
    assert run.models() == pytest.approx(models, rel=1e-6)
