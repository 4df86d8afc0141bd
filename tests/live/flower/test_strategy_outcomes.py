"""How rounds end: statuses, deadlines, first-k, over-selection, busy nodes, empty rounds."""

import math

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.live.flower.fake import (
    Fate,
    Node,
    by_name,
    cohorts,
    federation,
    model,
    outcomes,
    value_of,
)
from tests.live.flower.fake import training_app as app_of
from turnout import RoundContext, Selection, Selector, Status, make
from turnout.experiment.engine import RoundEngine
from turnout.live import Kind, Reply
from turnout.live.flower import SelectingStrategy
from turnout.live.round import OpenRound
from turnout.worlds import (
    AdaptiveDeadline,
    Environment,
    FirstK,
    FixedDeadline,
    FixedTime,
    OverSelect,
    OverSelectBySuccess,
    Reliable,
)

COMPLETED, LATE, FAILED, SILENT = (int(status) for status in Status)


class Everyone(Selector):
    """Takes whoever is there, lowest index first, and remembers what it saw."""

    def __init__(self):
        self.seen = []

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.seen.append((selection.clients.tolist(), outcome))


def selecting(selector=None, **given):
    given = {
        "cohort_size": 9,
        "policy": FixedDeadline(10.0),
        "start_s": 0.0,
        "wait_for_nodes_s": 0.0,
    } | given
    return SelectingStrategy(FedAvg(fraction_evaluate=0.0), selector or Everyone(), **given)


def test_every_chosen_node_ends_in_one_of_four_ways(ticking, logged):
    grid = federation(9, delay=1.0)
    fates = {
        1: Fate(code=2),
        2: Fate(delay=11.0),
        3: Fate(is_lost=True),
        4: Fate(code=5, delay=4.0),
        5: Fate(code=3, delay=0.0),
        6: Fate(code=4, delay=0.0),
        7: Fate(code=8, delay=3.0),
    }
    nodes = by_name(grid)
    for number, fate in fates.items():
        nodes[f"client-{number:03d}"].plan = {0: fate}
    grid.refuses = set()
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=1)
    expected = [COMPLETED, FAILED, LATE, LATE, SILENT, SILENT, SILENT, FAILED, COMPLETED]
    assert list(outcomes(strategy, 0).values()) == expected
    seen = strategy.selector.seen[0][1]
    nan = math.nan
    wanted = [1.0, 1.0, nan, nan, nan, nan, nan, 3.0, 1.0]
    np.testing.assert_allclose(seen.duration, wanted, atol=1e-9)
    assert strategy.run.length_s[0] == pytest.approx(10.0)
    # Only the two that completed are aggregated: numbers 0 and 8 with weights 1 and 9.
    assert value_of(result.arrays)[0][0] == pytest.approx(8 * 9 / 10)
    assert any("client-001: error 2" in line for line in logged)


@pytest.mark.parametrize("omits_refused", [True, False])
def test_a_refused_message_makes_its_node_silent_and_holds_nobody_up(ticking, omits_refused):
    grid = federation(4, omits_refused=omits_refused)
    refused = by_name(grid)["client-002"].node_id

    class RefusingLater(Everyone):
        def select(self, ctx, rng):
            grid.refuses = {refused}
            return super().select(ctx, rng)

    strategy = selecting(RefusingLater())
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, COMPLETED, SILENT, COMPLETED]
    assert strategy.run.length_s[0] < 1.0


def test_a_grid_that_refuses_large_requests_gets_the_messages_one_by_one(ticking):
    grid = federation(5)
    grid.at_most = 1
    strategy = selecting()
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED] * 5


def test_errors_are_charged_to_the_node_whose_message_they_answer(ticking):
    # Made-up errors name the SuperLink, node 1, as their source; a node with that id is here too.
    grid = federation(3)
    nodes = by_name(grid)
    nodes["client-001"].plan = {0: Fate(code=5, delay=0.1)}
    impostor = Node("client-zzz", 1, app_of(7, stable_id="client-zzz"))
    grid.nodes[1] = impostor
    strategy = selecting()
    strategy.start(grid, model(), num_rounds=1)
    assert outcomes(strategy, 0) == {
        "client-000": COMPLETED,
        "client-001": SILENT,
        "client-002": COMPLETED,
        "client-zzz": COMPLETED,
    }


