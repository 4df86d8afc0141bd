from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.results.statistics import (
    Evidence,
    above,
    all_of,
    any_of,
    estimate,
    holm,
    inside,
    later,
    same,
)
from turnout.studies import Claim, Finding, Trials, Verdict, judge
from turnout.studies.claims import RELATIONS, corrected, joined, steps_of
from turnout.studies.trials import Curve, SchemeResults


def results(values: dict[str, list[float]], measure: str = "cep", n_rounds: int = 100) -> Trials:
    schemes = {
        label: SchemeResults(tuple(range(len(v))), 2, {measure: np.array(v)}, {}, {})
        for label, v in values.items()
    }
    return Trials({"n_rounds": n_rounds}, schemes, {})


def finding(relation: str, values: dict[str, list[float]], **fields: Any) -> Finding:
    measure = fields.pop("measure", "cep")
    claim = Claim(1, "as the paper says", relation, measure, **fields)
    return judge(claim, results(values, measure), tuple(values))


def test_orders_are_read() -> None:
    groups, signs = steps_of("A & F, m=1 > B(1) >= C-0.5 = D ~ E")
    assert groups == (("A", "F, m=1"), ("B(1)",), ("C-0.5",), ("D",), ("E",))
    assert signs == (">", ">=", "=", "~")


UP, SAME, DOWN = [3.0, 3.15, 3.2], [1.0, 1.1, 1.2], [0.05, 0.1, 0.2]
NOISY = [0.0, 2.4, 1.1]
VALUES = {"up": UP, "same": SAME, "down": DOWN, "noisy": NOISY}


@pytest.mark.parametrize(
    ("order", "margin", "expected"),
    [
        ("up > same > down", 0.0, "holds"),
        ("same > up", 0.0, "fails"),
        ("same > noisy", 0.0, "undecided"),
        ("up > same > noisy", 0.0, "undecided"),
        ("noisy > same > up", 0.0, "fails"),
        ("up > same & down", 0.0, "holds"),
        ("up & same > down", 0.0, "holds"),
        ("up > same & noisy", 0.0, "undecided"),
        ("same >= noisy", 0.1, "undecided"),  # not less? the interval says neither
        ("same >= noisy", 9.0, "holds"),
        ("same >= up", 0.1, "fails"),
        ("same >= up", 2.5, "holds"),
        ("same ~ noisy", 0.5, "undecided"),
        ("same ~ down", 1.5, "holds"),
        ("same ~ down", 0.5, "fails"),
        ("same = same", 0.0, "holds"),
        ("same = noisy", 0.0, "fails"),
        ("same = same > down", 0.0, "holds"),
    ],
)
def test_orders_are_judged_by_paired_differences(order: str, margin: float, expected: str) -> None:
    assert finding("order", VALUES, order=order, margin=margin).verdict == expected


def test_a_ratio_that_is_the_factor_is_neither_more_nor_less() -> None:
    for slow, fast in ((10.0, 8.0), (15.0, 12.0)):  # rounding puts them on different sides of 1.25
        times = {"a": [slow] * 6, "b": [fast] * 6}
        order = {"order": "a > b", "measure": "rounds-to-0.65", "factor": 1.25}
        assert finding("order", times, **order).verdict == Verdict.UNDECIDED


def test_noise_of_either_sign_never_holds() -> None:
    # "not less" once held for differences -20, 14, -15, 9, -10
    step = {"a": [-20.0, 14.0, -15.0, 9.0, -10.0], "b": [0.0] * 5}
    assert finding("order", step, order="a >= b", margin=1.0).verdict == Verdict.UNDECIDED
    assert finding("order", step, order="b >= a", margin=1.0).verdict == Verdict.UNDECIDED


@pytest.mark.parametrize(("n", "expected"), [(2, "undecided"), (5, "undecided"), (6, "holds")])
def test_equal_differences_are_as_rare_as_a_coin_on_one_side(n: int, expected: str) -> None:
    # training is looked at every few rounds, so two seeds easily give the same two numbers
    times = {"a": [10.0] * n, "b": [5.0] * n}
    order = {"order": "a > b", "measure": "rounds-to-0.65"}
    assert finding("order", times, **order).verdict == expected
    assert above(np.full(n, 5.0)) == Evidence(0.5**n, 1.0)
    assert above(np.full(n, -5.0)) == Evidence(1.0, 0.5**n)
    assert above(np.zeros(n)) == Evidence(1.0, 1.0)
    assert above(np.arange(n) + 0.3 - np.arange(n)) == Evidence(0.5**n, 1.0)  # rounding


