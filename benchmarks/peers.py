"""Our Oort and pow-d beside the public ones, at 1e3 .. 1e5 clients, measured in one run.

Peers are measured where they are installed; none of them is a dependency of turnout::

    pip install fedscale                  # Oort of its authors
    pip install --no-deps flgo            # power-of-choice; also tqdm scipy prettytable ujson
                                          # pynvml pyyaml networkx requests toolz
    python benchmarks/peers.py

Every client has been tried once, which is the steady state of a long run. Oort is timed over one
choice and the feedback of its cohort; pow-d over the choice alone, with losses answered for free.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import turnout
from turnout.testing.speed import measure, seconds

SIZES = (1_000, 10_000, 100_000)
COHORT = 100


def fedscale_oort(n: int) -> Callable[[], object]:
    oort = importlib.import_module("thirdparty.oort.oort")
    for name in ("abs", "max", "min", "sum"):  # it star-imports numpy, whose names shadow these
        setattr(oort, name, getattr(builtins, name))
    settings = SimpleNamespace(
        exploration_factor=0.9,
        exploration_decay=0.98,
        exploration_min=0.2,
        exploration_alpha=0.3,
        round_threshold=30,
        sample_window=5.0,
        pacer_step=20,
        pacer_delta=5,
        blacklist_rounds=-1,
        blacklist_max_len=0.3,
        clip_bound=0.95,
        round_penalty=2.0,
        cut_off_util=0.95,
    )
    selector = oort.create_training_selector(settings)
    rng = np.random.default_rng(0)
    reward, duration = rng.random(n), rng.uniform(1.0, 30.0, n)
    everyone = set(range(n))
    for client in range(n):
        feedback = {"reward": reward[client], "duration": duration[client]}
        selector.register_client(client, feedback)
        selector.update_client_util(client, feedback | {"time_stamp": 1, "status": True})

    def one_round() -> None:
        for client in selector.select_participant(COHORT, everyone):
            feedback = {"reward": reward[client], "duration": duration[client]}
            stamp = selector.training_round
            selector.update_client_util(client, feedback | {"time_stamp": stamp, "status": True})

    return one_round


def flgo_pow_d(n: int) -> Callable[[], object]:
    module = importlib.import_module("flgo.algorithm.powerofchoice")
    client = SimpleNamespace(train_data=range(100), test=lambda model, part: {"loss": 0.5})
    server = SimpleNamespace(
        d=2 * COHORT,
        clients_per_round=COHORT,
        available_clients=list(range(n)),
        clients=[client] * n,
        model=None,
    )
    return lambda: module.Server.sample(server)


PAIRS: dict[str, tuple[str, str, Callable[[int], Callable[[], object]]]] = {
    "Oort": ("oort", "fedscale", fedscale_oort),
    "pow-d": ("pow-d", "flgo", flgo_pow_d),
}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    table = Table(title=f"one choice of {COHORT} clients, ms (peer / ours)")
    for heading in ("method", "clients", "turnout", "peer", "ratio"):
        table.add_column(heading, justify="right" if heading != "method" else "left")
    for method, (name, peer, make_peer) in PAIRS.items():
        for n in SIZES:
            mine = measure(turnout.make(name), n, COHORT, repeats=9).round_s
            theirs: Any = None
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ImportError):
                theirs = seconds(make_peer(n), 3)
            shown = f"{1e3 * theirs:.1f} ({peer})" if theirs else f"{peer} is not installed"
            ratio = f"{theirs / mine:.0f}x" if theirs else ""
            table.add_row(method, f"{n:,}", f"{1e3 * mine:.2f}", shown, ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
