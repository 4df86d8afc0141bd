"""Training in the round loop, in experiments, and what is left of it on disk."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import turnout
from turnout.cli.options import TrainingOptions, recipe_options
from turnout.core.errors import InvalidInput, MissingExtra
from turnout.core.schedules import StepDecay
from turnout.core.selector import Selector
from turnout.core.types import LARGEST_REPORT, RoundContext, Selection, Status
from turnout.data import Dataset, Digits, Iid, PowerLaw, PrimaryLabel, Shards, Source, federate
from turnout.experiment import Experiment, FolderError, read_cell, rounds, run_experiment, train
from turnout.experiment.codec import encode
from turnout.results import metrics
from turnout.results.callbacks import Callback, MLflow, TensorBoard, WandB
from turnout.results.files import cell_folder
from turnout.training import (
    Custom,
    Federation,
    InverseProbability,
    KeepGlobal,
    LocalWork,
    Logistic,
    MeanReturned,
    Mlp,
    Ready,
    Training,
)
from turnout.training.aggregate import aggregate
from turnout.training.reference import ReferenceTrainer
from turnout.worlds import ByClass, DeviceTimes, Environment, Reliable

N = 10
LOCAL = LocalWork(epochs=1, batch_size=20, lr=0.1)
RECIPE = Training(partition=Shards(2), model=Logistic(), local=LOCAL, evaluate_clients_every=3)
WORLD = Environment(N, seed=3, volatility=ByClass((0.3, 0.9)))


def recipe(**changes: Any) -> Training:
    return dataclasses.replace(RECIPE, **changes)


def experiment(*selectors: Any, training: Any = RECIPE, **changes: Any) -> Experiment:
    given: dict[str, Any] = {"world": "e3cs", "n_clients": N, "cohort_size": 4, "n_rounds": 12}
    given |= {"seeds": 2, "training": training}
    return Experiment(list(selectors) or ["random", "ucb-cs"], **(given | changes))


class Diverging:
    """A trainer in which some clients always end with numbers that are not finite."""

    def __init__(self, inner: Any, clients: set[int]) -> None:
        self._inner = inner
        self._clients = clients

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def train(self, weights: torch.Tensor, clients: Any, round: int) -> Any:
        updates = self._inner.train(weights, clients, round)
        is_lost = np.isin(clients, list(self._clients))
        updates.weights[torch.from_numpy(is_lost)] = math.nan
        return dataclasses.replace(updates, loss=np.where(is_lost, np.nan, updates.loss))


class Interrupted(Selector):
    """UCB-CS that stops the run once, in the middle; ``marker`` is a file that says it did."""

    needs_columns = frozenset({"num_samples"})
    needs_metrics = frozenset({"loss", "loss_std"})

    def __init__(self, *, marker: str = "", round: int = 7) -> None:
        self.marker = marker
        self.round = round
        self._inner = turnout.make("ucb-cs")

    def reset(self, n_clients: int) -> None:
        super().reset(n_clients)
        self.total_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        if ctx.round == self.round and self.marker and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise RuntimeError("stopped on purpose")
        score = ctx.of_pool(self.total_) + rng.random(ctx.pool.size)
        return Selection(ctx.round, np.sort(ctx.pool[np.argsort(score)[: ctx.size]]))

    def observe(self, selection: Selection, outcome: Any) -> None:
        self.total_[selection.clients] += np.nan_to_num(outcome.metric("loss"))


# the round loop --------------------------------------------------------------------------------


def test_a_run_is_the_plain_loop() -> None:
    training = recipe(trainer="reference", aggregation=MeanReturned(), server_lr=0.7)
    given = {"cohort_size": 4, "n_rounds": 6, "seed": 5}
    federation = Federation(training, N, seed=5)
    records = list(rounds(turnout.make("random"), WORLD, **given, participants=federation))
    # the same by hand
    data = federate(Digits(), Shards(2), N, seed=5)
    trainer = ReferenceTrainer(data, Logistic(), LOCAL, seed=5)
    weights = trainer.initial_weights()
    for record in records:
        returned = record.selection.clients[record.outcome.completed]
        if returned.size:
            updates = trainer.train(weights, returned, record.round)
            share = data.num_samples[returned] / data.num_samples[returned].sum()
            weights = aggregate(weights, updates.weights, share, 0.7)
            reported = record.outcome.metrics["loss"][record.outcome.completed]
            np.testing.assert_array_equal(reported, updates.loss)
        scores = trainer.test(weights)
        assert record.measured["accuracy"] == scores.accuracy
        assert record.measured["loss"] == scores.loss
    assert torch.equal(federation.weights, weights)
    assert records[-1].measured["accuracy"] > 0.2  # twice what guessing gives


def test_only_those_who_completed_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(recipe(trainer="reference"), N, seed=1)
    trained: list[list[int]] = []
    original = federation.trainer.train

    def noting(weights: Any, clients: Any, round: int) -> Any:
        trained.append(clients.tolist())
        return original(weights, clients, round)

    monkeypatch.setattr(federation.trainer, "train", noting)
    world = Environment(N, seed=1, volatility=ByClass((0.5,)))
    given = {"cohort_size": 6, "n_rounds": 8, "participants": federation}
    records = list(rounds(turnout.make("random"), world, **given))
    completed = [record.selection.clients[record.outcome.completed].tolist() for record in records]
    assert trained == [clients for clients in completed if clients]
    assert any(len(clients) < 6 for clients in completed)
    for record in records:
        is_missing = ~record.outcome.completed
        for name in ("loss", "loss_std", "loss_rms"):
            assert np.isnan(record.outcome.metrics[name][is_missing]).all()
            assert np.isfinite(record.outcome.metrics[name][~is_missing]).all()


@pytest.mark.parametrize("times", [[9, 1], [1, 1]])
def test_a_client_drawn_twice_counts_twice_in_the_model(times: list[int]) -> None:
    federation = Federation(recipe(aggregation=MeanReturned("equal"), trainer="reference"), N)
    chosen, before = np.array([2, 5]), federation.weights.double()
    local = federation.trainer.train(federation.weights, chosen, 0).weights.double()
    memo = {"multiplicity": np.array(times)}
    federation.work(Selection(0, chosen, memo=memo), np.array([True, True]))
    share = times[0] / sum(times)  # 0.9 or 0.5
    expected = before + share * (local[0] - before) + (1 - share) * (local[1] - before)
    np.testing.assert_allclose(federation.weights, expected, rtol=1e-6, atol=1e-8)
    assert not np.allclose(local[0], local[1], atol=1e-3)


def test_a_client_drawn_often_counts_as_often_as_it_was_drawn_if_it_returns() -> None:
    federation = Federation(recipe(aggregation=MeanReturned("equal"), trainer="reference"), N)
    chosen = np.array([2, 5, 7])
    local = federation.trainer.train(federation.weights, chosen, 0).weights.double()
    memo = {"multiplicity": np.array([4, 1, 3])}
    federation.work(Selection(0, chosen, memo=memo), np.array([False, True, True]))
    expected = 0.25 * local[1] + 0.75 * local[2]
    np.testing.assert_allclose(federation.weights, expected, rtol=1e-6, atol=1e-8)


def test_a_round_in_which_nobody_returns_leaves_the_model_as_it_is() -> None:
    world = Environment(N, seed=1, volatility=ByClass((0.0,)))
    federation = Federation(RECIPE, N)
    first = federation.weights.clone()
    given = {"cohort_size": 3, "n_rounds": 3, "participants": federation}
    records = list(rounds(turnout.make("random"), world, **given))
    assert torch.equal(federation.weights, first)
    assert {"accuracy", "loss"} <= records[0].measured.keys()
    assert all("train_loss" not in record.measured for record in records)


def test_a_client_that_diverges_is_failed_and_the_run_goes_on() -> None:
    world = Environment(N, seed=1, volatility=Reliable())
    federation = Federation(recipe(trainer="reference"), N)
    sound = federation.trainer
    federation.trainer = Diverging(sound, {2, 5})  # type: ignore[assignment]
    given = {"cohort_size": N, "n_rounds": 3, "participants": federation}
    records = list(rounds(turnout.make("round-robin"), world, **given))
    weights = sound.initial_weights()
    others = np.setdiff1d(np.arange(N), [2, 5])
    for record in records:
        failed = record.selection.clients[record.outcome.status == Status.FAILED]
        assert failed.tolist() == [2, 5]
        assert np.isnan(record.outcome.metrics["loss"][[2, 5]]).all()
        updates = sound.train(weights, others, record.round)
        counts = federation.data.num_samples[others]
        weights = aggregate(weights, updates.weights, counts / counts.sum())
    assert torch.equal(federation.weights, weights)
    assert federation.n_broken == 6


def test_a_step_size_that_breaks_everything_is_survived() -> None:
    broken = recipe(local=LocalWork(batch_size=20, lr=1e38))
    run = train("ucb-cs", broken, WORLD, cohort_size=4, n_rounds=4)
    assert (run.status != Status.COMPLETED).all()
    assert run.accuracy.shape == (4,)
    assert (run.accuracy == run.accuracy[0]).all()  # nothing was aggregated


def test_a_model_that_diverged_is_the_worst_and_never_missing() -> None:
    federation = Federation(recipe(hold_out=0.3), N)
    sound = federation.measure(0, is_last=True)
    for value in (math.nan, math.inf, 3e38):
        federation.reset()
        federation.weights = torch.full_like(federation.weights, value)
        lost = federation.measure(0, is_last=True)
        assert lost.keys() == sound.keys()
        for name in ("loss", "holdout_loss", "local_loss"):
            assert lost[name] == LARGEST_REPORT
        for name in ("accuracy", "holdout_accuracy", "worst_accuracy"):
            assert lost[name] == 0.0
        assert lost["jain_of_losses"] == 1 / N


def test_one_client_on_whom_the_model_diverged_decides() -> None:
    federation = Federation(RECIPE, N)
    x = federation.data.x.astype(np.float32)
    first, last = federation.data.offsets[3:5]
    x[first:last] = math.nan
    federation.data = dataclasses.replace(federation.data, x=x)
    federation.trainer.data = federation.data  # type: ignore[attr-defined]
    scores, numbers = federation.client_scores(), federation.client_numbers()
    assert np.flatnonzero(scores.loss == LARGEST_REPORT).tolist() == [3]
    assert (scores.accuracy[3], numbers["worst_accuracy"]) == (0.0, 0.0)  # a tenth of ten
    assert numbers["jain_of_losses"] == 1 / N
    share = federation.data.share[3]
    assert numbers["local_loss"] == pytest.approx(share * LARGEST_REPORT)


def test_polls_see_the_current_model() -> None:
    federation = Federation(recipe(trainer="reference"), N, seed=2)
    given = {"cohort_size": 3, "n_rounds": 3, "participants": federation}
    seen = []
    for record in rounds(turnout.make("pow-d", candidates=5), WORLD, **given):
        seen.append(record)
    fresh = Federation(recipe(trainer="reference"), N, seed=2)
    polled = seen[0].context.polled
    expected = fresh.trainer.polled_loss(fresh.weights, polled, 0, "all")
    np.testing.assert_array_equal(seen[0].context.polled_loss, expected)
    assert seen[2].context.polled_loss.mean() < seen[0].context.polled_loss.mean()
    mini = next(rounds(turnout.make("cpow-d", candidates=5), WORLD, **given))
    fresh_mini = fresh.trainer.polled_loss(fresh.weights, mini.context.polled, 0, "mini-batch")
    np.testing.assert_array_equal(mini.context.polled_loss, fresh_mini)


def test_selectors_see_the_real_data() -> None:
    federation = Federation(recipe(partition=Shards(2)), N)
    record = next(
        rounds(turnout.make("nccb"), WORLD, cohort_size=3, n_rounds=1, participants=federation)
    )
    data = federation.data
    np.testing.assert_array_equal(record.context.columns["features"], data.features)
    record = next(
        rounds(turnout.make("ucb-cs"), WORLD, cohort_size=3, n_rounds=1, participants=federation)
    )
    np.testing.assert_array_equal(record.context.columns["num_samples"], data.num_samples)


def test_evaluation_has_its_rounds_and_the_last() -> None:
    training = recipe(evaluate_every=4, evaluate_clients_every=5)
    run = train("random", training, WORLD, cohort_size=3, n_rounds=10)
    assert np.flatnonzero(np.isfinite(run.accuracy)).tolist() == [3, 7, 9]
    assert np.flatnonzero(np.isfinite(run.measured["local_loss"])).tolist() == [4, 9]
    assert np.isfinite(run.measured["train_loss"]).sum() >= 8  # some rounds have no answer


def test_the_pooled_hold_out_is_measured_beside_the_test_set() -> None:
    training = recipe(hold_out=0.3, evaluate_every=2)
    federation = Federation(training, N, seed=1)
    given = {"cohort_size": 4, "n_rounds": 5, "seed": 1, "participants": federation}
    records = list(rounds(turnout.make("random"), WORLD, **given))
    pooled = ("holdout_accuracy", "holdout_loss")
    rounds_with = [record.round for record in records if "holdout_accuracy" in record.measured]
    assert rounds_with == [t.round for t in records if "accuracy" in t.measured] == [1, 3, 4]
    scores, sizes = federation.client_scores(), np.diff(federation.data.holdout_offsets)
    measured = records[-1].measured
    n_right = measured["holdout_accuracy"] * sizes.sum()
    assert n_right == pytest.approx(round(n_right), abs=1e-9)  # a multiple of 1 / examples
    for name, values in zip(pooled, (scores.accuracy, scores.loss), strict=True):
        assert measured[name] == pytest.approx(np.average(values, weights=sizes), rel=1e-9)
    assert measured["holdout_accuracy"] != measured["accuracy"]
    without = train("random", recipe(), WORLD, cohort_size=4, n_rounds=2)
    assert not set(pooled) & without.measured.keys()


def test_the_pooled_hold_out_is_in_the_files_of_a_run(tmp_path: Path) -> None:
    made = experiment("random", training=recipe(hold_out=0.3), seeds=[4], n_rounds=3)
    run_experiment(made, tmp_path / "with", n_jobs=1)
    cell = read_cell(cell_folder(tmp_path / "with", "random", 4))
    for name in ("holdout_accuracy", "holdout_loss"):
        assert cell.summary[name] == cell.run.measured[name][-1]
        assert f'"{name}":' in (cell.path / "rounds.jsonl").read_text()
    run_experiment(dataclasses.replace(made, training=RECIPE), tmp_path / "without", n_jobs=1)
    bare = read_cell(cell_folder(tmp_path / "without", "random", 4))
    assert not any("holdout" in name for name in (*bare.summary, *bare.run.measured))


def test_numbers_about_clients_are_those_of_their_scores() -> None:
    federation = Federation(recipe(hold_out=0.3), N, seed=1)
    records = list(
        rounds(turnout.make("random"), WORLD, cohort_size=4, n_rounds=3, participants=federation)
    )
    scores = federation.trainer.test_clients(federation.weights)
    measured, counts = records[-1].measured, federation.data.num_samples
    assert measured["local_loss"] == pytest.approx(np.sum(counts * scores.loss) / counts.sum())
    expected = scores.loss.sum() ** 2 / (N * np.sum(scores.loss**2))  # UCB-CS Eq. (3)
    assert measured["jain_of_losses"] == pytest.approx(expected)
    assert measured["worst_accuracy"] == pytest.approx(scores.accuracy.min())  # 10 % of ten


def test_a_run_may_stop_at_its_target() -> None:
    training = recipe(target_accuracy=(0.4, 0.6), stop_at_target=True)
    run = train("random", training, WORLD, cohort_size=4, n_rounds=60)
    assert run.n_rounds == run.rounds_to(0.6) < 60
    assert run.accuracy[-1] >= 0.6 > np.nanmax(run.accuracy[:-1])
    assert np.isfinite(run.measured["worst_accuracy"][-1])  # the last round is evaluated in full
    full = train("random", recipe(), WORLD, cohort_size=4, n_rounds=run.n_rounds)
    np.testing.assert_array_equal(full.accuracy, run.accuracy)


def test_the_seed_fixes_data_model_and_run() -> None:
    given = {"cohort_size": 4, "n_rounds": 4}
    runs = [train("e3cs", RECIPE, WORLD, **given, seed=seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(runs[0].accuracy, runs[1].accuracy)
    assert (runs[0].accuracy != runs[2].accuracy).any()


def test_the_fast_trainer_gives_the_run_of_the_reference() -> None:
    training = recipe(model=Mlp((16,)))
    given = {"cohort_size": 5, "n_rounds": 8}
    slow = train("random", dataclasses.replace(training, trainer="reference"), WORLD, **given)
    fast = train("random", training, WORLD, **given)
    np.testing.assert_array_equal(fast.clients, slow.clients)
    np.testing.assert_allclose(fast.loss, slow.loss, rtol=1e-4)  # float32, 8 rounds of SGD


def test_the_model_can_be_taken_along() -> None:
    federation = Federation(RECIPE, N)
    for _ in rounds(
        turnout.make("random"), WORLD, cohort_size=4, n_rounds=3, participants=federation
    ):
        pass
    module, data = federation.module(), federation.data
    x = torch.from_numpy(data.x_test.astype(np.float32)) * data.scale + data.shift
    right = module(x).argmax(1).numpy() == data.y_test
    assert right.mean() == pytest.approx(federation.trainer.test(federation.weights).accuracy)


def test_a_module_that_is_there_already_is_trained() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    before = module[1].weight.detach().clone()
    run = train("random", recipe(model=Ready(module)), WORLD, cohort_size=5, n_rounds=6)
    assert run.accuracy[-1] > run.accuracy[0]
    assert torch.equal(module[1].weight, before)  # a copy was trained
    with pytest.raises(InvalidInput, match=r"model must be a Model.*Ready\(module\)"):
        recipe(model=module)
    with pytest.raises(InvalidInput, match="cannot be written to a configuration"):
        experiment(training=recipe(model=Ready(module)))


def test_state_goes_on_bit_for_bit() -> None:
    whole, cut = Federation(RECIPE, N), Federation(RECIPE, N)
    given = {"cohort_size": 4, "n_rounds": 8}
    list(rounds(turnout.make("e3cs"), WORLD, **given, participants=whole))
    selector = turnout.make("e3cs")
    records = rounds(selector, WORLD, **given, participants=cut)
    for _ in range(4):
        next(records)
    again = Federation(RECIPE, N)
    again.load_state(cut.state())
    list(rounds(selector, WORLD, **given, participants=again, start=4))
    assert torch.equal(whole.weights, again.weights)
    with pytest.raises(InvalidInput, match="weights must be"):
        Federation(recipe(model=Mlp((3,))), N).load_state(cut.state())


def test_rounds_to_a_target_and_the_worst_tenth() -> None:
    curve = [math.nan, 0.2, 0.5, math.nan, 0.4, 0.6]
    assert metrics.rounds_to(curve, 0.5) == 3.0
    assert metrics.rounds_to(curve, 0.2) == 2.0
    assert math.isnan(metrics.rounds_to(curve, 0.7))
    assert math.isnan(metrics.rounds_to([], 0.1))
    values = np.arange(30.0)[::-1]
    assert metrics.worst_mean(values) == 1.0  # of 0, 1, 2
    assert metrics.worst_mean(values[:11]) == pytest.approx((19 + 20) / 2)  # two of eleven
    assert metrics.worst_mean([0.5, math.nan, 0.1]) == 0.1  # at least one
    assert math.isnan(metrics.worst_mean([math.nan]))
    with pytest.raises(InvalidInput, match="share"):
        metrics.worst_mean([1.0], share=2.0)


# the guide -------------------------------------------------------------------------------------

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "training.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_the_guides_python_runs_as_printed(number: int) -> None:
    exec(compile(blocks("python")[number], HOWTO.name, "exec"), {})


def test_the_guides_file_is_an_experiment(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "guide.toml").write_text(text, encoding="utf-8")
    made = Experiment.from_toml(tmp_path / "guide.toml")
    expected = Training(
        Digits(),
        Shards(2),
        model=Mlp((64,)),
        aggregation=KeepGlobal(),
        target_accuracy=(0.8, 0.9),
        local=LocalWork(epochs=5, batch_size=10, lr=StepDecay(0.1, at=(100,))),
    )
    assert made.training == expected


def test_weights_by_probability_need_a_selector_that_reports_them(tmp_path: Path) -> None:
    weighted = recipe(aggregation=InverseProbability())
    made = experiment("random", "oort", training=weighted)
    with pytest.raises(InvalidInput, match=r"InverseProbability .*but oort declares none"):
        run_experiment(made, tmp_path / "run", n_jobs=1)
    assert not (tmp_path / "run").exists()
    grid = run_experiment(made, tmp_path / "run", n_jobs=1, labels=["random"])
    assert not grid.failed


# recipes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hold_out": 1.0}, r"hold_out must be a finite number >= 0.0 and < 1.0, got 1.0"),
        ({"server_lr": 0.0}, "server_lr must be"),
        ({"evaluate_every": 0}, "evaluate_every must be"),
        ({"target_accuracy": 1.5}, "target_accuracy must be"),
        ({"stop_at_target": True}, "stop_at_target needs a target_accuracy"),
        ({"trainer": "slow"}, "trainer must be one of 'fast', 'batched', 'reference'"),
        ({"device": ""}, "device must be a name"),
        ({"model": "mlp"}, "model must be a Model"),
        ({"source": "digits"}, "source must be a Source"),
    ],
)
def test_recipes_refuse_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        recipe(**changes)


def test_a_recipe_needs_no_torch() -> None:
    code = (
        "import sys; import turnout.experiment as e; "
        "e.Experiment(['random'], training={'model': 'logistic'}); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    RECIPE.source.load(0)  # scipy must be imported before: it trusts what sys.modules says of torch
    for name in list(sys.modules):
        if name.startswith(("torch", "turnout.training.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'turnout\[torch\]'"):
        Federation(RECIPE, N)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (recipe(device="cuda:7"), "device 'cuda:7' cannot be used"),
        (recipe(local=LocalWork(batch_size=5000)), "batch_size is 5000"),
        (recipe(partition=Iid(samples=9000)), "samples is 9000"),
        (recipe(model=Custom("torch.nn:Linear", {"in_features": 3, "out_features": 2})), "model"),
        (recipe(model=Custom("tests.no_such_module:Net")), "cannot be imported"),
    ],
)
def test_what_does_not_fit_is_an_error_before_anything_is_written(
    training: Training, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        run_experiment(experiment(training=training), tmp_path / "runs", n_jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_clients_without_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no data"):
        run_experiment(experiment(n_clients=2000), tmp_path / "runs", n_jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_weights_by_probability_need_a_selector_that_has_them(tmp_path: Path) -> None:
    made = experiment("random", "pow-d", training=recipe(aggregation=InverseProbability()))
    with pytest.raises(InvalidInput, match="InverseProbability needs inclusion probabilities"):
        run_experiment(made, tmp_path / "runs", n_jobs=1)
    assert list(tmp_path.iterdir()) == []
    alone = experiment("random", training=recipe(aggregation=InverseProbability()))
    assert not run_experiment(alone, tmp_path / "runs", n_jobs=1).failed


# experiments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "local",
    [
        LocalWork(epochs=(1, 2, 3), batch_size=20, lr=0.1),
        LocalWork(epochs=None, steps=7, batch_size=20, lr=0.1),
        LocalWork(epochs=2, batch_size=None, lr=0.1),
    ],
)
def test_time_goes_with_the_examples_that_a_client_trains_on(local: LocalWork) -> None:
    ragged = recipe(partition=PowerLaw(), local=local)
    federation = Federation(ragged, N, 3)
    plans = [federation.trainer.plan(client, 0) for client in range(N)]  # type: ignore[attr-defined]
    seen = np.array([plan.order.size for plan in plans])
    assert len(set(seen)) > 3
    np.testing.assert_allclose(federation.workload, seen / seen.mean())
    world = Environment(N, seed=3, volatility=Reliable(), timing=DeviceTimes(model_mbit=0.0))
    given: dict[str, Any] = {"cohort_size": N, "n_rounds": 1}
    record = next(rounds(turnout.make("random"), world, **given, participants=federation))
    usual = world.fate(0).duration * seen / seen.mean()
    np.testing.assert_allclose(record.outcome.duration, usual[record.selection.clients])


TOML = """
world = "e3cs"
n_clients = 10
cohort_size = 4
n_rounds = 12
seeds = 2
selectors = ["random", "ucb-cs"]

