from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import StepAfter, StepDecay, make
from turnout.data import PrimaryLabel, Synthetic
from turnout.environments import e3cs_world
from turnout.errors import InvalidInput
from turnout.experiment import Cell, Experiment, estimate, run_experiment
from turnout.papers import Claim, Results, Verdict, judge, load_preset, preset_names
from turnout.papers.claims import RELATIONS, steps_of
from turnout.papers.measures import MEASURES, client_losses
from turnout.papers.plots import DRAWINGS, FORMATS, draw
from turnout.papers.presets import Figure
from turnout.papers.schemes import FixedFedCS, ParticipationPowD
from turnout.simulate import simulate
from turnout.training import KeepGlobal, LocalWork, MeanReturned
from turnout.types import FloatArray

NUMERICAL = ("e3cs-arxiv", "e3cs-journal", "rbcs-f")
TRAINED = ("e3cs-training", "ucb-cs")
PAPERS = tuple(sorted((*NUMERICAL, *TRAINED)))


class Known(Results):
    """Results with values that are given instead of read."""

    def __init__(self, values: dict[str, list[float]]) -> None:
        self.given = values

    def values(self, label: str, measure: str) -> FloatArray:
        return np.array(self.given[label])


def verdict(relation: str, values: dict[str, list[float]], **given: Any) -> Verdict:
    claim = Claim(1, "as the paper says", relation, "cep", **given)
    return judge(claim, Known(values)).verdict


# presets ---------------------------------------------------------------------------------------


def test_the_papers_can_be_named() -> None:
    assert preset_names() == PAPERS
    with pytest.raises(InvalidInput, match=r"'rbcs-f'\?"):
        load_preset("rbcsf")


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_is_complete(name: str) -> None:
    preset = load_preset(name)
    labels = set(preset.experiment.labels)
    assert len(preset.experiment.seed_numbers) >= (5 if name in TRAINED else 10)
    numbers = {figure.number for figure in preset.figures}
    assert {claim.figure for claim in preset.claims} == numbers
    for claim in preset.claims:
        assert set(claim.labels) <= labels
        assert claim.labels
    for figure in preset.figures:
        assert figure.draws in DRAWINGS
        assert set(figure.schemes) <= labels
    assert set(preset.overview) <= MEASURES.keys()
    assert set(preset.published) | set(preset.published.values()) <= labels
    if preset.cost is not None:
        assert set(preset.cost.schemes) <= labels
        assert all(len(row) == len(preset.cost.columns) + 1 for row in preset.cost.rows)
    if preset.regret is not None:
        assert set(preset.regret.schemes) <= labels
    if preset.numbers is not None:
        assert {scheme for scheme, _ in preset.numbers.rows} <= labels
        assert preset.numbers.measure in MEASURES


def test_the_presets_are_the_papers_settings() -> None:
    arxiv, journal, rbcs = (load_preset(name).experiment for name in NUMERICAL)
    assert (arxiv.n_clients, arxiv.cohort_size, arxiv.n_rounds) == (100, 20, 2000)
    assert (journal.n_clients, journal.cohort_size, journal.n_rounds) == (100, 20, 2500)
    assert (rbcs.n_clients, rbcs.cohort_size, rbcs.n_rounds) == (40, 8, 500)
    for experiment, eta in ((arxiv, 0.6), (journal, 0.5)):
        assert experiment.environment(4) == e3cs_world(seed=4)
        made = {variant.label: variant.make() for variant in experiment.variants}
        quarter = experiment.n_rounds // 4
        for label, quota in (("E3CS-0", 0.0), ("E3CS-0.5", 0.5), ("E3CS-0.8", 0.8)):
            assert made[label].parameters == make("e3cs", eta=eta, quota=quota).parameters
        assert made["E3CS-inc"].parameters["quota"] == StepAfter(quarter, 0.0, 1.0)
    published = {v.label: v.parameters for v in journal.variants}["E3CS-0.5 as published"]
    assert (published["draw"], published["estimate"]) == ("multinomial", "gain")
    published = {v.label: v.parameters for v in arxiv.variants}["E3CS-0.5 as published"]
    assert (published["draw"], published["estimate"]) == ("dependent-rounding", "loss")
    made = {variant.label: variant for variant in rbcs.variants}
    assert [made[f"RBCS-F({v})"].parameters["penalty"] for v in (1, 5, 10, 20, 50)] == [
        1.0,
        5.0,
        10.0,
        20.0,
        50.0,
    ]
    assert made["FedCS(3)"].cohort_size == 40


