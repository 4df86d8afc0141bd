"""Write the measured part of ``docs/howto/replay.md`` from its results.

They are ``results/replay.json``, and ``results/advice.json`` of ``benchmarks/advice.py``.
``--run`` measures first: many logs of known worlds, each judged for candidates that did not make
it. It resumes where it stopped; ``--fresh`` begins anew. ``--check`` writes nothing and fails if
the page differs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.files import write_atomically
from turnout.core.types import FloatArray
from turnout.experiment.loop import rounds
from turnout.experiment.simulation import collect
from turnout.experiment.variants import variants_of
from turnout.results import Cell
from turnout.results.settings import CellSettings
from turnout.twin.log import log_of
from turnout.twin.replay import METHODS, NAMES, replay_log
from turnout.worlds import Environment, History, Moment, SyntheticLoss, named_world

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "replay.json"
ADVICE = ROOT / "results" / "advice.json"
PAGE = ROOT / "docs" / "howto" / "replay.md"
MARK = "<!-- Made by docs/build_replay.py from results/replay.json; do not edit below. -->"

# What is measured, and the bars. They were written down before the first log was judged.
N_LOGS, N_ROUNDS, N_CLIENTS, COHORT, DRAWS = 200, 150, 50, 10, 5
#: Seeds of the logs: this and on. Those from 0 made the first results. Nine from 1,000 on showed
#: that a cold start must be carried over even where it is not clear. Those from 2,000 on showed
#: that the fitted world alone can be a poor model, so clients' own outcomes correct it now.
FIRST_SEED = 3_000
#: Rounds from which the true mean of each client's seconds is taken.
N_TRUTH = 2_000
#: World and logger, and the candidates that are judged. Candidates see no context, so that the true
#: mean of a client is the same in every round.
CASES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("e3cs", "random"): ("e3cs:quota=0.5", "pace"),
    ("e3cs", "mix:members={pace=0.9,random=0.1}"): ("random", "e3cs:quota=0.5"),
    ("e3cs", "e3cs:quota=0.5"): ("random", "pace"),
    ("volatile", "random"): ("e3cs:quota=0.5", "round-robin"),
    ("volatile", "mix:members={pace=0.9,random=0.1}"): ("random", "e3cs:quota=0.5"),
    ("volatile", "e3cs:quota=0.5"): ("random", "round-robin"),
}
#: Quantities by world: every device takes one second in the world e3cs. Utility is judged where the
#: selector in charge asks for losses.
JUDGED: Mapping[str, tuple[str, ...]] = {
    "e3cs": ("success", "utility"),
    "volatile": ("success", "seconds", "utility"),
}
#: The models of the doubly robust estimates, in words.
MODELS = {
    "doubly_robust": "the model by client",
    "doubly_robust_world": "the fitted world as model",
}
#: Bias, in its standard errors: half of all unbiased cells are above 0.67, one in 20 above this.
BIAS = 1.96
#: Share of the logs whose interval covers the truth.
COVERAGE = (0.92, 0.97)
#: Mean squared error of the doubly robust estimate over that of inverse propensity, at most.
WORSE = 1.05


class Row(NamedTuple):
    """One world, logger, candidate, quantity and method over all logs."""

    world: str
    logger: str
    candidate: str
    quantity: str
    method: str
    n: int
    bias: float
    bias_se: float
    rmse: float
    coverage: float

    @property
    def is_unbiased(self) -> bool:
        """Whether the bias is within its bar."""
        return abs(self.bias) <= BIAS * self.bias_se

    @property
    def covers(self) -> bool:
        """Whether the coverage is within its bars."""
        return COVERAGE[0] <= self.coverage <= COVERAGE[1]


def log_of_case(world: str, logger: str, seed: int) -> tuple[Cell, Environment]:
    """Return a log of a known world, as a cell, and the world."""
    named = named_world(world).example
    # Losses do not fall, so that the true mean of a client is the same in every round.
    steady = SyntheticLoss(floor=1.0)
    environment = dataclasses.replace(named, n_clients=N_CLIENTS, seed=seed, losses=steady)
    (variant,) = variants_of(logger)
    selector = variant.make()
    records = rounds(selector, environment, cohort_size=COHORT, n_rounds=N_ROUNDS, seed=seed)
    run = collect(records, N_CLIENTS, COHORT)
    settings = CellSettings(
        "replay", "simulation", variant.label, variant.name, dict(variant.parameters), seed,
        N_CLIENTS, COHORT, N_ROUNDS, {}, world, {}, {}, {},
    )  # fmt: skip
    nothing: dict[str, Any] = {}
    cell = Cell(
        Path("log"),
        settings,
        nothing,
        nothing,
        nothing,
        run,
        nothing,
        None,
        nothing,
        N_ROUNDS,
        True,
    )
    return cell, environment


def true_means(environment: Environment) -> tuple[dict[str, FloatArray], float]:
    """Return (n,) the mean of each client by quantity, and the seconds of a cold start.

    The means are of clients that did not take part in the round before.
    """
    moments = [
        Moment(t, N_CLIENTS, environment.seed, History.fresh(N_CLIENTS)) for t in range(N_TRUTH)
    ]
    timing = environment.timing
    seconds = np.mean([timing.column("expected_duration", each) for each in moments], axis=0)
    success = environment.volatility.success_rate(moments[0])
    level = environment.population.loss_level(N_CLIENTS, environment.seed)
    root = math.hypot(1.0, environment.losses.batch_spread)  # pace asks for root mean squares
    means = {"success": success, "seconds": seconds, "utility": success * level * root}
    return means, float(getattr(timing, "cold_start_s", 0.0))


def errors_of(world: str, logger: str, seed: int) -> Iterator[tuple[str, float, bool]]:
    """Yield candidate, quantity and method; the error; and whether the interval covers."""
    cell, environment = log_of_case(world, logger, seed)
    log, (means, cold_start_s) = log_of([cell]), true_means(environment)
    variants = [each for text in CASES[world, logger] for each in variants_of(text)]
    found = replay_log(log, variants, DRAWS)
    for each in found.candidates:
        if each.problem:  # replay gives no estimate then
            continue
        for key in filter(each.estimates.__contains__, JUDGED[world]):
            true = float(each.demand @ means[key] / each.demand.sum())
            if key == "seconds":  # clients that it had in the round before are not cold
                true -= cold_start_s * each.again
            for method in METHODS:
                one = each.estimates[key][method]
                name = " | ".join((each.label, key, method))
                yield name, one.mean - true, one.low <= true <= one.high


def measure() -> None:
    """Judge the logs that are not judged yet, case by case; the file is written now and then."""
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cases = {
        (world, logger): saved.setdefault(f"{world} | {logger}", {}) for world, logger in CASES
    }
    for seed in range(N_LOGS):
        for (world, logger), case in cases.items():
            if case and len(next(iter(case.values()))["error"]) > seed:
                continue
            for name, error, covers in errors_of(world, logger, FIRST_SEED + seed):
                none: dict[str, Any] = {"error": [None] * seed, "covers": [None] * seed}
                cell = case.setdefault(name, none)
                cell["error"].append(round(error, 6))
                cell["covers"].append(int(covers))
            for cell in case.values():
                if len(cell["error"]) == seed:  # refused
                    cell["error"].append(None)
                    cell["covers"].append(None)
        if seed % 10 == 9 or seed == N_LOGS - 1:
            write_atomically(RESULTS, (json.dumps(saved) + "\n").encode())
            print(seed + 1, flush=True)


def rows_of(saved: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the table."""
    rows = []
    for case, cells in saved.items():
        world, logger = case.split(" | ")
        for name, cell in cells.items():
            if name.split(" | ")[1] not in JUDGED[world]:
                continue
            error = np.array([x for x in cell["error"] if x is not None])
            rows.append(
                Row(
                    world,
                    logger,
                    *name.split(" | "),
                    error.size,
                    float(error.mean()),
                    float(error.std(ddof=1)) / math.sqrt(error.size),
                    float(np.sqrt(np.mean(error**2))),
                    float(np.mean([x for x in cell["covers"] if x is not None])),
                )
            )
    return rows


