"""Speed of select + observe at 1e3 .. 1e6 clients, cohort 100: ``make bench``.

Prints milliseconds and, in brackets, the ratio to the floor of ``turnout.testing.speed``. On a busy
machine, ``--processor-time`` with OMP_NUM_THREADS=1 gives ratios that can be trusted more.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import turnout
from turnout.testing import speed as timing
from turnout.testing.speed import measure

SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: Selectors whose cost per client is a matrix product: measured up to this many clients.
LARGEST = {"fedcor": 10_000, "k-linucb": 100_000, "nccb": 10_000}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in turnout.list_selectors(plugins=False)},
    "divfl greedy": ("divfl", {"sampled": None}),
    "e3cs quota=0": ("e3cs", {"quota": 0.0}),
    "e3cs multinomial, gain": ("e3cs", {"draw": "multinomial", "estimate": "gain"}),
    "fedcs expected-duration": ("fedcs", {"by": "expected-duration", "deadline": 10.0}),
    "fedcs packing": ("fedcs", {"by": "packing", "deadline": 60.0}),
    "data-weighted replacement": ("data-weighted", {"replacement": True}),
    "guarded oort": ("guarded", {"inner": "oort"}),
    "nccb diagonal": ("nccb", {"bonus": "diagonal"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", help="variants to measure", default=sorted(VARIANTS))
    parser.add_argument("--processor-time", action="store_true", help="not that of the clock")
    arguments = parser.parse_args()
    if arguments.processor_time:
        timing.clock = time.process_time
    console = Console(width=110)
    table = Table(title="select + observe, cohort 100: ms (ratio to the floor)")
    table.add_column("selector")
    for n in arguments.sizes:
        table.add_column(f"n = {n:,}", justify="right")
    table.add_column("bytes/client", justify="right")
    floors: dict[int, list[float]] = {n: [] for n in arguments.sizes}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(arguments.sizes) * len(arguments.only))
        for variant in arguments.only:
            name, parameters = VARIANTS[variant]
            cells, memory = [], 0.0
            for n in arguments.sizes:
                if n > LARGEST.get(name, math.inf):
                    cells.append("-")
                else:
                    speed = measure(turnout.make(name, **parameters), n, repeats=arguments.repeats)
                    floors[n].append(speed.floor_s)
                    memory = speed.bytes_per_client
                    cells.append(f"{1e3 * speed.round_s:.2f} ({speed.ratio:.1f}x)")
                progress.advance(task)
            table.add_row(variant, *cells, f"{memory:.0f}")
    means = [f"{1e3 * sum(f) / len(f):.2f}" if f else "-" for f in floors.values()]
    table.add_row("floor (mean)", *means, "", style="bold")
    console.print(table)


if __name__ == "__main__":
    main()
