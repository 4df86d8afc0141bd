"""Digests of experiments as they were first written: old run folders must still be resumed."""

from __future__ import annotations

from typing import Any

import pytest

from turnout import StepAfter, StepDecay
from turnout.data import Digits, Shards
from turnout.experiment import Experiment, Variant
from turnout.studies import load_preset, preset_names
from turnout.training import KeepGlobal, LocalWork, Mlp, Training
from turnout.worlds import Bernoulli, Environment, FirstK, LinearContextual, Markov, OverSelect

TRAINING_TABLE = {
    "source": "digits",
    "partition": {"kind": "dirichlet", "alpha": 1},
    "model": {"kind": "mlp", "hidden": [16]},
    "local": {"steps": 3, "lr": {"schedule": "step-decay", "start": 0.1, "at": [5, 10]}},
    "hold_out": 0.25,
    "target_accuracy": [0.5, 0.8],
}
TRAINING = Training(
    source=Digits(),
    partition=Shards(2),
    model=Mlp((8,)),
    local=LocalWork(epochs=2, lr=StepDecay(0.05, (3,))),
    aggregation=KeepGlobal(),
    evaluate_every=2,
)
WORLD = Environment(
    40, availability=Bernoulli(0.9), volatility=Markov((0.2, 0.9), 0.8), timing=LinearContextual()
)
SCHEDULED = {"name": "e3cs", "quota": {"schedule": "step-after", "rounds": 30}}

EXPERIMENTS: dict[str, dict[str, Any]] = {
    "plain": {"selectors": ["random", "e3cs:quota=0.8"]},
    "named world": {"selectors": ["random"], "world": "rbcs-f", "seeds": [3, 1], "name": "other"},
    "partial schedule": {"selectors": [SCHEDULED, "oort"], "world": "e3cs", "n_rounds": 40},
    "objects": {
        "selectors": [
            Variant("e3cs", "inc", {"quota": StepAfter(30, 0.0, 1.0)}),
            Variant("rbcs-f", "RBCS-F(20)", {"penalty": 20}, cohort_size=4),
        ],
        "world": WORLD,
        "cohort_size": 8,
        "policy": OverSelect(FirstK(seconds=30), 1.25),
    },
    "changed preset": {
        "selectors": ["random"],
        "world": {"preset": "e3cs", "availability": {"kind": "bernoulli", "rate": 1}},
        "policy": {"kind": "fixed-deadline", "seconds": 5},
    },
    "tables": {"selectors": ["random"], "policy": "first-k", "training": TRAINING_TABLE},
    "empty recipe": {"selectors": ["random"], "training": {}},
    "recipe": {"selectors": ["oort"], "world": "reliable", "training": TRAINING},
}
#: Digest of the settings, and of the world that runs are compared in.
IDENTITIES = {
    "plain": ("6b954971c05d", "b15139034858"),
    "named world": ("dab8b46a4bb9", "3a57c38d1187"),
    "partial schedule": ("33bce71d0968", "3606f89e6da3"),
    "objects": ("d1f07bb62f1f", "ebdd1c5d8f1b"),
    "changed preset": ("634fa06c9685", "c98eb48e9d4d"),
    "tables": ("43f907b19c27", "d378c1df4f95"),
    "empty recipe": ("5a0663c87f1c", "d1fd4092b63e"),
    "recipe": ("474e55ca382b", "f8c2009f48c7"),
}
#: A preset whose settings are changed on purpose is another experiment: put its new digest here.
PRESETS = {
    "e3cs-arxiv": ("25cf9dd28f7a", "99becadd7041"),
    "e3cs-arxiv-training": ("bea925f653f2", "6896dda092d2"),
    "e3cs-journal": ("356df5a7b663", "756e5df7e111"),
    "e3cs-letters": ("a06e5e960507", "9ef45376378d"),
    "e3cs-training": ("1217ee1887f0", "037d374cac7d"),
    "nccb": ("c5b571ee6b74", "7769bf2aee77"),
    "nccb-text": ("b7ea0f7f66fb", "96e5bc77f98a"),
    "rbcs-f": ("1a0b69abb960", "3a57c38d1187"),
    "rbcs-f-training": ("eb584a37677b", "70353560110e"),
    "ucb-cs": ("552bc40104f2", "dbc67d0f7ab5"),
    "ucb-cs-fmnist": ("620fd258c0e2", "8fdcdf8ed658"),
    "ucb-cs-grid": ("8a3ce396c1fc", "8fdcdf8ed658"),
}


@pytest.mark.parametrize("case", EXPERIMENTS)
def test_the_same_settings_have_the_same_identity(case: str) -> None:
    experiment = Experiment(**EXPERIMENTS[case])
    assert (experiment.digest, experiment.world_id) == IDENTITIES[case]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_keep_their_identity(name: str) -> None:
    experiment = load_preset(name).experiment
    assert (experiment.digest, experiment.world_id) == PRESETS[name]


def test_every_preset_has_an_identity() -> None:
    assert set(preset_names()) == PRESETS.keys()