def test_a_node_that_leaves_in_the_round_is_silent_and_one_that_stays_is_late(ticking):
    grid = federation(4)
    nodes = by_name(grid)
    nodes["client-001"].plan = {0: Fate(delay=100.0)}
    nodes["client-002"].plan = {0: Fate(is_lost=True)}
    nodes["client-003"].plan = {0: Fate(is_lost=True)}

    class Leaving(Everyone):
        def select(self, ctx, rng):
            nodes["client-001"].is_online = False
            nodes["client-003"].is_listed = False
            return super().select(ctx, rng)

    strategy = selecting(Leaving())
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, SILENT, LATE, SILENT]


def test_an_answer_at_the_deadline_itself_is_in_time(ticking):
    grid = federation(2)
    by_name(grid)["client-000"].plan = {0: Fate(delay=9.999)}
    by_name(grid)["client-001"].plan = {0: Fate(delay=10.05)}
    strategy = selecting(poll_s=3.0)  # the last look must be at 10.0, not at 9.0 or 12.0
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, LATE]
    assert strategy.run.length_s[0] == pytest.approx(10.0)


def test_durations_are_the_servers_or_the_clients(ticking):
    for source, expected in (("server", 0.5), ("client", 0.25)):
        strategy = selecting(durations=source)
        strategy.start(federation(3), model(), num_rounds=1)
        np.testing.assert_allclose(strategy.selector.seen[0][1].duration, expected)


def test_a_client_that_reports_no_duration_or_nonsense_is_measured(ticking):
    for value in (None, -1.0, math.nan, 1e40):
        grid = federation(
            2,
            metrics=lambda n, m, v=value: (
                {"num-examples": 1} | ({} if v is None else {"duration": v})
            ),
        )
        strategy = selecting(durations="client")
        strategy.start(grid, model(), num_rounds=1)
        np.testing.assert_allclose(strategy.selector.seen[0][1].duration, 0.5)


def test_the_default_deadline_is_the_timeout_of_start(ticking):
    grid = federation(3)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    strategy = selecting(policy=None)
    strategy.start(grid, model(), num_rounds=1, timeout=7.0)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, LATE, COMPLETED]
    assert strategy.run.length_s[0] == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 7200.0), ({"limit_s": 50.0}, 50.0), ({"limit_s": 9000.0}, 7200.0)]
)
def test_a_timeout_longer_than_the_default_limit_counts(ticking, options, seconds):
    grid = federation(3)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    strategy = selecting(policy=None, **options)
    strategy.start(grid, model(), num_rounds=1, timeout=7200.0)
    assert strategy.run.length_s[0] == pytest.approx(seconds)


def test_a_policy_without_deadline_ends_at_the_timeout(ticking):
    grid = federation(3)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    strategy = selecting(policy=FirstK(count=3))
    strategy.start(grid, model(), num_rounds=1, timeout=7.0)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, LATE, COMPLETED]
    assert strategy.run.length_s[0] == pytest.approx(7.0)


def test_first_k_ends_the_round_with_the_kth_answer(ticking):
    grid = federation(6)
    for i, node in enumerate(by_name(grid).values()):
        node.plan = {0: Fate(delay=[5.0, 1.0, 4.0, 2.0, 3.0, 6.0][i])}
    strategy = selecting(policy=FirstK(count=3, seconds=30.0), cohort_size=6)
    strategy.start(grid, model(), num_rounds=1)
    names = [f"client-{i:03d}" for i in range(6)]
    order = dict(zip(by_name(grid), [5.0, 1.0, 4.0, 2.0, 3.0, 6.0], strict=True))
    expected = {name: COMPLETED if order[name] <= 3.0 else LATE for name in names}
    assert outcomes(strategy, 0) == expected
    assert strategy.run.length_s[0] == pytest.approx(3.0, abs=0.11)


