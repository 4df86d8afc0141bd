import hashlib
import inspect
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout import Selection, Selector, Status
from turnout.core.errors import InvalidInput, MissingColumn
from turnout.experiment import Progress, Run, collect, rounds, simulate, train
from turnout.experiment.loop import with_callbacks
from turnout.results.metrics import best_fixed_participation, theorem1_bound
from turnout.selectors import FedCS
from turnout.worlds import (
    AdaptiveDeadline,
    Adversary,
    Bernoulli,
    ByClass,
    DeviceTimes,
    Environment,
    FirstK,
    FixedDeadline,
    HeavyTail,
    History,
    Markov,
    OverSelect,
    OverSelectBySuccess,
    Reliable,
    e3cs_world,
    rbcs_f_world,
)

HARD = Environment(40, 7, Bernoulli(0.6), Adversary(Markov()), HeavyTail(DeviceTimes()))


class Scripted(Selector):
    """Chooses the first clients, and keeps what it was given."""

    needs_columns = frozenset({"success_rate"})
    needs_metrics = frozenset({"loss"})

    def __init__(self, *, extra: int = 0) -> None:
        self.extra = extra

    def select(self, ctx, rng):
        self.seen = getattr(self, "seen", [])
        self.seen.append(("select", ctx.round, ctx.polled, ctx.columns.keys(), ctx.cohort_size))
        return Selection(ctx.round, ctx.pool[: ctx.size + self.extra])

    def poll(self, ctx, rng):
        return ctx.pool[-2:]

    def observe(self, selection, outcome):
        self.seen.append(("observe", selection.round, outcome))


def test_the_order_of_a_round():
    world = Environment(6, seed=1, volatility=ByClass((0.5,)))
    selector = Scripted()
    records = list(rounds(selector, world, cohort_size=3, n_rounds=2))
    assert [entry[:2] for entry in selector.seen] == [
        ("select", 0),
        ("observe", 0),
        ("select", 1),
        ("observe", 1),
    ]
    for t, record in enumerate(records):
        assert record.round == t
        np.testing.assert_array_equal(record.selection.clients, [0, 1, 2])
        np.testing.assert_array_equal(record.context.polled, [4, 5])
        np.testing.assert_array_equal(record.context.polled_loss, world.polled_loss(t)[[4, 5]])
        assert record.context.columns.keys() == {"success_rate"}
        # fates are those of the environment, and only who completed reports
        survived = world.fate(t).survived[:3]
        expected = np.where(survived, Status.COMPLETED, Status.SILENT)
        np.testing.assert_array_equal(record.outcome.status, expected)
        loss = np.where(survived, world.metrics(t)["loss"][:3], np.nan)
        np.testing.assert_array_equal(record.outcome.metrics["loss"], loss)
        assert record.outcome.metrics.keys() == {"loss"}
        assert record.length_s == 1.0


def test_the_policy_sizes_and_closes_the_round():
    world = Environment(50, seed=1, volatility=Reliable(), timing=HeavyTail())
    policy = OverSelect(FirstK(seconds=30.0), factor=1.5)
    run = simulate("random", world, cohort_size=10, n_rounds=20, policy=policy)
    assert (np.diff(run.offsets) == 15).all()
    assert run.cep[-1] == 200
    assert (np.bincount(run.status, minlength=4) == [200, 100, 0, 0]).all()
    for t in range(20):
        times = np.sort(world.fate(t).duration[run.chosen_in(t)])
        assert run.length_s[t] == times[9]
    np.testing.assert_allclose(run.clock_s, np.cumsum(run.length_s))
    # the five late ones are stopped when the round ends
    assert run.wasted_s == pytest.approx(5 * run.length_s.sum())


def test_deadline_reaches_the_context_and_failures_are_reported():
    world = Environment(20, seed=1, volatility=ByClass((0.5,)), reports_failure=True)
    policy = FixedDeadline(2.0)
    record = next(rounds(turnout.make("random"), world, cohort_size=20, n_rounds=1, policy=policy))
    assert record.context.deadline == 2.0
    assert set(record.outcome.status) == {Status.COMPLETED, Status.FAILED}
    np.testing.assert_array_equal(record.in_time, record.fate.survived)


