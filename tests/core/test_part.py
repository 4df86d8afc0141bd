"""Feedback about a part of a selection: who chose beside another selector learns of the overlap."""

import numpy as np
import pytest

import turnout
from turnout import Outcome, Purpose, RoundContext, Selection, Status, stream
from turnout.core.registry import make

N, COHORT = 24, 8
#: They ask clients for their losses, which nobody does for a selector that only watches.
SILENT = [name for name in turnout.list_selectors(plugins=False) if not make(name).polls]


def context(t: int) -> RoundContext:
    """Return a context in which a few clients are away, and every column is known."""
    rng = stream(3, Purpose.ENV, t)
    labels = rng.integers(1, 9, (N, 10)).astype(float)
    columns = {
        "num_samples": rng.integers(10, 99, N).astype(float),
        "context": rng.random((N, 3)),
        "success_rate": rng.random(N),
        "label_counts": labels,
        "features": rng.random((N, 6)),
        "expected_duration": rng.random(N) + 0.5,
        "update_time": rng.random(N) + 0.5,
        "upload_time": rng.random(N) + 0.5,
    }
    return RoundContext(t, COHORT, rng.random(N) < 0.9, 60.0, columns)


def outcome_of(selector, selection: Selection, t: int) -> Outcome:
    """Return an outcome with every report that the selector wants."""
    rng = stream(4, Purpose.ENV, t)
    s = selection.clients.size
    sizes = selector.metric_sizes
    metrics = {
        name: rng.random((s, sizes[name])) if name in sizes else rng.random(s)
        for name in sorted(selector.needs_metrics)
    }
    return Outcome(rng.integers(0, 3, s), rng.random(s) * 9 + 1, metrics)


@pytest.mark.parametrize("name", SILENT)
def test_every_selector_that_asks_nobody_learns_from_a_part(name):
    """Half of the chosen, one, or none of them: no error, and the state stays finite."""
    selector = make(name)
    selector.prepare(N, seed=1)
    for t in range(12):
        ctx = context(t)
        selection = selector.select(ctx, stream(1, Purpose.SELECT, t))
        kept = np.zeros(selection.clients.size, dtype=bool)
        kept[: (t % 3) * 2] = True
        part = selector.part(selection, kept, np.full(int(kept.sum()), 0.5))
        assert part.clients.tolist() == selection.clients[kept].tolist()
        selector.observe(part, outcome_of(selector, part, t))
    for learned, values in selector.state().items():
        if values.dtype.kind == "f":
            assert np.isfinite(values).all(), learned


@pytest.mark.parametrize("name", SILENT)
def test_the_whole_selection_as_a_part_is_the_selection(name):
    """With everything known, nothing differs from usual feedback."""
    states = []
    for is_part in (False, True):
        selector = make(name)
        selector.prepare(N, seed=1)
        for t in range(6):
            selection = selector.select(context(t), stream(1, Purpose.SELECT, t))
            outcome = outcome_of(selector, selection, t)
            if is_part:
                everyone = np.ones(selection.clients.size, dtype=bool)
                selection = selector.part(selection, everyone, np.ones(selection.clients.size))
            selector.observe(selection, outcome)
        states.append(selector.state())
    for learned, values in states[0].items():
        np.testing.assert_array_equal(values, states[1][learned], err_msg=learned)


@pytest.mark.parametrize(
    ("name", "account"),
    [("pace", "owed_"), ("guarded", "owed_"), ("pace", "queue_"), ("rbcs-f", "queue_")],
)
def test_accounts_are_charged_for_everyone_who_was_chosen(name, account):
    """Who was chosen needs no feedback, so floors and queues do not depend on it."""
    accounts = []
    for share in (1.0, 0.0):
        selector = make(name)
        selector.prepare(N, seed=1)
        selection = selector.select(context(0), stream(1, Purpose.SELECT, 0))
        kept = np.full(selection.clients.size, share > 0.0)
        part = selector.part(selection, kept, np.ones(int(kept.sum())))
        selector.observe(part, outcome_of(selector, part, 0))
        accounts.append(selector.state()[account])
    np.testing.assert_array_equal(*accounts)


def test_e3cs_estimates_stay_unbiased():
    """The estimate of a client's success divides by the chance to be drawn and to be known.

    Clients that always fail, with chances to be known of 1 and 0.25: over many parts, all lose the
    same. The margin is four standard errors.
    """
    selector = make("e3cs", quota=0.5)
    ctx = RoundContext(0, 4, np.ones(8, dtype=bool))
    known = np.where(np.arange(8) < 4, 1.0, 0.25)
    gains = []
    for t in range(4000):
        selector.prepare(8)
        rng = stream(t, Purpose.SELECT)
        selection = selector.select(ctx, rng)
        kept = rng.random(4) < known[selection.clients]
        part = selector.part(selection, kept, known[selection.clients[kept]])
        size = part.clients.size
        selector.observe(part, Outcome(np.full(size, Status.FAILED), np.ones(size)))
        gains.append(selector.log_weight_.copy())
    gains = np.array(gains)
    sure, rare = gains[:, :4].mean(axis=1), gains[:, 4:].mean(axis=1)
    error = np.std(sure - rare, ddof=1) / np.sqrt(len(gains))
    assert abs(np.mean(sure - rare)) < 4 * error
    assert sure.mean() < 0.0
