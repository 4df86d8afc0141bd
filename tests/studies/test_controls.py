"""Positive controls: each method wins in its own world, and would not if it were random."""

import dataclasses
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest

from turnout import simulate
from turnout.core.errors import InvalidInput
from turnout.data import Digits, federate
from turnout.studies import controls, properties
from turnout.studies.control_worlds import Dialects, MeanSuccess, Pairs, Redundant
from turnout.studies.controls import (
    Bar,
    BarFinding,
    ControlVerdict,
    controls_named,
    judged,
    run_control,
    verdicts,
)
from turnout.studies.results_file import ResultsFile
from turnout.studies.trials import SchemeResults, Trials
from turnout.worlds import ByClass, Environment, Swapping, rbcs_f_world

ROOT = Path(__file__).parents[2]

#: The short form of each control: rivals, rounds, seeds.
SHORT = {
    "e3cs-adversary": (("Random",), 400, (0, 1)),
    "e3cs-switch": (("Random", "mean success"), 600, (0, 1)),
    "rbcs-f": (("FedCS(3)", "without context"), 200, (0, 1)),
    "ucb-cs": (("Random",), 100, (0, 1)),
    "ucb-cs-order": (("Random", "rpow-d"), 100, (0, 1)),
    "oort": (("Random",), 100, (0, 1)),
    "k-linucb": (("Random",), 60, (0, 1, 2)),
    "nccb": (("Random",), 30, (0,)),
    "nccb-pairs": (("Random",), 30, (0, 1)),
}


def gains(label, method=""):
    """Return the mean gain beyond the margin for each bar of a short form; above 0 = passed."""
    rivals, n_rounds, seeds = SHORT[label]
    control = controls_named([label])[0].shortened(rivals=rivals, n_rounds=n_rounds, method=method)
    found = judged(control, run_control(control, seeds, n_jobs=1))
    assert [one.n_seeds for one in found] == [len(seeds)] * len(rivals)
    return [
        math.log(one.bar.margin) - math.log(one.effect)
        if one.bar.is_ratio
        else (-one.effect if one.bar.less_is_better else one.effect) - one.bar.margin
        for one in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize("label", SHORT)
def test_the_method_wins_where_its_assumption_holds(label):
    assert min(gains(label)) > 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "label", ["e3cs-adversary", "rbcs-f", "ucb-cs-order", "oort", "nccb-pairs"]
)
def test_a_random_draw_in_place_of_the_method_does_not_pass(label):
    assert min(gains(label, method="random")) < 0.0


def test_every_control_has_a_short_form_and_a_bar_against_its_rivals():
    assert [control.label for control in controls_named()] == list(SHORT)
    for control in controls_named():
        labels = control.experiment((0,)).labels
        assert control.scheme in labels
        assert {bar.rival for bar in control.bars} <= set(labels) - {control.scheme}
        assert "Random" in {bar.rival for bar in control.bars}


def test_an_unknown_control_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match="unknown control 'ort'"):
        controls_named(["ort"])


@pytest.mark.parametrize(
    ("measure", "margin", "message"),
    [("time-to-0.8", 1.5, "a ratio"), ("final-accuracy", -0.1, "at least 0")],
)
def test_a_margin_that_makes_no_sense_is_refused(measure, margin, message):
    with pytest.raises(InvalidInput, match=message):
        Bar(measure, "Random", margin)


def trials(measure, ours, theirs, **more):
    def scheme(values):
        arrays = {name: np.asarray(one, dtype=float) for name, one in values.items()}
        return SchemeResults(tuple(range(len(ours))), 5, arrays, {}, {})

    both = {"A": {measure: ours, **more}, "B": {measure: theirs, **more}}
    experiment = {"n_rounds": 10, "selectors": [{"label": "A"}, {"label": "B"}]}
    return Trials(experiment, {label: scheme(values) for label, values in both.items()}, {})


def judge(bar, results):
    control = dataclasses.replace(controls_named()[0], scheme="A", bars=(bar,))
    return judged(control, results)[0]


def test_an_effect_is_a_difference_and_less_loss_is_a_gain():
    bar = Bar("global-loss", "B", 0.1)
    found = judge(bar, trials("global-loss", [1.0, 1.1, 1.2, 1.0], [2.0, 2.0, 2.1, 2.1]))
    assert found.effect == pytest.approx(-0.975)
    assert found.low < found.effect < found.high
    assert found.wins < 0.01
    assert verdicts([found]) == [ControlVerdict.WINS]
    backwards = judge(bar, trials("global-loss", [2.0, 2.0, 2.1, 2.1], [1.0, 1.1, 1.2, 1.0]))
    assert verdicts([backwards]) == [ControlVerdict.LOSES]


def test_an_effect_on_times_is_a_ratio_and_a_bound_where_the_rival_never_got_there():
    length = {"total-time": [100.0] * 4}
    times = trials("time-to-0.8", [20, 22, 21, 19], [80, 90, math.inf, 85], **length)
    found = judge(Bar("time-to-0.8", "B", 0.5), times)
    ratio = np.exp(np.log([20 / 80, 22 / 90, 21 / 100, 19 / 85]).mean())
    assert found.effect == pytest.approx(ratio)
    assert found.is_bound
    assert verdicts([found]) == [ControlVerdict.WINS]


def test_better_by_less_than_the_margin_is_short_and_noise_is_undecided():
    close = [0.52, 0.53, 0.525, 0.52]
    short = judge(Bar("final-accuracy", "B", 0.1), trials("final-accuracy", close, [0.5] * 4))
    noise = judge(
        Bar("final-accuracy", "B", 0.0), trials("final-accuracy", [0.4, 0.6, 0.5, 0.55], [0.5] * 4)
    )
    assert verdicts([short]) == [ControlVerdict.SHORT]
    assert verdicts([noise]) == [ControlVerdict.UNDECIDED]


