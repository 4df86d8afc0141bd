from __future__ import annotations

import numpy as np
import pytest

from turnout import ExponentialDecay, StepAfter, StepDecay, make
from turnout.core.errors import InvalidInput
from turnout.data import Dirichlet, Iid, PrimaryLabel, Synthetic
from turnout.experiment import simulate
from turnout.studies import load_preset, preset_names
from turnout.studies.measures import measure_named
from turnout.studies.paper_figures import DRAWINGS
from turnout.studies.presets import NumbersTable
from turnout.studies.schemes import FixedFedCS, ParticipationPowD
from turnout.training import (
    EmnistCnn,
    FashionCnn,
    KeepGlobal,
    LocalWork,
    MeanReturned,
    Mlp,
    StackedLstm,
    Training,
)
from turnout.worlds import e3cs_world

NUMERICAL = ("e3cs-arxiv", "e3cs-journal", "rbcs-f")
TRAINED = (
    "e3cs-arxiv-training",
    "e3cs-letters",
    "e3cs-training",
    "nccb",
    "nccb-text",
    "rbcs-f-training",
    "ucb-cs",
    "ucb-cs-fmnist",
    "ucb-cs-grid",
)
PAPERS = tuple(sorted((*NUMERICAL, *TRAINED)))

# presets ---------------------------------------------------------------------------------------


def test_the_papers_can_be_named() -> None:
    assert preset_names() == PAPERS
    with pytest.raises(InvalidInput, match=r"'rbcs-f'\?"):
        load_preset("rbcsf")


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_is_complete(name: str) -> None:
    preset = load_preset(name)
    labels = set(preset.experiment.labels)
    assert len(preset.experiment.seeds) >= (3 if name in TRAINED else 10)
    numbers = {figure.number for figure in preset.figures}
    settings = {setting.label for setting in preset.settings}
    figures = {claim.figure for claim in preset.claims}
    assert figures <= numbers
    for number in numbers - figures:  # nothing to judge where there is one seed
        panels = [setting for setting in preset.settings if preset.figure(number).is_of(setting)]
        assert all(len(preset.experiment_of(setting).seeds) == 1 for setting in panels)
    for claim in preset.claims:
        named = claim.labels(preset.drawn(claim.figure))
        assert set(named) <= labels
        assert len(named) >= 1
        assert set(claim.settings) <= settings
    for figure in preset.figures:
        assert figure.draws in DRAWINGS
        assert set(figure.schemes) <= labels
        assert set(figure.settings) <= settings
        assert not figure.against or figure.against in figure.schemes
        assert not figure.against or DRAWINGS[figure.draws].axes
    assert all(measure_named(name).title for name in preset.measures())
    assert set(preset.published) | set(preset.published.values()) <= labels
    if preset.cost is not None:
        assert set(preset.cost.schemes) <= labels
        assert all(len(row) == len(preset.cost.columns) + 1 for row in preset.cost.rows)
    if preset.regret is not None:
        assert set(preset.regret.schemes) <= labels
    for setting in preset.settings:
        assert set(setting.schemes) <= labels
        assert preset.schemes_for(setting, tuple(numbers), times=1, extras=True)
    for table in preset.numbers:
        assert {row[0] for row in table.rows} <= labels
        assert set(table.settings) <= settings
        assert all(measure_named(name).title for name in table.measures)