def test_a_shorter_preset_keeps_its_shape() -> None:
    preset = load_preset("e3cs-arxiv", seeds=2, rounds=40)
    quota = {v.label: v.parameters.get("quota") for v in preset.experiment.variants}
    assert preset.experiment.n_rounds == 40
    assert preset.experiment.seed_numbers == (0, 1)
    assert quota["E3CS-inc"]["rounds"] == 10
    assert quota["E3CS-0.8"] == 0.8


def test_the_settings_of_the_papers_that_train() -> None:
    ucb = load_preset("ucb-cs").experiment
    recipe = ucb.recipe()
    assert recipe is not None
    assert recipe.local == LocalWork(steps=30, batch_size=50, lr=StepDecay(0.05, at=(300, 600)))
    assert recipe.aggregation == MeanReturned(by="equal")  # Eq. (2)
    assert recipe.source == Synthetic(1.0, 1.0, n_clients=30)
    sizes = {variant.label: variant.cohort_size for variant in ucb.variants}
    assert [sizes[f"UCB-CS, m={m}"] for m in (1, 2, 3)] == [1, 2, 3]
    for variant in ucb.variants:
        if variant.name.endswith("pow-d"):
            assert variant.parameters["candidates"] == 2 * variant.cohort_size  # d = 2m
    assert ucb.environment(3).fate(5).survived.all()
    e3cs = load_preset("e3cs-training").experiment
    recipe = e3cs.recipe()
    assert recipe is not None
    assert recipe.local == LocalWork(epochs=(1, 2, 3, 4), batch_size=40, lr=0.01, momentum=0.9)
    assert recipe.partition == PrimaryLabel(share=0.8, samples=500)
    assert (recipe.aggregation, recipe.hold_out) == (KeepGlobal(), 0.1)
    assert e3cs.environment(2) == e3cs_world(seed=2)


def test_what_is_trained_can_be_changed() -> None:
    changed = load_preset("e3cs-training", training={"aggregation": "mean-returned"}).experiment
    recipe = changed.recipe()
    assert recipe is not None
    assert recipe.aggregation == MeanReturned()
    assert changed.world_id != load_preset("e3cs-training").experiment.world_id
    short = load_preset("ucb-cs", rounds=80).experiment.recipe()
    assert short is not None
    assert short.local.lr == StepDecay(0.05, at=(30, 60))
    with pytest.raises(InvalidInput, match="rbcs-f trains nothing"):
        load_preset("rbcs-f", training={"model": "mlp"})


def test_only_what_a_figure_needs_is_run() -> None:
    preset = load_preset("rbcs-f")
    queues = [f"RBCS-F({v})" for v in (1, 5, 10, 20, 50)]
    assert preset.schemes_for((2,), times=1, extras=False) == queues
    assert preset.schemes_for((2,), times=4, extras=True) == queues
    assert preset.schemes_for((3,), times=4, extras=True) == []
    journal = load_preset("e3cs-journal")
    assert len(journal.schemes_for((3,), times=1, extras=True)) == 18
    assert len(journal.schemes_for((3,), times=1, extras=False)) == 7
    with pytest.raises(InvalidInput, match="no figure 9 here; choose from 2, 3, 4"):
        preset.figure(9)


# claims ----------------------------------------------------------------------------------------


def test_orders_are_read() -> None:
    labels, signs = steps_of("A > B(1) >= C-0.5 = D ~ E")
    assert labels == ("A", "B(1)", "C-0.5", "D", "E")
    assert signs == (">", ">=", "=", "~")


