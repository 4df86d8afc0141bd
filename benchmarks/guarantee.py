"""What a floor costs: success ratio and worst shortfall of every selector, bare and guarded.

Prints the tables of docs/howto/guarantee.md: the mean over seeds with half its 95 % interval. With
``--train`` a model is trained, and the table has the virtual minutes to an accuracy and how many
more they are than those of the bare selector in the same world. ``--answers`` compares floors on
places with floors on replies; in brackets is then the least share of replies that a client got.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator

import numpy as np

import turnout
from turnout.core.selector import Selector
from turnout.core.types import Status
from turnout.data import ClientCode, Digits, Shards
from turnout.experiment.config import world_of
from turnout.results.metrics import guarantee
from turnout.results.statistics import Estimate, estimate
from turnout.training import LocalWork, Mlp, Training
from turnout.worlds import WORLDS

#: Floor and cap of each column; the first is the selector as it is.
GUARDS = ((0.0, math.inf), (0.0, 2.0), (0.5, 2.0), (0.8, 2.0))
#: Floor, cap, and whether the floor is on replies, with ``--answers``.
ON_ANSWERS = ((0.0, math.inf, False), (0.5, 4.0, False), (0.3, 4.0, True), (0.5, 4.0, True))
INNER = tuple(name for name in turnout.list_selectors(plugins=False) if name != "guarded")
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


def success(inner: str, seeds: int, n_rounds: int) -> Iterator[str]:
    """Yield success ratios, and by how many places the worst client fell short of half."""
    for chooser in guards(inner):
        successes, shortfall = [], 0.0
        for seed in range(seeds):
            world = world_of("volatile", N_CLIENTS, seed)
            run = turnout.simulate(chooser, world, cohort_size=COHORT_SIZE, n_rounds=n_rounds)
            successes.append(run.success_ratio)
            shortfall = max(shortfall, float(guarantee(run, floor=0.5).shortfall.max()))
        yield f"{shown(estimate(successes), 3)} ({shortfall:.1f})"


def replies(inner: str, seeds: int, n_rounds: int) -> Iterator[str]:
    """Yield success ratios, and the least share of an equal share of all replies."""
    for floor, cap, answers in ON_ANSWERS:
        successes, least = [], []
        for seed in range(seeds):
            world = world_of("volatile", N_CLIENTS, seed)
            chooser = turnout.make("guarded", inner=inner, floor=floor, cap=cap, answers=answers)
            run = turnout.simulate(chooser, world, cohort_size=COHORT_SIZE, n_rounds=n_rounds)
            successes.append(run.success_ratio)
            counts = np.bincount(run.clients[run.status == Status.COMPLETED], minlength=N_CLIENTS)
            least.append(float(counts.min() / counts.mean()))
        yield f"{shown(estimate(successes), 3)} ({np.mean(least):.2f})"


def minutes(inner: str, seeds: int, n_rounds: int) -> Iterator[str]:
    """Yield the virtual minutes to the accuracy; a run that ended before it counts in full."""
    bare: list[float] = []
    for chooser in guards(inner):
        times, n_missed = [], 0
        for seed in range(seeds):
            world = world_of("volatile", N_CLIENTS, seed)
            run = turnout.train(chooser, RECIPE, world, cohort_size=COHORT_SIZE, n_rounds=n_rounds)
            seconds, whole = run.time_to(TARGET), float(run.length_s.sum())
            n_missed += not seconds <= whole
            times.append((seconds if seconds <= whole else whole) / 60.0)
        missed = f", {n_missed} missed" if n_missed else ""
        more = [later - sooner for later, sooner in zip(times, bare, strict=bool(bare))]
        price = f" ({shown(estimate(more), 1, '+')})" if more else ""
        bare = bare or times
        yield f"{shown(estimate(times), 1)}{missed}{price}"


def guards(inner: str) -> Iterator[Selector]:
    """Yield the selector between each floor and cap."""
    for floor, cap in GUARDS:
        yield turnout.make("guarded", inner=inner, floor=floor, cap=cap)


def shown(value: Estimate, digits: int, sign: str = "") -> str:
    """Return a mean and its half width; one seed has none."""
    width = "" if math.isnan(value.half_width) else f" ± {value.half_width:.{digits}f}"
    return f"{value.mean:{sign}.{digits}f}{width}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--train", action="store_true", help=f"minutes to accuracy {TARGET:g}")
    parser.add_argument("--answers", action="store_true", help="floors on replies")
    parser.add_argument("--only", nargs="+", default=INNER, help="selectors to measure")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f warns that its rate is high
    measured = minutes if arguments.train else replies if arguments.answers else success
    headings = [
        "bare" if cap == math.inf else f"floor {floor:g}, cap {cap:g}" for floor, cap in GUARDS
    ]
    if arguments.answers:
        words = {False: "places", True: "replies"}
        headings = ["bare", *(f"{floor:g} of {words[on]}" for floor, _, on in ON_ANSWERS[1:])]
    print("| inner selector | " + " | ".join(headings) + " |")
    print("|---" * (len(headings) + 1) + "|")
    for inner in arguments.only:
        if inner == SLOW and not arguments.train:
            continue
        cells = measured(inner, arguments.seeds, arguments.rounds)
        print(f"| `{inner}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
