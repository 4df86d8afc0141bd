"""What data and traces offer the selectors: how much losses differ, features explain, rates last.

Writes results/properties.json, from which docs/build_when.py takes the numbers beside the controls.
Needs the data directory (TURNOUT_DATA). About ten minutes; ``--only`` measures one set again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import turnout
from turnout.core.files import write_atomically
from turnout.experiment import Experiment
from turnout.experiment.config import world_of
from turnout.results.settings import tools
from turnout.studies.controls import controls_named
from turnout.studies.properties import (
    ClientLevels,
    drift,
    explained_share,
    losses_of,
    persistence,
    relative_spread,
    success_rates,
    time_shares,
)

RESULTS = Path(__file__).parents[1] / "results" / "properties.json"
SEEDS = (0, 1, 2)
#: Looks at the losses of all clients in a run, and rounds of a run that is looked at only once.
N_LOOKS, SHORT = 5, 20
#: Rounds of the worlds that are looked at without a run.
N_ROUNDS = 1000

Table = Mapping[str, Any]
#: Measures one seed.
Measure = Callable[[int], Mapping[str, float]]


def of_losses(table: Table) -> Measure:
    """Measure how losses and utilities differ, how long a look lasts, and what features explain.

    Losses are looked at as often as random selection sees a client: every n / m rounds.

    Args:
        table: An experiment that trains, without selectors, rounds and seeds.
    """
    every = max(1, round(table["n_clients"] / table["cohort_size"]))
    experiment = _experiment(table, N_LOOKS * every)

    def measured(seed: int) -> dict[str, float]:
        found = losses_of(experiment, seed, every)
        return _of_utility(found) | {
            "loss spread": relative_spread(found.over_time),
            "loss persistence": persistence(found.over_time, 1),
            "loss drift": drift(found.over_time),
        }

    return measured


def of_texts(table: Table) -> Measure:
    """Measure utilities after a few rounds: all that texts are cheap enough for."""
    experiment = _experiment(table, SHORT)
    return lambda seed: _of_utility(losses_of(experiment, seed, SHORT))


def of_bits(seed: int) -> dict[str, float]:
    """Measure the control of k-LinUCB, which trains nothing."""
    experiment = controls_named(["k-linucb"])[0].experiment([seed])
    population, n = experiment.world.population, experiment.n_clients
    level, bits = population.loss_level(n, seed), population.features(n, seed)
    return _of_utility(ClientLevels(level, level, bits))


def of_unlike(seed: int) -> dict[str, float]:
    """Measure what unlike clients cost random selection in the control of NCCB."""
    table = _trained("nccb")
    accuracy = {}
    for kind in ("natural", "iid"):
        training = {**table["training"], "partition": {"kind": kind}}
        experiment = _experiment({**table, "training": training}, table["n_rounds"])
        assert experiment.training is not None  # the control trains
        run = turnout.train(
            "random",
            experiment.training,
            experiment.environment(seed),
            cohort_size=experiment.cohort_size,
            n_rounds=experiment.n_rounds,
        )
        accuracy[kind] = float(run.accuracy[-1])
    return {"cost of unlike clients": accuracy["iid"] - accuracy["natural"]}


def of_success(world: Any) -> Measure:
    """Measure success rates in a world of 100 clients."""
    return lambda seed: success_rates(world_of(world, 100, seed), N_ROUNDS)


def of_times(world: Any, n_clients: int = 100) -> Measure:
    """Measure what predicts times in a world."""
    return lambda seed: time_shares(world_of(world, n_clients, seed), N_ROUNDS)


def _of_utility(found: ClientLevels) -> dict[str, float]:
    return {
        "utility spread": relative_spread(found.utility),
        "explained by features": explained_share(found.features, found.utility),
    }


def _experiment(table: Table, n_rounds: int) -> Experiment:
    own = {name: value for name, value in table.items() if name != "selectors"}
    rarely = {"evaluate_every": n_rounds, "evaluate_clients_every": n_rounds}  # we look ourselves
    own["training"] = own["training"] | rarely
    return Experiment.from_table({**own, "selectors": ["random"], "n_rounds": n_rounds})


def _trained(label: str) -> Table:
    return controls_named([label])[0].table


#: As in the papers, with fewer examples, fewer but longer steps and, for texts, a smaller model:
#: what differs between clients shows without hours of training.
FASHION: Table = {
    "n_clients": 100,
    "cohort_size": 3,
    "world": "reliable",
    "training": {
        "source": "fashion-mnist",
        "model": {"kind": "mlp", "hidden": [64]},
        "local": {"steps": 25, "batch_size": 64, "lr": 0.02},
    },
}
TEXT: Table = {
    "cohort_size": 5,
    "world": "reliable",
    "training": {
        "partition": {"kind": "natural", "min_samples": 50, "max_samples": 50},
        "code": {"bits": 64, "stop_words": "english"},
        "model": {"kind": "stacked-lstm", "embedding": 64, "hidden": 64, "layers": 1},
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.01, "optimizer": "adam"},
    },
}
SYNTHETIC: Table = {
    "n_clients": 30,
    "cohort_size": 3,
    "world": "reliable",
    "training": {
        "source": "synthetic",
        "partition": "natural",
        "model": "logistic",
        "local": {"steps": 30, "batch_size": 50, "lr": 0.05},
    },
}
PHONES = {"availability": {"kind": "phone-trace"}, "volatility": {"kind": "reliable"}}
DEVICES = {"timing": {"kind": "device-times", "devices": {"kind": "traced-devices"}}}


def _fashion(alpha: float) -> Table:
    partition = {"kind": "dirichlet", "alpha": alpha, "samples": 200}
    return {**FASHION, "training": {**FASHION["training"], "partition": partition}}


def _texts(kind: str, n_clients: int) -> Table:
    source = {"kind": kind, "vocabulary": 2000, "test_share": 0.005}
    return {**TEXT, "n_clients": n_clients, "training": {**TEXT["training"], "source": source}}


#: What is measured, by the name of the data.
SETS: dict[str, Measure] = {
    "control of k-LinUCB": of_bits,
    "control of NCCB": of_texts(_trained("nccb")),
    "control of NCCB, iid": of_unlike,
    "control of UCB-CS": of_losses(_trained("ucb-cs")),
    "control of UCB-CS, order": of_losses(_trained("ucb-cs-order")),
    "control of Oort": of_losses(_trained("oort")),
    "control of E3CS, switch": of_success(_trained("e3cs-switch")["world"]),
    "E3CS's world": of_success("e3cs"),
    "phones": of_success(PHONES),
    "RBCS-F's world": of_times("rbcs-f", 40),
    "recorded devices": of_times(DEVICES),
    "Synthetic(1,1)": of_losses(SYNTHETIC),
    "Fashion-MNIST, alpha 0.3": of_losses(_fashion(0.3)),
    "Fashion-MNIST, alpha 2": of_losses(_fashion(2.0)),
    "roles of Shakespeare": of_texts(_texts("shakespeare", 295)),
    "blog authors": of_texts(_texts("blog-authors", 700)),
}

#: Sets that take minutes a seed: one seed.
LARGE = ("blog authors",)


def main() -> None:
    """Measure and write; what is not asked for stays."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SETS), help="measure this set")
    for name in parser.parse_args().only or SETS:
        seeds = SEEDS[:1] if name in LARGE else SEEDS
        by_seed = [SETS[name](seed) for seed in seeds]
        values = {key: [round(one[key], 5) for one in by_seed] for key in by_seed[0]}
        print(name, values, flush=True)
        before = json.loads(RESULTS.read_text(encoding="utf-8"))["sets"] if RESULTS.exists() else {}
        sets = before | {name: {"seeds": list(seeds), "values": values}}
        whole = {"made_with": tools(trains=True), "sets": {x: sets[x] for x in SETS if x in sets}}
        write_atomically(RESULTS, (json.dumps(whole, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
