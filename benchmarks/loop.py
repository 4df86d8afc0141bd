"""Speed of whole simulated rounds: a hundred clients, and a million. Part of ``make bench``.

World, policy, selector and record are all counted; the world is that of E3CS, or that of RBCS-F for
its selector. Targets: 3,000 rounds a second for E3CS at 100 clients, 0.15 s a round at a million.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

import turnout
from turnout.experiment import RoundRecord, rounds
from turnout.worlds import e3cs_world, rbcs_f_world

WORLDS = {"random": e3cs_world, "e3cs": e3cs_world, "oort": e3cs_world, "rbcs-f": rbcs_f_world}


def records(name: str, n_clients: int, cohort_size: int, n_rounds: int) -> Iterator[RoundRecord]:
    world = WORLDS[name](n_clients, seed=1)
    return rounds(turnout.make(name), world, cohort_size=cohort_size, n_rounds=n_rounds)


def seconds_per_round(name: str, n_clients: int, cohort_size: int, n_rounds: int) -> float:
    """Return the mean time of a round, the first of a run not counted."""
    running = records(name, n_clients, cohort_size, n_rounds + 1)
    next(running)
    start = time.perf_counter()
    for _ in running:
        pass
    return (time.perf_counter() - start) / n_rounds


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # the default rate of rbcs-f is too high here
    table = Table(title="simulated rounds, everything included")
    for heading in ("selector", "100 clients, rounds/s", "best of 5", "1,000,000 clients, s/round"):
        table.add_column(heading, justify="left" if heading == "selector" else "right")
    for name in WORLDS:
        few = [1.0 / seconds_per_round(name, 100, 20, 2_000) for _ in range(5)]
        many = seconds_per_round(name, 1_000_000, 100, 5)
        table.add_row(name, f"{statistics.median(few):,.0f}", f"{max(few):,.0f}", f"{many:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
