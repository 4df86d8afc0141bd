"""Worst shortfall of ``guarded`` and ``pace`` when feedback is late or lost, in places.

Prints the table of docs/howto/guarantee.md. In each round 90 % of the clients are available.
"""

from __future__ import annotations

import argparse

import numpy as np

import turnout
from turnout.core.types import Outcome, RoundContext, Selection

N_CLIENTS, COHORT_SIZE, FLOOR = 100, 20, 0.5
SELECTORS = {
    "`guarded`, inner `random`": ("guarded", {"inner": "random"}),
    "`guarded`, inner `oort`": ("guarded", {"inner": "oort"}),
    "`pace`": ("pace", {}),
}
#: Rounds in flight, and the share of the feedback that is lost.
FEEDBACK = {"at once": (0, 0.0), "10 in flight": (10, 0.0), "90 % lost": (0, 0.9), "none": (0, 1.0)}


def shortfall(name: str, options: dict[str, str], feedback: str, n_rounds: int, seed: int) -> float:
    """Return the places by which the worst client fell short of its floor in any window."""
    most_in_flight, share_lost = FEEDBACK[feedback]
    selector = turnout.make(name, floor=FLOOR, **options)
    selector.prepare(N_CLIENTS, seed)
    rng = np.random.default_rng(seed)
    speed = rng.uniform(1.0, 10.0, N_CLIENTS)
    columns = {"num_samples": np.full(N_CLIENTS, 100.0)}
    behind, worst = np.zeros(N_CLIENTS), 0.0
    waiting: list[Selection] = []
    for t in range(n_rounds):
        ctx = RoundContext(t, COHORT_SIZE, rng.random(N_CLIENTS) < 0.9, columns=columns)
        selection = selector.select(ctx, turnout.stream(seed, turnout.Purpose.SELECT, t))
        behind[ctx.pool] += FLOOR * ctx.size / ctx.pool.size
        behind[selection.clients] -= 1.0
        worst = max(worst, float(np.maximum(behind, 0.0, out=behind).max()))
        if rng.random() >= share_lost:
            waiting.append(selection)
        while len(waiting) > most_in_flight:
            late = waiting.pop(int(rng.integers(len(waiting))))  # in any order
            selector.observe(late, outcome_of(late, speed, rng))
    return worst


def outcome_of(selection: Selection, speed: np.ndarray, rng: np.random.Generator) -> Outcome:
    """Return answers of which a fifth fails."""
    n_chosen = selection.clients.size
    status = np.where(rng.random(n_chosen) < 0.8, 0, 2).astype(np.int8)
    return Outcome(status, speed[selection.clients], {"loss_rms": rng.random(n_chosen)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000)
    arguments = parser.parse_args()
    print("| selector | " + " | ".join(FEEDBACK) + " |")
    print("|---" * (len(FEEDBACK) + 1) + "|")
    for label, (name, options) in SELECTORS.items():
        cells = [
            max(
                shortfall(name, options, feedback, arguments.rounds, seed)
                for seed in range(arguments.seeds)
            )
            for feedback in FEEDBACK
        ]
        print(f"| {label} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