[training]
source = "digits"
partition = { kind = "shards", per_client = 2 }
model = "logistic"
evaluate_clients_every = 3

[training.local]
epochs = 1
batch_size = 20
lr = 0.1
"""


def test_toml_and_python_give_the_same_experiment(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(TOML, encoding="utf-8")
    assert Experiment.from_toml(file) == experiment()
    assert Experiment.from_table(experiment().table()) == experiment()
    file.write_text(TOML.replace('"logistic"', '"logistik"'), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 12: training.model.kind: .*'logistic'"):
        Experiment.from_toml(file)
    file.write_text(TOML.replace("lr = 0.1", "lr = -0.1"), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 18: training.local.lr"):
        Experiment.from_toml(file)


def test_what_changes_the_comparison_changes_the_world() -> None:
    first = experiment()
    same = [{"evaluate_every": 2}, {"target_accuracy": 0.9}, {"trainer": "reference"}]
    other = [{"model": Mlp()}, {"aggregation": KeepGlobal()}, {"partition": PrimaryLabel()}]
    for changes in same:
        made = experiment(training=recipe(**changes))
        assert made.world_id == first.world_id
        assert made.digest != first.digest
    for changes in other:
        assert experiment(training=recipe(**changes)).world_id != first.world_id
    without = experiment(training=None)
    assert without.world_id != first.world_id
    assert "training" not in without.table()


def test_a_training_cell_is_the_run(tmp_path: Path) -> None:
    training = recipe(target_accuracy=(0.3, 0.99))
    made = experiment("ucb-cs", training=training, seeds=[4])
    grid = run_experiment(made, tmp_path, n_jobs=1)
    assert not grid.failed
    assert not grid.remarks
    cell = read_cell(cell_folder(tmp_path, "ucb-cs", 4))
    run = train("ucb-cs", training, made.environment(4), cohort_size=4, n_rounds=12)
    assert cell.settings.kind == "training"
    assert cell.settings.training == encode(training)
    np.testing.assert_array_equal(cell.run.clients, run.clients)
    assert cell.run.measured.keys() == run.measured.keys()
    for name, values in run.measured.items():
        np.testing.assert_array_equal(cell.run.measured[name], values)
    lines = [json.loads(line) for line in (cell.path / "rounds.jsonl").read_text().splitlines()]
    for t, line in enumerate(lines):
        found = {name: values[t] for name, values in run.measured.items() if values[t] == values[t]}
        assert {name: line[name] for name in found} == found
        assert set(run.measured) - set(found) == set(run.measured) - set(line)
    summary = cell.summary
    assert summary["accuracy"] == run.accuracy[-1]
    assert summary["best_accuracy"] == np.nanmax(run.accuracy)
    assert summary["rounds_to_0.3"] == run.rounds_to(0.3)
    assert summary["time_to_0.3_s"] == run.time_to(0.3)
    assert summary["rounds_to_0.99"] is None
    assert (summary["rounds_run"], summary["stopped_at_target"]) == (12, False)
    with np.load(cell.path / "client_scores.npz") as scores:
        assert scores["loss"].shape == scores["accuracy"].shape == (N,)
        assert metrics.jain_of_losses(scores["loss"]) == pytest.approx(summary["jain_of_losses"])
        assert metrics.worst_mean(scores["accuracy"]) == pytest.approx(summary["worst_accuracy"])
    assert json.loads((cell.path / "versions.json").read_text())["torch"] == torch.__version__


def contents(folder: Path) -> dict[str, Any]:
    """Return everything that a cell left, except how long it took."""
    kept: dict[str, Any] = {}
    for name in ("selections.npz", "model.npz", "client_scores.npz", "state.npz"):
        with np.load(folder / name, allow_pickle=False) as file:
            kept[name] = {key: file[key].tobytes() for key in file.files}
    kept["rounds"] = (folder / "rounds.jsonl").read_text()
    kept["summary"] = json.loads((folder / "summary.json").read_text()) | {"seconds": 0}
    return kept


def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    path = "tests.experiment.test_training_runs:Interrupted"
    marker = str(tmp_path / "marker")
    variant = {"name": path, "label": "mine", "marker": marker}
    made = experiment(variant, seeds=[1], training=recipe(model=Mlp((16,))))
    cut = tmp_path / "cut"
    (failed,) = run_experiment(made, cut, n_jobs=1, checkpoint_every=3).runs
    assert failed.status == "failed"
    assert "stopped on purpose" in failed.message
    (resumed,) = run_experiment(made, cut, n_jobs=1, checkpoint_every=3).runs
    assert resumed.status == "resumed"
    (whole,) = run_experiment(made, tmp_path / "whole", n_jobs=1, checkpoint_every=3).runs
    assert whole.status == "complete"
    cells = [cell_folder(root, "mine", 1) for root in (cut, tmp_path / "whole")]
    assert contents(cells[0]) == contents(cells[1])


def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    made = experiment("e3cs", n_rounds=2000, seeds=[1], training=recipe(model=Mlp((16,))))
    code = textwrap.dedent(
        f"""
        from turnout.experiment import Experiment, run_experiment
        experiment = Experiment.from_table({made.table()!r})
        run_experiment(experiment, {str(tmp_path / "cut")!r}, n_jobs=1, checkpoint_every=100)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    cell = cell_folder(tmp_path / "cut", "e3cs", 1)
    deadline = time.monotonic() + 60
    while not (cell / "progress.npz").exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (cell / "summary.json").exists()
    with np.load(cell / "progress.npz") as saved:
        done = int(saved["cell.round"])
    assert 100 <= done < 2000
    # go on, and compare with a run that was never stopped: as many rounds as keep this test short
    short = done + 5
    _shorten(tmp_path / "cut", cell, short)
    shorter = dataclasses.replace(made, n_rounds=short)
    (resumed,) = run_experiment(shorter, tmp_path / "cut", n_jobs=1).runs
    assert (resumed.status, resumed.message) == ("resumed", "")
    run_experiment(shorter, tmp_path / "whole", n_jobs=1)
    assert contents(cell) == contents(cell_folder(tmp_path / "whole", "e3cs", 1))