def test_errors_do_not_count_for_first_k(ticking):
    grid = federation(4)
    nodes = by_name(grid)
    nodes["client-000"].plan = {0: Fate(code=2, delay=0.1)}
    nodes["client-001"].plan = {0: Fate(delay=1.0)}
    nodes["client-002"].plan = {0: Fate(delay=2.0)}
    nodes["client-003"].plan = {0: Fate(delay=20.0)}
    strategy = selecting(policy=FirstK(count=2, seconds=30.0), cohort_size=4)
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [FAILED, COMPLETED, COMPLETED, LATE]


def test_over_selection_chooses_more_and_takes_the_first(ticking):
    grid = federation(9)
    nodes = by_name(grid)
    for i in range(9):
        nodes[f"client-{i:03d}"].plan = {0: Fate(delay=1.0 + i)}
    strategy = selecting(policy=OverSelect(FirstK(seconds=60.0), factor=1.5), cohort_size=4)
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED] * 4 + [LATE] * 2


def test_over_selection_by_success_learns_from_the_rounds(ticking):
    grid = federation(9)
    for i in range(3):
        by_name(grid)[f"client-{i:03d}"].plan = {t: Fate(code=2) for t in range(9)}
    policy = OverSelectBySuccess(FixedDeadline(10.0))
    strategy = selecting(policy=policy, cohort_size=4)
    strategy.start(grid, model(), num_rounds=2)
    # One of four succeeded: 4 / 0.25 = 16, at most 3 x 4 = 12, and nine are there.
    assert [len(chosen) for chosen in cohorts(strategy)] == [4, 9]


def test_an_adaptive_deadline_follows_the_durations(ticking):
    grid = federation(4, delay=2.0)
    by_name(grid)["client-003"].plan = {t: Fate(delay=2.0 if t < 1 else 50.0) for t in range(3)}
    policy = AdaptiveDeadline(quantile=1.0, start=30.0)
    strategy = selecting(policy=policy, cohort_size=4)
    strategy.start(grid, model(), num_rounds=2)
    assert strategy.run.length_s.tolist() == pytest.approx([2.0, 2.0], abs=0.11)
    assert outcomes(strategy, 1)["client-003"] == LATE


POLICIES = (
    FixedDeadline(10.0),
    FirstK(count=3, seconds=10.0),
    FirstK(share=0.5, seconds=10.0),
    OverSelect(FirstK(seconds=10.0), factor=2.0),
)


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    fates=st.lists(
        st.tuples(st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=8,
        unique_by=lambda x: x[0],
    ),
)
def test_ending_a_round_while_it_runs_is_what_the_policy_says_afterwards(policy, fates):
    """An independent loop: everyone's fate is told at its time, nobody's before."""
    duration = np.array([half / 2 for half, _ in fates])
    survived = np.array([is_fine for _, is_fine in fates])
    wanted = max(1, len(fates) // 2)
    expected = policy.close(duration, survived, cohort_size=wanted, reports_failure=True)
    n = len(fates)
    engine = RoundEngine(make("random"), policy, cohort_size=wanted, seed=0)
    ctx = RoundContext(0, n, np.ones(n, dtype=bool), math.inf)
    selection = Selection(0, np.arange(n))
    cohort, over = OpenRound(engine, ctx, selection, range(n), range(n), None), False
    for at in sorted(duration):
        end = cohort.closes_at()
        if at > end:
            over = True
            break
        i = int(np.flatnonzero(duration == at)[0])
        cohort.receive(i, Reply(Kind.ANSWERED if survived[i] else Kind.FAILED, float(at)))
    end = cohort.closes_at()
    length = end if over else min(end, float(duration.max()))
    closed = cohort.close(range(n), length, end)
    told = expected.status.copy()
    told[(told == SILENT)] = LATE  # who would have crashed later: nobody knows yet
    assert closed.status.tolist() == told.tolist()
    assert closed.length_s == pytest.approx(expected.length_s)


def test_a_late_node_is_left_alone_until_it_answers(ticking):
    grid = federation(3)
    late = by_name(grid)["client-001"]
    late.plan = {0: Fate(delay=25.0)}
    strategy = selecting(late_s=100.0)
    strategy.start(grid, model(), num_rounds=5)
    busy = [("client-001" not in chosen) for chosen in cohorts(strategy)]
    # Round 1 takes 10 s, the others 0.5 s each: it is never free again in this run.
    assert busy == [False, True, True, True, True]
    assert strategy.run.n_available.tolist() == [3, 2, 2, 2, 2]
    slow = federation(3, delay=6.0)
    by_name(slow)["client-001"].plan = {0: Fate(delay=25.0)}
    again = selecting(late_s=100.0)
    again.start(slow, model(), num_rounds=5)
    # 10 s, then 6 s each: the late answer is there at 25 s, before the round that starts at 28 s.
    assert [("client-001" not in chosen) for chosen in cohorts(again)] == [
        *(False, True, True, True),
        False,
    ]


def test_a_late_node_is_free_again_when_its_message_expires(ticking):
    grid = federation(3, delay=6.0)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    strategy = selecting(late_s=10.0)
    strategy.start(grid, model(), num_rounds=4)
    # Expires at 20 s: rounds start at 0, 10, 16 and 22 s.
    assert [("client-001" in chosen) for chosen in cohorts(strategy)] == [True, False, False, True]


def test_a_late_reply_is_never_aggregated(ticking):
    grid = federation(3, delay=6.0)
    late = by_name(grid)["client-002"]
    late.plan = {0: Fate(delay=15.0)}
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=3)
    assert [("client-002" in chosen) for chosen in cohorts(strategy)] == [True, False, True]
    # Rounds 1 and 2: clients 0 and 1 with weights 1 and 2; round 3: all three, weights 1, 2, 3.
    expected = 2 * (2 / 3) + (0 * 1 + 1 * 2 + 2 * 3) / 6
    assert value_of(result.arrays)[0][0] == pytest.approx(expected)


