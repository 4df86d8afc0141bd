"""How often ``turnout recommend --from`` is wrong: logs of known worlds, and its advice on each.

Writes results/advice.json, from which docs/build_replay.py makes a section of the page. About eight
minutes of a quiet core; it resumes where it stopped. What counts as wrong stands in ``CASES``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import turnout
from turnout.core.files import write_atomically
from turnout.experiment.variants import variants_of
from turnout.results.settings import versions
from turnout.studies import advise
from turnout.worlds import (
    Bernoulli,
    ByClass,
    Environment,
    HeavyTail,
    LinearContextual,
    LogNormal,
    Timing,
)

RESULTS = Path(__file__).parents[1] / "results" / "advice.json"

# What is asked. This was written down before the first advice was looked at.
N_LOGS, N_CLIENTS, COHORT = 40, 50, 10
#: Seeds of the logs: this and on.
FIRST_SEED = 4_000
#: Runs from which the true times of a case are taken.
N_TRUE = 20
#: A candidate is truly sooner, or later, if its mean time differs from now by this part.
APART = 0.03

MIX = "mix:members={pace=0.9,random=0.1}"


class Case(NamedTuple):
    """Records of one kind.

    Attributes:
        title: What they are.
        stay: Whether every switch is wrong.
        charge: The selector in charge.
        candidates: Those that are asked about.
        rates: Success rates of the classes of clients.
        timing: How long clients take.
        n_rounds: Recorded rounds.
    """

    title: str
    stay: bool
    charge: str
    candidates: tuple[str, ...]
    rates: tuple[float, ...]
    timing: Timing
    n_rounds: int = 100

    def world(self, seed: int) -> Environment:
        """Return the world of a seed."""
        return Environment(N_CLIENTS, seed, Bernoulli(0.9), ByClass(self.rates), self.timing)


_NOISE = LogNormal(0.3)
_APART = HeavyTail(LinearContextual((8.0, 4.0, 2.0, 1.0), cold_start_s=0.0), _NOISE)
_UNEQUAL = (0.4, 0.6, 0.8, 1.0)
_LEARNERS = ("pace", "oort")
CASES: Mapping[str, Case] = {
    "identical": Case(
        "all clients are alike", True, "random", _LEARNERS, (0.7,), HeavyTail(noise=_NOISE)
    ),
    "equal": Case(
        "clients differ, but the candidates choose as evenly as the one in charge",
        True,
        "random",
        ("e3cs:quota=1", "guarded:inner=random"),
        _UNEQUAL,
        _APART,
    ),
    "worse": Case(
        "the candidates are slower than the one in charge",
        True,
        MIX,
        ("random", "round-robin"),
        _UNEQUAL,
        _APART,
    ),
    "better": Case("pace and oort are far sooner", False, "random", _LEARNERS, _UNEQUAL, _APART),
    "better, 40 rounds": Case("the same", False, "random", _LEARNERS, _UNEQUAL, _APART, 40),
}


def advice_of(case: Case, seed: int) -> str:
    """Return what is advised on the log of a seed."""
    with tempfile.TemporaryDirectory() as folder:
        turnout.compare(
            [case.charge],
            case.world(seed),
            n_clients=N_CLIENTS,
            cohort_size=COHORT,
            n_rounds=case.n_rounds,
            seeds=[seed],
            n_jobs=1,
            out=folder,
        )
        return advise(folder, case.candidates, draws=10).take


def true_times(case: Case) -> dict[str, float]:
    """Return the mean time to half of the answers in the record, relative to the one in charge."""
    n_answers: dict[int, int] = {}
    found: dict[str, list[float]] = {}
    for text in (case.charge, *case.candidates):
        (variant,) = variants_of(text)
        found[variant.label] = []
        for seed in range(FIRST_SEED, FIRST_SEED + N_TRUE):
            run = turnout.simulate(
                variant.make(),
                case.world(seed),
                cohort_size=COHORT,
                n_rounds=2 * case.n_rounds,
                seed=seed,
            )
            wanted = n_answers.setdefault(seed, int(run.cep[case.n_rounds - 1]) // 2)
            found[variant.label].append(float(run.clock_s[np.searchsorted(run.cep, wanted)]))
    now = np.mean(next(iter(found.values())))
    return {label: round(float(np.mean(each) / now), 4) for label, each in found.items()}


def main() -> None:
    """Ask for advice on the logs that are not judged yet."""
    saved: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    rows = saved["cases"]
    for name, case in CASES.items():
        if name not in rows:
            true = {"true": true_times(case), "taken": []}
            rows[name] = {**case._asdict(), "timing": repr(case.timing), **true}
    saved |= {"apart": APART, "n_logs": N_LOGS, "commit": str(versions()["git"])[:7]}
    for k in range(N_LOGS):
        for name, case in CASES.items():
            if len(rows[name]["taken"]) <= k:
                rows[name]["taken"].append(advice_of(case, FIRST_SEED + k))
        write_atomically(RESULTS, (json.dumps(saved, indent=1) + "\n").encode())
        print(k + 1, flush=True)


if __name__ == "__main__":
    main()