def test_adaptive_policies_learn_in_the_loop():
    world = Environment(100, 3, volatility=ByClass((0.5,)), timing=HeavyTail(DeviceTimes()))
    policy = OverSelectBySuccess(AdaptiveDeadline(quantile=0.8, start=20.0), factor=5.0)
    selector = turnout.make("random")
    in_time, seconds, deadline = [], [], 20.0
    for record in rounds(selector, world, cohort_size=10, n_rounds=60, policy=policy):
        # the slow way: from the latest 200 outcomes, with those that were late at infinity
        if in_time:
            latest = sorted(seconds[-200:])
            found = latest[math.ceil(0.8 * len(latest) - 1e-9) - 1]
            deadline = 1.5 * deadline if found == math.inf else found
            size = math.ceil(min(10 / np.mean(in_time[-200:]), 50) - 1e-9)
        else:
            size = 10
        assert record.context.deadline == deadline
        assert record.selection.clients.size == size
        duration = world.fate(record.round).duration[record.selection.clients]
        survived = world.fate(record.round).survived[record.selection.clients]
        in_time += list(survived & (duration <= deadline))
        seconds += [d if d <= deadline else math.inf for d in duration[survived]]
    assert 20 < size < 35  # half survive, four of five of them in time: 10 / 0.4


@pytest.mark.parametrize("name", turnout.list_selectors())
def test_every_selector_runs_in_a_world_that_offers_everything(name):
    world = Environment(
        12, 2, Bernoulli(0.15), Markov(), rbcs_f_world().timing, reports_failure=True
    )
    selector = turnout.make(name, **({"rate": 0.1} if name == "rbcs-f" else {}))
    run = simulate(selector, world, cohort_size=3, n_rounds=25)
    sizes = np.diff(run.offsets)
    assert (run.n_available == 0).any()  # some rounds have nobody to choose from
    assert (sizes <= np.minimum(3, run.n_available)).all()
    if not selector.may_underfill:
        assert (sizes == np.minimum(3, run.n_available)).all()


def e3cs_runs(n_rounds, seed):
    schemes = {
        "fedcs": turnout.make("fedcs"),
        "e3cs-0": turnout.make("e3cs", quota=0.0),
        "e3cs-0.5": turnout.make("e3cs", quota=0.5),
        "e3cs-0.8": turnout.make("e3cs", quota=0.8),
        "random": turnout.make("random"),
    }
    world = e3cs_world(seed=seed)
    return {
        name: simulate(scheme, world, cohort_size=20, n_rounds=n_rounds, keep_fates=True)
        for name, scheme in schemes.items()
    }


def test_e3cs_order_of_participation_and_fairness():
    runs = e3cs_runs(300, seed=4)
    order = ["fedcs", "e3cs-0", "e3cs-0.5", "e3cs-0.8", "random"]
    cep = [runs[name].cep[-1] for name in order]
    assert cep == sorted(cep, reverse=True)
    assert len(set(cep)) == 5
    spread = [runs[name].counts.std() for name in order]
    assert spread == sorted(spread, reverse=True)
    # all saw the same world, and regret compares with the best of it
    for run in runs.values():
        np.testing.assert_array_equal(run.in_time, runs["random"].in_time)
    best = best_fixed_participation(runs["random"].in_time, 20)
    for name, quota in [("e3cs-0", 0.0), ("e3cs-0.5", 0.5), ("e3cs-0.8", 0.8)]:
        lost = runs[name].regret(quota)
        assert (lost <= theorem1_bound(quota, 300, 20, 100, eta=0.5)).all()
        assert runs[name].regret()[-1] == pytest.approx(best[-1] - runs[name].cep[-1])


def test_fedcs_3_chooses_about_eight_in_the_world_of_rbcs_f():
    # footnote 5 of RBCS-F, with base 2 of the logarithm
    fedcs = turnout.make("fedcs", by="expected-duration", deadline=3.0)
    sizes = [
        np.diff(simulate(fedcs, rbcs_f_world(seed=s), cohort_size=40, n_rounds=200).offsets)
        for s in range(3)
    ]
    assert 7.0 < np.mean(sizes) < 9.0


