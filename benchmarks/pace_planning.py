"""What planning could save: ``python benchmarks/pace_planning.py`` writes docs/pace-planning.md.

No training: clients have a constant speed, and their times vary around it or not. Compares
``pace``, the same with planned cohorts, both told the true speeds, and the bound of that page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from turnout import Outcome, RoundContext
from turnout.core.rng import Purpose, stream
from turnout.core.types import FloatArray
from turnout.sampling.linear import known_context
from turnout.selectors.pace import Pace

PAGE = Path(__file__).parent.parent / "docs" / "pace-planning.md"
MARK = "<!-- Made by benchmarks/pace_planning.py; do not edit below. -->"
N_ROUNDS, SEEDS = 150, (100, 101, 102)
#: What a place is worth to a client of the fast cohort, whose place saves no time.
LEAST_PRICE = 0.25


class Planned(Pace):
    """Pace whose queues count as the seconds that a place in a slow round saves later."""

    def _worth(self, ctx: RoundContext) -> FloatArray:
        context = known_context(ctx, self.dimension) if "context" in ctx.columns else None
        time = self._expected(ctx, self._base(ctx, context))
        fast = np.partition(time[ctx.pool], ctx.size - 1)[ctx.size - 1]
        saved = np.maximum(time - fast, 0.0) / time[ctx.pool].mean()
        price = LEAST_PRICE + self.haste * saved
        queue = self._ledger(ctx.round).accounts["queue_"]
        worth: FloatArray = super()._worth(ctx) + (price - 1.0) * queue / self.utility
        return worth


class Told(Pace):
    """Pace that is told the true speeds."""

    speeds: FloatArray

    def _expected(self, ctx: RoundContext, base: FloatArray) -> FloatArray:
        return self.speeds.copy()


class PlannedTold(Told, Planned):
    """Both."""


VARIANTS: dict[str, tuple[type[Pace], dict[str, Any]]] = {
    "pace": (Pace, {}),
    "alert": (Pace, {"alert": True}),
    "planned": (Planned, {"share": 0.55}),
    "told": (Told, {}),
    "planned and told": (PlannedTold, {"share": 0.55}),
}


def bound(speeds: FloatArray, k: int, share: float) -> float:
    """Return the least mean length of a round, as the page derives it."""
    slowest_first = np.sort(speeds)[::-1]
    n = speeds.size
    part = np.minimum(1.0, share * np.maximum(np.arange(1, n + 1), k) / n)
    part[n - k :] = 1.0
    return float(part @ (slowest_first - np.append(slowest_first[1:], 0.0)))


def play(selector: Pace, speeds: FloatArray, k: int, noise: float, seed: int) -> tuple[float, int]:
    """Return the mean length of a round, and the places of the least served client."""
    n, rng = speeds.size, np.random.default_rng(seed)
    selector.speeds = speeds  # type: ignore[attr-defined]  # for those who are told
    selector.prepare(n, seed=seed)
    lengths, places = [], np.zeros(n, dtype=np.int64)
    for t in range(N_ROUNDS):
        ctx = RoundContext(t, k, np.ones(n, dtype=np.bool_))
        selection = selector.select(ctx, stream(seed, Purpose.SELECT, t))
        clients = selection.clients
        seconds = speeds[clients] * np.exp(rng.normal(0.0, noise, k))
        metrics = {"loss_rms": np.ones(k)}
        selector.observe(
            selection, Outcome(np.zeros(k, dtype=np.int8), seconds, metrics, float(seconds.max()))
        )
        lengths.append(seconds.max())
        places[clients] += 1
    return float(np.mean(lengths)), int(places.min())


def worlds(seed: int) -> dict[str, tuple[FloatArray, int]]:
    """Return speeds and cohort sizes by name."""
    rng = np.random.default_rng(seed)
    return {
        "100 devices, 10 at a time": (rng.lognormal(0.0, 0.93, 100), 10),
        "20 devices, 2 at a time": (rng.lognormal(0.0, 0.93, 20), 2),
        "four classes, 10 of 100": (np.repeat([1.0, 2.0, 3.0, 4.0], 25), 10),
    }


def rows() -> list[str]:
    """Return the table; each cell has the time over random's and the least share."""
    lines = [f"| world | times vary | bound | {' | '.join(VARIANTS)} |"]
    lines.append("|---" * (len(VARIANTS) + 3) + "|")
    for name in worlds(0):
        own = [(*worlds(seed)[name], seed) for seed in SEEDS]
        for noise in (0.0, 0.4):
            usual = [play_random(speeds, k, noise, seed) for speeds, k, seed in own]
            cells = []
            if not noise:
                each = [
                    bound(s, k, 0.5) / length for (s, k, _), length in zip(own, usual, strict=True)
                ]
                cells.append(f"{np.mean(each):.2f} (0.50)")
            else:
                cells.append("-")
            for kind, parameters in VARIANTS.values():
                found = []
                for (speeds, k, seed), length in zip(own, usual, strict=True):
                    mean, least = play(kind(**parameters), speeds, k, noise, seed)
                    found.append((mean / length, least * speeds.size / (N_ROUNDS * k)))
                time, share = np.mean(found, axis=0)
                cells.append(f"{time:.2f} ({share:.2f})")
            lines.append(f"| {name} | {noise:g} | {' | '.join(cells)} |")
    return lines


def play_random(speeds: FloatArray, k: int, noise: float, seed: int) -> float:
    """Return the mean length of a round of random clients in the same world."""
    rng = np.random.default_rng(seed)
    seconds = [
        (speeds[rng.permutation(speeds.size)[:k]] * np.exp(rng.normal(0.0, noise, k))).max()
        for _ in range(2_000)
    ]
    return float(np.mean(seconds))


def main() -> None:
    before = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    seeds = f"{len(SEEDS)} seeds from {SEEDS[0]} on, {N_ROUNDS} rounds."
    PAGE.write_text("\n".join([before + MARK, "", *rows(), "", seeds, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