def test_messages_expire_after_deadline_and_patience(ticking):
    grid = federation(3)
    selecting(late_s=7.0).start(grid, model(), num_rounds=1)
    assert {m.metadata.ttl for m in grid.contents if m.metadata.message_type == "train"} == {17.0}
    other = federation(3)
    selecting().start(other, model(), num_rounds=1)
    assert {m.metadata.ttl for m in other.contents if m.metadata.message_type == "train"} == {20.0}


def test_too_few_nodes_delay_a_round_but_not_for_ever(ticking, logged):
    grid = federation(2)
    strategy = selecting(cohort_size=5, start_s=30.0, wait_for_nodes_s=99.0)
    before = ticking.at
    strategy.start(grid, model(), num_rounds=3)
    assert [len(chosen) for chosen in cohorts(strategy)] == [2, 2, 2]
    # It waits once; that they are not there is known afterwards.
    assert 30.0 <= ticking.at - before < 35.0
    assert sum("continuing with the free ones" in line for line in logged) == 1


def test_nodes_that_come_while_a_round_waits_are_taken(ticking):
    grid = federation(3)
    nodes = by_name(grid)
    nodes["client-002"].is_online = False
    arrives = ticking.at + 12.0
    plain = grid.get_node_ids

    def get_node_ids():
        nodes["client-002"].is_online = ticking.at >= arrives
        return plain()

    grid.get_node_ids = get_node_ids
    strategy = selecting(cohort_size=3, start_s=60.0)
    strategy.start(grid, model(), num_rounds=1)
    assert len(cohorts(strategy)[0]) == 3
    assert ticking.at < arrives + 5.0


def test_the_first_round_waits_for_the_inner_strategys_min_available_nodes(ticking):
    grid = federation(6)
    nodes = by_name(grid)
    arrives = ticking.at + 5.0
    plain = grid.get_node_ids

    def get_node_ids():
        for i in range(3, 6):
            nodes[f"client-{i:03d}"].is_online = ticking.at >= arrives
        return plain()

    grid.get_node_ids = get_node_ids
    inner = FedAvg(min_available_nodes=6, fraction_evaluate=0.0)
    strategy = SelectingStrategy(inner, Everyone(), cohort_size=2, policy=FixedDeadline(10.0))
    strategy.start(grid, model(), num_rounds=1)
    assert strategy.run.n_available.tolist() == [6]