def test_verdicts_are_corrected_for_the_number_of_bars():
    bar, values = Bar("final-accuracy", "B", 0.0), np.zeros(10)
    near = BarFinding(bar, 0.1, 0.01, 0.2, values, 0.01, 0.01, 0.99, False)
    assert verdicts([near]) == [ControlVerdict.WINS]
    assert verdicts([near] * 10) == [ControlVerdict.UNDECIDED] * 10


def test_the_kept_results_follow_the_protocol_of_the_file():
    kept = ResultsFile.read(ROOT / "results" / "controls.json", "controls")
    for control in controls_named():
        kept.check(control.label, 1, control.experiment().table())
        part = kept.parts[(control.label, 1)]
        assert {scheme.seeds for scheme in part.schemes.values()} == {controls.SEEDS}


def test_the_page_is_made_from_the_results():
    spec = importlib.util.spec_from_file_location("build_when", ROOT / "docs" / "build_when.py")
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    results = ResultsFile.read(built.RESULTS, "controls")
    sets = json.loads(built.PROPERTIES.read_text(encoding="utf-8"))["sets"]
    assert built.page(results, sets) == built.PAGE.read_text(encoding="utf-8")
    sets["phones"]["values"]["spread"] = [0.777]
    assert "0.78" in built.page(results, sets)


def test_dialects_share_no_words_and_the_test_is_in_the_rich_ones():
    source = Dialects(n_authors=40, n_dialects=4, n_rich=1, rich_words=20)
    data = source.load(seed=0)
    rich = set(range(1, 21))
    assert set(np.unique(data.x_test)) <= rich
    words = [set(np.unique(data.x[data.group == author])) for author in range(40)]
    assert sum(own <= rich for own in words) == 10
    assert all(own <= rich or not own & rich for own in words)
    following = dict(zip(data.x.ravel().tolist(), data.y.ravel().tolist(), strict=True))
    assert [following[word] for word in data.x[0]] == data.y[0].tolist()
    assert np.array_equal(source.load(seed=0).x, data.x)
    assert not np.array_equal(source.load(seed=1).x, data.x)


def test_redundant_clients_hold_the_common_labels_only():
    data = federate(Digits(), Redundant(share=0.7, samples=30), n_clients=20, seed=0)
    common = data.label_counts[:, :2].sum(axis=1)
    assert sorted(common) == [0] * 6 + [30] * 14
    assert data.num_samples.tolist() == [30] * 20
    with pytest.raises(InvalidInput, match="samples is 900, but digits has only"):
        federate(Digits(), Redundant(samples=900), n_clients=20, seed=0)


def test_pairs_are_not_linear():
    population = Pairs(level_spread=0.5, n_features=4)
    bits, level = population.features(500, 0), population.loss_level(500, 0)
    assert properties.explained_share(bits, level) < 0.05
    both = np.column_stack([bits, bits[:, 0] ^ bits[:, 1]])
    assert properties.explained_share(both, level) > 0.95
    with pytest.raises(InvalidInput, match="n_features"):
        Pairs(n_features=1)


def test_mean_success_finds_the_reliable_in_a_world_that_stays():
    world = Environment(20, 0, volatility=ByClass((0.1, 0.9)))
    run = simulate(MeanSuccess(), world, cohort_size=4, n_rounds=300)
    assert run.counts[10:].sum() > 0.8 * run.counts.sum()


def test_features_explain_what_they_determine_and_nothing_else():
    rng = np.random.default_rng(1)
    bits = rng.integers(2, size=(400, 16))
    assert properties.explained_share(bits, bits @ rng.normal(size=16)) > 0.98
    assert properties.explained_share(bits, rng.normal(size=400)) < 0.02
    with pytest.raises(InvalidInput, match="20 clients or more"):
        properties.explained_share(bits[:10], np.ones(10))


def test_spread_persistence_and_drift():
    still = np.tile([1.0, 2.0, 3.0], (4, 1))
    assert properties.relative_spread(still) == pytest.approx(np.std([1, 2, 3]) / 2)
    assert properties.persistence(still, 1) == pytest.approx(1.0)
    assert properties.drift(still) == 0.0
    turning = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert properties.persistence(turning, 1) == pytest.approx(-1.0)
    assert properties.drift(turning) == pytest.approx((4 / 3) / 2)
    with pytest.raises(InvalidInput, match="lag must be from 1 to 3"):
        properties.persistence(still, 4)


def test_success_lasts_until_classes_swap():
    stays = properties.success_rates(Environment(100, 0, volatility=ByClass((0.1, 0.9))), 200)
    swaps = Swapping(ByClass((0.1, 0.9)), at=40)
    turns = properties.success_rates(Environment(100, 0, volatility=swaps), 200)
    assert stays["lasts"] > 0.95 > -0.95 > turns["lasts"]
    assert stays["spread"] == pytest.approx(0.4, abs=0.02)


def test_a_context_explains_more_of_the_times_than_the_client_does():
    shares = properties.time_shares(rbcs_f_world(seed=0), 500)
    assert 0.3 < shares["client"] < shares["context"] < 0.6


def test_losses_are_looked_at_and_utilities_are_of_everyone():
    control = controls_named(["ucb-cs"])[0].shortened(rivals=["Random"], n_rounds=10)
    found = properties.losses_of(control.experiment((0,)), seed=0, every=5)
    assert found.over_time.shape == (2, 50)
    assert found.utility.shape == (50,)
    assert found.features.shape == (50, 64)
    plain = controls_named(["k-linucb"])[0].experiment((0,))
    with pytest.raises(InvalidInput, match="must train a model"):
        properties.losses_of(plain, seed=0, every=5)