UP, SAME, DOWN = [3.0, 3.1, 3.2], [1.0, 1.1, 1.2], [0.0, 0.1, 0.2]
NOISY = [0.0, 2.4, 1.1]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("up > same > down", Verdict.HOLDS),
        ("same > up", Verdict.FAILS),
        ("same > noisy", Verdict.WITHIN),
        ("up > same > noisy", Verdict.WITHIN),
        ("noisy > same > up", Verdict.FAILS),
        ("same >= noisy", Verdict.HOLDS),
        ("same >= up", Verdict.FAILS),
        ("same = same", Verdict.HOLDS),
        ("same = noisy", Verdict.WITHIN),
        ("same = up", Verdict.FAILS),
        ("up > same ~ same > down", Verdict.HOLDS),
        ("up > same ~ down", Verdict.HOLDS),
        ("up ~ same > down", Verdict.FAILS),
    ],
)
def test_orders_are_judged_by_paired_intervals(order: str, expected: Verdict) -> None:
    values = {"up": UP, "same": SAME, "down": DOWN, "noisy": NOISY}
    assert verdict("order", values, order=order) == expected


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
    values = {"up": UP, "same": SAME, "down": DOWN, "noisy": NOISY}
    claim = Claim(1, "as the paper says", "order", "cep", order=order)
    assert f"weakest step: {step} = " in judge(claim, Known(values)).ours


@pytest.mark.parametrize(
    ("relation", "limit", "expected"),
    [
        ("below", 5.0, Verdict.HOLDS),
        ("below", 1.1, Verdict.WITHIN),
        ("below", 0.0, Verdict.FAILS),
        ("above", 5.0, Verdict.FAILS),
        ("above", 1.1, Verdict.WITHIN),
        ("above", 0.0, Verdict.HOLDS),
        ("is", 1.1, Verdict.WITHIN),
        ("is", 5.0, Verdict.FAILS),
    ],
)
def test_limits_are_judged_by_intervals(relation: str, limit: float, expected: Verdict) -> None:
    assert verdict(relation, {"same": SAME}, schemes=("same",), limit=limit) == expected


def test_one_scheme_that_fails_is_a_claim_that_fails() -> None:
    claim = Claim(1, "says", "below", "cep", schemes=("up", "down"), limit=1.0)
    found = judge(claim, Known({"up": UP, "down": DOWN}))
    assert found.verdict == Verdict.FAILS
    assert found.ours.startswith("up 3 ± 0 (fails); down")


def test_exact_values_hold_and_differences_are_paired() -> None:
    assert verdict("is", {"a": [2.0, 2.0]}, schemes=("a",), limit=2.0) == Verdict.HOLDS
    values = {"a": [1.0, 5.0, 9.0], "b": [0.9, 4.9, 8.9]}
    assert verdict("equal", values, schemes=("a", "b")) == Verdict.FAILS
    assert verdict("equal", {"a": SAME, "b": NOISY}, schemes=("a", "b")) == Verdict.WITHIN


def test_published_forms_take_the_place_of_ours() -> None:
    claim = Claim(1, "says", "order", "cep", order="a > b")
    values = Known({"a": UP, "b": SAME, "a published": DOWN})
    assert judge(claim, values).verdict == Verdict.HOLDS
    assert judge(claim, values, {"a": "a published"}).verdict == Verdict.FAILS


def test_a_claim_needs_a_known_relation_and_measure() -> None:
    with pytest.raises(InvalidInput, match="relation"):
        Claim(1, "says", "beats", "cep")
    with pytest.raises(InvalidInput, match="measure"):
        Claim(1, "says", "order", "elegance")
    assert set(RELATIONS) == {"order", "below", "above", "is", "equal"}


# measures --------------------------------------------------------------------------------------


def cell(**columns: Any) -> Cell:
    n_rounds = max(len(values) for values in columns.values())
    empty = {"clients": np.int64, "status": np.int8}
    empty |= dict.fromkeys(("duration", "spent", "probability"), np.float64)
    made: dict[str, Any] = {name: np.zeros(0, kind) for name, kind in empty.items()}
    made |= {"offsets": np.zeros(n_rounds + 1, np.int64), "n_available": np.zeros(n_rounds)}
    made |= {"length_s": np.zeros(n_rounds)}
    config = {"n_clients": 4, "cohort_size": 2}
    return Cell(Path(), config, {}, made | {k: np.asarray(v) for k, v in columns.items()})


def of(measure: str, given: Cell) -> float:
    return MEASURES[measure].compute(given)


