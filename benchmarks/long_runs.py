"""Long and large runs of selectors: drift, growth, time and files, as a table of docs/speed.md.

Writes results/long_runs.json after each run; what the file has is not run again. Each run has a
process of its own, so that peaks of memory do not mix.

Drift is measured against a second selector that keeps its state in 80-bit floats and learns from
the same selections and outcomes. Rounding of sums over all rounds is then 2,000 times smaller.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import turnout
from turnout import Outcome, RoundContext, Selector
from turnout.core.files import write_atomically
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array
from turnout.testing.speed import warm_columns

RESULTS = Path(__file__).parents[1] / "results" / "long_runs.json"

SUCCESS, ABSENT = 0.7, 0.1
#: Columns change from round to round between so many sets.
N_COLUMN_SETS = 4
#: Memory counts from this part of a run on, when everything has been allocated.
SETTLED = 0.1
#: Cohorts that are chosen from the end of a run, by both states.
N_COMPARED = 100


class Size(NamedTuple):
    """How long and how large a run is."""

    n_clients: int
    cohort_size: int
    n_rounds: int


SIZES = {"long": Size(100, 20, 1_000_000), "large": Size(1_000_000, 1_000, 500)}
SELECTORS: dict[str, dict[str, Any]] = {
    "e3cs": {},
    "ucb-cs": {},
    "rbcs-f": {"penalty": 1.0},
    "oort": {},
    "guarded": {"inner": "oort"},
}


def selector_of(name: str, size: Size) -> Selector:
    """Return the selector, with a rate that its cohort can serve."""
    rate = {"rate": 0.5 * size.cohort_size / size.n_clients} if name == "rbcs-f" else {}
    return turnout.make(name, **SELECTORS[name], **rate)


def widened(selector: Selector, n_clients: int) -> Selector:
    """Return a fresh copy that keeps its sums in 80-bit floats."""
    wide = selector.clone()
    wide.prepare(n_clients)
    for part in (wide, *(part for part in vars(wide).values() if isinstance(part, Selector))):
        for name, value in vars(part).items():
            if isinstance(value, np.ndarray) and value.dtype == np.float64:
                setattr(part, name, value.astype(np.longdouble))
    return wide


def contexts(selector: Selector, size: Size, rounds: range) -> Iterator[RoundContext]:
    """Yield what is known before each round: 1 % of the clients leave, and as many come back."""
    n = size.n_clients
    order = stream(0, Purpose.ENV).permutation(n)
    sets = [warm_columns(selector, n) for _ in range(N_COLUMN_SETS)]
    for i, columns in enumerate(sets):
        for column in columns.values():
            column *= 1.0 + i / N_COLUMN_SETS
    n_absent, step = round(ABSENT * n), max(1, n // 100)
    for t in rounds:
        available = np.ones(n, dtype=np.bool_)
        available[np.take(order, range(t * step, t * step + n_absent), mode="wrap")] = False
        yield RoundContext(t, size.cohort_size, available, columns=sets[t % N_COLUMN_SETS])


def outcome_of(selector: Selector, n_chosen: int, rng: np.random.Generator) -> Outcome:
    """Return what happens to the chosen."""
    status = (rng.random(n_chosen) >= SUCCESS).astype(np.int8)
    metrics = {name: rng.random(n_chosen) for name in selector.needs_metrics}
    return Outcome(status, rng.uniform(1.0, 30.0, n_chosen), metrics)


def play(name: str, size: Size) -> dict[str, Any]:
    """Return the figures of one run.

    Args:
        name: The selector.
        size: How long and how large the run is.
    """
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f warns that queues wait for long
    selector = selector_of(name, size)
    selector.prepare(size.n_clients)
    wide = widened(selector, size.n_clients)
    rng, taken, settled_kb = np.random.default_rng(1), 0.0, 0
    for ctx in contexts(selector, size, range(size.n_rounds)):
        started = time.process_time()
        selection = selector.select(ctx, stream(0, Purpose.SELECT, ctx.round))
        taken += time.process_time() - started
        outcome = outcome_of(selector, selection.clients.size, rng)
        started = time.process_time()
        selector.observe(selection, outcome)
        taken += time.process_time() - started
        wide.observe(selection, outcome)
        if ctx.round == int(SETTLED * size.n_rounds):
            settled_kb = peak_kb()
    growth_kb = peak_kb() - settled_kb
    array, drift = worst_drift(selector, wide)
    return {
        "size": list(size),
        "ms": 1e3 * taken / size.n_rounds,
        "peak_mb": peak_kb() / 1024,
        "growth_kb": growth_kb,
        "drift": drift,
        "drift_of": array,
        "same_cohorts": same_cohorts(selector, wide, size),
        **files(selector),
    }


def peak_kb() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def worst_drift(selector: Selector, wide: Selector) -> tuple[str, float]:
    """Return the state that is furthest from its reference, relative to the largest in it."""
    exact, drifts = wide.state(), {"": 0.0}
    for name, values in selector.state().items():
        if values.dtype == np.float64:
            scale = max(1.0, float(np.abs(exact[name]).max()))
            drifts[name] = float(np.abs(values - exact[name]).max()) / scale
    return max(drifts.items(), key=lambda item: item[1])


def same_cohorts(selector: Selector, wide: Selector, size: Size) -> float:
    """Return the share of cohorts that the reference's state would choose too."""
    rounded = selector.clone()
    rounded.prepare(size.n_clients)
    rounded.load_state({name: narrow(values) for name, values in wide.state().items()})
    rounds = range(size.n_rounds, size.n_rounds + N_COMPARED)
    same = []
    for ctx in contexts(selector, size, rounds):
        own = selector.select(ctx, stream(0, Purpose.SELECT, ctx.round))
        other = rounded.select(ctx, stream(0, Purpose.SELECT, ctx.round))
        same.append(np.array_equal(own.clients, other.clients))
    return float(np.mean(same))