@pytest.mark.slow
def test_false_verdicts_are_as_rare_as_they_claim_to_be() -> None:
    rng = np.random.default_rng(1)
    verdicts = [
        finding("order", {"a": list(rng.normal(size=5)), "b": list(rng.normal(size=5))}, order=o)
        for o in ("a > b",) * 2000
    ]
    wrong = np.mean([one.verdict != Verdict.UNDECIDED for one in verdicts])
    assert 0.035 < wrong < 0.065  # 5 %, the two sides together


def test_the_lowest_is_the_lowest_of_all_others() -> None:
    claim = {"order": "others > down"}
    assert finding("order", {"up": UP, "same": SAME, "down": DOWN}, **claim).verdict == "holds"
    assert finding("order", VALUES, **claim).verdict == "undecided"  # noisy may be lower


@pytest.mark.parametrize("bad", [[math.nan] * 3, [1.0, math.nan, 1.2]])
def test_a_run_that_diverged_decides_nothing_and_is_counted(bad: list[float]) -> None:
    for order in ("up > bad", "bad > up", "up ~ bad"):
        found = finding("order", {"up": UP, "bad": bad}, order=order, margin=1.0)
        assert found.verdict == Verdict.UNDECIDED
        assert f"diverged in {int(np.isnan(bad).sum())} of 3 seeds" in found.ours


def test_one_seed_is_never_a_verdict() -> None:
    values = {"a": [5.0], "b": [1.0]}
    for order in ("a > b", "a = a", "b > a"):
        assert finding("order", values, order=order).verdict == Verdict.UNDECIDED
    assert finding("above", values, schemes=("a",), limit=1.0).verdict == Verdict.UNDECIDED


def test_only_seeds_that_both_have_are_compared() -> None:
    schemes = {
        "a": SchemeResults((0, 1, 2, 3), 2, {"cep": np.array([3.0, 3.1, 3.2, 0.0])}, {}, {}),
        "b": SchemeResults((2, 0, 1), 2, {"cep": np.array([2.3, 2.0, 2.1])}, {}, {}),
    }
    known = Trials({"n_rounds": 9}, schemes, {})
    ours, theirs = known.paired("a", "b", "cep")
    assert (ours - theirs).tolist() == pytest.approx([1.0, 1.0, 0.9])
    assert judge(Claim(1, "says", "order", "cep", order="a > b"), known).verdict == "holds"


@pytest.mark.parametrize(
    ("order", "step"),
    [
        ("up > same > down", "same - down"),
        ("noisy > same > up", "same - up"),  # fails, though the other step is closer
        ("up > same > noisy", "same - noisy"),
        ("up = up > same", "up - same"),
    ],
)
def test_the_step_that_decides_is_named(order: str, step: str) -> None:
    assert finding("order", VALUES, order=order).deciding.startswith(f"{step} = ")


@pytest.mark.parametrize(
    ("relation", "limit", "margin", "expected"),
    [
        ("below", 5.0, 0.0, "holds"),
        ("below", 1.1, 0.0, "undecided"),
        ("below", 0.0, 0.0, "fails"),
        ("above", 5.0, 0.0, "fails"),
        ("above", 1.1, 0.0, "undecided"),
        ("above", 0.0, 0.0, "holds"),
        ("is", 1.1, 0.5, "holds"),
        ("is", 1.1, 0.1, "undecided"),
        ("is", 5.0, 0.5, "fails"),
        ("is", 1.1, 0.0, "fails"),  # without a margin it means exactly
    ],
)
def test_limits(relation: str, limit: float, margin: float, expected: str) -> None:
    found = finding(relation, {"same": SAME}, schemes=("same",), limit=limit, margin=margin)
    assert found.verdict == expected


def test_about_8_is_not_8_point_8() -> None:
    cohort = {"FedCS(3)": [8.75, 8.8, 8.9, 8.85, 8.8]}
    about = {"schemes": ("FedCS(3)",), "limit": 8.0, "margin": 0.5}
    assert finding("is", cohort, measure="cohort-mean", **about).verdict == Verdict.FAILS


