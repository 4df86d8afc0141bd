"""Real run folders, made by tiny experiments, and ways to change what stands in them."""

import json

import numpy as np

from turnout.data import Shards
from turnout.experiment import Experiment, Variant, run_experiment, simulate
from turnout.results.callbacks import Callback
from turnout.training import LocalWork, Logistic, Training

N_CLIENTS, COHORT, N_ROUNDS = 40, 8, 60
WORLD = {"preset": "volatile", "availability": {"kind": "always"}}  # so that E3CS has its bound
RECIPE = Training(
    partition=Shards(2),
    model=Logistic(),
    local=LocalWork(epochs=1, batch_size=20, lr=0.1),
    evaluate_every=5,
    target_accuracy=(0.3, 0.5),
)
VARIANTS = (
    Variant("random"),
    Variant("round-robin"),
    Variant("fedcs"),
    Variant("e3cs", "e3cs-0.5", {"quota": 0.5}),
    Variant("e3cs", "e3cs-0", {"quota": 0.0}),
    Variant("ucb-cs"),
    Variant("rbcs-f"),
)
LABELS = tuple(variant.label for variant in VARIANTS)


def experiment_of(*selectors, **changes):
    """An experiment with some of ``VARIANTS``, by label, or with variants of one's own."""
    by_label = dict(zip(LABELS, VARIANTS, strict=True))
    sizes = {"n_clients": N_CLIENTS, "cohort_size": COHORT, "n_rounds": N_ROUNDS, "seeds": 3}
    return Experiment(
        [by_label[item] if isinstance(item, str) else item for item in selectors],
        **({"name": "demo", "world": WORLD} | sizes | changes),
    )


def run_folder(root, *selectors, **changes):
    """Run such an experiment and return its folder."""
    run_experiment(experiment_of(*selectors, **changes), root, n_jobs=1)
    return root


def run_cell(root, selector, seed=0, **changes):
    """Run a single cell and return its folder."""
    (cell,) = run_folder(root, selector, seeds=[seed], **changes).glob("*/seed-*")
    return cell


class _StopAfter(Callback):
    def __init__(self, n_rounds):
        self.n_rounds = n_rounds

    def round(self, round, values):
        if round + 1 > self.n_rounds:
            raise RuntimeError("pulled the plug")


def interrupt_folder(root, *selectors, n_rounds_done, **changes):
    """Begin an experiment whose cells end early, in ``n_rounds_done[label, seed]`` rounds."""
    run_experiment(
        experiment_of(*selectors, **changes),
        root,
        n_jobs=1,
        checkpoint_every=1,
        callbacks=lambda label, seed: [_StopAfter(n_rounds_done[label, seed])],
    )
    return root


def simulated(label, seed, **changes):
    """The run that a cell holds, from the simulator itself, and its world."""
    experiment = experiment_of(label, **changes)
    world = experiment.environment(seed)
    sizes = {"cohort_size": experiment.cohort_size, "n_rounds": experiment.n_rounds}
    run = simulate(experiment.selectors[0].make(), world, **sizes, keep_fates=True)
    return run, world


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_rounds(cell, change, n_rounds=None):
    """Add ``change(t)`` to each line of rounds.jsonl, and keep the first lines only."""
    lines = [json.loads(line) for line in (cell / "rounds.jsonl").read_text().splitlines()]
    changed = [json.dumps(line | change(line["round"])) for line in lines[:n_rounds]]
    (cell / "rounds.jsonl").write_text("\n".join(changed) + "\n")


def change_arrays(path, keep=None, **changes):
    """Change arrays of an ``.npz``, and keep only those that are named, if any are."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in keep or file.files}
    np.savez(path, **(arrays | changes))
