"""Training where rounds overlap: every client trains on the model that it got."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import turnout
from tests.references import refl_slow
from turnout.core.errors import InvalidInput
from turnout.experiment.loop import Progress, rounds
from turnout.experiment.overlap import overlapping
from turnout.training import InverseProbability, MeanReturned, Training
from turnout.training.federation import Federation
from turnout.worlds import (
    Always,
    Buffered,
    DeviationWeight,
    Environment,
    FixedDeadline,
    FixedTime,
    PolynomialWeight,
    Reliable,
    SemiSynchronous,
    Synchronous,
    Timing,
    named_world,
)


@dataclass(frozen=True)
class Seconds(Timing):
    """The same seconds for a client in every choice."""

    seconds: tuple[float, ...]

    def column(self, name, moment):
        return self.duration(moment)

    def duration(self, moment):
        return np.array(self.seconds)


class Lowest(turnout.Selector):
    """Takes the available clients with the lowest numbers."""

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


@pytest.mark.parametrize("schedule", [Buffered(4, 4), SemiSynchronous(2.0), Synchronous("use")])
def test_without_stragglers_training_is_synchronous_bit_for_bit(schedule):
    environment = Environment(10, 3, Always(), Reliable(), FixedTime(2.0))
    settings = {"cohort_size": 4, "n_rounds": 3}
    one, two = Federation(Training(), 10, 3), Federation(Training(), 10, 3)
    first = list(rounds(turnout.make("oort"), environment, participants=one, **settings))
    second = list(
        overlapping(
            turnout.make("oort"), environment, schedule=schedule, participants=two, **settings
        )
    )
    assert (one.weights == two.weights).all()
    for sync, other in zip(first, second, strict=True):
        assert sync.measured == {
            name: value for name, value in other.measured.items() if name != "models_kept"
        }


def test_a_stale_answer_adds_its_step_from_the_model_that_its_client_got():
    # Clients 0, 1 and 2 take 1, 3 and 5 s, one answer is enough, two are at work. Choice 0 takes 0
    # and 1 on version 0. 0 answers at 1 s: version 1. Choice 1 takes 0 again, on version 1, until
    # 2 s: version 2. Choice 2 takes 0 on version 2, until 3 s. At 3 s client 1 (choice 0) answers
    # first, on version 0: staleness 2. Its step is added to version 2 at a third of its size.
    environment = Environment(3, 3, Always(), Reliable(), Seconds((1.0, 3.0, 5.0)))
    federation = Federation(Training(), 3, 3)
    schedule = Buffered(1, 2, PolynomialWeight(1.0))
    records = list(
        overlapping(Lowest(), environment, schedule=schedule, n_rounds=3, participants=federation)
    )
    assert [record.answers.staleness.tolist() for record in records] == [[0], [0], [2]]
    trainer = federation.trainer
    zero = trainer.initial_weights()
    ones = np.array([0])
    one = trainer.train(zero, ones, 0).weights[0]
    two = trainer.train(one, ones, 1).weights[0]
    late = trainer.train(zero, np.array([1]), 0).weights[0]
    expected = two + (late - zero) / 3.0
    np.testing.assert_allclose(federation.weights.numpy(), expected.numpy(), atol=1e-6)


def test_fedasync_mixes_the_models_as_plain_code_does():
    # The same history: client 0 answers on versions 0 and 1, and client 1 on version 0, by 2 late.
    environment = Environment(3, 3, Always(), Reliable(), Seconds((1.0, 3.0, 5.0)))
    federation = Federation(Training(server_lr=0.6), 3, 3)
    schedule = Buffered(1, 2, PolynomialWeight(1.0), mixes=True)
    records = list(
        overlapping(Lowest(), environment, schedule=schedule, n_rounds=3, participants=federation)
    )
    assert [record.answers.staleness.tolist() for record in records] == [[0], [0], [2]]
    trainer, client = federation.trainer, np.array
    models = [trainer.initial_weights()]
    for who, version, age in ((0, 0, 0), (0, 1, 0), (1, 0, 2)):
        alpha = 0.6 / (1 + age)
        own = trainer.train(models[version], client([who]), version).weights[0]
        models.append((1 - alpha) * models[-1] + alpha * own)
    np.testing.assert_allclose(federation.weights.numpy(), models[-1].numpy(), atol=1e-6)


def test_late_work_counts_as_in_refl():
    # Rounds end after 2 s. Clients 0 and 1 answer in time; 2 and 3 were chosen in round 0, come in
    # round 1 and are late by one. So the second model is made of two fresh updates and two stale.
    environment = Environment(4, 3, Always(), Reliable(), Seconds((1.0, 1.5, 3.0, 3.5)))
    federation = Federation(Training(aggregation=MeanReturned("equal")), 4, 3)
    schedule = Synchronous("use", DeviationWeight(0.35))
    records = list(
        overlapping(
            Lowest(),
            environment,
            schedule=schedule,
            policy=FixedDeadline(2.0),
            cohort_size=4,
            n_rounds=2,
            participants=federation,
        )
    )
    assert [sorted(record.answers.staleness.tolist()) for record in records] == [
        [0, 0],
        [0, 0, 1, 1],
    ]
    trainer = federation.trainer
    zero = trainer.initial_weights()
    first = trainer.train(zero, np.arange(4), 0).weights
    one = zero + (first[:2] - zero).mean(axis=0)
    fresh = trainer.train(one, np.array([0, 1]), 1).weights - one
    updates = [*fresh, first[2] - zero, first[3] - zero]
    slow = refl_slow.stale_weights([0, 0, 1, 1], [u.tolist() for u in updates], 0.35)
    assert slow[2] != pytest.approx(slow[3], rel=1e-3)  # they differ from the fresh ones unlike
    expected = one + sum(w * u for w, u in zip(slow, updates, strict=True))
    np.testing.assert_allclose(federation.weights.numpy(), expected.numpy(), atol=1e-6)


def test_two_answers_of_a_client_on_one_version_use_different_batches():
    trainer = Federation(Training(), 3, 3).trainer
    weights, clients = trainer.initial_weights(), np.array([0, 1])
    usual = trainer.train(weights, clients, 4)
    keyed = trainer.train(weights, clients, 4, np.array([4, 9]))
    later = trainer.train(weights, clients, 9)
    assert (usual.weights[0] == keyed.weights[0]).all()
    np.testing.assert_allclose(keyed.weights[1], later.weights[1], atol=1e-6)
    assert not np.allclose(usual.weights[1], keyed.weights[1], atol=1e-6)


def _kept(records):
    return [
        (r.row.clients.tolist(), r.row.overlap.staleness.tolist(), dict(r.measured))
        for r in records
    ]


@pytest.mark.parametrize("schedule", [Buffered(3, 8), SemiSynchronous(3.0)])
def test_a_resumed_run_is_the_same_with_models_in_flight(schedule):
    environment = named_world("volatile").example
    settings = {"schedule": schedule, "cohort_size": 8, "n_rounds": 8}
    whole = Federation(Training(), 100, 0)
    expected = _kept(overlapping(turnout.make("pace"), environment, participants=whole, **settings))
    selector, cut, progress = turnout.make("pace"), Federation(Training(), 100, 0), Progress(100)
    first = []
    for record in overlapping(
        selector, environment, participants=cut, progress=progress, **settings
    ):
        first.append(record)
        if len(first) == 4:
            break
    saved, learned, model = progress.state(), selector.state(), cut.state()
    assert saved["overlap.flights.client"].size  # work is in flight
    selector, again = turnout.make("pace"), Federation(Training(), 100, 0)
    selector.reset(100)
    selector.load_state(learned)
    again.load_state(model)
    rest = overlapping(
        selector,
        environment,
        participants=again,
        start=4,
        progress=Progress.from_state(100, saved),
        **settings,
    )
    assert _kept(first) + _kept(rest) == expected
    assert (again.weights == whole.weights).all()


def test_no_more_models_are_kept_than_clients_answers_and_their_versions():
    federation = Federation(Training(), 100, 0)
    environment = named_world("volatile").example
    for record in overlapping(
        turnout.make("random"),
        environment,
        schedule=Buffered(3, 8),
        n_rounds=15,
        participants=federation,
    ):
        assert record.measured["models_kept"] <= 2 * 8
    assert federation._versions.most <= 2 * (8 + 3)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"aggregation": InverseProbability()}, "needs synchronous rounds"),
    ],
)
def test_recipes_that_cannot_overlap_are_refused_before_anything_runs(recipe, words):
    with pytest.raises(InvalidInput, match=words):
        overlapping(
            turnout.make("random"),
            named_world("volatile").example,
            schedule=Buffered(3, 8),
            n_rounds=2,
            participants=Federation(Training(**recipe), 100, 0),
        )


def test_a_checkpoint_with_nothing_in_flight_is_saved_and_loaded():
    environment = Environment(6, 3, Always(), Reliable(), FixedTime(2.0))
    federation = Federation(Training(), 6, 3)
    schedule = Buffered(2, 2)
    settings = {"schedule": schedule, "n_rounds": 2, "participants": federation}
    list(overlapping(turnout.make("random"), environment, **settings))
    again = Federation(Training(), 6, 3)
    again.load_state(federation.state())
    assert (again.weights == federation.weights).all()
    assert again._versions.number == 2
    assert not again._versions.models