def _shorten(root: Path, cell: Path, n_rounds: int) -> None:
    """Plan fewer rounds for a run that has begun; what was done stays as it is."""
    made = json.loads((root / "experiment.json").read_text()) | {"n_rounds": n_rounds}
    (root / "experiment.json").write_text(json.dumps(made))
    config = json.loads((cell / "config.json").read_text()) | {"n_rounds": n_rounds}
    config["world_id"] = Experiment.from_table(made).world_id
    (cell / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("damage", ["swapped", "missing"])
def test_a_torn_model_starts_again(damage: str, tmp_path: Path) -> None:
    made = experiment("random", seeds=[1])
    run_experiment(made, tmp_path, n_jobs=1)
    cell = cell_folder(tmp_path, "random", 1)
    before = contents(cell)
    (cell / "summary.json").unlink()
    if damage == "missing":
        (cell / "model.npz").unlink()
    else:
        np.savez(cell / "model.npz", weights=np.zeros(3, dtype=np.float32))
    (again,) = run_experiment(made, tmp_path, n_jobs=1).runs
    assert again.status == "complete"
    assert "torn" in again.message
    assert contents(cell) == before


def test_runs_that_stop_have_unequal_lengths_and_compare(tmp_path: Path) -> None:
    training = recipe(target_accuracy=0.7, stop_at_target=True)
    made = experiment("random", "e3cs", training=training, n_rounds=40, cohort_size=6)
    grid = run_experiment(made, tmp_path, n_jobs=1)
    lengths = [cell.summary["rounds_run"] for cell in grid.runs if cell.summary]
    assert len(lengths) == 4
    assert len(set(lengths)) > 1
    for cell in grid.runs:
        assert cell.summary is not None
        assert cell.summary["stopped_at_target"] is (cell.summary["rounds_run"] < 40)
        assert cell.summary["rounds_to_0.7"] == cell.summary["rounds_run"]
    assert grid.estimate("rounds_to_0.7")["e3cs"].n == 2
    skipped = run_experiment(made, tmp_path, n_jobs=1)
    assert {cell.status for cell in skipped.runs} == {"skipped"}
    # a crash between the last checkpoint and the summary does not make it longer
    stopped = next(cell for cell in grid.runs if cell.summary and cell.summary["rounds_run"] < 40)
    folder = cell_folder(tmp_path, stopped.label, stopped.seed)
    before = contents(folder)
    (folder / "summary.json").unlink()
    run_experiment(made, tmp_path, n_jobs=1)
    assert contents(folder) == before


def test_broken_answers_are_said(tmp_path: Path) -> None:
    broken = recipe(local=LocalWork(batch_size=20, lr=1e38))
    grid = run_experiment(experiment("random", training=broken, seeds=[1]), tmp_path, n_jobs=1)
    (cell,) = grid.remarks
    assert cell.summary is not None
    assert cell.summary["broken_answers"] > 0
    assert f"{cell.summary['broken_answers']} answers were not finite" in cell.message


@pytest.mark.parametrize(
    "line",
    [
        'model = "{path}"',
        'model = {{ kind = "{path}" }}',
        'model = {{ kind = "custom", path = "{path}" }}',
    ],
)
def test_a_factory_of_your_own_is_named_in_a_file(tmp_path: Path, line: str) -> None:
    path = f"{__name__}:net"
    file = tmp_path / "own.toml"
    text = 'selectors = ["random"]\n[training]\n' + line.format(path=path)
    file.write_text(text, encoding="utf-8")
    training = Experiment.from_toml(file).training
    assert training is not None
    assert training.model == Custom(path)
    assert training.model == recipe_options(TrainingOptions(model=path))["model"]


def test_processes_use_one_thread_and_give_the_same_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    model = Custom("tests.experiment.test_training_runs:net")
    made = experiment("random", seeds=2, n_rounds=3, training=recipe(model=model))
    grid = run_experiment(made, tmp_path / "two", n_jobs=2)
    assert not grid.failed
    noted = {path.name: path.read_text() for path in tmp_path.glob("threads-*")}
    del noted[f"threads-{os.getpid()}"]  # the check before the run is in this process
    assert set(noted.values()) == {"1"}
    run_experiment(made, tmp_path / "one", n_jobs=1)
    for seed in (0, 1):
        cells = [cell_folder(tmp_path / name, "random", seed) for name in ("two", "one")]
        first, second = (contents(cell)["summary"] for cell in cells)
        # threads cut the work in another way: equal to float32
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)


