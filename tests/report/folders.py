"""Run folders as an experiment writes them, made from short simulations."""

import json
import math

import numpy as np

import turnout
from turnout import metrics
from turnout.environments import Bernoulli, ByClass, Environment, LinearContextual
from turnout.simulate import simulate
from turnout.types import Status

N_CLIENTS, COHORT, N_ROUNDS = 40, 8, 60
SELECTORS = {
    "random": ("random", {}),
    "round-robin": ("round-robin", {}),
    "fedcs": ("fedcs", {}),
    "e3cs-0.5": ("e3cs", {"quota": 0.5}),
    "e3cs-0": ("e3cs", {"quota": 0.0}),
    "ucb-cs": ("ucb-cs", {}),
    "rbcs-f": ("rbcs-f", {}),
}
WORLD = {
    "kind": "environment",
    "availability": {"kind": "bernoulli", "rate": 0.9},
    "volatility": {"kind": "by-class", "rates": [0.1, 0.3, 0.6, 0.9]},
    "timing": {"kind": "linear-contextual", "log_base": 2.0},
}
VERSIONS = {
    "turnout": "0.1.0",
    "numpy": "2.0.0",
    "python": "3.11.0",
    "platform": "Linux-6.1.0-x86_64-with-glibc2.36",
    "git": "0123456789abcdef0123456789abcdef01234567",
    "dirty": True,
}


def config_of(label, seed, *, n_rounds=N_ROUNDS, world_id="0123456789ab", **changes):
    selector, parameters = SELECTORS.get(label, (label, {}))
    config = {
        "format": 1,
        "kind": "simulation",
        "experiment": "demo",
        "label": label,
        "selector": selector,
        "parameters": parameters,
        "seed": seed,
        "n_clients": N_CLIENTS,
        "cohort_size": COHORT,
        "n_rounds": n_rounds,
        "world": WORLD,
        "world_id": world_id,
        "policy": {"kind": "fixed-deadline", "seconds": "inf"},
        "classes": {"names": ["0.1", "0.3", "0.6", "0.9"], "what": "success rate"},
    }
    return config | changes


def run_of(config):
    environment = Environment(
        config["n_clients"], config["seed"], Bernoulli(0.9), ByClass(), LinearContextual()
    )
    name = config["selector"] if config["selector"] in turnout.names() else "random"
    selector = turnout.make(name, **(config["parameters"] if name == "e3cs" else {}))
    run = simulate(
        selector,
        environment,
        cohort_size=config["cohort_size"],
        n_rounds=config["n_rounds"],
        keep_fates=True,
    )
    return run, environment


def write_cell(root, config, *, extra=None, complete=True, scores=None, rounds_run=None):
    """Write a cell; ``extra(t)`` adds columns to rounds.jsonl, as training does.

    ``scores`` are (loss, accuracy) of the clients at the end, ``rounds_run`` ends a run early.
    """
    planned, config = config, config | {"n_rounds": rounds_run or config["n_rounds"]}
    run, environment = run_of(config)
    folder = root / config["label"].replace("/", "-") / f"seed-{config['seed']}"
    folder.mkdir(parents=True)
    regret, backlog = run.regret(), run.backlog()
    columns = {
        name: getattr(run, name)
        for name in ("offsets", "clients", "status", "duration", "spent", "probability")
    }
    columns |= {"length_s": run.length_s, "n_available": run.n_available}
    columns |= {"class_of": environment.classes, "regret": regret}
    columns |= {"backlog_mean": backlog.mean, "backlog_max": backlog.largest}
    if config["selector"] == "e3cs":
        columns["bound"] = metrics.theorem1_bound(
            config["parameters"]["quota"], run.n_rounds, run.cohort_size, run.n_clients, 0.5
        )
    (folder / "config.json").write_text(json.dumps(planned), encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps(VERSIONS), encoding="utf-8")
    np.savez(folder / "selections.npz", **columns)
    lines = [json.dumps(line(run, t, regret, extra)) for t in range(run.n_rounds)]
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if complete:
        summary = summary_of(run, regret, columns.get("bound"))
        summary |= {} if rounds_run is None else {"rounds_run": rounds_run}
        if scores is not None:
            np.savez(folder / "client_scores.npz", loss=scores[0], accuracy=scores[1])
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def line(run, t, regret, extra):
    inside = slice(run.offsets[t], run.offsets[t + 1])
    status = run.status[inside]
    count = {state: int((status == state).sum()) for state in Status}
    wasted = float(run.spent[inside][status != Status.COMPLETED].sum())
    return {
        "round": t,
        "available": int(run.n_available[t]),
        "chosen": int(status.size),
        "completed": count[Status.COMPLETED],
        "late": count[Status.LATE],
        "failed": count[Status.FAILED],
        "silent": count[Status.SILENT],
        "length_s": float(run.length_s[t]),
        "wasted_s": wasted,
        "regret": float(regret[t]),
    } | (extra(t) if extra else {})


def summary_of(run, regret, bound):
    return {
        "success_ratio": run.success_ratio,
        "cep": int(run.cep[-1]),
        "regret": float(regret[-1]),
        "regret_bound": None if bound is None else float(bound[-1]),
        "jain_of_counts": metrics.jain_of_counts(run.counts),
        "gini_of_counts": metrics.gini_of_counts(run.counts),
        "minimum_rate": metrics.minimum_rate(run.counts, run.n_rounds),
        "round_time_s": float(run.length_s.mean()),
        "total_time_s": float(run.length_s.sum()),
        "wasted_s": run.wasted_s,
        "backlog_per_round": float(run.backlog().per_round[-1]),
        "seconds": 0.1,
    }


def write_experiment(root, labels=tuple(SELECTORS), seeds=(0, 1, 2), **changes):
    for label in labels:
        for seed in seeds:
            write_cell(root, config_of(label, seed, **changes))
    return root


def learning(seed):
    """Columns as training adds them: measured every fifth round, null in between."""

    def extra(t):
        if t % 5:
            return {"accuracy": None, "loss": None}
        return {"accuracy": 1 - 0.9 * math.exp(-t / (20 + seed)), "loss": math.exp(-t / 30)}

    return extra
