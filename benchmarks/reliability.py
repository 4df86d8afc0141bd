"""What lying, silent and dead clients gain: every selector bare, with bounds and guarded.

Writes results/reliability.json, from which docs/build_reliability.py makes the tables of
docs/reliability.md. What the file has is not run again, unless it was made with other settings or
another form of the behaviour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import warnings
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

import turnout
from turnout import Bounds
from turnout.core.files import write_atomically
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array, BoolArray, FloatArray, IntArray, RoundContext
from turnout.experiment import Run, simulate
from turnout.experiment.codec import encode
from turnout.worlds import (
    Bernoulli,
    ByClass,
    Environment,
    Fate,
    History,
    LinearContextual,
    Population,
)

RESULTS = Path(__file__).parents[1] / "results" / "reliability.json"

N_CLIENTS, COHORT_SIZE, N_ROUNDS, N_SEEDS = 100, 20, 300, 3
#: In this round those who die do so, and from this round on places count.
LATER = 100
SHARES = (0.01, 0.1, 0.3)
FLOOR, CAP = 0.5, 2.0
HUGE = turnout.core.types.LARGEST_REPORT


class Behaviour(NamedTuple):
    """What a hostile client does; None = as an honest one."""

    loss: float | None = None  #: reported, and answered to polls, in place of the true one
    loss_factor: float = 1.0  #: by how much the true one is exaggerated
    num_samples: float | None = None
    seconds: float | None = None  #: claimed as expected time, and in place of the context
    slowness: float = 1.0  #: how much longer than an honest client it really takes
    silent_from: int = N_ROUNDS  #: the first round in which it does not answer
    every: int = 1  #: it lies in each round that this divides
    direction: Literal["own", "turning", "equal"] = "own"  #: of its updates
    has_all_labels: bool = False  #: it claims as many examples of each label
    forecast: float | None = None  #: its chance to be there in the next round


HONEST = Behaviour()
BEHAVIOURS = {
    "honest": HONEST,
    "huge loss": Behaviour(loss=HUGE),
    "small loss": Behaviour(loss=1e-9),
    "huge data": Behaviour(num_samples=HUGE),
    "fast": Behaviour(seconds=0.0),
    "slow": Behaviour(slowness=10.0),
    "dead after 100 rounds": Behaviour(silent_from=LATER),
    "silent": Behaviour(silent_from=0),
    "bait then silence": Behaviour(HUGE, num_samples=HUGE, seconds=0.0, silent_from=LATER),
    "NaN": Behaviour(math.nan, num_samples=math.nan, seconds=math.nan),
    "half honest": Behaviour(HUGE, num_samples=HUGE, seconds=0.0, every=2),
    "triple loss": Behaviour(loss_factor=3.0),
    "turning update": Behaviour(direction="turning"),
    "balanced update": Behaviour(direction="equal"),
    "all labels": Behaviour(has_all_labels=True),
    "soon gone": Behaviour(forecast=0.0),
}


class Chooser(NamedTuple):
    """A selector of the table."""

    name: str
    parameters: dict[str, Any]


#: A network is trained in each round of nccb: 5 seconds a run, and 23 minutes for the table.
SELECTORS = {
    name: Chooser(name, {})
    for name in turnout.list_selectors(plugins=False)
    if name not in ("guarded", "mix")
} | {"fedcs by=packing": Chooser("fedcs", {"by": "packing"})}
#: Selectors that look at the time that clients really take.
LOOK_AT_TIME = {"oort", "pace", "rbcs-f", "tifl"}
MODES = ("bare", "bounds", "guarded")


@dataclass(frozen=True)
class HostileWorld(Environment):
    """A world in which some clients behave in a way of their own.

    Args:
        behaviour: What they do.
        share: How many of the clients they are.
    """

    behaviour: Behaviour = HONEST
    share: float = 0.1

    @cached_property
    def hostile(self) -> BoolArray:
        """(n,) who they are, drawn from the seed."""
        order = stream(self.seed, Purpose.PARTITION).permutation(self.n_clients)
        return order < max(1, round(self.share * self.n_clients))

    def context(
        self,
        round: int,
        cohort_size: int,
        history: History | None = None,
        *,
        columns: Collection[str] = (),
        deadline: float = math.inf,
        workload: FloatArray | None = None,
        busy: BoolArray | None = None,
    ) -> RoundContext:
        """Return what is claimed."""
        ctx = super().context(
            round,
            cohort_size,
            history,
            columns=columns,
            deadline=deadline,
            workload=workload,
            busy=busy,
        )
        lies = {
            "num_samples": self.behaviour.num_samples,
            "expected_duration": self.behaviour.seconds,
            "context": self.behaviour.seconds,
            "availability_forecast": self.behaviour.forecast,
        }
        claimed = {
            name: self._claimed(column, lies.get(name), round)
            for name, column in ctx.columns.items()
        }
        if self.behaviour.has_all_labels and "label_counts" in claimed:
            counts = np.array(claimed["label_counts"])
            counts[self.hostile] = counts[self.hostile].mean(axis=1, keepdims=True)
            claimed["label_counts"] = counts
        return replace(ctx, columns=claimed)

    def fate(
        self, round: int, history: History | None = None, *, workload: FloatArray | None = None
    ) -> Fate:
        """Return what happens; the silent do not answer."""
        fate = super().fate(round, history, workload=workload)
        is_silent = self.hostile & (round >= self.behaviour.silent_from)
        longer = np.where(self.hostile, self.behaviour.slowness, 1.0)
        return fate._replace(survived=fate.survived & ~is_silent, duration=fate.duration * longer)

    def metrics(self, round: int) -> dict[str, FloatArray]:
        """Return what is reported, if the client answers."""
        return {
            name: self._reported(values, round) for name, values in super().metrics(round).items()
        }

    def reports(
        self, round: int, clients: IntArray, wanted: Mapping[str, int | None]
    ) -> dict[str, FloatArray]:
        """Return what the chosen report; hostile updates have the claimed loss as their length."""
        found = super().reports(round, clients, wanted)
        hostile = np.flatnonzero(self.hostile[clients])
        for name, values in found.items():
            if values.ndim == 1 or self.behaviour.direction == "own" or not hostile.size:
                continue
            unit = np.ones((hostile.size, values.shape[1]))
            if self.behaviour.direction == "turning":
                unit = stream(self.seed, Purpose.TRAIN, round).choice([-1.0, 1.0], unit.shape)
            length = np.linalg.norm(values[hostile], axis=1, keepdims=True)
            found[name] = values.copy()
            found[name][hostile] = length * unit / math.sqrt(values.shape[1])
        return found

    def polled_loss(
        self, round: int, poll_data: Literal["all", "mini-batch"] = "all"
    ) -> FloatArray:
        """Return the answers; the silent do not give one."""
        answer = self._reported(super().polled_loss(round, poll_data), round)
        is_silent = self.hostile & (round >= self.behaviour.silent_from)
        return np.where(is_silent, np.nan, answer)

    def _reported(self, loss: FloatArray, round: int) -> FloatArray:
        exaggerated = np.where(self.hostile, self.behaviour.loss_factor, 1.0) * loss
        return self._claimed(exaggerated, self.behaviour.loss, round)

    def _claimed(self, values: Array, lie: float | None, round: int) -> Array:
        if lie is None or round % self.behaviour.every:
            return values
        claimed = np.array(values, dtype=np.float64)
        claimed[self.hostile] = lie
        return claimed


#: Clients, seed and parts of the world: 90 % are available, and 60 to 90 % of the chosen answer.
WORLD = (
    N_CLIENTS,
    0,
    Bernoulli(0.9),
    ByClass((0.6, 0.7, 0.8, 0.9)),
    LinearContextual(),
    Population(tail=3.0),
)


class Gain(NamedTuple):
    """What a run gave to whom, in times of the fair share."""

    hostile: float  #: of the hostile clients together
    least_honest: float  #: of the honest client that got least
    most_honest: float  #: of the one that got most


def world_of(behaviour: str, share: float, seed: int) -> HostileWorld:
    """Return the world of the table, with hostile clients."""
    parts = (N_CLIENTS, seed, *WORLD[2:])
    return HostileWorld(*parts, behaviour=BEHAVIOURS[behaviour], share=share)


def gain(selector: str, behaviour: str, share: float, mode: str, seed: int) -> Gain:
    """Return who got how much in one run."""
    name, parameters = SELECTORS[selector]
    chooser = turnout.make(name, **parameters)
    if mode == "guarded":
        chooser = turnout.make(
            "guarded", inner=name, floor=FLOOR, cap=CAP, inner_parameters=parameters
        )
    world = world_of(behaviour, share, seed)
    bounds = Bounds() if mode == "bounds" else None
    run = simulate(chooser, world, cohort_size=COHORT_SIZE, n_rounds=N_ROUNDS, bounds=bounds)
    chosen, fair = counted(run)
    rate, honest = chosen / fair, ~world.hostile
    hostile = float(chosen[world.hostile].sum() / fair[world.hostile].sum())
    return Gain(hostile, float(rate[honest].min()), float(rate[honest].max()))


def counted(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return (n,) places and fair share of each client in the rounds that count."""
    chosen, fair = np.zeros(run.n_clients), np.zeros(run.n_clients)
    for t in range(LATER, run.n_rounds):
        available = run.available_in(t)
        fair[available] += min(1.0, run.cohort_size / np.count_nonzero(available))
        chosen[run.chosen_in(t)] += 1.0
    return chosen, fair