def test_the_turn_is_found_where_success_changes() -> None:
    status = np.repeat([0, 3], [60, 140])  # one choice a round, answered until round 60
    made = cell(
        clients=np.zeros(200, np.int64),
        status=status,
        offsets=np.arange(201),
        duration=np.ones(200),
        spent=np.ones(200),
        probability=np.ones(200),
        length_s=np.ones(200),
        n_available=np.ones(200),
    )
    assert of("turn-offset", made) == 60 - 50


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_growth_is_the_exponent(exponent: float) -> None:
    backlog = 3.0 * np.arange(1, 1001) ** exponent
    # a chord over the last fifth instead of a tangent: off by less than (1/9)**2
    assert of("backlog-growth", cell(backlog_mean=backlog)) == pytest.approx(exponent, abs=0.012)


def test_levels_and_time_constants() -> None:
    backlog = 8.0 * (1.0 - np.exp(-np.arange(1, 2001) / 50.0))
    made = cell(backlog_mean=backlog)
    assert of("backlog-level", made) == pytest.approx(8.0)
    assert of("time-constant", made) == 50.0


def test_shortfall_falls_when_the_longest_queue_stands() -> None:
    assert of("shortfall-fall", cell(backlog_max=np.full(100, 5.0))) == pytest.approx(0.05)
    growing = cell(backlog_max=0.15 * np.arange(1, 101))
    assert of("shortfall-fall", growing) == pytest.approx(0.0)


def test_measures_of_classes() -> None:
    clients = np.repeat([0, 1, 2, 3], [1, 1, 6, 2])
    made = cell(
        clients=clients,
        status=np.zeros(10),
        offsets=np.arange(11),
        duration=np.ones(10),
        spent=np.ones(10),
        probability=np.ones(10),
        class_of=[0, 0, 1, 1],
        length_s=np.ones(10),
        n_available=np.ones(10),
    )
    assert of("best-class-share", made) == 0.8
    assert of("largest-wrong-count", made) == 1.0
    assert of("best-class-jain", made) == pytest.approx(64 / (2 * 40))
    assert of("best-class-quartile", made) == pytest.approx(0.3)


def test_cohort_measures() -> None:
    made = cell(offsets=np.cumsum([0, 7, 9, 11, 9]), length_s=np.ones(4), n_available=np.ones(4))
    assert of("cohort-mean", made) == 9.0
    assert of("cohort-offset", made) == pytest.approx(1.0 / math.sqrt(2.0))


# schemes ---------------------------------------------------------------------------------------


def test_fixed_fedcs_never_changes_its_choice() -> None:
    run = simulate(FixedFedCS(), e3cs_world(), cohort_size=20, n_rounds=30)
    assert run.counts[75:95].tolist() == [30] * 20
    assert run.counts.sum() == 600


def test_participation_pow_d_equalises_aggregated_updates() -> None:
    scheme = ParticipationPowD(candidates=100)
    run = simulate(scheme, e3cs_world(seed=1), cohort_size=20, n_rounds=400)
    # it always takes the clients with the fewest updates, so nobody runs away from the others
    assert np.ptp(scheme.n_aggregated_) <= np.ptp(run.counts)
    by_class = run.counts.reshape(4, 25).mean(axis=1)
    # equal numbers of successes need 1 / rate attempts: the first class is three times the second
    assert by_class[0] > 2.0 * by_class[1] > 4.0 * by_class[3]
    assert scheme.n_aggregated_.sum() == run.cep[-1]


# the papers themselves, shortened --------------------------------------------------------------


@pytest.fixture(scope="module")
def shortened(tmp_path_factory: pytest.TempPathFactory) -> Results:
    preset = load_preset("e3cs-arxiv", seeds=5, rounds=480)
    labels = preset.schemes_for((2, 3), times=1, extras=False)
    folder = tmp_path_factory.mktemp("arxiv")
    return Results(run_experiment(preset.experiment, folder, n_jobs=1, labels=labels))