def ratios(rows: list[Row]) -> dict[tuple[str, ...], float]:
    """Return the squared error of doubly robust over that of inverse propensity, by case."""
    rmse = {row[:5]: row.rmse for row in rows}
    return {
        key[:5]: (rmse[key] / rmse[(*key[:4], "inverse_propensity")]) ** 2
        for key in rmse
        if key[4].startswith("doubly_robust")
    }


def page_part(saved: Mapping[str, Any]) -> str:
    """Return the measured part of the page."""
    rows = rows_of(saved)
    judged = [len(cell["error"]) for cells in saved.values() for cell in cells.values()]
    n_logs = min(judged)
    if n_logs < N_LOGS:
        return (
            f"{MARK}\n\nThe proof of this version is not complete: {n_logs} of {N_LOGS} logs of "
            "each case are judged.\nThat is too few for a verdict. To go on: "
            "`python docs/build_replay.py --run`.\n"
        )
    compared = ratios(rows)
    unbiased, covering = [r for r in rows if r.is_unbiased], [r for r in rows if r.covers]
    not_worse = [x for x in compared.values() if x <= WORSE]
    within_one = sum(abs(row.bias) <= row.bias_se for row in rows)
    by_model = {
        method: [x for key, x in compared.items() if key[4] == method]
        for method in METHODS
        if method.startswith("doubly_robust")
    }
    refused = {row[:3]: n_logs - row.n for row in rows if row.n < n_logs}
    lines = [
        MARK,
        "",
        f"Each row is {n_logs} logs of {N_ROUNDS} rounds with {N_CLIENTS} clients and {COHORT} "
        "places, and a candidate that did not",
        "make them. The bars were set before the first log was judged. The truth is the mean of "
        "each client in the world,",
        "weighted by the candidate's own chances; clients that it had in the round before have no "
        "cold start. With 200 logs, an exact",
        "interval of 95 % is outside 92 to 97 % about once in nine rows.",
        "",
        f"- **Bias within {BIAS:g} of its standard errors**: {len(unbiased)} of {len(rows)} rows "
        f"({within_one} within one).",
        f"- **Intervals of 95 % cover {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}**: {len(covering)} of "
        f"{len(rows)} rows; all rows together {np.mean([row.coverage for row in rows]):.1%}.",
        f"- **Doubly robust at most {WORSE:g} times the squared error of inverse propensity**: "
        f"{len(not_worse)} of {len(compared)} cases. The ratio is "
        + ", and ".join(
            f"{min(x):.2f} to {max(x):.2f} (mean {np.mean(x):.2f}) with {MODELS[method]}"
            for method, x in by_model.items()
        )
        + ".",
        "",
        *_remarks(rows),
        *_refusals(refused, n_logs),
        "",
        "| world | in charge | candidate | quantity | method | bias ± error | RMSE | covered |",
        "|---" * 8 + "|",
    ]
    for row in rows:
        bias = f"{row.bias:+.4f} ± {row.bias_se:.4f}{'' if row.is_unbiased else ' **missed**'}"
        covered = f"{row.coverage:.1%}{'' if row.covers else ' **missed**'}"
        method = NAMES[row.method]
        lines.append(
            f"| {row.world} | `{row.logger}` | `{row.candidate}` | {row.quantity} | {method} | "
            f"{bias} | {row.rmse:.4f} | {covered} |"
        )
    return "\n".join(lines).replace("%", " %").replace("  %", " %") + "\n"


