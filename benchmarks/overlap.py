"""Rounds that overlap: the speed of the event loop, ``python benchmarks/overlap.py``.

Prints events a second without training, and what an event costs beside a synchronous selection.
"""

from __future__ import annotations

import time
from itertools import islice

import turnout
from turnout.experiment import overlapping, rounds
from turnout.worlds import Buffered, Environment, LinearContextual

#: Runs of each selector, of which the fastest counts.
N_TURNS = 8


def main() -> None:
    """Print events a second of processor time, and the cost of an event beside a round."""
    world = Environment(100, 0, timing=LinearContextual())
    best = dict.fromkeys(("random", "e3cs", "pace"), 0.0)
    for _ in range(N_TURNS):  # in turn: what else the machine does slows all of them
        for name in best:
            begin, n_events = time.process_time(), 0
            for record in overlapping(turnout.make(name), world, schedule=Buffered(), n_rounds=60):
                n_events += record.row.clients.size
            best[name] = max(best[name], n_events / (time.process_time() - begin))
    for name, rate in best.items():
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


if __name__ == "__main__":
    main()
