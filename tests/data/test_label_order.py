from __future__ import annotations

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import Arrays, LabelOrder, federate


def source(n: int = 400) -> Arrays:
    return Arrays(np.arange(n)[:, None], np.arange(n) % 4, np.zeros((1, 1), int), [0])


def test_the_first_clients_hold_the_first_labels() -> None:
    data = federate(source(), LabelOrder(share=1.0), 8, seed=0)
    assert data.num_samples.tolist() == [50] * 8
    assert [set(counts.nonzero()[0]) for counts in data.label_counts] == [
        {label} for label in (0, 0, 1, 1, 2, 2, 3, 3)
    ]


def test_the_rest_is_given_out_at_random() -> None:
    """A client has 0.8 of its own label, and a quarter of the rest is of it; margin 5 sigma."""
    data = federate(source(4000), LabelOrder(share=0.8), 4, seed=0)
    assert data.num_samples.tolist() == [1000] * 4
    assert sorted(data.x[:, 0]) == list(range(4000))
    own = np.diag(data.label_counts) / 1000
    assert own == pytest.approx([0.85] * 4, abs=5 * np.sqrt(0.8 * 0.2 / 1000))
    alike = federate(source(4000), LabelOrder(share=0.0), 4, seed=0)
    assert alike.label_counts / 1000 == pytest.approx(np.full((4, 4), 0.25), abs=0.07)


def test_sizes_differ_by_at_most_two() -> None:
    sizes = federate(source(403), LabelOrder(), 10, seed=0).num_samples
    assert sizes.sum() == 403
    assert np.ptp(sizes) <= 2


def test_the_share_is_checked() -> None:
    with pytest.raises(InvalidInput, match=r"^share"):
        LabelOrder(share=1.5)
