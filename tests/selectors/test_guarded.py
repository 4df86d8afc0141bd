import math

import numpy as np
import pytest

import turnout
from turnout import Outcome, RoundContext, StepAfter, UnknownSelector
from turnout.core.rng import Purpose, stream
from turnout.experiment import Experiment, parse_variant
from turnout.testing import ToyFederation

SMALL_NETWORK = {"threshold": 2, "width": 8, "memory": 32, "steps": 1}
EVERYONE = np.ones(8, dtype=np.bool_)


class Recording(turnout.Selector):
    """Chooses the first clients, and keeps what it was shown."""

    reports_probability = True
    seen: list

    def reset(self, n_clients):
        super().reset(n_clients)
        self.seen = []

    def select(self, ctx, rng):
        self.seen.append(ctx)
        chance = np.linspace(0.5, 0.9, ctx.size)
        return turnout.Selection(
            ctx.round, ctx.pool[: ctx.size], chance, {"t": np.array(ctx.round)}
        )

    def observe(self, selection, outcome):
        self.seen.append((selection, outcome))


def guarded(**parameters):
    selector = turnout.make("guarded", **parameters)
    selector.prepare(8, seed=3)
    return selector


def recording(owed=(), spent=(), **parameters):
    selector = guarded(inner="tests.selectors.test_guarded:Recording", **parameters)
    selector.owed_[:] = 0.0
    selector.owed_[list(owed)] = 0.99 + 0.001 * np.arange(len(owed))
    selector.tokens_[list(spent)] = 0.0
    return selector


def select(selector, t=0, size=3, available=EVERYONE):
    return selector.select(RoundContext(t, size, available), stream(0, Purpose.SELECT, t))


def everyone_answers(selection):
    n = selection.clients.size
    seconds = np.arange(1.0, n + 1)
    return Outcome(np.zeros(n, dtype=np.int8), seconds, {"loss": seconds * 10})


@pytest.mark.slow
@pytest.mark.parametrize("inner", sorted({*turnout.list_selectors(plugins=False)} - {"guarded"}))
def test_without_floor_and_cap_the_inner_selector_chooses_alone(inner):
    parameters = SMALL_NETWORK if inner == "nccb" else {}
    alone = turnout.make(inner, **parameters)
    around = turnout.make(
        "guarded", inner=inner, floor=0.0, cap=math.inf, inner_parameters=parameters
    )
    toy = ToyFederation(20, 5, seed=2)
    for selector in (alone, around):
        selector.prepare(20, seed=2)
    for own, other in zip(toy.play(alone, range(25)), toy.play(around, range(25)), strict=True):
        np.testing.assert_array_equal(own.clients, other.clients)
        np.testing.assert_array_equal(own.times, other.times)
        assert (own.probability is None) == (other.probability is None)
        if own.probability is not None:
            np.testing.assert_array_equal(own.probability, other.probability)
    for name, values in alone.state().items():
        if name != "n_clients_":
            np.testing.assert_array_equal(around.state()[f"inner.{name}"], values)


def test_the_inner_selector_sees_only_whom_it_may_choose():
    selector = recording(owed=[0, 5], spent=[1, 2], floor=0.5, cap=2.0)
    available = np.arange(8) != 7
    selection = select(selector, size=3, available=available)
    (ctx,) = selector._inner.seen
    assert ctx.pool.tolist() == [3, 4, 6]
    assert ctx.cohort_size == 1
    assert selection.clients.tolist() == [0, 3, 5]
    assert selection.probability.tolist() == [1.0, 0.5, 1.0]


def test_the_inner_selector_learns_from_its_own_choices():
    selector = recording(owed=[0, 5], spent=[1], floor=0.5, cap=1.0)
    selection = select(selector, t=4, size=4)
    selector.observe(selection, everyone_answers(selection))
    _, (own, outcome) = selector._inner.seen
    assert (own.round, own.clients.tolist(), own.memo["t"]) == (4, [2, 3], 4)
    assert own.probability.tolist() == pytest.approx([0.5, 0.9])
    assert outcome.duration.tolist() == [2.0, 3.0]
    assert outcome.metrics["loss"].tolist() == [20.0, 30.0]


def test_the_inner_selector_is_not_asked_when_all_places_are_reserved():
    selector = recording(owed=[2, 6, 4], floor=0.5)
    selection = select(selector, size=2)
    assert selection.clients.tolist() == [4, 6]  # those furthest behind
    assert selection.probability.tolist() == [1.0, 1.0]
    selector.observe(selection, everyone_answers(selection))
    assert selector._inner.seen == []


def test_a_cohort_may_be_empty_when_everyone_is_at_the_cap():
    selector = recording(spent=range(8), floor=0.0, cap=2.0)
    assert select(selector, size=3).clients.size == 0
    assert select(selector, size=4).clients.size == 4  # twice the fair share is a place


