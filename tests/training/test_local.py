from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from turnout import InvalidInput, Purpose, StepDecay, stream
from turnout.experiment.codec import decode, encode
from turnout.training.local import LocalWork, PerClient, batch_plan, client_plan, polled_rows

COUNTS = np.array([100, 40, 7, 41])


def test_epochs_become_steps():
    assert LocalWork(epochs=3, batch_size=40).steps_of(COUNTS, 0).tolist() == [9, 3, 3, 6]
    assert LocalWork(epochs=2, batch_size=None).steps_of(COUNTS, 0).tolist() == [2] * 4


def test_steps_are_the_same_for_everybody():
    work = LocalWork(epochs=None, steps=30, batch_size=50)
    assert work.steps_of(COUNTS, 0).tolist() == [30] * 4


def test_a_tuple_is_drawn_once_per_client_and_fixed_by_the_seed():
    counts = np.full(4000, 40)
    work = LocalWork(epochs=(1, 2, 3, 4), batch_size=40)
    epochs = work.steps_of(counts, seed=5)
    assert np.array_equal(epochs, work.steps_of(counts, seed=5))
    assert not np.array_equal(epochs, work.steps_of(counts, seed=6))
    share = np.bincount(epochs, minlength=5)[1:] / counts.size
    assert np.abs(share - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / counts.size)
    assert np.bincount(epochs, minlength=5)[0] == 0


def test_steps_can_be_drawn_too():
    steps = LocalWork(epochs=None, steps=(3, 8)).steps_of(np.full(50, 100), seed=1)
    assert set(steps.tolist()) == {3, 8}


def test_amounts_per_client():
    work = LocalWork(epochs=PerClient(np.array([1, 2, 3, 1])), batch_size=40)
    assert work.steps_of(COUNTS, 0).tolist() == [3, 2, 3, 2]
    with pytest.raises(InvalidInput, match=r"^epochs has 4 values for 3 clients"):
        work.steps_of(COUNTS[:3], 0)


def test_lr_follows_its_schedule():
    work = LocalWork(lr=StepDecay(0.05, (300, 600)))
    assert [work.lr_in(t) for t in (0, 299, 300, 600)] == [0.05, 0.05, 0.025, 0.0125]
    assert LocalWork(lr=0.3).lr_in(10**6) == 0.3


def test_one_pass_is_the_default_unless_steps_are_given():
    sizes = np.array([100, 40])
    assert LocalWork().steps_of(sizes, seed=0).tolist() == [3, 1]
    assert LocalWork(steps=30).steps_of(sizes, seed=0).tolist() == [30, 30]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1, "steps": 3}, r"^epochs and steps exclude"),
        ({"epochs": 0}, r"^epochs must be an integer >= 1, got 0"),
        ({"epochs": (1, 0)}, r"^epochs must be an integer >= 1, got 0"),
        ({"epochs": ()}, r"^epochs must be a list"),
        ({"epochs": 1.5}, r"^epochs must be an integer"),
        ({"epochs": np.array([1, 2])}, r"^epochs is an array: write epochs=PerClient"),
        ({"epochs": None, "steps": -1}, r"^steps must be an integer"),
        ({"batch_size": 0}, r"^batch_size must be"),
        ({"lr": -0.1}, r"^lr must be"),
        ({"lr": "fast"}, r"^lr must be"),
        ({"lr": StepDecay(-1.0, ())}, r"^lr in round 0"),
        ({"momentum": 1.5}, r"^momentum must be"),
        ({"proximal": -1.0}, r"^proximal must be"),
        ({"weight_decay": float("nan")}, r"^weight_decay must be"),
    ],
)
def test_bad_settings_name_the_field(settings, message):
    with pytest.raises(InvalidInput, match=message):
        LocalWork(**settings)


def test_recipes_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import turnout.training.local, turnout.training.base\n"
        "from turnout.training import models, aggregate\n"
        "models.EmnistCnn(), aggregate.KeepGlobal()\n"
        "from turnout import MissingExtra\n"
        "try: import turnout.training.reference\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "training needs PyTorch: pip install 'turnout[torch]'"


