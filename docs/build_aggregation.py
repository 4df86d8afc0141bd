"""Write ``docs/aggregation.md`` from ``results/aggregation/arena.json``.

``--run`` runs what is missing and writes no page. ``--check`` writes nothing and fails if the page
differs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from turnout.results.statistics import LEVEL, Interval
from turnout.studies.aggregation import (
    MEAN,
    RuleResult,
    comparisons,
    complete_seeds,
    goals_of_rule,
    judged_runs,
    pays,
    plan,
    rates_of,
    run_missing,
    tuned,
    tuning_runs,
)
from turnout.studies.arena_tables import goals_table
from turnout.studies.arena_tasks import Arena

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "aggregation.md"
RESULTS = ROOT / "results" / "aggregation" / "arena.json"
RUNS = ROOT / "runs" / "aggregation"

TITLE = """\
# Does it pay to know who took part?

<!-- Made by docs/build_aggregation.py from results/aggregation/arena.json; do not edit. -->
"""

WHAT = """\
[Some rules of aggregation](howto/models.md#aggregation) weigh a reply by how often its client
takes part. Many of them also take longer steps than the mean, and a longer step alone is often
faster. So each rule is compared with the plain mean, and the server learning rate of every rule,
the mean included, is tuned first.

{summary}"""

TUNING = """\
## The server learning rates

Time to the target over that of the mean with rate 1, in the tasks {tasks} with seed {seeds} and
`{selectors}`. Nothing else on this page uses these tasks and seeds. The best rate of each rule is
bold.
"""

JUDGED = """\
## What the rules bring

Tasks {tasks}, {rounds} rounds, seeds {seeds} ({n} of {planned} planned). *time* is the time to
the target over that of the tuned mean, paired by seed and cut off where the mean's run ended, as
a geometric mean with a 95 % bootstrap interval. *never* counts runs that did not reach the
target. *final accuracy* is the difference to the tuned mean. ▲ and ▼ are better and worse by more
than chance: means over tasks by seed, two-sided, corrected for all comparisons (Holm).
`inverse-probability` needs exact chances, which `pace` does not have.
"""

BARS = """\
## The bars

They were committed with the tasks and the seeds before any run, in
`turnout/studies/aggregation_plan.toml`. A rule pays if it clears the first or the second bar and
not misses the third. A bar is open while its interval holds it.
"""

TAIL = """\
Run it: `python docs/build_aggregation.py --run` runs what is missing and resumes where it stopped.
"""

_WORDS = {True: "pays", False: "does not pay", None: "open"}


def page(arena: Arena) -> str:
    """Return the page.

    Args:
        arena: The results.
    """
    rates, own = rates_of(arena), plan()
    seeds = [] if rates is None else complete_seeds(arena, rates)
    found = comparisons(arena, rates) if rates is not None and seeds else []
    tuning = own["tuning"]
    where = {
        "tasks": _listed(tuning["tasks"]),
        "seeds": ", ".join(map(str, tuning["seeds"])),
        "selectors": ", ".join(tuning["selectors"]),
    }
    lines = [TITLE, WHAT.format(summary=_summary(found)), "", TUNING.format(**where)]
    lines += [*_rates(arena, rates), ""]
    planned = {"n": len(seeds), "planned": len(own["seeds"]), "rounds": own["rounds"]}
    shown = ", ".join(map(str, seeds)) or "none"
    lines += [JUDGED.format(tasks=_listed(own["tasks"]), seeds=shown, **planned)]
    lines += [*(_results(found) if found else ["Not run yet."]), "", BARS]
    for rule in own["rules"]:
        if any(one.rule == rule for one in found) and rule != MEAN:
            goals = goals_of_rule(found, rule)
            lines += [
                f"`{rule}` **{_WORDS[pays(goals)]}**.",
                "",
                *goals_table(goals).markdown(),
                "",
            ]
    if not found:
        lines += ["Open: not run yet.", ""]
    return "\n".join([*lines, TAIL])


def _summary(found: Sequence[RuleResult]) -> str:
    """Return what came out, in sentences made from the numbers."""
    if not found:
        return "**Not judged yet**: the runs are missing."
    rules = [rule for rule in plan()["rules"] if rule != MEAN]
    by_verdict: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for rule in rules:
        by_verdict[pays(goals_of_rule(found, rule))].append(f"`{rule}`")
    parts = [f"{_listed(names)}: {_WORDS[side]}" for side, names in by_verdict.items() if names]
    text = f"**{'; '.join(parts)}.**"
    plain = [one for one in found if one.rule == MEAN and not one.selector]
    if plain:
        longer = f"{plain[0].time.value:.2f}"
        text += f" The mean with rate 1 takes {longer} times as long as the tuned mean."
    for one in found:
        if one.selector and f"`{one.rule}`" in by_verdict[True] and _is_slower(one):
            longer, never = f"{one.time.value:.2f}", f"{one.never} of {one.n_runs}"
            text += (
                f" But with `{one.selector}`, `{one.rule}` takes {longer} times as long, and "
                f"{never} runs never reached the target."
            )
    return text


def _is_slower(one: RuleResult) -> bool:
    return one.p_time < LEVEL and one.time.value > 1.0


def _rates(arena: Arena, rates: dict[str, float] | None) -> list[str]:
    every = plan()["tuning"]["rates"]
    lines = [
        f"| rule | {' | '.join(f'{rate:g}' for rate in every)} |",
        "|---" * (len(every) + 1) + "|",
    ]
    for rule, by_rate in tuned(arena).items():
        cells = []
        for rate in every:
            text = f"{by_rate[rate]:.2f}" if rate in by_rate else "-"
            is_best = rates is not None and rate == rates[rule]
            cells.append(f"**{text}**" if is_best else text)
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return lines


def _results(found: Sequence[RuleResult]) -> list[str]:
    lines = [
        "| rule | rate | selector | runs | never | time | final accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        cells = (
            f"`{one.rule}`",
            f"{one.rate:g}",
            one.selector or "**all**",
            str(one.n_runs),
            str(one.never),
            _cell(one.time, ".2f", one.p_time, is_better=one.time.value < 1.0),
            _cell(one.gain, "+.3f", one.p_gain, is_better=one.gain.value > 0.0),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(found: Interval, form: str, p_value: float, *, is_better: bool) -> str:
    mark = ("▲" if is_better else "▼") if p_value < LEVEL else ""
    return f"{found.value:{form}} ({found.low:{form}} to {found.high:{form}}) {mark}".strip()


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def run() -> None:
    """Tune the rate of each rule, then run what is judged; resumes where it stopped."""
    arena = Arena.read(RESULTS)
    run_missing(arena, RESULTS, RUNS, tuning_runs())
    rates = rates_of(arena)
    if rates is None:
        sys.exit("a run of the tuning has failed: look into runs/aggregation.")
    run_missing(arena, RESULTS, RUNS, judged_runs(rates))


def main() -> None:
    """Run, write the page, or compare it."""
    if "--run" in sys.argv:
        run()
        return
    text = page(Arena.read(RESULTS))
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit(
            "docs/aggregation.md differs from its results: run python docs/build_aggregation.py."
        )


if __name__ == "__main__":
    main()
