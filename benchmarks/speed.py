"""Speed of select + observe at 1e3 .. 1e6 clients, as a ratio to a floor measured in the same run.

The floor is one ``rng.random(n)`` plus one ``np.argpartition`` of n floats: what any ranking of all
clients costs at least. Selectors are measured in a warm state in which every client has been seen,
which is their slowest. Run it with ``make bench``.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import turnout
from turnout import Outcome, Purpose, RoundContext, Selector, stream

SIZES = (1_000, 10_000, 100_000, 1_000_000)
COHORT = 100
N_FEATURES = 64
#: Selectors whose cost per client is a matrix product: measured up to this many clients.
LARGEST = {"k-linucb": 100_000, "nccb": 10_000}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in turnout.names()} | {
    "e3cs (quota 0)": ("e3cs", {"quota": 0.0}),
    "e3cs (multinomial, gain)": ("e3cs", {"draw": "multinomial", "estimate": "gain"}),
    "fedcs (expected-duration)": ("fedcs", {"by": "expected-duration"}),
    "fedcs (packing)": ("fedcs", {"by": "packing", "deadline": 60.0}),
    "data-weighted (replacement)": ("data-weighted", {"replacement": True}),
}


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median time of an action, after one that does not count."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def floor(n: int, repeats: int) -> float:
    rng = np.random.default_rng(0)
    return seconds(lambda: np.argpartition(rng.random(n), n - min(COHORT, n)), repeats)


def columns(selector: Selector, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    everything: dict[str, Callable[[], np.ndarray]] = {
        "num_samples": lambda: rng.integers(10, 1_000, n),
        "features": lambda: rng.integers(0, 2, (n, N_FEATURES)).astype(np.float64),
        "context": lambda: rng.uniform(0.5, 10.0, (n, 3)),
        "expected_duration": lambda: rng.uniform(0.5, 30.0, n),
        "success_rate": lambda: rng.random(n),
    }
    wanted = selector.needs_columns | (selector.uses_columns & everything.keys())
    return {name: make() for name, make in everything.items() if name in wanted}


def warm_up(selector: Selector, n: int, known: dict[str, np.ndarray]) -> None:
    """Let everyone take part, in cohorts of a tenth, so that no state is in its cheap start."""
    rng = np.random.default_rng(2)
    everyone = np.ones(n, dtype=np.bool_)
    if selector.needs_columns & {"features"}:
        rounds, size = 6, COHORT
    else:
        rounds, size = 12, max(1, n // 10)
    for t in range(rounds):
        available = everyone if rounds == 6 else np.arange(n) % 10 == t % 10
        selection = choose(selector, t, size, available, known)
        s = selection.clients.size
        selector.observe(selection, outcome(s, rng))


def outcome(s: int, rng: np.random.Generator) -> Outcome:
    metrics = {name: rng.random(s) for name in ("loss", "loss_std", "loss_rms")}
    return Outcome((rng.random(s) < 0.3).astype(np.int8), rng.uniform(1.0, 30.0, s), metrics)


def choose(
    selector: Selector, t: int, size: int, available: np.ndarray, known: dict[str, np.ndarray]
) -> turnout.Selection:
    ctx = RoundContext(t, size, available, columns=known)
    asked = selector.poll(ctx, stream(0, Purpose.POLL, t))
    if asked is not None:
        answers = np.linspace(0.0, 1.0, asked.size)
        ctx = RoundContext(t, size, available, columns=known, polled=asked, polled_loss=answers)
    return selector.select(ctx, stream(0, Purpose.SELECT, t))


def measure(name: str, parameters: dict[str, Any], n: int, repeats: int) -> tuple[float, float]:
    """Return seconds per round and bytes of state per client."""
    selector = turnout.make(name, **parameters)
    selector.prepare(n, seed=0)
    known = columns(selector, n)
    warm_up(selector, n, known)
    everyone = np.ones(n, dtype=np.bool_)
    ctx = RoundContext(20, COHORT, everyone, columns=known)
    result = outcome(COHORT, np.random.default_rng(3))
    clock = iter(range(20, 10_000))

    def one_round() -> None:
        t = next(clock)
        moment = ctx
        asked = selector.poll(moment, stream(0, Purpose.POLL, t))
        if asked is not None:
            moment = RoundContext(
                t, COHORT, everyone, columns=known, polled=asked, polled_loss=answers[: asked.size]
            )
        selection = selector.select(moment, stream(0, Purpose.SELECT, t))
        s = selection.clients.size
        selector.observe(selection, result if s == COHORT else outcome(s, small))

    answers, small = np.linspace(0.0, 1.0, n), np.random.default_rng(4)
    taken = seconds(one_round, repeats)
    state = selector.state()
    per_client = sum(a.nbytes for a in state.values() if n in a.shape) / n
    return taken, per_client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", nargs="+", help="variants to measure", default=list(VARIANTS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f's rate is infeasible at a million clients
    console = Console()
    table = Table(title=f"select + observe, cohort {COHORT}: ms (ratio to the floor)")
    table.add_column("selector")
    for n in arguments.sizes:
        table.add_column(f"n = {n:,}", justify="right")
    table.add_column("bytes/client", justify="right")
    rows: dict[str, list[str]] = {name: [] for name in ("floor", *arguments.only)}
    memory: dict[str, float] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(arguments.sizes) * len(arguments.only))
        for n in arguments.sizes:
            base = floor(n, arguments.repeats)
            rows["floor"].append(f"{1e3 * base:.2f}")
            for variant in arguments.only:
                name, parameters = VARIANTS[variant]
                if n > LARGEST.get(name, math.inf):
                    rows[variant].append("-")
                else:
                    gc.collect()
                    before = floor(n, arguments.repeats)
                    taken, memory[variant] = measure(name, parameters, n, arguments.repeats)
                    base = (before + floor(n, arguments.repeats)) / 2
                    rows[variant].append(f"{1e3 * taken:.2f} ({taken / base:.1f}x)")
                progress.advance(task)
    for variant, cells in rows.items():
        per_client = f"{memory[variant]:.0f}" if variant in memory else ""
        table.add_row(variant, *cells, per_client)
    console.print(table)


if __name__ == "__main__":
    main()
