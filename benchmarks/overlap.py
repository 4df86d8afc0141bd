"""Rounds that overlap: the plan of results/overlap/plan.toml, and the speed of the event loop.

    python benchmarks/overlap.py --tasks volatile --seeds 1 --runs RUNS
    python benchmarks/overlap.py --speed

The first runs what is missing in RUNS, one run after the other, and writes the numbers of every run
that is complete. The second prints events a second without training, and what an event costs
beside a synchronous selection.
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import turnout
from turnout.experiment import Experiment, overlapping, rounds, run_experiment
from turnout.results.files import slug
from turnout.results.reader import read_cell
from turnout.studies.arena_tasks import ArenaTask, tasks_named
from turnout.worlds import Buffered, Environment, FixedDeadline, LinearContextual, PolynomialWeight

ROOT = Path(__file__).parents[1]
PLAN = tomllib.loads((ROOT / "results/overlap/plan.toml").read_text(encoding="utf-8"))
KEYS = ("accuracy", "worst_accuracy", "least_share", "total_time_s", "staleness", "at_work")


def buffered(task: ArenaTask, seeds: list[int], at_work: float) -> Experiment:
    """Return the buffered column of a task."""
    plain = task.experiment(PLAN["selectors"], seeds)
    concurrency = max(2, round(at_work))
    size = max(1, int(PLAN["buffered"]["size"] * concurrency))
    schedule = Buffered(size, concurrency, PolynomialWeight(PLAN["buffered"]["staleness"]["a"]))
    factor = plain.cohort_size / size
    recipe = plain.training
    if recipe is None:
        raise SystemExit(f"{task.label} trains nothing")
    return replace(
        plain,
        schedule=schedule,
        policy=FixedDeadline(plain.policy.deadline()),
        n_rounds=round(plain.n_rounds * factor),
        training=replace(
            recipe,
            evaluate_every=max(1, round(recipe.evaluate_every * factor)),
            evaluate_clients_every=max(1, round(recipe.evaluate_clients_every * factor)),
        ),
    )


def run(task: ArenaTask, seeds: list[int], runs: Path) -> None:
    """Run what is missing of a task: synchronous random first, which fixes the concurrency."""
    folder = runs / slug(task.label)
    sync = task.experiment(PLAN["selectors"], seeds)
    run_experiment(sync, folder / "synchronous", n_jobs=1, labels=["random"])
    cells = [read_cell(folder / "synchronous" / "random" / f"seed-{seed}") for seed in seeds]
    at_work = np.mean(
        [c.choices.spent.sum() / c.choices.length_s.sum() for c in cells if c.choices]
    )
    other = buffered(task, seeds, float(at_work))
    print(task.label, other.schedule, other.n_rounds, flush=True)
    for label in PLAN["selectors"]:
        run_experiment(other, folder / "buffered", n_jobs=1, labels=[label])
    run_experiment(sync, folder / "synchronous", n_jobs=1)


def written(runs: Path) -> list[dict[str, Any]]:
    """Return the numbers of every complete run."""
    rows = []
    for file in sorted(runs.glob("*/*/*/seed-*/summary.json")):
        task, column, selector, seed = file.parts[-5:-1]
        summary = json.loads(file.read_text(encoding="utf-8"))
        config = json.loads((file.parent / "config.json").read_text(encoding="utf-8"))
        time_to = next((summary[key] for key in summary if key.startswith("time_to_")), None)
        values = {key: summary.get(key) for key in KEYS}
        row = {"task": task, "schedule": column, "selector": selector, "seed": int(seed[5:])}
        rows.append(row | {"time_to_target_s": time_to, **values, "work": config.get("schedule")})
    return rows


def speed() -> None:
    """Print events a second of processor time, and the cost of an event beside a round."""
    world = Environment(100, 0, timing=LinearContextual())
    for name in ("random", "e3cs", "pace"):
        begin, n_events = time.process_time(), 0
        for record in overlapping(turnout.make(name), world, schedule=Buffered(), n_rounds=300):
            n_events += record.row.clients.size
        rate = n_events / (time.process_time() - begin)
        print(f"{name}: {rate:,.0f} events a second of processor time")
    for name in ("random", "pace"):
        large = Environment(1_000_000, 0, timing=LinearContextual())
        sync = rounds(turnout.make(name), large, cohort_size=30, n_rounds=9)
        list(islice(sync, 3))
        begin = time.process_time()
        n_rounds = sum(1 for _ in sync)
        each = (time.process_time() - begin) / n_rounds
        events = overlapping(turnout.make(name), large, schedule=Buffered(), n_rounds=6)
        list(islice(events, 1))
        begin = time.process_time()
        n_events = sum(record.row.clients.size for record in events)
        ratio = (time.process_time() - begin) / n_events / each
        print(f"{name}, 1,000,000 clients: an event costs {ratio:.2f} synchronous rounds of 30")


def main() -> None:
    """Run the plan, or measure the speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=PLAN["tasks"])
    parser.add_argument("--seeds", type=int, default=PLAN["seeds"])
    parser.add_argument("--runs", type=Path, default=Path("runs/overlap"))
    parser.add_argument("--out", type=Path, default=ROOT / "results/overlap/runs.json")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--collect", action="store_true", help="only write what is complete")
    options = parser.parse_args()
    if options.speed:
        speed()
        return
    for task in () if options.collect else tasks_named(options.tasks):
        run(task, list(range(options.seeds)), options.runs)
    text = json.dumps(written(options.runs), indent=1)
    options.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