def test_seeds_are_paired_and_independent():
    world = e3cs_world(seed=1)
    same = [simulate("random", world, cohort_size=5, n_rounds=10, seed=s) for s in (3, 3, 4)]
    np.testing.assert_array_equal(same[0].clients, same[1].clients)
    assert (same[0].clients != same[2].clients).any()
    default = simulate("random", world, cohort_size=5, n_rounds=10)
    np.testing.assert_array_equal(
        default.clients, simulate("random", world, cohort_size=5, n_rounds=10, seed=1).clients
    )


def digest(run):
    arrays = (run.offsets, run.clients, run.status, run.duration, run.spent, run.length_s)
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


SCRIPT = """
import turnout
from tests.experiment.test_simulate import HARD, digest, simulate
from turnout.policies import AdaptiveDeadline
policy = AdaptiveDeadline(start=30.0)
for name in ("pow-d", "e3cs"):
    print(digest(simulate(name, HARD, cohort_size=6, n_rounds=30, policy=policy)))
"""


@pytest.mark.slow
def test_a_seed_fixes_everything_across_processes():
    policy = AdaptiveDeadline(start=30.0)
    here = [
        digest(simulate(name, HARD, cohort_size=6, n_rounds=30, policy=policy))
        for name in ("e3cs", "pow-d")
    ]
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert there.stdout.split() == here[::-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["e3cs", "ucb-cs", "oort", "pow-d"])
def test_a_resumed_run_is_the_same_bit_for_bit(name, tmp_path):
    given = {"cohort_size": 6, "n_rounds": 50, "policy": OverSelectBySuccess(AdaptiveDeadline())}
    whole = list(rounds(turnout.make(name), HARD, **given))

    selector, progress = turnout.make(name), Progress(40)
    for record in rounds(selector, HARD, **given, progress=progress):
        if record.round == 19:
            break
    turnout.save(selector, tmp_path / "selector.npz")
    np.savez(tmp_path / "progress.npz", **progress.state())

    with np.load(tmp_path / "progress.npz") as state:
        restored = Progress.from_state(40, state)
    loaded = turnout.load(tmp_path / "selector.npz")
    rest = list(rounds(loaded, HARD, **given, start=20, progress=restored))
    assert [record.round for record in rest] == list(range(20, 50))
    for old, new in zip(whole[20:], rest, strict=True):
        np.testing.assert_array_equal(old.selection.clients, new.selection.clients)
        np.testing.assert_array_equal(old.outcome.status, new.outcome.status)
        np.testing.assert_array_equal(old.outcome.duration, new.outcome.duration)
        assert old.length_s == new.length_s


def test_resuming_needs_progress_only_where_it_matters():
    selector = turnout.make("random")
    selector.prepare(100, 0)
    records = rounds(selector, e3cs_world(), cohort_size=5, n_rounds=12, start=10)
    assert len(list(records)) == 2
    with pytest.raises(InvalidInput, match="start = 3 needs progress="):
        rounds(turnout.make("random"), rbcs_f_world(), cohort_size=5, n_rounds=9, start=3)
    policy = AdaptiveDeadline()
    with pytest.raises(InvalidInput, match="start = 3 needs progress="):
        rounds(selector, e3cs_world(), cohort_size=5, n_rounds=9, start=3, policy=policy)


def test_cold_start_and_adversary_see_the_selections():
    world = rbcs_f_world(8, seed=1)
    chosen = None
    for record in rounds(turnout.make("rbcs-f"), world, cohort_size=3, n_rounds=5):
        warm = record.context.columns["context"][:, 1] == 0.0
        expected = [] if chosen is None else chosen
        np.testing.assert_array_equal(np.flatnonzero(warm), expected)
        chosen = record.selection.clients
    enemy = Environment(10, 1, volatility=Adversary(Reliable(), strength=1.0))
    records = list(rounds(Scripted(), enemy, cohort_size=2, n_rounds=30))
    assert records[0].outcome.completed.all()
    assert not any(record.outcome.completed.any() for record in records[1:])  # always the same two