def test_one_scheme_that_fails_is_a_claim_that_fails() -> None:
    found = finding("below", {"up": UP, "down": DOWN}, schemes=("up", "down"), limit=1.0)
    assert found.verdict == Verdict.FAILS
    assert found.ours.startswith("up 3 ± 0 (fails); down")


def test_published_forms_take_the_place_of_ours() -> None:
    claim = Claim(1, "says", "order", "cep", order="a > b")
    values = results({"a": UP, "b": SAME, "a published": DOWN})
    assert judge(claim, values).verdict == Verdict.HOLDS
    assert judge(claim, values, rename={"a": "a published"}).verdict == Verdict.FAILS


def test_a_claim_says_what_it_needs() -> None:
    with pytest.raises(InvalidInput, match="relation"):
        Claim(1, "says", "beats", "cep")
    with pytest.raises(InvalidInput, match="unknown measure 'elegance'"):
        Claim(1, "says", "order", "elegance")
    for order in ("a >= b", "a ~ b"):
        with pytest.raises(InvalidInput, match="margin must be above 0"):
            Claim(1, "says", "order", "cep", order=order)
    assert set(RELATIONS) == {"order", "below", "above", "is"}


# times -----------------------------------------------------------------------------------------

NEVER = math.inf
SLOW, FAST = [80.0, 85.0, 90.0, 82.0], [40.0, 41.0, 44.0, 42.0]


@pytest.mark.parametrize(
    ("slow", "fast", "factor", "expected"),
    [
        (SLOW, FAST, 1.0, "holds"),
        (SLOW, FAST, 1.5, "holds"),
        (SLOW, FAST, 3.0, "fails"),
        ([*SLOW[:3], NEVER], FAST, 1.0, "holds"),  # at least the length of the run
        ([NEVER] * 4, FAST, 1.0, "holds"),
        (SLOW, [*FAST[:3], NEVER], 1.0, "undecided"),  # who never got there cannot be sooner
        ([NEVER] * 4, [NEVER] * 4, 1.0, "undecided"),
        (FAST, [NEVER] * 4, 1.0, "fails"),
        ([NEVER] * 4, FAST, 3.0, "undecided"),  # 100 / 42 is less than 3, but 100 is a bound
    ],
)
def test_times_are_censored(
    slow: list[float], fast: list[float], factor: float, expected: str
) -> None:
    values = {"slow": slow, "fast": fast}
    found = finding("order", values, measure="rounds-to-0.8", order="slow > fast", factor=factor)
    assert found.verdict == expected
    n_never = slow.count(NEVER)
    if n_never:
        assert ("never" if n_never == 4 else f"({n_never} of 4 never)") in found.ours


# evidence --------------------------------------------------------------------------------------


def test_student_by_hand() -> None:
    # mean 2, deviation 1, n = 4: t = 4 with 3 degrees, one-sided p = 0.014004
    found = above(np.array([1.0, 2.0, 2.0, 3.0]) * math.sqrt(1.5) - 2.0 * math.sqrt(1.5) + 2.0)
    assert found.speaks_for == pytest.approx(0.014004, abs=1e-6)
    assert found.speaks_against == pytest.approx(1.0 - 0.014004, abs=1e-6)


def test_equivalence_is_two_tests() -> None:
    steps = np.array([0.1, -0.1, 0.05, 0.0])
    both = inside(steps, 0.3)
    assert both.speaks_for == max(above(steps, -0.3).speaks_for, above(-steps, -0.3).speaks_for)
    assert both.speaks_for < 0.025


def test_parts_of_a_claim_are_joined() -> None:
    parts = [Evidence(0.01, 0.99), Evidence(0.04, 0.96)]
    assert all_of(parts) == (0.04, 1.0, False)
    assert all_of([Evidence(0.99, 0.01), Evidence(0.5, 0.5)]).speaks_against == 0.02
    exact = same(np.zeros(3))
    assert all_of([exact]) == (0.0, 1.0, True)
    assert all_of([Evidence(0.01, 0.99), same(np.array([0.0, 1.0]))]).speaks_against == 0.0


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.04, 0.01], planned=4) == pytest.approx([0.12, 0.04])


