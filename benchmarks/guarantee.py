"""What a floor costs: success ratio and worst shortfall of every selector, bare and guarded.

Prints the tables of docs/howto/guarantee.md: the mean over seeds with half its 95 % interval. With
``--train`` a model is trained, and the table has the virtual minutes to an accuracy.
"""

from __future__ import annotations

import argparse
import math
import warnings

import turnout
from turnout.data import ClientCode, Digits, Shards
from turnout.environments import WORLDS
from turnout.experiment.worlds import world_of
from turnout.metrics import guarantee
from turnout.selector import Selector
from turnout.statistics import Estimate, estimate
from turnout.training import LocalWork, Mlp, Training

#: Floor and cap of each column; the first is the selector as it is.
GUARDS = ((0.0, math.inf), (0.0, 2.0), (0.5, 2.0), (0.8, 2.0))
INNER = tuple(name for name in turnout.names(plugins=False) if name != "guarded")
#: A network is trained in each of its rounds: days for the table without training.
SLOW = "nccb"
N_CLIENTS, COHORT_SIZE = 100, WORLDS["volatile"].cohort_size
RECIPE = Training(
    Digits(),
    Shards(per_client=2),
    model=Mlp(hidden=(64,)),
    local=LocalWork(epochs=3, batch_size=10, lr=0.05),
    code=ClientCode(),
)
TARGET = 0.8


def price(chooser: Selector, seeds: int, n_rounds: int) -> str:
    """Return the success ratio, and by how many places the worst client fell short of half."""
    successes, shortfall = [], 0.0
    for seed in range(seeds):
        environment = world_of("volatile", N_CLIENTS, seed)
        run = turnout.simulate(chooser, environment, cohort_size=COHORT_SIZE, n_rounds=n_rounds)
        successes.append(run.success_ratio)
        shortfall = max(shortfall, float(guarantee(run, floor=0.5).shortfall.max()))
    return f"{shown(estimate(successes), 3)} ({shortfall:.1f})"


def minutes(chooser: Selector, seeds: int, n_rounds: int) -> str:
    """Return the virtual minutes to the accuracy; > where a run ended before it."""
    times, is_cut = [], False
    for seed in range(seeds):
        world = world_of("volatile", N_CLIENTS, seed)
        run = turnout.train(chooser, RECIPE, world, cohort_size=COHORT_SIZE, n_rounds=n_rounds)
        seconds, whole = run.time_to(TARGET), float(run.length_s.sum())
        is_cut |= not seconds <= whole
        times.append((seconds if seconds <= whole else whole) / 60.0)
    return f"{'> ' * is_cut}{shown(estimate(times), 1)}"


def shown(value: Estimate, digits: int) -> str:
    """Return a mean and its half width; one seed has none."""
    width = "" if math.isnan(value.half_width) else f" ± {value.half_width:.{digits}f}"
    return f"{value.mean:.{digits}f}{width}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--train", action="store_true", help=f"minutes to accuracy {TARGET:g}")
    parser.add_argument("--only", nargs="+", default=INNER, help="selectors to measure")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f warns that its rate is high
    measured = minutes if arguments.train else price
    headings = [
        "bare" if cap == math.inf else f"floor {floor:g}, cap {cap:g}" for floor, cap in GUARDS
    ]
    print("| inner selector | " + " | ".join(headings) + " |")
    print("|---" * (len(headings) + 1) + "|")
    for inner in arguments.only:
        if inner == SLOW and not arguments.train:
            continue
        guards = (
            turnout.make("guarded", inner=inner, floor=floor, cap=cap) for floor, cap in GUARDS
        )
        cells = (measured(chooser, arguments.seeds, arguments.rounds) for chooser in guards)
        print(f"| `{inner}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
