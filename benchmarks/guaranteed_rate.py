"""When RBCS-F reaches its guaranteed rate, and what it predicts itself; bare and guarded.

Writes results/guaranteed-rate.json, from which docs/build_pages.py makes a table on the page of
the selector. Two minutes.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import turnout
from turnout.core.files import write_atomically
from turnout.experiment import rounds
from turnout.selectors.rbcs_f import NEARLY, RBCSF, ROUNDS_TO_JUDGE
from turnout.worlds import rbcs_f_world

RESULTS = Path(__file__).parents[1] / "results" / "guaranteed-rate.json"

N_CLIENTS, COHORT_SIZE, RATE, N_SEEDS = 40, 8, 0.15, 3
#: Penalty -> rounds played.
PENALTIES = {1.0: 4000, 5.0: 4000, 20.0: 4000, 50.0: 8000}
GUARDED_ROUNDS = 500
#: The same promise as a floor: in times of the fair share, which is cohort size / clients.
FLOOR = RATE * N_CLIENTS / COHORT_SIZE
#: Rounds after which clients below the rate are counted.
AFTER = (500, 4000)


class Played(NamedTuple):
    """What a run gave.

    Attributes:
        reached: The round from which on nobody was below nine tenths of the rate, None = never.
        below: Share of the clients below the rate after 500 and, if played, 4,000 rounds.
        least: What the client that got least got after the same rounds, in times of the rate.
        seconds: Mean length of a round.
        queue: The largest queue at the end, None if guarded.
        predicted: The round that the selector predicted, None if guarded.
    """

    reached: int | None
    below: list[float]
    least: list[float]
    seconds: float
    queue: float | None
    predicted: float | None


def played(penalty: float, seed: int, n_rounds: int, floor: float | None = None) -> Played:
    """Play a run in the world of the paper.

    Args:
        penalty: V.
        seed: Of the world and the run.
        n_rounds: How many rounds.
        floor: That of a guard around it; None = none.
    """
    bare = RBCSF(rate=RATE, penalty=penalty)
    selector: turnout.Selector = bare
    if floor is not None:
        inner = {"rate": RATE, "penalty": penalty}
        selector = turnout.make("guarded", inner="rbcs-f", floor=floor, inner_parameters=inner)
    n_chosen, seconds, predicted = np.zeros(N_CLIENTS), 0.0, None
    below: list[float] = []
    least: list[float] = []
    last_short = 0
    world = rbcs_f_world(N_CLIENTS, seed)
    for record in rounds(selector, world, cohort_size=COHORT_SIZE, n_rounds=n_rounds):
        n_chosen[record.selection.clients] += 1.0
        seconds += record.length_s
        n_played = record.context.round + 1
        rate = n_chosen / (n_played * RATE)
        if rate.min() < 1.0 - NEARLY:
            last_short = n_played
        if n_played in AFTER:
            below.append(float((rate < 1.0).mean()))
            least.append(float(rate.min()))
        if floor is None and n_played == ROUNDS_TO_JUDGE:
            predicted = bare.rounds_to_rate(record.context)
    reached = None if last_short == n_rounds else last_short + 1
    queue = float(bare.queue_.max()) if floor is None else None
    return Played(reached, below, least, seconds / n_rounds, queue, predicted)


def measure() -> dict[str, Any]:
    """Return all results as plain data; JSON keys are texts."""
    bare: dict[str, list[dict[str, Any]]] = {}
    guarded: dict[str, list[dict[str, Any]]] = {}
    for penalty, n_rounds in PENALTIES.items():
        for table, n, floor in ((bare, n_rounds, None), (guarded, GUARDED_ROUNDS, FLOOR)):
            runs = [played(penalty, seed, n, floor)._asdict() for seed in range(N_SEEDS)]
            table[f"{penalty:g}"] = runs
            print(penalty, runs, flush=True)
    sizes = {"n_clients": N_CLIENTS, "cohort_size": COHORT_SIZE, "rate": RATE, "floor": FLOOR}
    return {"sizes": sizes, "after": AFTER, "bare": bare, "guarded": guarded}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file to write")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # that the rate comes late
    write_atomically(arguments.out, json.dumps(measure(), indent=1).encode())


if __name__ == "__main__":
    main()