def test_selector_and_world_by_name_as_on_the_command_line():
    run = simulate("e3cs", "e3cs", n_rounds=30, seed=3)
    same = simulate("e3cs", e3cs_world(seed=3), cohort_size=20, n_rounds=30)
    assert run.cohort_size == 20
    assert (run.clients == same.clients).all()
    assert (run.status == same.status).all()
    assert simulate("random", "rbcs-f").n_rounds == 500
    with pytest.raises(InvalidInput, match=r"unknown world 'e3c'.*e3cs"):
        simulate("random", "e3c")
    with pytest.raises(InvalidInput, match="n_rounds is missing"):
        simulate("random", e3cs_world(), cohort_size=3)


@pytest.mark.slow
def test_import_turnout_makes_its_packages_reachable():
    lines = [
        "import sys, turnout",
        "assert 'turnout.experiment' not in sys.modules",
        "assert callable(turnout.simulate) and callable(turnout.train)",
        "print(turnout.experiment.Experiment.__name__, 'training' in dir(turnout))",
        "print(hasattr(turnout, 'experiments'))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.stdout.split() == ["Experiment", "True", "False"], done.stderr
    with pytest.raises(AttributeError, match=r"no attribute 'experimnt'.*experiment"):
        _ = turnout.experimnt


def test_run_in_columns():
    world = Environment(12, 2, Bernoulli(0.5), ByClass((0.7,)))
    selector = turnout.make("random")
    run = simulate(selector, world, cohort_size=4, n_rounds=30, keep_fates=True)
    records = list(rounds(turnout.make("random"), world, cohort_size=4, n_rounds=30))
    assert run.n_rounds == 30
    for t, record in enumerate(records):
        inside = slice(run.offsets[t], run.offsets[t + 1])
        np.testing.assert_array_equal(run.chosen_in(t), record.selection.clients)
        np.testing.assert_array_equal(run.status[inside], record.outcome.status)
        np.testing.assert_array_equal(run.duration[inside], record.outcome.duration)
        np.testing.assert_array_equal(run.probability[inside], record.selection.probability)
        np.testing.assert_array_equal(run.in_time[t], record.in_time)
        assert run.n_available[t] == record.context.pool.size
    assert run.success_ratio == pytest.approx(run.completed.mean())
    assert run.cep[-1] == run.completed.sum()
    np.testing.assert_array_equal(run.counts, np.bincount(run.clients, minlength=12))
    assert run.backlog(0.2).final.shape == (12,)
    assert run.clients.dtype == np.int64
    assert run.status.dtype == np.int8


def test_empty_runs_and_unkept_fates():
    empty = simulate("random", e3cs_world(), cohort_size=5, n_rounds=0, keep_fates=True)
    assert isinstance(empty, Run)
    assert empty.n_rounds == 0
    assert empty.in_time.shape == (0, 100)
    assert empty.cep.size == 0
    run = simulate("fedcs", e3cs_world(), cohort_size=5, n_rounds=2)
    with pytest.raises(InvalidInput, match="keep_fates=True"):
        run.regret()
    unreported = simulate("pow-d", e3cs_world(), cohort_size=5, n_rounds=2)
    assert np.isnan(unreported.probability).all()


def test_errors_come_before_the_first_round():
    with pytest.raises(MissingColumn, match="RBCSF needs the column 'context'"):
        rounds(turnout.make("rbcs-f"), e3cs_world(), cohort_size=5, n_rounds=1)
    with pytest.raises(InvalidInput, match="cohort_size"):
        rounds(turnout.make("random"), e3cs_world(), cohort_size=0, n_rounds=1)
    with pytest.raises(InvalidInput, match="cohort_size must be at most n_clients = 100, got 101"):
        rounds(turnout.make("random"), e3cs_world(), cohort_size=101, n_rounds=1)
    with pytest.raises(InvalidInput, match="seed"):
        rounds(turnout.make("random"), e3cs_world(), cohort_size=5, n_rounds=1, seed=-1)


def test_a_selector_that_breaks_the_rules_is_stopped():
    with pytest.raises(InvalidInput, match="Scripted must choose at most 3"):
        simulate(Scripted(extra=1), e3cs_world(6), cohort_size=3, n_rounds=1)


def test_a_saved_history_of_another_size_is_refused():
    state = Progress(5).state()
    with pytest.raises(turnout.StateFileError):
        Progress.from_state(6, state)
    names = {"n_clients_", "n_chosen_", "took_part_", "level_"}
    assert History.fresh(5).state().keys() == names


# participants ----------------------------------------------------------------------------------


class Fake:
    """Clients that note what they are asked; whoever has an odd number breaks."""

    def __init__(self, n_clients, done_after=None):
        self.columns = {"num_samples": np.arange(n_clients), "other": np.ones(n_clients)}
        self.workload = None
        self.done_after = done_after
        self.calls = []
        self.is_done = False

    def reset(self):
        self.calls = ["reset"]

    def polled_loss(self, round, clients, data):
        self.calls.append(("poll", round, data))
        return 100.0 + clients

    def work(self, selection, is_completed):
        self.calls.append(("work", selection.round, selection.clients[is_completed].tolist()))
        is_broken = is_completed & (selection.clients % 2 == 1)
        is_sound = is_completed & ~is_broken
        loss = np.where(is_sound, 10.0 + selection.clients, np.nan)
        return FakeWork(is_broken, {"loss": loss, "loss_std": loss})

    def measure(self, round, is_last):
        self.calls.append(("measure", round, is_last))
        self.is_done = self.done_after == round
        return {"accuracy": round / 10.0} if round % 2 == 0 else {}

    def state(self):
        return {}

    def load_state(self, state):
        pass


class FakeWork:
    def __init__(self, is_broken, metrics):
        self.is_broken, self.metrics = is_broken, metrics


def test_more_work_takes_longer_and_the_server_expects_it():
    world = Environment(8, seed=1, volatility=Reliable(), timing=DeviceTimes(model_mbit=0.0))
    usual, more = Fake(8), Fake(8)
    more.workload = np.arange(1.0, 9.0)
    given = {"cohort_size": 8, "n_rounds": 2, "policy": FixedDeadline(20.0)}
    before, after = (
        list(rounds(FedCS(by="expected-duration"), world, **given, participants=who))
        for who in (usual, more)
    )
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(other.fate.duration, one.fate.duration * more.workload)
        expected = one.context.columns["expected_duration"] * more.workload
        np.testing.assert_allclose(other.context.columns["expected_duration"], expected)
        assert sorted(other.selection.clients) == np.flatnonzero(expected <= 20.0).tolist()
        assert other.selection.clients.size < one.selection.clients.size


def test_participants_do_the_work_of_a_round():
    world = Environment(8, seed=1, volatility=ByClass((0.6,)), timing=HeavyTail())
    clients, selector = Fake(8), Scripted()
    policy = FixedDeadline(1.0)
    given = {"cohort_size": 8, "n_rounds": 4, "policy": policy, "participants": clients}
    records = list(rounds(selector, world, **given))
    assert clients.calls[0] == "reset"
    assert clients.calls[1:4] == [("poll", 0, "all"), clients.calls[2], ("measure", 0, False)]
    assert clients.calls[-1] == ("measure", 3, True)
    worked = [call for call in clients.calls if call[0] == "work"]
    statuses = set()
    for record, (_, t, completed) in zip(records, worked, strict=True):
        assert t == record.round
        fate, chosen = world.fate(t), record.selection.clients
        in_time = fate.survived[chosen] & (fate.duration[chosen] <= 1.0)
        assert completed == chosen[in_time].tolist()  # the late and the lost do nothing
        odd = chosen % 2 == 1
        np.testing.assert_array_equal(record.outcome.completed, in_time & ~odd)
        np.testing.assert_array_equal(record.outcome.status == Status.FAILED, in_time & odd)
        assert np.isfinite(record.outcome.duration[in_time & odd]).all()  # they did answer
        expected = np.where(in_time & ~odd, 10.0 + chosen, np.nan)
        np.testing.assert_array_equal(record.outcome.metrics["loss"], expected)
        np.testing.assert_array_equal(record.context.polled_loss, 100.0 + record.context.polled)
        assert record.measured == ({"accuracy": t / 10.0} if t % 2 == 0 else {})
        statuses |= set(record.outcome.status.tolist())
    assert statuses == {Status.COMPLETED, Status.LATE, Status.FAILED, Status.SILENT}


def test_columns_of_participants_replace_those_of_the_world():
    class Reader(Selector):
        needs_columns = frozenset({"num_samples", "other", "success_rate"})

        def select(self, ctx, rng):
            self.seen = ctx.columns
            return Selection(ctx.round, ctx.pool[: ctx.size])

    world, selector = Environment(5, seed=1), Reader()
    with pytest.raises(MissingColumn, match="other"):
        rounds(selector, world, cohort_size=2, n_rounds=1)
    next(rounds(selector, world, cohort_size=2, n_rounds=1, participants=Fake(5)))
    assert selector.seen.keys() == Reader.needs_columns
    np.testing.assert_array_equal(selector.seen["num_samples"], np.arange(5))
    np.testing.assert_array_equal(selector.seen["success_rate"], [0.1, 0.1, 0.3, 0.6, 0.9])


def test_participants_may_end_a_run():
    world = Environment(6, seed=1)
    clients = Fake(6, done_after=2)
    given = {"cohort_size": 2, "n_rounds": 9, "participants": clients}
    records = list(rounds(turnout.make("random"), world, **given))
    assert [record.round for record in records] == [0, 1, 2]
    selector = turnout.make("random")
    selector.prepare(6)
    assert list(rounds(selector, world, **given, start=3)) == []  # done stays done


def test_a_policy_that_learns_sees_broken_answers_as_failures():
    world = Environment(10, seed=1, volatility=Reliable())
    policy = OverSelectBySuccess(FixedDeadline(9.0), factor=5.0)
    given = {"cohort_size": 2, "n_rounds": 60, "policy": policy}
    sound = list(rounds(turnout.make("random"), world, **given))
    broken = list(rounds(turnout.make("random"), world, **given, participants=Fake(10)))
    assert {record.selection.clients.size for record in sound} == {2}
    # half of all answers break, so about twice as many are asked
    assert 3 <= np.mean([record.selection.clients.size for record in broken[20:]]) <= 5


def test_a_run_keeps_what_was_measured():
    world = Environment(6, seed=1)
    records = rounds(turnout.make("random"), world, cohort_size=2, n_rounds=5, participants=Fake(6))
    run = collect(records, 6, 2)
    assert run.in_time is None
    np.testing.assert_array_equal(run.accuracy, [0.0, np.nan, 0.2, np.nan, 0.4])
    assert run.rounds_to(0.2) == 3.0
    assert run.time_to(0.2) == run.clock_s[2]
    assert math.isnan(run.rounds_to(0.5))
    assert math.isnan(run.time_to(0.5))
    bare = simulate("random", world, cohort_size=2, n_rounds=5)
    assert bare.measured == {}
    with pytest.raises(InvalidInput, match="accuracy was not measured"):
        _ = bare.accuracy


def test_seed_0_is_a_seed_like_any_other() -> None:
    sizes = {"cohort_size": 20, "n_rounds": 5}
    given = simulate("random", e3cs_world(seed=3), seed=0, **sizes)
    its_own = simulate("random", e3cs_world(seed=0), **sizes)
    assert given.clients.tolist() == its_own.clients.tolist()


def test_the_second_round_needs_progress_too() -> None:
    with pytest.raises(InvalidInput, match="start = 1 needs progress="):
        rounds(turnout.make("random"), rbcs_f_world(), cohort_size=5, n_rounds=9, start=1)


def test_sizes_of_a_simulation_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        simulate("random", e3cs_world(), 5, 10)


class Noting:
    def __init__(self) -> None:
        self.heard = []

    def start(self, settings) -> None:
        self.heard.append(settings)

    def round(self, round, values) -> None:
        self.heard.append((round, values["chosen"], values["clock_s"]))

    def end(self) -> None:
        self.heard.append("end")


def test_callbacks_hear_of_every_round() -> None:
    records = rounds(turnout.make("random"), Environment(6, seed=1), cohort_size=2, n_rounds=3)
    callback = Noting()
    assert len(list(with_callbacks(records, [callback], {"seed": 1}, clock_s=5.0))) == 3
    assert callback.heard == [{"seed": 1}, (0, 2.0, 6.0), (1, 2.0, 7.0), (2, 2.0, 8.0), "end"]


def test_fates_are_kept_only_when_asked_for() -> None:
    for function in (simulate, train, collect):
        assert inspect.signature(function).parameters["keep_fates"].default is False
