"""What a floor costs: success ratio and worst shortfall of every selector, bare and guarded.

Prints the table of docs/howto/guarantee.md: the mean over seeds with half its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
import warnings

import turnout
from turnout.environments import WORLDS
from turnout.experiment.worlds import world_of
from turnout.metrics import guarantee
from turnout.statistics import Estimate, estimate

#: Floor and cap of each column; the first is the selector as it is.
GUARDS = ((0.0, math.inf), (0.0, 2.0), (0.5, 2.0), (0.8, 2.0))
#: A network is trained in each of its rounds: days for this table.
LEFT_OUT = {"guarded", "nccb"}
INNER = tuple(name for name in turnout.names(plugins=False) if name not in LEFT_OUT)


def price(
    inner: str, floor: float, cap: float, seeds: int, n_rounds: int
) -> tuple[Estimate, float]:
    """Return the success ratio, and by how many places the worst client fell short of half."""
    world, successes, shortfall = WORLDS["volatile"], [], 0.0
    for seed in range(seeds):
        environment = world_of("volatile", 100, seed)
        selector = turnout.make("guarded", inner=inner, floor=floor, cap=cap)
        run = turnout.simulate(
            selector, environment, cohort_size=world.cohort_size, n_rounds=n_rounds
        )
        successes.append(run.success_ratio)
        shortfall = max(shortfall, float(guarantee(run, floor=0.5).shortfall.max()))
    return estimate(successes), shortfall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", nargs="+", default=INNER, help="selectors to measure")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f warns that its rate is high
    headings = [
        "bare" if cap == math.inf else f"floor {floor:g}, cap {cap:g}" for floor, cap in GUARDS
    ]
    print("| inner selector | " + " | ".join(headings) + " |")
    print("|---" * (len(headings) + 1) + "|")
    for inner in arguments.only:
        cells = []
        for floor, cap in GUARDS:
            success, shortfall = price(inner, floor, cap, arguments.seeds, arguments.rounds)
            cells.append(f"{success.mean:.3f} ± {success.half_width:.3f} ({shortfall:.1f})")
        print(f"| `{inner}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