def narrow(values: Array) -> Array:
    """Return numbers as a state file holds them."""
    return values.astype(np.float64) if values.dtype == np.longdouble else values


def files(selector: Selector) -> dict[str, float]:
    """Return seconds to save and load a selector, and the size of its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        started = time.process_time()
        turnout.save(selector, path)
        saved = time.process_time()
        loaded = turnout.load(path)
        ended = time.process_time()
        state = selector.state()
        assert all(np.array_equal(values, state[name]) for name, values in loaded.state().items())
        n_bytes = path.stat().st_size
    return {"save_s": saved - started, "load_s": ended - saved, "file_mb": n_bytes / 2**20}


def measure(path: Path, sizes: dict[str, Size], selectors: list[str]) -> dict[str, Any]:
    """Run what the file does not have, write it after each run, and return it all."""
    saved: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    spawn = multiprocessing.get_context("spawn")
    for kind, size in sizes.items():
        for name in selectors:
            key = f"{kind} | {name}"
            if saved.get(key, {}).get("size") == list(size):
                continue
            with spawn.Pool(1) as pool:
                saved[key] = pool.apply(play, (name, size))
            write_atomically(path, (json.dumps(saved, indent=1) + "\n").encode())
            print(f"{key}: {saved[key]}", file=sys.stderr, flush=True)
    return saved


def table(saved: dict[str, Any]) -> str:
    """Return the table of the page."""
    lines = [
        "| clients | rounds | selector | ms a round | peak, MB | growth, MB | drift "
        "| same cohorts | save, s | load, s | file, MB |",
        "|---" * 11 + "|",
    ]
    for key, one in saved.items():
        n_clients, _, n_rounds = one["size"]
        cells = (
            f"{n_clients:,}",
            f"{n_rounds:,}",
            f"`{key.split(' | ')[1]}`",
            f"{one['ms']:.2f}",
            f"{one['peak_mb']:.0f}",
            f"{one['growth_kb'] / 1024:.1f}",
            f"{one['drift']:.0e}",
            f"{one['same_cohorts']:.0%}",
            f"{one['save_s']:.3f}",
            f"{one['load_s']:.3f}",
            f"{one['file_mb']:.3g}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file to continue")
    parser.add_argument("--only", nargs="+", default=list(SELECTORS), help="selectors to run")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, help="fewer or more rounds than usual")
    arguments = parser.parse_args()
    sizes = {kind: SIZES[kind] for kind in arguments.sizes}
    if arguments.rounds is not None:
        sizes = {kind: size._replace(n_rounds=arguments.rounds) for kind, size in sizes.items()}
    print(table(measure(arguments.out, sizes, arguments.only)))


if __name__ == "__main__":
    main()