def test_the_presets_are_the_papers_settings() -> None:
    arxiv, journal, rbcs = (load_preset(name).experiment for name in NUMERICAL)
    assert (arxiv.n_clients, arxiv.cohort_size, arxiv.n_rounds) == (100, 20, 2000)
    assert (journal.n_clients, journal.cohort_size, journal.n_rounds) == (100, 20, 2500)
    assert (rbcs.n_clients, rbcs.cohort_size, rbcs.n_rounds) == (40, 8, 500)
    for experiment, eta in ((arxiv, 0.6), (journal, 0.5)):
        assert experiment.environment(4) == e3cs_world(seed=4)
        made = {variant.label: variant.make() for variant in experiment.selectors}
        quarter = experiment.n_rounds // 4
        for label, quota in (("E3CS-0", 0.0), ("E3CS-0.5", 0.5), ("E3CS-0.8", 0.8)):
            assert made[label].parameters == make("e3cs", eta=eta, quota=quota).parameters
        assert made["E3CS-inc"].parameters["quota"] == StepAfter(quarter, 0.0, 1.0)
    published = {v.label: v.parameters for v in journal.selectors}["E3CS-0.5 as published"]
    assert (published["draw"], published["estimate"]) == ("multinomial", "gain")
    published = {v.label: v.parameters for v in arxiv.selectors}["E3CS-0.5 as published"]
    assert (published["draw"], published["estimate"]) == ("dependent-rounding", "loss")
    made = {variant.label: variant for variant in rbcs.selectors}
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
    quota = {v.label: v.parameters.get("quota") for v in preset.experiment.selectors}
    assert preset.experiment.n_rounds == 40
    assert preset.experiment.seeds == (0, 1)
    assert quota["E3CS-inc"]["rounds"] == 10
    assert quota["E3CS-0.8"] == 0.8


def test_the_settings_of_the_papers_that_train() -> None:
    ucb = load_preset("ucb-cs").experiment
    recipe = ucb.training
    assert recipe is not None
    assert recipe.local == LocalWork(steps=30, batch_size=50, lr=StepDecay(0.05, at=(300, 600)))
    assert recipe.aggregation == MeanReturned(by="equal")  # Eq. (2)
    assert recipe.source == Synthetic(1.0, 1.0, n_clients=30)
    sizes = {variant.label: variant.cohort_size for variant in ucb.selectors}
    assert [sizes[f"UCB-CS, m={m}"] for m in (1, 2, 3)] == [1, 2, 3]
    for variant in ucb.selectors:
        if variant.name.endswith("pow-d"):
            assert variant.parameters["candidates"] == 2 * variant.cohort_size  # d = 2m
    assert ucb.environment(3).fate(5).survived.all()
    e3cs = load_preset("e3cs-training").experiment
    recipe = e3cs.training
    assert recipe is not None
    assert recipe.local == LocalWork(epochs=(1, 2, 3, 4), batch_size=40, lr=0.01, momentum=0.9)
    assert recipe.partition == PrimaryLabel(share=0.8, samples=500)
    assert (recipe.aggregation, recipe.hold_out) == (KeepGlobal(), 0.1)
    assert e3cs.environment(2) == e3cs_world(seed=2)


#: Local training as the texts have it; of NCCB batch and optimiser are ours.
LOCAL = {
    "e3cs-arxiv-training": LocalWork(epochs=3, batch_size=40, lr=0.005, momentum=0.9),
    "e3cs-letters": LocalWork(epochs=(1, 2, 3, 4), batch_size=40, lr=0.01, momentum=0.9),
    "ucb-cs-fmnist": LocalWork(steps=100, batch_size=64, lr=StepDecay(0.005, at=(150,))),
    "nccb": LocalWork(
        epochs=5, batch_size=40, lr=ExponentialDecay(0.002, 0.9993), optimizer="adam"
    ),
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_training_is_that_of_the_paper(name: str) -> None:
    recipe = load_preset(name).experiment.training
    assert recipe is not None
    assert recipe.local == LOCAL[name]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("e3cs-arxiv-training", (100, 20, 400)),
        ("e3cs-letters", (100, 20, 400)),
        ("e3cs-training", (100, 20, 400)),
        ("rbcs-f-training", (40, 8, 200)),
        ("ucb-cs-fmnist", (100, 3, 300)),
        ("nccb", (700, 5, 100)),
        ("nccb-text", (700, 5, 300)),
    ],
)
def test_clients_cohort_and_rounds_of_training(name: str, sizes: tuple[int, int, int]) -> None:
    experiment = load_preset(name).experiment
    assert (experiment.n_clients, experiment.cohort_size, experiment.n_rounds) == sizes


