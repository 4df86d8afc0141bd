"""Limits on participation in live runs: with accidents, restarts and merged clients."""

import numpy as np
import pytest

from tests.live.history import FakePort, History
from tests.live.test_clients import resumed
from tests.live.test_session import calm, play_round, session_of
from turnout import InvalidInput, make
from turnout.live import Guard, Live, Session
from turnout.live.clients import merge, rename
from turnout.live.settings import LiveSettings
from turnout.results.privacy import participations

B, K = 3, 25


def limited(b=B, k=K, **given):
    settings, selector = LiveSettings(
        cohort_size=2,
        guard=Guard(0.5, 4.0, b, k),
        start_s=5.0,
        wait_for_clients_s=2.0,
        poll_s=0.5,
        limit_s=10.0,
        **given,
    ).for_selector("e3cs")
    return Session(settings, selector)


@pytest.mark.parametrize("seed", range(3))
def test_limits_hold_with_accidents_and_restarts(ticking, seed):
    history = History(seed, n=12)
    live = Live(limited(), FakePort(history))
    for t in range(60):
        if t % 7 == 6:
            saved = live.session.state({})
            live = Live(limited(), live.port)
            live.session.load(saved)
        play_round(live)
        history.advance()
    certificate = participations(live.session.journal.run, B, K)
    assert certificate.holds
    assert certificate.max_times > 5
    ledger = live.session.selector.state()["invited_"]
    np.testing.assert_array_equal(ledger, certificate.times)


def test_a_restart_after_empty_rounds_excludes_nobody(ticking):
    """The checkpoint says that nobody was selected in them; the selector has not seen them."""
    live = Live(limited(), FakePort(calm(n=8)))
    play_round(live)
    for _ in range(4):
        live.session.sync(())
        live.session.open()
        live.session.close()
    saved = live.session.state({})
    again = Live(limited(), live.port)
    again.session.load(saved)
    assert len(play_round(again)[0].ids) == 2


def test_names_and_merges_keep_the_ledger(ticking):
    live = Live(limited(b=2), FakePort(calm(n=8)))
    for _ in range(8):
        play_round(live)
    before = live.session.state({})
    counts = before.arrays["selector"]["invited_"]
    saved = merge(rename(before, "client-003", "tablet"), "tablet", "client-005")
    again = limited(b=2)
    again.load(saved)
    ledger = again.selector.state()
    assert ledger["invited_"][3] == counts[3] + counts[5] == again.journal.run.counts[3]
    last = max(t for t in range(8) if 3 in again.journal.run.chosen_in(t))
    assert ledger["after_invited_"][3] == last + 1


def test_a_merge_of_clients_without_limits_is_as_before(ticking):
    live = Live(session_of(), FakePort(calm(n=8)))
    play_round(live)
    merged = resumed(merge(live.session.state({}), "client-001", "client-002"), live.port)
    roster = merged.session.members.roster
    assert roster.index_of("client-002") == roster.index_of("client-001")


def test_too_few_clients_are_refused_before_the_first_round(ticking):
    live = Live(limited(b=5), FakePort(calm(n=8)))
    with pytest.raises(InvalidInput, match="n_clients at least 10"):
        play_round(live)
    few = Live(limited(b=2, k=3), FakePort(calm(n=8)))
    few.session.n_rounds = 50
    with pytest.raises(InvalidInput, match="max_times at least 13"):
        play_round(few)


def test_no_share_is_promised_to_alerts():
    assert make("guarded", floor=0.5).promised_share(3) == 0.5
    assert make("guarded", floor=0.5, min_gap=2).promised_share(3) == 0.0