def cells(selector: str) -> list[tuple[str, str, float, str]]:
    """Return the cells of a selector; behaviours that it cannot see have none."""
    seen = [behaviour for behaviour in BEHAVIOURS if is_seen(selector, behaviour)]
    return [(selector, *rest) for rest in itertools.product(seen, SHARES, MODES)]


def is_seen(selector: str, behaviour: str) -> bool:
    """Return whether a selector looks at anything that the behaviour changes."""
    name, parameters = SELECTORS[selector]
    chooser, hostile = turnout.make(name, **parameters), BEHAVIOURS[behaviour]
    columns = chooser.needs_columns | chooser.uses_columns
    chooser.reset(N_CLIENTS)
    learns = chooser.polls or len(chooser.state()) > 1  # more than the number of clients
    return (
        behaviour == "honest"
        or (bool(chooser.needs_metrics or chooser.polls) and hostile[:2] != (None, 1.0))
        or ("num_samples" in columns and hostile.num_samples is not None)
        or (bool(columns & {"context", "expected_duration"}) and hostile.seconds is not None)
        or (bool(chooser.metric_sizes) and hostile.direction != "own")
        or ("label_counts" in columns and hostile.has_all_labels)
        or ("availability_forecast" in columns and hostile.forecast is not None)
        or (name in LOOK_AT_TIME and hostile.slowness > 1.0)
        or (learns and hostile.silent_from < N_ROUNDS)
    )