def test_accounts_by_hand():
    selector = recording(owed=[6], floor=0.5, cap=2.0)
    available = np.arange(8) != 7
    selection = select(selector, size=2, available=available)  # fair share 2 / 7
    assert selection.clients.tolist() == [0, 6]
    selector.observe(selection, everyone_answers(selection))
    passed_over = [1 / 7] * 5
    assert selector.owed_.tolist() == pytest.approx([0.0, *passed_over, 0.99 + 1 / 7 - 1, 0.0])
    assert selector.tokens_.tolist() == pytest.approx([4 / 7, *[1.0] * 5, 4 / 7, 1.0])


def test_a_reserved_place_is_given_beyond_the_cap_and_forgiven():
    selector = recording(owed=[6], spent=[6], floor=0.5, cap=1.0)
    selection = select(selector, size=1)
    assert selection.clients.tolist() == [6]
    selector.observe(selection, everyone_answers(selection))
    assert selector.tokens_[6] == 0.0


def test_late_feedback_is_charged_to_those_who_were_there():
    selector = recording(floor=0.5, cap=2.0)
    waiting = [select(selector, t, size=1) for t in range(3)]
    assert [selection.clients.tolist() for selection in waiting] == [[0], [1], [2]]  # at the cap
    selector.grow(12)
    owed, tokens = selector.owed_[8:].copy(), selector.tokens_[8:].copy()
    for selection in reversed(waiting):
        selector.observe(selection, everyone_answers(selection))
    assert selector.tokens_[:8].tolist() == pytest.approx([0.75, 0.5, 0.25, *[1.0] * 5])
    assert selector.owed_[:8].tolist() == pytest.approx([1 / 8, 1 / 16, 0.0, *[3 / 16] * 5])
    assert selector.owed_[8:].tolist() == owed.tolist()
    assert selector.tokens_[8:].tolist() == tokens.tolist() == [1.0] * 4


def test_ties_are_decided_alike_by_poll_and_select():
    selector = guarded(inner="pow-d", floor=0.5)
    selector.owed_[:] = 0.99
    columns = {"num_samples": np.ones(8)}
    ctx = RoundContext(0, 6, EVERYONE, columns=columns)
    assert not selector.reports_probability
    assert selector.poll(ctx, stream(0, Purpose.POLL)) is None  # every place is reserved
    chosen = [selector.select(ctx, stream(seed, Purpose.SELECT)).clients for seed in range(5)]
    by_lot = np.sort(np.argsort(selector.lot_)[2:])
    assert all(clients.tolist() == by_lot.tolist() for clients in chosen)
    selector.owed_[:2] = 0.0
    ctx = RoundContext(0, 7, EVERYONE, columns=columns)
    polled = selector.poll(ctx, stream(0, Purpose.POLL))
    assert polled.tolist() == [0, 1]
    asked = ctx.with_answers(polled, [1.0, 2.0])
    assert selector.select(asked, stream(0, Purpose.SELECT)).clients.tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]


def test_the_first_claims_are_spread_over_rounds():
    selector = turnout.make("guarded", inner="tests.selectors.test_guarded:Recording", cap=math.inf)
    selector.prepare(400, seed=1)
    n_reserved = []
    for t in range(300):
        ctx = RoundContext(t, 20, np.ones(400, dtype=np.bool_))
        selection = selector.select(ctx, stream(0, Purpose.SELECT, t))
        n_reserved.append(int(selection.recall("is_reserved").sum()))
        selector.observe(selection, everyone_answers(selection))
    assert np.mean(n_reserved) == pytest.approx(9.5, abs=0.5)
    assert max(n_reserved) < 20  # the inner selector always has a say


def test_draws_with_replacement_keep_their_multiplicity():
    selector = guarded(inner="data-weighted", inner_parameters={"replacement": True})
    selector.owed_[:] = [0.99, *[0.0] * 7]
    columns = {"num_samples": np.array([1, 1, 1, 1, 1, 1, 1, 1e6])}
    ctx = RoundContext(0, 4, EVERYONE, columns=columns)
    selection = selector.select(ctx, stream(0, Purpose.SELECT))
    assert selection.clients.tolist() == [0, 7]
    assert selection.times.tolist() == [1, 3]


class Vectors(Recording):
    needs_metrics = frozenset({"update_sketch"})
    metric_sizes = {"update_sketch": 4}  # noqa: RUF012
    optional_metrics = {"update_sketch": "nothing"}  # noqa: RUF012


def test_declarations_are_those_of_the_inner_selector():
    selector = guarded(inner="tests.selectors.test_guarded:Vectors", floor=0.5, cap=2.0)
    assert selector.needs_metrics == {"update_sketch"}
    assert selector.metric_sizes == {"update_sketch": 4}
    assert selector.optional_metrics == {"update_sketch": "nothing"}