def net(example_shape: tuple[int, ...], n_classes: int) -> torch.nn.Module:
    """Return a linear model, and note how many threads the process has."""
    Path(f"threads-{os.getpid()}").write_text(str(torch.get_num_threads()))
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(math.prod(example_shape), n_classes)
    )


class Counted(Source):
    """The digits, counting how often they are loaded."""

    loads = 0

    def load(self, seed: int) -> Dataset:
        type(self).loads += 1
        return Digits().load(seed)


CountedSource = dataclasses.dataclass(frozen=True)(Counted)


def test_selectors_of_a_seed_share_their_data(tmp_path: Path) -> None:
    CountedSource.loads = 0
    training = recipe(source=CountedSource())
    run_experiment(experiment("random", "e3cs", "ucb-cs", training=training), tmp_path, n_jobs=1)
    assert CountedSource.loads == 2  # two seeds


def test_another_model_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run_experiment(experiment("random", seeds=1), tmp_path, n_jobs=1)
    other = experiment("random", seeds=1, training=recipe(model=Mlp()))
    with pytest.raises(FolderError, match=r"training.model.kind is \"logistic\" in the folder"):
        run_experiment(other, tmp_path, n_jobs=1)


# callbacks -------------------------------------------------------------------------------------


class Noted(Callback):
    def __init__(self, fail_at: int = -1) -> None:
        self.calls: list[Any] = []
        self.fail_at = fail_at

    def start(self, settings: Any) -> None:
        self.calls.append(("start", sorted(settings)))

    def round(self, round: int, values: Any) -> None:
        self.calls.append((round, dict(values)))
        if round == self.fail_at:
            raise RuntimeError("disk full")

    def end(self) -> None:
        self.calls.append("end")


