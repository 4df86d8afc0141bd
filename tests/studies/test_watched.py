"""The utility of the chosen, looked at before they train: by hand, and beside a slow look."""

from __future__ import annotations

import numpy as np
import pytest

from turnout import make
from turnout.experiment import Experiment, run_experiment
from turnout.experiment.loop import rounds
from turnout.studies.measures import measure_named
from turnout.studies.trials import complete_cells
from turnout.studies.watched import Watched, compared


def experiment(**training):
    return Experiment.from_table(
        {
            "name": "watched",
            "n_clients": 12,
            "cohort_size": 3,
            "n_rounds": 7,
            "seeds": [3],
            "world": "reliable",
            "selectors": ["random"],
            "training": {
                "partition": {"kind": "shards", "per_client": 1},
                "model": "logistic",
                "evaluate_clients_every": 3,
                "participants": "turnout.studies.watched:Watched",
                **training,
            },
        }
    )


@pytest.mark.parametrize(
    ("chosen", "found", "missed"),
    [
        ([1.0, 3.0], (2 - 4) / (8 - 4), 1 - np.sqrt(1 + 9) / np.sqrt(36 + 100)),
        ([6.0, 10.0], 1.0, 0.0),
        ([10.0], 1.0, 0.0),
        ([4.0], (4 - 4) / (10 - 4), 0.6),
    ],
)
def test_the_best_cohort_has_one_and_all_clients_have_zero(chosen, found, missed):
    utility = np.array([0.0, 1.0, 3.0, 6.0, np.nan, 10.0])
    by_hand = compared(utility, np.array([*chosen, np.nan]))
    assert by_hand == pytest.approx({"chosen_utility": found, "utility_regret": missed})


@pytest.mark.parametrize("utility", [[2.0, 2.0, 2.0], [np.nan] * 3, [1.0, np.inf, np.nan]])
def test_clients_that_are_all_alike_cannot_be_compared(utility):
    assert compared(np.array(utility), np.array(utility)[:1]) == {}


def test_looks_are_before_the_chosen_train_and_change_nothing_else(tmp_path):
    watched, plain = experiment(), experiment(participants="")
    for folder, each in (("watched", watched), ("plain", plain)):
        assert not run_experiment(each, tmp_path / folder, n_jobs=1).failed
    (cell,) = complete_cells(watched, tmp_path / "watched", "random")
    (other,) = complete_cells(plain, tmp_path / "plain", "random")
    assert np.array_equal(cell.run.clients, other.run.clients)
    for name, values in other.run.measured.items():
        assert np.array_equal(cell.run.measured[name], values, equal_nan=True)
    looks = cell.run.measured["chosen_utility"]
    assert np.flatnonzero(np.isfinite(looks)).tolist() == [0, 3, 6]

    slow = plain.federation(3)  # plays the same rounds, and looks by hand
    played = rounds(
        make("random"), plain.environment(3), cohort_size=3, n_rounds=7, participants=slow
    )
    sizes, by_hand = slow.data.num_samples, []
    utility = sizes * slow.trainer.test_clients(slow.weights).loss
    for record in played:
        best = sorted(utility)[-3:]
        chosen = utility[record.selection.clients]
        by_hand.append((chosen.mean() - utility.mean()) / (np.mean(best) - utility.mean()))
        utility = sizes * slow.trainer.test_clients(slow.weights).loss
    assert looks[[0, 3, 6]] == pytest.approx([by_hand[0], by_hand[3], by_hand[6]])
    found = measure_named("found-utility").compute(cell)
    assert found == pytest.approx(np.mean([by_hand[0], by_hand[3], by_hand[6]]))
    assert 0.0 < measure_named("missed-utility").compute(cell) < 1.0
    assert np.isnan(measure_named("found-utility").compute(other))


def test_a_federation_that_is_watched_starts_afresh_after_reset():
    federation = experiment().federation(3)
    assert isinstance(federation, Watched)
    federation._found = {"chosen_utility": 1.0}
    federation.reset()
    assert "chosen_utility" not in federation.measure(0, is_last=False)