def test_the_claims_of_e3cs(shortened: Results) -> None:
    found = {
        claim.says: judge(claim, shortened).verdict for claim in load_preset("e3cs-arxiv").claims
    }
    equality = "E3CS-inc goes to the value of Random after T/4"
    assert found.pop(equality) == Verdict.WITHIN
    assert set(found.values()) == {Verdict.HOLDS}
    for label in ("E3CS-0", "E3CS-0.5", "E3CS-0.8"):
        regret = shortened.values(label, "regret")
        assert (regret < shortened.values(label, "regret-bound")).all()


def test_time_falls_with_the_penalty(tmp_path: Path) -> None:
    preset = load_preset("rbcs-f", seeds=2, rounds=150)
    labels = preset.schemes_for((3, 4), times=1, extras=False)
    results = Results(run_experiment(preset.experiment, tmp_path, n_jobs=1, labels=labels))
    mean = {label: results.estimate(label, "total-time").mean for label in labels}
    ordered = ["random", *(f"RBCS-F({v})" for v in (1, 5, 10, 20, 50)), "FedCS(3)"]
    assert sorted(mean, key=lambda label: -mean[label]) == ordered
    for number in (3, 4):
        check_drawing(preset.figure(number), results, tmp_path, ordered)


@pytest.mark.parametrize("number", [2, 3])
def test_figures_are_drawn(number: int, shortened: Results, tmp_path: Path) -> None:
    figure = load_preset("e3cs-arxiv").figure(number)
    check_drawing(figure, shortened, tmp_path, figure.schemes)


def test_queues_are_drawn(tmp_path: Path) -> None:
    preset = load_preset("rbcs-f", seeds=2, rounds=20)
    labels = preset.schemes_for((2,), times=1, extras=False)
    results = Results(run_experiment(preset.experiment, tmp_path, n_jobs=1, labels=labels))
    check_drawing(preset.figure(2), results, tmp_path, labels)
    first = {path: path.read_bytes() for path in draw(preset.figure(2), results, tmp_path)}
    again = {path: path.read_bytes() for path in draw(preset.figure(2), results, tmp_path)}
    assert first == again  # no dates inside


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Results:
    preset = load_preset("ucb-cs", seeds=2, rounds=40)
    labels = [label for label in preset.experiment.labels if "m=3" not in label]
    folder = tmp_path_factory.mktemp("ucb")
    return Results(run_experiment(preset.experiment, folder, n_jobs=1, labels=labels))


def test_training_is_measured_and_drawn(trained: Results, tmp_path: Path) -> None:
    cell = trained.cells("UCB-CS, m=1")[0]
    loss = cell.run.measured["local_loss"]
    seen = loss[np.isfinite(loss)]
    assert seen.size == 4  # every tenth round
    measured = {name: MEASURES[name].compute(cell) for name in MEASURES if "loss" in name}
    assert measured["global-loss"] == seen[-1]
    assert measured["global-loss-early"] == seen[0]
    assert measured["log-global-loss"] == math.log(seen[-1])
    assert measured["worst-client-loss"] == client_losses(cell).max()
    shares = cell.run.measured["accuracy"]
    assert MEASURES["final-accuracy"].compute(cell) == shares[np.isfinite(shares)][-1]
    schemes = tuple(trained.grid.labels)
    check_drawing(Figure(1, "global-loss", schemes), trained, tmp_path, ["UCB-CS", "m = 2"])
    check_drawing(Figure(2, "client-losses", schemes[:4]), trained, tmp_path, schemes[:4])
    check_drawing(Figure(5, "accuracy", schemes[:2]), trained, tmp_path, schemes[:2])


def check_drawing(figure: Any, results: Results, folder: Path, texts: Any) -> None:
    written = draw(figure, results, folder)
    assert [path.suffix for path in written] == [f".{form}" for form in FORMATS]
    assert written[0].read_bytes().startswith(b"%PDF")
    assert written[2].read_bytes().startswith(b"\x89PNG")
    svg = written[1].read_text(encoding="utf-8")
    assert all(text in svg for text in texts)


def test_results_are_read_from_the_folder(shortened: Results) -> None:
    experiment: Experiment = shortened.grid.experiment
    assert len(shortened.cells("Random")) == len(experiment.seed_numbers)
    values = shortened.values("Random", "cep")
    assert shortened.estimate("Random", "cep") == estimate(values)
    assert values.tolist() == shortened.grid.values("Random", "cep")