def test_many_verdicts_are_corrected() -> None:
    weak, strong = Evidence(0.02, 0.98), Evidence(1e-6, 1.0)
    findings = [Finding("", weak, 5), Finding("", strong, 5)]
    assert [one.verdict for one in findings] == [Verdict.HOLDS, Verdict.HOLDS]
    assert corrected(findings) == [Verdict.HOLDS, Verdict.HOLDS]
    many = [Finding("", weak, 5)] * 3 + [Finding("", strong, 5)]
    assert corrected(many) == [Verdict.UNDECIDED] * 3 + [Verdict.HOLDS]
    assert corrected(findings, planned=9) == [Verdict.UNDECIDED, Verdict.HOLDS]
    exact = Finding("", Evidence(1.0, 0.0, is_exact=True), 5)
    assert corrected([exact, *many])[0] == Verdict.FAILS  # chance has no part in it


def test_seeds_that_would_decide_are_named() -> None:
    found = finding("order", {"a": [1.0, 3.0, -0.5], "b": [0.0] * 3}, order="a > b")
    assert found.verdict == Verdict.UNDECIDED
    assert found.seeds_needed is not None
    assert 3 < found.seeds_needed < 30
    assert finding("order", VALUES, order="up > same").seeds_needed is None


def spread(n: int, mean: float) -> list[float]:
    """Return n numbers with this mean and a standard deviation of 1."""
    values = np.linspace(-1.0, 1.0, n)
    return list(mean + values / values.std(ddof=1))


@pytest.mark.parametrize(
    ("order", "mean", "verdict"),
    [
        ("a > b", 0.9, "holds"),
        ("a > b", -0.9, "fails"),
        ("a & high > b", 0.9, "holds"),
        ("a & high > b", -0.9, "fails"),
        ("a & high & higher > b", -0.9, "fails"),
        ("a > b = b", -0.9, "fails"),  # equal runs are no matter of chance
        ("a >= b", -2.0, "fails"),
        ("a ~ b", 0.2, "holds"),
        ("a ~ b", -1.9, "fails"),
    ],
)
def test_so_many_seeds_decide_and_one_less_does_not(order: str, mean: float, verdict: str) -> None:
    def judged(n: int) -> Finding:
        values = {"a": spread(n, mean), "b": [0.0] * n, "high": spread(n, 9.0)}
        return finding("order", values | {"higher": spread(n, 99.0)}, order=order, margin=1.0)

    needed = judged(4).seeds_needed
    assert needed is not None
    assert judged(needed - 1).verdict == Verdict.UNDECIDED
    assert judged(needed).verdict == verdict


def test_equal_differences_need_six_seeds() -> None:
    found = finding("order", {"a": [2.0] * 3, "b": [0.0] * 3}, order="a > b")
    assert (found.verdict, found.seeds_needed) == (Verdict.UNDECIDED, 6)


def test_two_seeds_do_not_say_how_many_would_decide() -> None:
    found = finding("order", {"a": [1.0, 3.0], "b": [0.0] * 2}, order="a > b")
    assert (found.verdict, found.seeds_needed) == (Verdict.UNDECIDED, None)


def test_up_to_needs_one_setting_to_hold_and_all_to_fail() -> None:
    good, bad, open_ = Evidence(0.01, 0.99), Evidence(0.99, 0.02), Evidence(0.4, 0.6)
    assert any_of([good, bad], 2) == Evidence(0.02, 0.99)
    assert any_of([bad, bad], 2) == Evidence(1.0, 0.02)
    assert any_of([bad, bad], 3) == Evidence(1.0, 1.0)
    assert any_of([good, bad], 3) == Evidence(0.03, 1.0)
    assert any_of([bad, open_], 2) == Evidence(0.8, 0.6)
    found = {"iid": Finding("1 and 2", bad, 5), "non-iid": Finding("3 and 4", good, 3)}
    assert joined(found, 2)[0:3:2] == ("nearest in non-iid: 3 and 4", 3)
    assert joined(found, 2).verdict == Verdict.HOLDS


def test_nearest_to_up_to_is_the_largest_effect_if_all_are_below() -> None:
    slower, sooner = estimate([-0.4, -0.1, -0.3, -0.2, 0.1]), estimate([0.2, 0.25, 0.22, 0.24, 0.2])
    far = Finding("1 and 2", Evidence(0.9990, 0.0010), 5, effect=slower)
    near = Finding("3 and 4", Evidence(0.9999, 0.0001), 5, effect=sooner)  # small, but steady
    found = joined({"iid": far, "non-iid": near}, 2)
    assert (found.numbers, found.effect) == ("nearest in non-iid: 3 and 4", sooner)
    assert found.verdict == Verdict.FAILS