@pytest.mark.parametrize(
    ("name", "eta", "draw", "estimate"),
    [
        ("e3cs-arxiv-training", 0.6, "dependent-rounding", "loss"),  # arXiv Alg. 1, Eq. (10)
        ("e3cs-training", 0.5, "multinomial", "gain"),  # journal Alg. 1, Eq. (15)
    ],
)
def test_published_forms_that_are_trained(name: str, eta: float, draw: str, estimate: str) -> None:
    made = {variant.label: variant.make() for variant in load_preset(name).experiment.selectors}
    published = [label for label in made if label.endswith("as published")]
    assert len(published) == 4
    for label in published:
        parameters = made[label].parameters
        found = tuple(parameters[key] for key in ("eta", "draw", "estimate"))
        assert found == (eta, draw, estimate)
        assert made[label.removesuffix(" as published")].parameters["quota"] == parameters["quota"]


def test_data_and_models_of_the_papers_that_train() -> None:
    def recipe(name: str, label: str) -> Training:
        preset = load_preset(name)
        found = preset.experiment_of(preset.setting(label)).training
        assert found is not None
        return found

    arxiv = recipe("e3cs-arxiv-training", "Fashion-MNIST, alpha = 0.5")
    assert arxiv.partition == PrimaryLabel(share=0.5, samples=1000)
    assert arxiv.aggregation == KeepGlobal()  # Alg. 1 line 13
    prox = recipe("e3cs-training", "Fashion-MNIST, non-iid, FedProx, keep-global")
    assert prox.local.proximal == 0.5
    cnn = recipe("e3cs-training", "Fashion-MNIST, CNN, non-iid, FedAvg, keep-global")
    assert cnn.model == EmnistCnn()
    rbcs = recipe("rbcs-f-training", "gamma_1 = 0.1")
    assert (rbcs.partition, rbcs.model) == (Dirichlet(alpha=0.1, samples=500), FashionCnn())
    fmnist = recipe("ucb-cs-fmnist", "alpha = 2")
    assert (fmnist.partition, fmnist.model) == (Dirichlet(alpha=2.0), Mlp((200, 200)))
    assert fmnist.aggregation == MeanReturned(by="equal")
    over_clients = recipe("ucb-cs-fmnist", "alpha = 0.3, over clients").partition
    assert over_clients == Dirichlet(alpha=0.3, equal_sizes=False, min_samples=10)
    assert recipe("nccb", "authors").model == StackedLstm(embedding=200, hidden=200, layers=2)
    text, plain = recipe("nccb-text", "authors"), recipe("nccb", "authors")
    assert (text.model, text.local, text.partition) == (plain.model, plain.local, plain.partition)
    assert (text.source.stop_words, plain.source.stop_words) == ("english", ())
    assert text.participants.endswith(":Watched")
    assert len(load_preset("nccb-text").experiment.seeds) == 10


def test_the_grid_of_ucb_cs_changes_d_and_gamma_alone() -> None:
    grid, one = load_preset("ucb-cs-grid"), load_preset("ucb-cs-fmnist")
    assert grid.experiment.training == one.experiment.training
    assert grid.experiment.n_rounds == one.experiment.n_rounds
    made = {variant.label: variant.make() for variant in grid.experiment.selectors}
    for d in (6, 15, 30):
        assert made[f"rpow-d (d={d})"].parameters["candidates"] == d
        assert made[f"pow-d (d={d})"].parameters["candidates"] == d
    for gamma in (0.5, 0.7, 0.9, 0.99):
        assert made[f"UCB-CS (gamma={gamma})"].parameters["discount"] == gamma
    assert len(made) == 11