def test_callbacks_are_told_of_every_round() -> None:
    noted = Noted()
    run = train("e3cs", RECIPE, WORLD, cohort_size=4, n_rounds=3, callbacks=[noted])
    assert noted.calls[0] == ("start", ["seed", "selector", "training"])
    assert noted.calls[-1] == "end"
    for t, (round, values) in enumerate(noted.calls[1:-1]):
        assert round == t
        assert values["accuracy"] == run.accuracy[t]
        assert values["clock_s"] == pytest.approx(run.clock_s[t])
        assert values["chosen"] == 4


def test_callbacks_are_ended_when_something_fails() -> None:
    first, second = Noted(), Noted(fail_at=1)
    with pytest.raises(RuntimeError, match="disk full"):
        train("e3cs", RECIPE, WORLD, cohort_size=4, n_rounds=3, callbacks=[first, second])
    assert first.calls[-1] == second.calls[-1] == "end"
    assert len(second.calls) == 4


def test_callbacks_follow_a_run_that_goes_on(tmp_path: Path) -> None:
    path, marker = "tests.experiment.test_training_runs:Interrupted", str(tmp_path / "marker")
    made = experiment({"name": path, "label": "mine", "marker": marker}, seeds=[1])
    noted: list[Noted] = []

    def told(label: str, seed: int) -> list[Noted]:
        assert (label, seed) == ("mine", 1)
        noted.append(Noted())
        return noted[-1:]

    with pytest.raises(InvalidInput, match="callbacks need n_jobs=1"):
        run_experiment(made, tmp_path / "runs", n_jobs=2, callbacks=told)
    for _ in range(2):
        run_experiment(made, tmp_path / "runs", n_jobs=1, checkpoint_every=3, callbacks=told)
    first, second = noted
    assert first.calls[-1] == second.calls[-1] == "end"
    assert [call[0] for call in first.calls[1:-1]] == list(range(7))
    assert [call[0] for call in second.calls[1:-1]] == list(range(6, 12))
    assert second.calls[1] == first.calls[-2]  # round 6 again, the clock included