def test_later_is_undecided_without_pairs() -> None:
    none, two = np.zeros(0), np.full(2, 10.0)
    assert later(none, none, (none, none))[:2] == (1.0, 1.0)
    assert later(np.array([math.nan, 1.0]), np.ones(2), (two, two))[:2] == (1.0, 1.0)


def test_a_run_that_never_got_there_took_at_least_its_own_length() -> None:
    # in seconds: the slow scheme's runs were short, so that "never" says little about it
    schemes = {
        "short": SchemeResults(
            (0, 1, 2),
            2,
            {"time-to-0.8": np.full(3, NEVER), "total-time": np.array([9.0, 9.5, 10.0])},
            {},
            {},
        ),
        "long": SchemeResults(
            (0, 1, 2),
            2,
            {"time-to-0.8": np.array([20.0, 21.0, 22.0]), "total-time": np.full(3, 99.0)},
            {},
            {},
        ),
    }
    claim = Claim(1, "says", "order", "time-to-0.8", order="short > long")
    assert judge(claim, Trials({"n_rounds": 5}, schemes, {})).verdict == Verdict.UNDECIDED


def test_a_run_that_diverged_is_neither_the_same_nor_another() -> None:
    assert same(np.array([0.0, np.nan])) == Evidence(1.0, 1.0)
    found = finding("is", {"a": [1.0, np.nan, 1.0]}, schemes=("a",), limit=1.0)
    assert found.verdict == Verdict.UNDECIDED
    assert "1 of 3 diverged" in found.ours


EARLY, NOT_YET = 0.9, 0.1


@pytest.mark.parametrize(
    ("slow", "fast", "order", "expected"),
    [
        (NOT_YET, NOT_YET, "slow > fast", "holds"),
        (NOT_YET, EARLY, "slow > fast", "holds"),  # it took at most that long
        (EARLY, NOT_YET, "slow > fast", "undecided"),
        (EARLY, EARLY, "slow > fast", "undecided"),
        (NOT_YET, EARLY, "fast > slow", "fails"),
        (EARLY, EARLY, "fast > slow", "undecided"),
    ],
)
def test_the_time_before_the_first_look_is_not_known(
    slow: float, fast: float, order: str, expected: str
) -> None:
    def scheme(times: list[float], first: float) -> SchemeResults:
        curve = Curve(np.array([5, 10]), np.array([[first, 0.95]] + [[NOT_YET, 0.95]] * 3))
        lengths = np.full(4, 200.0)
        measures = {"time-to-0.8": np.array(times), "total-time": lengths}
        return SchemeResults((0, 1, 2, 3), 2, measures, {"accuracy": curve}, {})

    trials = Trials({"n_rounds": 10}, {"slow": scheme(SLOW, slow), "fast": scheme(FAST, fast)}, {})
    found = judge(Claim(1, "says", "order", "time-to-0.8", order=order), trials)
    assert found.verdict == expected
    early = "reached by the first evaluation in 1 of 4 seeds"
    assert (early in found.ours) == (EARLY in (slow, fast))
    if expected == "undecided":
        assert found.seeds_needed is None


def test_the_scheme_that_sets_the_target_is_never_found_sooner() -> None:
    def scheme(peak: float) -> SchemeResults:
        curve = Curve(np.array([5, 10]), np.array([[0.1, peak + i / 100] for i in range(6)]))
        return SchemeResults(tuple(range(6)), 2, {}, {"accuracy": curve}, {})

    trials = Trials({"n_rounds": 99}, {"Random": scheme(0.5), "NCCB": scheme(0.4)}, {})
    for order in ("Random > NCCB", "NCCB > Random"):
        claim = Claim(1, "says", "order", "rounds-to-best-of-Random", order=order)
        found = judge(claim, trials)
        assert (found.evidence[:2], found.seeds_needed) == ((1.0, 1.0), None)
    reached = np.array([[0.1, 0.3, 0.9]] * 3)
    curves = {"Random": reached[:, [0, 2, 1]], "NCCB": reached[:, [0, 1, 2]]}
    schemes = {
        label: SchemeResults((0, 1, 2), 2, {}, {"accuracy": Curve(np.array([5, 10, 50]), v)}, {})
        for label, v in curves.items()
    }
    claim = Claim(1, "says", "order", "rounds-to-best-of-Random", order="Random > NCCB")
    found = judge(claim, Trials({"n_rounds": 99}, schemes, {}))  # 10 against 50 rounds
    assert (found.evidence.speaks_against, found.seeds_needed) == (1.0, None)


