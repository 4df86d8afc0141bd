import math

import numpy as np
import pytest

import turnout
from turnout import InvalidInput, Outcome, RoundContext, Selection
from turnout.core.rng import Purpose, stream
from turnout.experiment import parse_variant
from turnout.testing import ToyFederation

EVERYONE = np.ones(8, dtype=np.bool_)


class Tail(turnout.Selector):
    """Chooses the last clients, for certain, without saying so; keeps what it was told."""

    def reset(self, n_clients):
        super().reset(n_clients)
        self.told = []

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[-ctx.size :], memo={"t": np.array(ctx.round)})

    def observe(self, selection, outcome):
        self.told.append((selection, outcome))


class Shuffled(turnout.Selector):
    """Draws at random, without saying with what chance."""

    def select(self, ctx, rng):
        drawn = rng.choice(ctx.pool, ctx.size, replace=False)
        return Selection(ctx.round, np.sort(drawn))


TAIL, SHUFFLED = f"{__name__}:Tail", f"{__name__}:Shuffled"


def mixed(members, n=8, seed=3, **parameters_of):
    selector = turnout.make("mix", members=members, parameters_of=parameters_of or None)
    selector.prepare(n, seed=seed)
    return selector


def context(t=0, size=2, available=EVERYONE, **columns):
    return RoundContext(t, size, available, columns=columns)


def drawn(selector, ctx, seed=0):
    return selector.select(ctx, stream(seed, Purpose.SELECT, ctx.round))


def all_answer(selection, seconds=1.0):
    n = selection.clients.size
    return Outcome(np.zeros(n, dtype=np.int8), np.full(n, seconds))


def test_chances_by_hand():
    selector = mixed({TAIL: 0.75, "random": 0.25})
    expected = np.full(8, 0.25 * 2 / 8)
    expected[6:] += 0.75
    np.testing.assert_allclose(selector.chances(context()), expected)
    for seed in range(20):
        selection = drawn(selector, context(), seed)
        np.testing.assert_allclose(selection.probability, expected[selection.clients])


@pytest.mark.parametrize(
    "members",
    [
        {"random": 0.5, "e3cs": 0.5},
        {"pace": 0.8, "random": 0.2},
        {SHUFFLED: 0.6, "data-weighted": 0.4},
        {"guarded": 0.5, "round-robin": 0.5},
        {"pow-d": 0.5, "oort": 0.3, "random": 0.2},
    ],
    ids=lambda members: "-".join(members),
)
def test_chances_of_everyone_are_frequencies(members):
    toy, n_draws = ToyFederation(8, 3), 1000
    selector = mixed(members)
    toy.play(selector, range(5))
    ctx = toy.ask(selector, toy.context(selector, 5), stream(0, Purpose.POLL, 5))
    chance = selector.chances(ctx)
    rng, count = np.random.default_rng(0), np.zeros(8)
    for _ in range(n_draws):
        selection = selector.select(ctx, rng)
        count[selection.clients] += 1
        np.testing.assert_allclose(selection.probability, chance[selection.clients])
    deviation = np.sqrt(n_draws * chance * (1.0 - chance))
    assert (np.abs(count - n_draws * chance) <= 5.0 * deviation + 1e-9).all()
    assert chance.sum() == pytest.approx(ctx.size)


def test_only_the_member_that_chose_learns_with_its_own_chances_and_memo():
    selector = mixed({TAIL: 0.5, "e3cs": 0.5})
    tail, e3cs = selector._members
    alone = turnout.make("e3cs")
    alone.prepare(8)
    n_tail = 0
    for t in range(30):
        selection = drawn(selector, context(t))
        before = e3cs.log_weight_.copy()
        outcome = Outcome(np.arange(2) % 2 * 2, np.ones(2))
        selector.observe(selection, outcome)
        if selection.memo["lot"] == 0:
            n_tail += 1
            own, told = tail.told[-1]
            assert (own.round, own.memo["t"], own.probability) == (t, t, None)
            np.testing.assert_array_equal(told.status, outcome.status)
            np.testing.assert_array_equal(e3cs.log_weight_, before)
        else:
            chance = alone.chances(context(t))[selection.clients]
            np.testing.assert_allclose(selection.memo["own_probability"], chance)
            own = {
                name.removeprefix("member."): values
                for name, values in selection.memo.items()
                if name.startswith("member.")
            }
            alone.observe(Selection(t, selection.clients, chance, own), outcome)
            np.testing.assert_allclose(e3cs.log_weight_, alone.log_weight_)
    assert 0 < n_tail < 30
    assert len(tail.told) == n_tail


def test_a_member_that_was_only_asked_keeps_its_accounts():
    """Selectors with a floor note what they chose; a preview must not count as a round."""
    selector = mixed({"pace": 0.5, "random": 0.5})
    pace = selector._members[0]
    alone = turnout.make("pace")
    alone.prepare(8)
    alone.load_state(pace.state())
    for t in range(40):
        selection = drawn(selector, context(t, size=3))
        selector.observe(selection, all_answer(selection))
        if selection.memo["lot"] == 0:
            own = alone.select(context(t, size=3), selector._own_rng(t, 0))
            np.testing.assert_array_equal(own.clients, selection.clients)
            alone.observe(own, all_answer(own))
    for name, values in alone.state().items():
        np.testing.assert_array_equal(pace.state()[name], values)


