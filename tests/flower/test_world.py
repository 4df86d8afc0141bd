import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import turnout
from tests.flower.local_grid import LocalGrid
from turnout import Status
from turnout.environments import (
    Bernoulli,
    ByClass,
    Environment,
    HeavyTail,
    LinearContextual,
    Markov,
    Population,
)
from turnout.errors import InvalidInput
from turnout.integrations.flower import SelectingStrategy
from turnout.integrations.flower.client import describe
from turnout.integrations.flower.world import VirtualWorld
from turnout.policies import AdaptiveDeadline, FirstK, FixedDeadline, OverSelect
from turnout.simulate import simulate

N, COHORT, ROUNDS, SEED = 12, 4, 12, 3
#: Clients come and go, crash, and are slow when they were not chosen in the last round.
WORLD = Environment(N, 5, Bernoulli(0.8), ByClass((0.4, 0.9)), HeavyTail(LinearContextual()))
COLUMNS = ("offsets", "clients", "status", "duration", "spent", "probability", "length_s")


def client(environment, *, raises=()):
    """Clients whose reports are the environment's; one in ``raises`` fails whenever it trains."""
    app = ClientApp()

    def place(context):
        return int(context.node_config["partition-id"])

    def loss(message, context):
        config = message.content["config"]
        answers = environment.polled_loss(config["server-round"] - 1, config["poll-data"])
        return float(answers[place(context)])

    describe(app, stable_id=lambda message, context: f"device-{place(context)}", loss=loss)

    @app.train()
    def train(message, context):
        me = place(context)
        if me in raises:
            raise RuntimeError("broken")
        reported = environment.metrics(message.content["config"]["server-round"] - 1)
        metrics = {name.replace("_", "-"): float(values[me]) for name, values in reported.items()}
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        content = {
            "arrays": ArrayRecord([weights + 1.0]),
            "metrics": MetricRecord({"num-examples": 10, **metrics}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def play(grid, selector, environment=WORLD, *, n_rounds=ROUNDS, **options):
    ids = [f"device-{i}" for i in range(environment.n_clients)]
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector,
        cohort_size=COHORT,
        seed=SEED,
        world=VirtualWorld(environment, ids),
        **options,
    )
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord([np.zeros(2)]), num_rounds=n_rounds, timeout=60.0
    )
    return strategy.run


def expected_run(selector, environment=WORLD, policy=None, n_rounds=ROUNDS):
    chooser = turnout.make(selector) if isinstance(selector, str) else selector.clone()
    return simulate(
        chooser, environment, cohort_size=COHORT, n_rounds=n_rounds, seed=SEED, policy=policy
    )


def assert_same(run, expected):
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(run, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(run.n_available, expected.n_available)


SELECTORS = (
    "random",
    "round-robin",
    "data-weighted",
    "e3cs",
    "oort",
    "ucb-cs",
    "rbcs-f",
    "fedcs",
    "pow-d",
    "cpow-d",
    "rpow-d",
    "k-linucb",
)


@pytest.mark.parametrize("selector", SELECTORS)
def test_flower_makes_the_choices_of_our_simulator(selector):
    policy = FixedDeadline(12.0)
    expected = expected_run(selector, policy=policy)
    assert np.unique(expected.status).size >= 3  # a run in which something happens
    assert_same(play(LocalGrid(client(WORLD), N), selector, policy=policy), expected)


POLICIES = (
    FixedDeadline(),
    FixedDeadline(9.0, force_stop=False),
    FirstK(count=2, seconds=20.0),
    OverSelect(FirstK(seconds=15.0), factor=1.5),
    AdaptiveDeadline(quantile=0.7, start=15.0),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_policies_close_rounds_as_in_our_simulator(policy):
    expected = expected_run("e3cs", policy=policy)
    assert_same(play(LocalGrid(client(WORLD), N), "e3cs", policy=policy), expected)