def test_first_looks_are_those_of_the_seeds_that_both_have() -> None:
    def scheme(seeds: tuple[int, ...], first: list[float]) -> SchemeResults:
        values = np.array([[math.nan if one < 0 else one, 0.9] for one in first])
        times = {"rounds-to-0.8": np.full(len(seeds), 10.0)}
        return SchemeResults(seeds, 2, times, {"accuracy": Curve(np.array([5, 10]), values)}, {})

    a, b = scheme((0, 1, 2), [0.85, 0.1, 0.1]), scheme((2, 1, 5), [0.1, -1.0, 0.85])
    trials = Trials({"n_rounds": 10}, {"a": a, "b": b}, {})
    early, late = trials.reached_at_once("a", "b", "rounds-to-0.8")
    assert (early.tolist(), late.tolist()) == ([False, False], [True, False])
    early, late = trials.reached_at_once("a", "a", "cep")
    assert not early.any()
    assert not late.any()


def test_claims_print_the_geometric_mean_of_times_which_is_tested() -> None:
    times = {"a": [10.0, 40.0, 20.0], "b": [5.0, 5.0, 40.0]}
    found = finding("order", times, measure="rounds-to-0.8", order="a > b")
    assert found.ours.startswith("a 20, b 10; a / b = 2.00x")


def test_any_step_may_be_the_one_that_more_seeds_decide() -> None:
    equal, down = [0.0] * 4, [-1.0, 0.2, -0.9, -0.3]
    values = {"a": equal, "b": equal, "c": [-one for one in down]}
    found = finding("order", values, order="a > b & c")  # a - b is 0, which no seeds decide
    assert found.deciding.startswith("a - b")
    assert found.seeds_needed is not None


@pytest.mark.parametrize("sign", [">=", "~", "="])
def test_times_are_compared_by_more_only(sign: str) -> None:
    with pytest.raises(InvalidInput, match=r"^times are compared by > only"):
        Claim(1, "", "order", "rounds-to-0.65", order=f"a {sign} b", margin=1.0)


def test_censored_times_do_not_say_how_many_seeds_would_decide() -> None:
    times = {"a": [50.0, 30.0, 70.0, 20.0], "b": [30.0, 40.0, 60.0, 10.0]}
    order = {"order": "a > b", "measure": "rounds-to-0.65"}
    assert finding("order", times, **order).seeds_needed is not None
    times["b"][1] = math.inf
    found = finding("order", times, **order)
    assert (found.verdict, found.seeds_needed) == (Verdict.UNDECIDED, None)


@pytest.mark.parametrize(("seeds", "n_seeds"), [((3, 4, 5), 0), ((2, 3, 4), 1), ((1, 2, 3), 2)])
def test_seeds_are_counted_that_both_schemes_have(seeds: tuple[int, ...], n_seeds: int) -> None:
    schemes = {
        "a": SchemeResults((0, 1, 2), 2, {"cep": np.arange(3.0)}, {}, {}),
        "b": SchemeResults(seeds, 2, {"cep": np.zeros(3)}, {}, {}),
    }
    claim = Claim(1, "as the paper says", "order", "cep", order="a > b")
    found = judge(claim, Trials({"n_rounds": 9}, schemes, {}))
    assert (found.verdict, found.n_seeds) == (Verdict.UNDECIDED, n_seeds)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([NEVER] * 3, "a / b is unknown: no run reached the target"),
        ([NEVER, 20.0, 25.0], ", a run never reached it in 3 of 3 seeds"),
    ],
)
def test_a_time_that_is_not_known_is_said_to_be_so(second: list[float], said: str) -> None:
    values = {"a": [NEVER] * 3, "b": second}
    found = finding("order", values, measure="rounds-to-0.75", order="a > b")
    assert found.ours.endswith(said)
    assert finding("order", {"a": [], "b": []}, order="a > b").ours.endswith("a - b = -")