@pytest.mark.parametrize(("n", "size", "steps"), [(10, 3, 9), (12, 4, 6), (5, 40, 4), (1, 1, 3)])
def test_every_pass_holds_every_example_once(n, size, steps):
    plan = batch_plan(n, size, steps, np.random.default_rng(0))
    per_pass = -(-n // size)
    batches = [plan.order[a:b] for a, b in zip(plan.bounds[:-1], plan.bounds[1:], strict=True)]
    assert plan.n_steps == len(batches) == steps
    for first in range(0, steps - per_pass + 1, per_pass):
        whole = batches[first : first + per_pass]
        assert sorted(np.concatenate(whole).tolist()) == list(range(n))
        assert [batch.size for batch in whole[:-1]] == [min(size, n)] * (per_pass - 1)


def test_steps_may_end_inside_a_pass():
    plan = batch_plan(10, 4, 4, np.random.default_rng(0))
    assert plan.bounds.tolist() == [0, 4, 8, 10, 14]
    assert plan.order.size == 14
    assert np.unique(plan.order[10:]).size == 4


def test_no_batch_size_is_all_the_data():
    plan = batch_plan(6, None, 2, np.random.default_rng(0))
    assert plan.bounds.tolist() == [0, 6, 12]


def test_passes_are_reshuffled_and_uniform():
    first = np.zeros((5, 5))
    rng = np.random.default_rng(3)
    for _ in range(2000):
        plan = batch_plan(5, 2, 6, rng)
        for place in range(5):
            first[place, plan.order[5 + place]] += 1  # the second pass
    assert np.abs(first / 2000 - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 2000)


def test_a_plan_depends_on_seed_round_and_client_only():
    plan = client_plan(50, 8, 14, seed=1, round=2, client=3)
    again = client_plan(50, 8, 14, seed=1, round=2, client=3)
    assert np.array_equal(plan.order, again.order)
    assert plan.noise_seed == again.noise_seed
    for other in ({"seed": 2}, {"round": 3}, {"client": 4}):
        key = {"seed": 1, "round": 2, "client": 3} | other
        moved = client_plan(50, 8, 14, **key)
        assert not np.array_equal(plan.order, moved.order)
        assert plan.noise_seed != moved.noise_seed


def test_more_steps_keep_the_first_ones():
    few = client_plan(50, 8, 5, seed=1, round=2, client=3)
    many = client_plan(50, 8, 20, seed=1, round=2, client=3)
    assert np.array_equal(few.order, many.order[: few.order.size])


def test_the_plan_is_drawn_from_the_stream_of_training():
    rng = stream(4, Purpose.TRAIN, 7, 2)
    noise = int(rng.integers(2**63))
    plan = client_plan(9, 3, 6, seed=4, round=7, client=2)
    assert plan.noise_seed == noise
    assert np.array_equal(plan.order, np.concatenate([rng.permutation(9) for _ in range(2)]))


def test_polled_rows_are_one_batch_without_repeats():
    rows = polled_rows(30, 8, seed=0, round=1, client=2)
    assert np.unique(rows).size == 8
    assert np.array_equal(rows, polled_rows(30, 8, seed=0, round=1, client=2))
    assert not np.array_equal(rows, polled_rows(30, 8, seed=0, round=2, client=2))
    assert sorted(polled_rows(5, 8, 0, 1, 2).tolist()) == list(range(5))
    assert polled_rows(5, None, 0, 1, 2).size == 5


def test_an_optimizer_is_known_and_adam_has_no_momentum():
    with pytest.raises(InvalidInput, match="optimizer"):
        LocalWork(optimizer="adamw")
    with pytest.raises(InvalidInput, match=r"momentum is 0.9 .* 'adam'"):
        LocalWork(optimizer="adam", momentum=0.9)


def test_the_optimizer_is_written_only_where_it_is_set():
    assert "optimizer" not in encode(LocalWork())
    table = encode(LocalWork(optimizer="adam"))
    assert table["optimizer"] == "adam"
    assert decode(table, LocalWork) == LocalWork(optimizer="adam")