def test_a_federation_without_anybody_ends_with_empty_rounds(ticking, tmp_path):
    grid = federation(3)
    for node in grid.nodes.values():
        node.is_online = False
    strategy = selecting(start_s=20.0, wait_for_nodes_s=5.0, records=tmp_path / "runs")
    before = ticking.at
    result = strategy.start(grid, model(4.0), num_rounds=3)
    assert strategy.run.n_rounds == 3
    assert cohorts(strategy) == [[], [], []]
    assert value_of(result.arrays) == value_of(model(4.0))
    assert 30.0 <= ticking.at - before < 31.0
    assert (tmp_path / "runs" / "everyone" / "seed-0" / "summary.json").exists()


def test_when_all_nodes_leave_rounds_go_on_empty_and_the_model_stays(ticking):
    grid = federation(3)

    class LeavingAfterTwo(Everyone):
        def observe(self, selection, outcome):
            super().observe(selection, outcome)
            if len(self.seen) == 2:
                for node in grid.nodes.values():
                    node.is_online = False

    strategy = selecting(LeavingAfterTwo(), wait_for_nodes_s=2.0)
    result = strategy.start(grid, model(), num_rounds=4)
    assert [len(chosen) for chosen in cohorts(strategy)] == [3, 3, 0, 0]
    assert len(strategy.selector.seen) == 4  # one observation per selection, also of nobody
    per_round = (0 * 1 + 1 * 2 + 2 * 3) / 6
    assert value_of(result.arrays)[0][0] == pytest.approx(2 * per_round)


def test_a_round_in_which_everybody_fails_leaves_the_model_as_it_is(ticking):
    grid = federation(3)
    for node in grid.nodes.values():
        node.plan = {0: Fate(code=2)}
    strategy = selecting()
    result = strategy.start(grid, model(4.0), num_rounds=2)
    assert list(outcomes(strategy, 0).values()) == [FAILED] * 3
    assert list(outcomes(strategy, 1).values()) == [COMPLETED] * 3
    assert set(result.train_metrics_clientapp) == {2}


def test_evaluation_ends_at_its_deadline_and_late_evaluators_are_busy(ticking):
    grid = federation(3)
    nodes = by_name(grid)
    inner = FedAvg()
    strategy = SelectingStrategy(
        inner, Everyone(), cohort_size=3, policy=FixedDeadline(10.0), evaluate_s=4.0, late_s=50.0
    )
    plain = nodes["client-001"].app

    def slow_to_evaluate(message, context):
        return plain(message, context)

    def deliver(name, node, message, deliver=grid._deliver):
        kind = message.metadata.message_type
        node.delay = 30.0 if kind == "evaluate" and node.name == "client-001" else 0.5
        deliver(name, node, message)

    grid._deliver = deliver
    result = strategy.start(grid, model(), num_rounds=2)
    assert [("client-001" in chosen) for chosen in cohorts(strategy)] == [True, False]
    assert set(result.evaluate_metrics_clientapp) == {1, 2}


def test_a_node_that_never_says_who_it_is_holds_up_the_first_round_only_so_long(ticking):
    grid = federation(4)
    mute = by_name(grid)["client-003"]
    plain = grid._deliver

    def deliver(name, node, message):
        node.delay = 1e9 if node is mute else 0.5
        plain(name, node, message)

    grid._deliver = deliver
    strategy = selecting(cohort_size=2, start_s=500.0, wait_for_nodes_s=40.0, ask_s=5.0)
    before = ticking.at
    strategy.start(grid, model(), num_rounds=3)
    assert 40.0 <= ticking.at - before < 45.0
    assert [len(chosen) for chosen in cohorts(strategy)] == [2, 2, 2]
    assert mute.trained == 0


def test_the_timeout_of_start_is_no_deadline_in_a_world(ticking):
    world = Environment(n_clients=4, timing=FixedTime(seconds=500.0), volatility=Reliable())
    grid = federation(4)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda one: one.name)):
        node.app = app_of(i, stable_id=i)
    strategy = selecting(policy=None, world=world, start_s=60.0)
    before = ticking.at
    strategy.start(grid, model(), num_rounds=2, timeout=30.0)
    assert strategy.run.completed.all()
    assert strategy.run.length_s.tolist() == [500.0, 500.0]
    assert ticking.at - before < 10.0
