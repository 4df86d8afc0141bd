import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import turnout
from tests.live.flower.example import load
from tests.live.flower.fake import FakeGrid, Node
from tests.live.flower.volatile import COHORT, COLUMNS, POLICY, ROUNDS, SEED, WORLD, N, client, play
from turnout import Status
from turnout.core.arrays import UPDATE_METRICS
from turnout.core.errors import InvalidInput
from turnout.experiment import simulate
from turnout.live import Guard, VirtualWorld
from turnout.live.flower import SelectingStrategy
from turnout.worlds import (
    AdaptiveDeadline,
    Bernoulli,
    ByClass,
    Environment,
    FirstK,
    FixedDeadline,
    HeavyTail,
    LinearContextual,
    Markov,
    OverSelect,
)

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 300.0  # against hanging


@pytest.fixture(autouse=True)
def _no_waiting(ticking):
    """On the fake clock nobody waits."""


def grid_of(app, seed=0):
    """Nodes with ids and in an order drawn from the seed."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, 2**62, N).tolist()
    nodes = [Node(f"{i}", ids[i], app, config={"partition-id": i}) for i in range(N)]
    return FakeGrid([nodes[i] for i in rng.permutation(N)])


def expected_run(selector, environment=WORLD, policy=None, n_rounds=ROUNDS):
    chooser = turnout.make(selector) if isinstance(selector, str) else selector.clone()
    return simulate(
        chooser, environment, cohort_size=COHORT, n_rounds=n_rounds, seed=SEED, policy=policy
    )


def assert_same(run, expected):
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(run, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("selector", turnout.list_selectors())
def test_flower_makes_the_choices_of_our_simulator(selector):
    expected = expected_run(selector, policy=POLICY)
    assert np.unique(expected.status).size >= 3  # a run in which something happens
    made = turnout.make(selector)
    asked = {name: made.metric_sizes.get(name) for name in made.needs_metrics & {*UPDATE_METRICS}}
    app = client(WORLD, vectors=asked)
    assert_same(play(grid_of(app), selector, policy=POLICY), expected)


POLICIES = (
    None,
    FixedDeadline(),
    FixedDeadline(9.0, force_stop=False),
    FirstK(count=2, seconds=20.0),
    OverSelect(FirstK(seconds=15.0), factor=1.5),
    AdaptiveDeadline(quantile=0.7, start=15.0),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_policies_close_rounds_as_in_our_simulator(policy):
    expected = expected_run("e3cs", policy=policy)
    assert_same(play(grid_of(client(WORLD)), "e3cs", policy=policy), expected)


def test_node_ids_do_not_matter():
    runs = [play(grid_of(client(WORLD), seed), "oort", policy=POLICY) for seed in range(3)]
    for run in runs:
        assert_same(run, expected_run("oort", policy=POLICY))


def test_an_environment_is_a_world_whose_clients_are_named_by_partition():
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),
        "pow-d",
        cohort_size=COHORT,
        seed=SEED,
        policy=POLICY,
        world=WORLD,
    )
    grid, arrays = grid_of(client(WORLD, name=int)), ArrayRecord([np.zeros(2)])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, timeout=60.0)
    assert_same(strategy.run, expected_run("pow-d", policy=POLICY))


@pytest.mark.parametrize("reports_failure", [False, True])
def test_only_those_who_complete_train(reports_failure):
    world = Environment(N, 5, volatility=Markov(), reports_failure=reports_failure)
    grid = grid_of(client(world))
    run = play(grid, "random", world)
    assert 0 < run.completed.sum() < run.status.size
    trained = [entry for entry in grid.sent if entry[1] == "train"]
    assert len(trained) == run.completed.sum()
    lost = Status.FAILED if reports_failure else Status.SILENT
    assert set(run.status) == {Status.COMPLETED, lost}


def test_a_real_error_counts_on_top_of_the_virtual_fate():
    run = play(grid_of(client(WORLD, raises={0, 5})), "random", policy=POLICY)
    expected = expected_run("random", policy=POLICY)
    broken = np.isin(expected.clients, (0, 5)) & expected.completed
    assert broken.any()
    np.testing.assert_array_equal(run.clients, expected.clients)
    np.testing.assert_array_equal(run.status, np.where(broken, Status.FAILED, expected.status))


@pytest.mark.parametrize("selector", ["rbcs-f", "oort"])
def test_a_resumed_world_goes_on_as_if_nothing_had_happened(selector, tmp_path):
    policy = AdaptiveDeadline(quantile=0.7, start=15.0)
    options = {"policy": policy, "checkpoint": tmp_path / "checkpoint.npz"}
    play(grid_of(client(WORLD), 1), selector, n_rounds=5, **options)
    run = play(grid_of(client(WORLD), 2), selector, **options)
    assert_same(run, expected_run(selector, policy=policy))


def test_synthetic_losses_replace_those_of_clients():
    silent = Environment(N, 99)  # what clients report is of another world
    ids = [f"device-{i}" for i in range(N)]
    for selector in ("oort", "pow-d"):
        strategy = SelectingStrategy(
            FedAvg(fraction_evaluate=0.0),
            selector,
            cohort_size=COHORT,
            seed=SEED,
            policy=POLICY,
            world=VirtualWorld(WORLD, ids, synthetic_losses=True),
        )
        grid = grid_of(client(silent))
        arrays = ArrayRecord([np.zeros(2)])
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, timeout=60.0)
        assert_same(strategy.run, expected_run(selector, policy=POLICY))


def test_facts_about_clients_replace_made_up_ones():
    sizes = np.arange(1.0, N + 1.0)
    world = VirtualWorld(WORLD, columns={"num_samples": sizes})
    ctx = world.context(0, COHORT, {"num_samples", "context"}, 9.0)
    np.testing.assert_array_equal(ctx.column("num_samples"), sizes)
    known = WORLD.context(0, COHORT, columns={"context"}, deadline=9.0)
    np.testing.assert_array_equal(ctx.column("context"), known.column("context"))
    np.testing.assert_array_equal(ctx.available, known.available)
    assert ctx.deadline == 9.0
    assert world.context(0, COHORT, (), 9.0).columns == {}


def test_a_world_remembers_who_was_chosen():
    world = VirtualWorld(WORLD)
    first = world.fate(1).duration
    world.record(np.array([2, 3]))
    changed = np.flatnonzero(world.fate(1).duration != first)
    np.testing.assert_array_equal(changed, [2, 3])  # no cold start any more
    again = VirtualWorld(WORLD)
    again.load_state(world.state())
    np.testing.assert_array_equal(again.fate(1).duration, world.fate(1).duration)


def test_worlds_are_told_apart_by_what_they_are_and_not_by_their_seed():
    same = Environment(N, 6, Bernoulli(0.8), ByClass((0.4, 0.9)), HeavyTail(LinearContextual()))
    other = Environment(N, 5, Bernoulli(0.7), ByClass((0.4, 0.9)), HeavyTail(LinearContextual()))
    larger = Environment(N + 1, 5, Bernoulli(0.8), ByClass((0.4, 0.9)), WORLD.timing)
    name = VirtualWorld(WORLD).world_id
    assert VirtualWorld(same).world_id == name
    assert len({VirtualWorld(world).world_id for world in (WORLD, other, larger)}) == 3
    assert VirtualWorld(WORLD).class_names["names"] == ["0.4", "0.9"]
    np.testing.assert_array_equal(VirtualWorld(WORLD).classes, WORLD.classes)


BAD = {
    "environment must be": lambda: VirtualWorld("e3cs"),
    "ids must name the 12 clients": lambda: VirtualWorld(WORLD, ["a", "b"]),
    "ids must be unique, got 'a' twice": lambda: VirtualWorld(Environment(2), ["a", "a"]),
    "ids must be texts or integers, got None": lambda: VirtualWorld(Environment(1), [None]),
    "ids must be texts or integers, got ''": lambda: VirtualWorld(Environment(1), [""]),
    "synthetic_losses must be": lambda: VirtualWorld(WORLD, synthetic_losses=1),
    r"columns\['num_samples'\] must have one row": lambda: VirtualWorld(
        WORLD, columns={"num_samples": np.ones(3)}
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused(message):
    with pytest.raises(InvalidInput, match=message):
        BAD[message]()


def test_flowers_own_simulation_makes_the_choices_of_our_simulator(tmp_path):
    loopback, module = load("loopback"), load("processes")
    selectors = ("random", "e3cs", "oort", "rbcs-f", "pow-d")
    processes = module.Processes(tmp_path)
    path = tmp_path / "runs.npz"
    command = ["python", "-m", "tests.live.flower.volatile", str(path), *selectors]
    environment = {**os.environ, **loopback.QUIET, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    try:
        processes.start("simulation", command, environment)
        code = processes.exit_code("simulation", LIMIT_S)
    finally:
        processes.kill("simulation")  # with what Ray has left behind
    assert code == 0, processes.log("simulation")[-5000:]
    with np.load(path) as columns:
        for selector in selectors:
            expected = expected_run(selector, policy=POLICY)
            for name in COLUMNS:
                found = columns[f"{selector}/{name}"]
                np.testing.assert_array_equal(found, getattr(expected, name), err_msg=selector)


def test_a_guard_goes_around_the_selector():
    guarded = turnout.make("guarded", inner="oort", floor=0.8, cap=1.5)
    expected = expected_run(guarded, policy=POLICY)
    run = play(grid_of(client(WORLD)), "oort", policy=POLICY, guard=Guard(floor=0.8, cap=1.5))
    assert_same(run, expected)
    for t in range(run.n_rounds):
        np.testing.assert_array_equal(run.available_in(t), expected.available_in(t))


def test_a_guard_keeps_the_selectors_parameters_and_label():
    selector = turnout.make("e3cs", quota=0.25)
    strategy = SelectingStrategy(FedAvg(), selector, cohort_size=COHORT, guard=Guard())
    assert strategy.selector.inner_parameters == selector.parameters
    assert strategy.settings.label == "e3cs"
    with pytest.raises(InvalidInput, match="floor must be"):
        SelectingStrategy(FedAvg(), "e3cs", cohort_size=COHORT, guard=Guard(floor=2.0))