def _refusals(refused: Mapping[tuple[str, ...], int], n_logs: int) -> list[str]:
    """Return in how many logs there was no estimate: replay found them too thin."""
    return [
        f"For `{candidate}` with `{logger}` in charge in `{world}`, {n} of {n_logs} logs were "
        "refused as too thin for it; its rows are about the others."
        for (world, logger, candidate), n in refused.items()
    ]


def advice_part(saved: Mapping[str, Any]) -> str:
    """Return the section on how often ``turnout recommend --from`` is wrong.

    Args:
        saved: The results of ``benchmarks/advice.py``.
    """
    n_logs = min(len(case["taken"]) for case in saved["cases"].values())
    lines = [
        "",
        "## How often the advice is wrong",
        "",
        f"`benchmarks/advice.py` records known worlds, {n_logs} of {saved['n_logs']} planned logs "
        "for each kind, and asks for advice.",
        "*True time* is a candidate's mean time to half of the recorded answers, relative to that "
        "of the selector in charge. A switch is wrong if",
        f"the candidate is not sooner by {saved['apart']:.0%} or more, or if no candidate should "
        "be. Advice to stay is missed if one is.",
        "",
        "| records | in charge | true time of candidates | wrong switches | missed |",
        "|---" * 5 + "|",
    ]
    for case in saved["cases"].values():
        (now, _), *others = case["true"].items()
        good = [label for label, x in others if not case["stay"] and x <= 1.0 - saved["apart"]]
        taken = case["taken"][:n_logs]
        wrong = sum(label != now and label not in good for label in taken)
        missed = f"{taken.count(now)} of {n_logs}" if good else "-"
        true = ", ".join(f"`{label}` {x:.2f}" for label, x in others)
        title = f"{case['title']}, {case['n_rounds']} rounds"
        lines.append(f"| {title} | `{now}` | {true} | {wrong} of {n_logs} | {missed} |")
    return "\n".join(lines).replace("%", " %").replace("  %", " %") + "\n"


def _remarks(rows: list[Row]) -> list[str]:
    """Return what the misses are about."""
    cold = [row for row in rows if (row.world, row.quantity) == ("volatile", "seconds")]
    wide = [row for row in rows if row.coverage > COVERAGE[1]]
    narrow = [row for row in rows if row.coverage < COVERAGE[0]]
    lines = [
        f"Seconds in `volatile` depend on the round before: a client that took part is a second "
        f"faster. {sum(row.is_unbiased for row in cold)} of these {len(cold)} rows are unbiased,",
        f"and their intervals cover {np.mean([row.coverage for row in cold]):.1%}. Intervals cover "
        f"more than 97 % in {len(wide)} rows and less than 92 % in {len(narrow)}.",
    ]
    if narrow:
        worst = min(narrow, key=lambda row: row.coverage)
        lines.append(
            f"The lowest, {worst.coverage:.1%}, is {NAMES[worst.method]} for {worst.quantity} of "
            f"`{worst.candidate}` with `{worst.logger}` in charge."
        )
    return lines


def main(arguments: list[str]) -> int:
    """Measure if asked to, and write or check the page."""
    if "--fresh" in arguments:
        RESULTS.unlink(missing_ok=True)
    if "--run" in arguments:
        measure()
    text = PAGE.read_text()
    wanted = text.partition(MARK)[0] + page_part(json.loads(RESULTS.read_text()))
    wanted += advice_part(json.loads(ADVICE.read_text()))
    if "--check" in arguments:
        if text != wanted:
            print(f"{PAGE} differs from {RESULTS}: run python docs/build_replay.py")
            return 1
        return 0
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