class Library:
    """Stands in for a logging library and notes what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **named: Any) -> Library:
            self.calls.append((name, arguments, named))
            return self

        return called


def test_tensorboard_gets_scalars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = Library()
    stub = SimpleNamespace(SummaryWriter=library.open)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)  # type: ignore[arg-type]
    callback = TensorBoard(tmp_path / "board")
    run = train("random", RECIPE, WORLD, cohort_size=4, n_rounds=2, callbacks=[callback])
    assert library.calls[0] == ("open", (str(tmp_path / "board"),), {})
    scalars = [arguments for name, arguments, _ in library.calls if name == "add_scalar"]
    assert ("accuracy", run.accuracy[1], 1) in scalars
    assert library.calls[-1][0] == "close"


def test_mlflow_gets_parameters_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "mlflow", library)  # type: ignore[arg-type]
    callback = MLflow("mine", run_name="first", tracking_uri="file:here")
    run = train("random", RECIPE, WORLD, cohort_size=4, n_rounds=2, callbacks=[callback])
    names = [name for name, _, _ in library.calls]
    assert names[:4] == ["set_tracking_uri", "set_experiment", "start_run", "log_params"]
    assert names[-1] == "end_run"
    logged = [(given[0], named) for name, given, named in library.calls if name == "log_metrics"]
    assert logged[1][0]["accuracy"] == run.accuracy[1]
    assert logged[1][1] == {"step": 1}


def test_wandb_gets_configuration_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)  # type: ignore[arg-type]
    callback = WandB("mine", mode="offline")
    run = train("random", RECIPE, WORLD, cohort_size=4, n_rounds=2, callbacks=[callback])
    name, _, options = library.calls[0]
    assert (name, options["project"], options["mode"]) == ("init", "mine", "offline")
    assert library.calls[2][1][0]["accuracy"] == run.accuracy[1]
    assert library.calls[-1][0] == "finish"


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [
        (TensorBoard, "torch.utils.tensorboard", "tensorboard"),
        (MLflow, "mlflow", "mlflow"),
        (WandB, "wandb", "wandb"),
    ],
)
def test_a_missing_library_is_named(
    make: Any, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        make()