def settings() -> dict[str, Any]:
    """Return what the numbers depend on, as plain data."""
    sizes = [N_CLIENTS, COHORT_SIZE, N_ROUNDS, N_SEEDS, LATER]
    behaviours = {
        name: {
            field: repr(value)
            for field, value in behaviour._asdict().items()
            if value != Behaviour._field_defaults[field]
        }
        for name, behaviour in BEHAVIOURS.items()
    }
    world = encode(Environment(*WORLD))
    guard = [FLOOR, CAP]
    return {"sizes": sizes, "behaviours": behaviours, "world": world, "guard": guard}


def measure(path: Path, selectors: Collection[str], jobs: int = 1, n_seeds: int = N_SEEDS) -> None:
    """Run the seeds of cells that the file does not have, and write it after each cell.

    Args:
        path: The file.
        selectors: Whom to measure.
        jobs: Number of processes.
        n_seeds: How many seeds of a cell there should be.
    """
    now, cells_now = settings(), {}
    if path.exists():
        old = json.loads(path.read_text())
        before = old["settings"].pop("behaviours")
        if old["settings"] == {name: x for name, x in now.items() if name != "behaviours"}:
            same = {name for name, x in now["behaviours"].items() if before.get(name) == x}
            cells_now = {k: x for k, x in old["cells"].items() if k.split(" | ")[1] in same}
    saved: dict[str, Any] = {"settings": now, "cells": cells_now}
    with ProcessPoolExecutor(jobs) as pool:
        for selector in selectors:
            has = {cell: len(saved["cells"].get(key_of(cell), ())) for cell in cells(selector)}
            missing = {cell: range(n, n_seeds) for cell, n in has.items() if n < n_seeds}
            gained = pool.map(gains_of, missing, missing.values())
            for cell, gains in zip(missing, gained, strict=True):
                saved["cells"].setdefault(key_of(cell), []).extend(gains)
                write_atomically(path, json.dumps(saved, indent=0).encode())
            print(f"{selector}: {len(missing)} cells", flush=True)


def key_of(cell: tuple[str, str, float, str]) -> str:
    """Return the name of a cell in the file."""
    return " | ".join(map(str, cell))


def gains_of(cell: tuple[str, str, float, str], seeds: Iterable[int]) -> list[list[float]]:
    """Return the gains of a cell, one list per seed."""
    warnings.simplefilter("ignore", UserWarning)  # rbcs-f warns that its rate is high
    runs = (gain(*cell, seed) for seed in seeds)
    return [[round(value, 3) for value in run] for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file to continue")
    parser.add_argument("--only", nargs="+", default=list(SELECTORS), help="selectors to measure")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help="seeds of each cell, 1 to 3")
    arguments = parser.parse_args()
    measure(arguments.out, arguments.only, arguments.jobs, arguments.seeds)


if __name__ == "__main__":
    main()