def test_promises_are_those_of_floor_and_inner_selector():
    assert guarded(inner="e3cs", floor=0.2).quota_at(0) == 0.5
    assert guarded(inner="e3cs", floor=0.8).quota_at(0) == 0.8
    assert guarded(inner="e3cs").regret_bound(5, 2, 8) is None
    alone = guarded(inner="e3cs", floor=0.0, cap=math.inf).regret_bound(5, 2, 8)
    np.testing.assert_array_equal(alone, turnout.make("e3cs").regret_bound(5, 2, 8))
    assert guarded(inner="rbcs-f").guaranteed_rate() == turnout.make("rbcs-f").guaranteed_rate()
    assert guarded(inner="pow-d").polls
    assert guarded(inner="cpow-d").poll_data == "mini-batch"
    assert not guarded().polls


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"floor": 1.1}, "floor must be"),
        ({"floor": math.nan}, "floor must be"),
        ({"cap": 0.9}, "cap must be"),
        ({"cap": "inf"}, "cap must be"),
        ({"cap": -math.inf}, "cap must be"),
        ({"inner_parameters": 5}, "inner_parameters must be a table"),
        ({"inner": "e3cs", "inner_parameters": {"quota": 2.0}}, "quota"),
        ({"inner": "e3cs", "inner_parameters": {"quoto": 0.5}}, "has no parameter 'quoto'"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(turnout.TurnoutError, match=message):
        turnout.make("guarded", **parameters)


def test_an_unknown_inner_selector_is_named():
    with pytest.raises(UnknownSelector, match="ort"):
        turnout.make("guarded", inner="ort")


def test_parameters_travel_through_files_and_texts(tmp_path):
    schedule = StepAfter(5, before=0.0, after=1.0)
    selector = guarded(inner="e3cs", cap=math.inf, inner_parameters={"quota": schedule})
    turnout.save(selector, tmp_path / "state.npz")
    assert turnout.load(tmp_path / "state.npz").parameters == selector.parameters
    text = "guarded:inner=oort,floor=0.25,cap=inf,inner_parameters={explore_decay=0.9}"
    made = parse_variant(text).make()
    assert made.parameters == {
        "inner": "oort",
        "floor": 0.25,
        "cap": math.inf,
        "inner_parameters": {"explore_decay": 0.9},
        "min_gap": 1,
        "max_times": None,
        "max_energy_j": math.inf,
        "total_energy_j": math.inf,
        "answers": False,
    }
    table = {
        "name": "guarded",
        "inner": "e3cs",
        "inner_parameters": {
            "quota": {"schedule": "step-after", "rounds": 5, "before": 0, "after": 1}
        },
    }
    (variant,) = Experiment([table], name="x", world="volatile").selectors
    assert variant.make().inner_parameters["quota"](9) == 1.0


def test_a_state_that_does_not_fit_changes_nothing():
    selector = guarded(inner="e3cs")
    before = selector.state()
    damaged = before | {"inner.log_weight_": np.zeros(3)}
    with pytest.raises(turnout.StateFileError):
        selector.load_state(damaged | {"owed_": np.ones(8)})
    with pytest.raises(turnout.StateFileError):
        selector.load_state(before | {"inner.log_weight_": np.ones(8), "owed_": np.ones(3)})
    for name, values in before.items():
        np.testing.assert_array_equal(selector.state()[name], values)


def test_a_place_is_not_reserved_twice_while_feedback_is_missing():
    selector = recording(owed=[6], floor=0.5, cap=2.0)
    waiting = [select(selector, t, size=1) for t in range(2)]
    assert [selection.clients.tolist() for selection in waiting] == [[6], [0]]
    for selection in waiting:
        selector.observe(selection, everyone_answers(selection))
    assert selector.owed_[6] == pytest.approx(0.99 + 2 / 16 - 1)


def test_a_place_that_was_reserved_twice_because_of_a_restart_is_charged_once():
    selector, restarted = (recording(owed=[6], floor=0.5, cap=2.0) for _ in range(2))
    waiting = [select(selector, 0, size=1), select(restarted, 1, size=1)]
    assert all(selection.clients.tolist() == [6] for selection in waiting)
    for selection in waiting:
        restarted.observe(selection, everyone_answers(selection))
    assert restarted.owed_[6] == pytest.approx(0.99 + 1 / 16 - 1)  # one of them is forgotten


def test_cohorts_may_be_short_because_of_the_cap_or_the_inner_selector():
    inner = {"random": False, "fedcs": turnout.make("fedcs").may_underfill}
    for name, may_underfill in inner.items():
        capped, free = (turnout.make("guarded", inner=name, cap=cap) for cap in (2.0, math.inf))
        assert capped.may_underfill
        assert free.may_underfill == may_underfill


def test_a_regret_bound_needs_both_no_floor_and_no_cap():
    assert guarded(inner="e3cs", floor=0.0).regret_bound(5, 2, 8) is None
    assert guarded(inner="e3cs", cap=math.inf).regret_bound(5, 2, 8) is None


def test_a_round_brings_two_tokens_at_most():
    selector = recording(floor=0.0, cap=math.inf)
    selector.tokens_[:] = -5.0
    selection = select(selector, size=2, available=np.arange(8) < 4)
    selector.observe(selection, everyone_answers(selection))
    waiting = np.setdiff1d(np.arange(4), selection.clients)
    assert selector.tokens_[waiting].tolist() == [-3.0] * waiting.size
    assert selector.tokens_[4:].tolist() == [-5.0] * 4
