"""The arena's tables, for the terminal and for its page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.core.types import FloatArray
from turnout.results.statistics import Estimate, Interval, estimate
from turnout.studies.arena_tasks import (
    ENERGY,
    ORACLE,
    ORACLES,
    Arena,
    ArenaTask,
    Measures,
    tasks_in,
    tasks_named,
)
from turnout.studies.bars import beside_synchronous, fedbuff_findings
from turnout.studies.claims import corrected
from turnout.studies.measures import measure_named
from turnout.studies.paper_tables import TextTable
from turnout.studies.recommendation import BASELINE
from turnout.studies.standings import (
    OURS,
    Duel,
    Goal,
    Overall,
    Side,
    duels_of,
    goals_of,
    overall_of,
    sentence_of,
    share_won,
    sooner,
)

_MARKS = {Side.BETTER: "▲", Side.WORSE: "▼", Side.LEVEL: ""}


def overall_table(overall: Mapping[str, Overall]) -> TextTable:
    """Return one row per selector: time, accuracy, rank and fairness.

    Args:
        overall: By label.
    """
    rows = []
    for label, own in overall.items():
        sides = [duel.time for duel in own.duels]
        row = {
            "selector": label,
            "tasks": str(len(own.duels)),
            f"time / {BASELINE}": _interval(own.ratio),
            "faster / slower": f"{sides.count(Side.BETTER)} / {sides.count(Side.WORSE)}",
            "never": f"{own.n_never} of {own.n_runs}",
            "won": _known(own.won),
            "accuracy": f"{own.gain.value:+.3f}",
            "at equal time": _known(own.gain_at_time, "+.3f"),
            "mean rank": _known(own.rank.value, ".1f"),
            "least share": f"{own.least_share:.2f}",
            "least answered": _known(own.least_answered),
            "unfair in": str(own.n_unfair),
        }
        rows.append(row)
    return TextTable.of("Over all tasks", _known_columns(rows))


def task_table(arena: Arena, task: ArenaTask) -> TextTable:
    """Return one row per selector in one task; no rows if the task was not run.

    Args:
        arena: The results.
        task: The task.
    """
    trials, names = arena.trials(task), Measures.of(task)
    duels = {
        label: duel
        for label in (trials.labels if trials else ())
        for duel in duels_of(arena, [task], label)
    }
    best = duels[ORACLE].ratio if ORACLE in duels else math.nan
    rows = (
        []
        if trials is None
        else [
            {
                "selector": label,
                "seeds": str(trials.n_seeds(label)),
                f"time / {BASELINE}": _marked(duels.get(label)),
                f"s to {task.target:.0%}": _time(trials.values(label, names.time)),
                "won": _known(share_won(duels[label].ratio, best) if label in duels else math.nan),
                "final accuracy": trials.estimate(label, names.accuracy).written(".3f"),
                "at equal time": _known(
                    duels[label].gain_at_time if label in duels else math.nan, "+.3f"
                ),
                "worst tenth": trials.estimate(label, names.worst_tenth).written(".3f"),
                "least share": _known(trials.estimate(label, names.least_share).mean),
                "least answered": _known(trials.estimate(label, names.least_answered).mean)
                if trials.has(label, names.least_answered)
                else "-",
                "wasted": _known(trials.estimate(label, names.wasted).mean),
            }
            for label in trials.labels
        ]
    )
    return TextTable.of(task.title, _known_columns(rows))


def protocol_table(tasks: Sequence[ArenaTask], *arenas: Arena) -> TextTable:
    """Return one row per task: sizes, target, what it is used for, and the seeds that were run.

    Args:
        tasks: The tasks.
        arenas: The results, any of which may have a task.
    """
    rows = []
    for task in tasks:
        found = [trials for arena in arenas if (trials := arena.trials(task)) is not None]
        seeds: dict[str, set[int]] = {}
        for trials in found:
            for label, one in trials.schemes.items():
                seeds.setdefault(label, set()).update(one.seeds)
        counts = " / ".join(str(len(seeds.get(label, ()))) for label in (BASELINE, "oort", OURS))
        use = "reporting" if task.reports else "tuning"
        row = {
            "task": task.label,
            "used for": use if task.group == "tuning" or task.reports else f"{use}, other seeds",
            "clients": str(task.table["n_clients"]),
            "cohort": str(task.table["cohort_size"]),
            "rounds": str(task.table["n_rounds"]),
            "target": f"{task.target:g}",
            f"seeds of {BASELINE} / oort / {OURS}": counts,
            "oracle": str(len(seeds.get(ORACLE, ()))),
            "selectors": str(len(set(seeds) - set(ORACLES))),
        }
        rows.append(row)
    return TextTable.of("Tasks", rows)


def energy_table(arena: Arena, task: ArenaTask) -> TextTable:
    """Return one row per selector in a task whose world counts energy; no rows if it was not run.

    Args:
        arena: The results.
        task: The task.
    """
    trials, names = arena.trials(task), Measures.by_energy(task)
    per_reply, most = ENERGY
    rows = []
    for label in trials.labels if trials else ():
        assert trials is not None
        time, energy = (
            estimate(sooner(trials, label, BASELINE, measures))
            for measures in (Measures.of(task), names)
        )
        row = {
            "selector": label,
            "seeds": str(trials.n_seeds(label)),
            f"energy to {task.target:.0%}, kJ": _time(trials.values(label, names.time) / 1e3),
            f"energy / {BASELINE}": _ratio(energy),
            f"time / {BASELINE}": _ratio(time),
            "per reply, kJ": trials.estimate(label, per_reply).over(1e3).written(".2f"),
            "most of a client, kJ": trials.estimate(label, most).over(1e3).written(".0f"),
            "least share": trials.estimate(label, names.least_share).written(".2f"),
            "final accuracy": trials.estimate(label, names.accuracy).written(".3f"),
        }
        rows.append(row)
    return TextTable.of("Energy", rows)


def overlap_table(arena: Arena, synchronous: Arena) -> TextTable:
    """Return one row per task that was run: synchronous rounds beside buffered ones.

    Args:
        arena: The results of the group "overlap".
        synchronous: The results of the same tasks without buffers.
    """
    tasks = tasks_in("overlap")
    duels = {
        f"buffered {OURS} / {words}{BASELINE}": {
            duel.task.label: _marked(duel) for duel in duels_of(kept, tasks, OURS)
        }
        for words, kept in (("", beside_synchronous(arena, synchronous)), ("buffered ", arena))
    }
    rows = []
    for task in tasks:
        plain, name = tasks_named([task.plain])[0], Measures.of(task).time
        columns = {"": synchronous.trials(plain), "buffered ": arena.trials(task)}
        times = {
            f"{words}{label}, s": _time(trials.values(label, name))
            if trials is not None and label in trials.schemes
            else "-"
            for words, trials in columns.items()
            for label in (BASELINE, OURS)
        }
        ratios = {words: by_task.get(task.label, "-") for words, by_task in duels.items()}
        if columns["buffered "] is not None:
            at_work = str(task.table["schedule"]["concurrency"])
            rows.append({"task": plain.label, "at work": at_work, **times, **ratios})
    return TextTable.of("Rounds that overlap", rows)


def fedbuff_tables(arena: Arena, plan: Mapping[str, Any]) -> tuple[TextTable, TextTable]:
    """Return one row per schedule that was run, and one per claim that can be judged.

    Args:
        arena: The results of the group "fedbuff".
        plan: The plan, as plain data: the claims and the number of seeds.
    """
    rows = []
    for task in tasks_in("fedbuff"):
        trials, names = arena.trials(task), Measures.of(task)
        if trials is None or BASELINE not in trials.schemes:
            continue
        schedule = task.table.get("schedule")
        size, accuracy = task.table["cohort_size"], trials.values(BASELINE, names.accuracy)
        asked = schedule["size"] if schedule else round(task.table["policy"]["factor"] * size)
        training = task.table["training"]
        rows.append(
            {
                "schedule": task.title,
                "lr": f"{training['local']['lr']:g}",
                "server lr": f"{training.get('server_lr', 1.0):g}",
                measure_named(names.time).title: _time(trials.values(BASELINE, names.time)),
                "updates to it": _time(asked * trials.values(BASELINE, names.rounds)),
                "final accuracy": f"{accuracy.mean():.3f}",
            }
        )
    findings = fedbuff_findings(arena, plan)
    verdicts = corrected([finding for _, finding in findings], len(plan["claims"]))
    printed = {entry["says"]: entry["printed"] for entry in plan["claims"]}
    judged = [
        {
            "claim": claim.says,
            "paper": printed[claim.says],
            "here": f"{math.exp(finding.effect.mean):.2f}x "
            f"({math.exp(finding.effect.low):.2f} to {math.exp(finding.effect.high):.2f})",
            "seeds": str(finding.n_seeds),
            "verdict": verdict,
        }
        for (claim, finding), verdict in zip(findings, verdicts, strict=True)
    ]
    return TextTable.of("FedBuff's schedules", rows), TextTable.of("FedBuff's claims", judged)


def duels_table(label: str, duels: Sequence[Duel]) -> TextTable:
    """Return one row per task: a selector against the baseline.

    Args:
        label: The selector.
        duels: Its duels.
    """
    rows = (
        {
            "task": duel.task.label,
            "seeds": str(duel.n_seeds),
            f"time / {BASELINE}": _marked(duel),
            "never": str(duel.n_censored),
            "accuracy": f"{duel.accuracy} {_MARKS[duel.accuracy]}".strip(),
            "at equal time": _known(duel.gain_at_time, "+.3f"),
            "worst tenth": f"{duel.worst_tenth} {_MARKS[duel.worst_tenth]}".strip(),
            "least share": f"{duel.least_share:.2f}" + ("" if duel.is_fair else " unfair"),
            "least answered": _known(duel.least_answered),
        }
        for duel in duels
    )
    return TextTable.of(f"{label} against {BASELINE}", rows)


def goals_table(goals: Sequence[Goal]) -> TextTable:
    """Return one row per goal.

    Args:
        goals: The goals.
    """
    words = {True: "yes", False: "**no**", None: "open"}
    rows = tuple((goal.says, words[goal.is_reached], goal.measured) for goal in goals)
    return TextTable("The bar", ("it must show", "reached", "measured"), rows)


def _ratio(logs: Estimate) -> str:
    """Return the ratio that belongs to a mean of logarithms of the inverse ratio."""
    return _interval(Interval(*(math.exp(-x) for x in (logs.mean, logs.high, logs.low))))


def _interval(interval: Interval, form: str = ".2f") -> str:
    if math.isnan(interval.value):
        return "-"
    value, low, high = (format(number, form) for number in interval)
    return value if math.isnan(interval.low) else f"{value} ({low} to {high})"


def _known_columns(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows without columns of which nothing is known."""
    known = [name for name in (rows[0] if rows else ()) if any(row[name] != "-" for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def _marked(duel: Duel | None) -> str:
    return "-" if duel is None else f"{duel.ratio:.2f} {_MARKS[duel.time]}".strip()


def _known(value: float, form: str = ".2f") -> str:
    return "-" if math.isnan(value) else format(value, form)


def _time(values: FloatArray) -> str:
    """Return the median, which is known while fewer than half of the runs never finished."""
    middle, n_never = float(np.median(values)), int(np.isinf(values).sum())
    if math.isinf(middle):
        return "never"
    return f"{middle:,.0f}" + (f" ({n_never} never)" if n_never else "")


def page_of(arena: Arena, tasks: Sequence[ArenaTask], label: str, figure: str) -> str:
    """Return the page as Markdown.

    Args:
        arena: The results.
        tasks: The tasks.
        label: The selector; it must have met the baseline.
        figure: The file with time against fairness, beside the page.
    """
    overall = overall_of(arena, tasks)
    duels = overall[label].duels
    lines = [f"# {label} in the arena", "", sentence_of(duels), ""]
    lines += ["▲ and ▼: better and worse by more than chance, corrected for the tasks (Holm).", ""]
    for title, table in (
        ("Task by task", duels_table(label, duels)),
        ("What a selector should show", goals_table(goals_of(arena, tasks, label))),
        ("Among all selectors", overall_table(overall)),
    ):
        lines += [f"## {title}", "", *table.markdown(), ""]
    return "\n".join([*lines, f"![Time against fairness]({figure})", ""])
