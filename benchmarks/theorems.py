"""What the papers' theorems bound, measured: results/theorems.json. Three minutes.

E3CS, Theorem 1: regret against the best fixed allocation q, which the proof uses, and against an
oracle that knows every round's fates, which Definition 1 writes. RBCS-F, Theorem 3: seconds per
round lost against whoever knows the m fastest, for a constant exploration factor and for Lemma 1's.
``make papers`` puts the tables into docs/papers/e3cs.md and rbcs-f.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import turnout
from turnout.core.schedules import Lemma1
from turnout.experiment import rounds, simulate
from turnout.results import metrics
from turnout.results.statistics import estimate
from turnout.worlds import LinearContextual, e3cs_world, rbcs_f_world

SEEDS = range(10)
RESULTS = Path(__file__).parent.parent / "results" / "theorems.json"


def shown(values: list[float], form: str) -> str:
    result = estimate(values)
    return f"{result.mean:{form}} ± {result.half_width:{form}}"


def e3cs(eta: float, n_rounds: int, quota: float) -> tuple[str, str]:
    """Return regret against the fixed q and against the oracle of each round."""
    k, n = 20, 100
    sigma = quota * k / n
    fixed, oracle = [], []
    for seed in SEEDS:
        selector = turnout.make("e3cs", eta=eta, quota=quota)
        world = e3cs_world(seed=seed)
        run = simulate(selector, world, cohort_size=k, n_rounds=n_rounds, keep_fates=True)
        assert run.in_time is not None
        n_ready = run.in_time.sum(axis=1)
        best = sigma * n_ready + np.minimum(k - n * sigma, (1.0 - sigma) * n_ready)
        fixed.append(float(run.regret(quota)[-1]))
        oracle.append(float(best.sum() - run.cep[-1]))
    return shown(fixed, ".0f"), shown(oracle, ".0f")


def rbcs_f(penalty: float, explore: float | Lemma1) -> tuple[str, str]:
    """Return the total time, and the seconds per round lost against the m fastest."""
    total, lost = [], []
    for seed in SEEDS:
        selector = turnout.make("rbcs-f", rate=0.15, penalty=penalty, ridge=1.0, explore=explore)
        lengths, fastest = [], []
        for record in rounds(selector, rbcs_f_world(seed=seed), cohort_size=8, n_rounds=500):
            ready = record.fate.duration[record.context.available]
            lengths.append(record.length_s)
            fastest.append(float(np.sort(ready)[:8][-1]))
        total.append(sum(lengths))
        lost.append((sum(lengths) - sum(fastest)) / 500)
    return shown(total, ".0f"), shown(lost, ".2f")


def theorem_1() -> list[list[str]]:
    """Return the table of E3CS: headings, then rows."""
    table = [["setting", "quota", "regret, fixed q", "regret, oracle of each round"]]
    for name, eta, n_rounds in (("arXiv", 0.6, 2000), ("journal", 0.5, 2500)):
        for quota in (0.0, 0.5, 0.8):
            table.append([name, f"{quota:g}", *e3cs(eta, n_rounds, quota)])
    return table


def theorem_3() -> list[list[str]]:
    """Return the table of RBCS-F: headings, then rows."""
    timing = LinearContextual()
    context = np.array([1 / timing.capacity[0], 1.0, timing.model_mbit / timing.bandwidth_mhz[0]])
    rate = np.log(timing.log_base) / np.log1p(timing.snr)
    theta = np.stack([timing.training_s, np.full(4, timing.cold_start_s), rate], axis=1)
    longest, length = float((theta @ context).max()), float(np.linalg.norm(context))
    size = float(np.linalg.norm(theta, axis=1).max())
    lemma = Lemma1(longest, length, size)
    parts = ("alpha = 0.1: total, s", "lost, s", "Lemma 1: total, s", "lost, s")
    table = [["V", "bound, s", *parts]]
    for penalty in (1.0, 5.0, 10.0, 20.0, 50.0):
        bound = metrics.theorem3_bound(
            500,
            40,
            rate=0.15,
            penalty=penalty,
            noise=longest,
            context_bound=length,
            coefficient_bound=size,
            longest_s=longest,
        )[-1]
        cells = (*rbcs_f(penalty, 0.1), *rbcs_f(penalty, lemma))
        table.append([f"{penalty:g}", f"{bound:.0f}", *cells])
    return table


def main() -> None:
    tables = {"theorem_1": theorem_1(), "theorem_3": theorem_3()}
    RESULTS.write_text(json.dumps(tables, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for table in tables.values():
        for row in table:
            print("  ".join(cell.rjust(24) for cell in row))


if __name__ == "__main__":
    main()