def test_feedback_in_any_order_reaches_its_member():
    selector = mixed({TAIL: 0.5, "round-robin": 0.5})
    waiting = [drawn(selector, context(t)) for t in range(10)]
    for selection in reversed(waiting):
        selector.observe(selection, all_answer(selection))
    by_tail = [each.round for each in waiting if each.memo["lot"] == 0]
    assert [own.round for own, _ in selector._members[0].told] == by_tail[::-1]
    assert selector._members[1].n_chosen_.sum() == 2 * (10 - len(by_tail))


def test_everyone_has_a_chance_where_random_is_a_member():
    selector = mixed({"oort": 0.9, "random": 0.1}, n=20)
    ctx = context(size=4, available=np.arange(20) != 3, num_samples=np.ones(20))
    chance = selector.chances(ctx)
    assert chance[3] == 0.0
    assert (np.delete(chance, 3) >= 0.1 * 4 / 19 - 1e-12).all()


def test_polls_are_of_all_members_and_each_sees_its_own_answers():
    selector = mixed({"pow-d": 0.5, "random": 0.5})
    ctx = context(size=2, num_samples=np.arange(1.0, 9.0))
    asked = selector.poll(ctx, np.random.default_rng(0))
    np.testing.assert_array_equal(asked, selector.poll(ctx, np.random.default_rng(1)))
    answered = ctx.with_answers(asked, np.arange(asked.size, dtype=float))
    chance = selector.chances(answered)
    best = asked[-2:]  # of the highest loss
    assert (chance[best] > 0.5).all()
    assert selector.polls
    assert selector.needs_columns == {"num_samples"}


def test_needs_are_those_of_all_members():
    selector = turnout.make("mix", members={"pace": 0.5, "oort": 0.3, "fedcs": 0.2})
    assert "loss_rms" in selector.needs_metrics
    assert selector.optional_metrics == {}  # oort needs it
    assert "success_rate" in selector.needs_columns
    assert turnout.make("mix").optional_metrics.keys() == {"loss_rms"}
    assert selector.reports_probability
    assert not selector.polls


def test_promises_are_weighted():
    selector = turnout.make("mix", members={"e3cs": 0.5, "pace": 0.5})
    assert selector.quota_at(0) == pytest.approx(0.25)
    assert selector.promised_share(0) == pytest.approx(0.5)
    assert selector.regret_bound(5, 2, 8) is None


def test_a_mix_is_saved_loaded_and_grown(tmp_path):
    selector = mixed({"pace": 0.6, "e3cs": 0.4}, n=12, e3cs={"quota": 0.25})
    toy = ToyFederation(12, 4)
    toy.play(selector, range(8))
    turnout.save(selector, tmp_path / "mix.npz")
    again = turnout.load(tmp_path / "mix.npz")
    assert again._members[1].quota == 0.25
    first, second = (toy.play(each, range(8, 16)) for each in (selector, again))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.clients, other.clients)
        np.testing.assert_array_equal(one.probability, other.probability)
    again.grow(15)
    assert again.chances(context(20, 4, np.ones(15, dtype=np.bool_))).size == 15


def test_a_selection_of_another_mix_is_refused():
    selection = drawn(mixed({"random": 0.5, TAIL: 0.5}), context())
    small = mixed({"random": 1.0})
    foreign = Selection(0, selection.clients, None, {"lot": np.array(1)})
    with pytest.raises(InvalidInput, match="another mix"):
        small.observe(foreign, all_answer(foreign))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"members": {}}, "table of weights"),
        ({"members": ["pace"]}, "table of weights"),
        ({"members": {"pace": 0.9}}, "sum to 0.9"),
        ({"members": {"pace": 0.9, "random": 0.2}}, "sum to 1.1"),
        ({"members": {"pace": 1.5, "random": -0.5}}, "weight of 'random'"),
        ({"members": {"pace": math.nan}}, "weight of 'pace'"),
        ({"members": {"pace": "1"}}, "weight of 'pace'"),
        ({"members": {3: 1.0}}, "names of selectors"),
        ({"members": {"pacce": 1.0}}, "unknown selector 'pacce'"),
        ({"parameters_of": {"oort": {}}}, r"names of members \(pace, random\)"),
        ({"parameters_of": {"pace": 3}}, "tables of parameters"),
        ({"parameters_of": 3}, "must be a table"),
        ({"parameters_of": {"pace": {"flor": 1}}}, "'flor'"),
        ({"members": {"pow-d": 0.5, "cpow-d": 0.5}}, "poll for losses of different data"),
        (
            {
                "members": {"divfl": 0.5, "clustered": 0.5},
                "parameters_of": {"divfl": {"sketch_size": 8}, "clustered": {"sketch_size": 16}},
            },
            "reports of different length: update_sketch of 16, update_sketch of 8",
        ),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(turnout.TurnoutError, match=message):
        turnout.make("mix", **parameters)


def test_a_mix_is_written_on_the_command_line():
    variant = parse_variant("mix:members={round-robin=.25,pace=.75},parameters_of={pace={share=1}}")
    selector = variant.make()
    assert selector.members == {"round-robin": 0.25, "pace": 0.75}
    assert selector.parameters_of == {"pace": {"share": 1}}