def test_what_is_trained_can_be_changed() -> None:
    changed = load_preset("e3cs-training", training={"aggregation": "mean-returned"}).experiment
    recipe = changed.training
    assert recipe is not None
    assert recipe.aggregation == MeanReturned()
    assert changed.world_id != load_preset("e3cs-training").experiment.world_id
    short = load_preset("ucb-cs", rounds=80).experiment.training
    assert short is not None
    assert short.local.lr == StepDecay(0.05, at=(30, 60))
    with pytest.raises(InvalidInput, match="rbcs-f trains nothing"):
        load_preset("rbcs-f", training={"model": "mlp"})


def test_only_what_a_figure_needs_is_run() -> None:
    preset = load_preset("rbcs-f")
    (only,) = preset.settings
    queues = [f"RBCS-F({v})" for v in (1, 5, 10, 20, 50)]
    assert preset.schemes_for(only, (2,), times=1, extras=False) == queues
    assert preset.schemes_for(only, (2,), times=4, extras=True) == queues
    assert preset.schemes_for(only, (3,), times=4, extras=True) == []
    journal = load_preset("e3cs-journal")
    assert len(journal.schemes_for(only, (3,), times=1, extras=True)) == 18
    assert len(journal.schemes_for(only, (3,), times=1, extras=False)) == 7
    trained = load_preset("e3cs-training")
    first, *others = trained.settings
    assert len(trained.schemes_for(first, (5,), times=1, extras=True)) == 11
    assert all(len(trained.schemes_for(other, (5,), times=1, extras=True)) == 7 for other in others)
    with pytest.raises(InvalidInput, match="no figure 9 here; choose from 2, 3, 4"):
        preset.figure(9)


def test_a_setting_changes_what_is_trained_and_options_change_both() -> None:
    preset = load_preset("ucb-cs-fmnist", rounds=30)
    strong, mild = (preset.experiment_of(setting) for setting in preset.settings[:2])
    recipes = [experiment.training for experiment in (strong, mild)]
    assert [recipe.partition.alpha for recipe in recipes] == [0.3, 2.0]
    assert recipes[1].local.lr == StepDecay(0.005, at=(15,))
    changed = load_preset("ucb-cs-fmnist", training={"partition": "iid"})
    assert {changed.experiment_of(one).training.partition for one in changed.settings} == {Iid()}
    assert preset.setting("alpha = 2") == preset.settings[1]
    with pytest.raises(InvalidInput, match=r"no setting 'alpha = 3'\. Did you mean"):
        preset.setting("alpha = 3")


def test_a_longer_run_keeps_the_shape_of_its_schedules() -> None:
    preset = load_preset("ucb-cs")
    recipe = preset.experiment_of(preset.settings[0], times=2).training
    assert recipe.local.lr == StepDecay(0.05, at=(600, 1200))


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


def test_a_setting_runs_its_own_schemes_seeds_and_clients() -> None:
    preset = load_preset("nccb")
    numbers = tuple(figure.number for figure in preset.figures)
    runs = {
        setting.label: (
            preset.schemes_for(setting, numbers, times=1, extras=True),
            preset.experiment_of(setting).n_clients,
            len(preset.experiment_of(setting).seeds),
        )
        for setting in preset.settings
    }
    assert runs["authors"] == (["Random", "NCCB", "Oort", "k-LinUCB"], 700, 3)
    assert runs["iid"] == (["Random"], 700, 3)
    assert runs["100 authors"] == (["NCCB"], 100, 1)
    planned = {
        setting.label: preset.schemes_for(setting, (5,), times=1, extras=True)
        for setting in preset.settings
    }
    assert [label for label, schemes in planned.items() if schemes] == [
        "700 authors, 64 bits",
        "32 bits",
        "16 bits",
        "8 bits",
    ]
    bits = preset.experiment_of(preset.setting("8 bits")).training
    assert bits is not None
    assert bits.code.bits == 8


def test_a_row_of_a_table_has_a_number_for_each_measure() -> None:
    with pytest.raises(InvalidInput, match=r"^Table I: Random needs 2 numbers, one per measure"):
        NumbersTable("Table I", ("cep", "jain"), (("Random", 1.0),))
