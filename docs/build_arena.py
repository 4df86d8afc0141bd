"""Write ``docs/arena.md``, its figures and the package's standings from ``results/arena.json``.

Everything below the mark is made here. ``--check`` writes nothing and fails if a text differs.
Figures are not compared: pixels differ between machines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import turnout
from turnout.studies import Arena, ArenaTask, tasks_named
from turnout.studies.arena_figures import (
    ACCURACY,
    OURS,
    TIME,
    Varied,
    draw_front,
    draw_means,
    draw_profile,
    draw_sweeps,
)
from turnout.studies.arena_tables import goals_table, overall_table, task_table
from turnout.studies.arena_tasks import tasks_in
from turnout.studies.bars import bars, bars_of, ratio_to_before
from turnout.studies.standings import (
    BASELINE,
    Overall,
    Side,
    duels_of,
    goals_of,
    overall_of,
    sentence_of,
    standings_text,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "arena.json"
HARDER_RESULTS = ROOT / "results" / "harder" / "arena.json"
ABLATION = ROOT / "results" / "pace" / "arena.json"
SENSITIVITY = ROOT / "results" / "pace" / "sensitivity" / "arena.json"
STANDINGS = ROOT / "src" / "turnout" / "studies" / "arena_standings.json"
#: Pages that show the figure of means, and how far the figures are from them.
CAPTIONED = {ROOT / "README.md": "docs/", ROOT / "docs" / "index.md": ""}
BEGIN, END = "<!-- arena: made by docs/build_arena.py -->", "<!-- end of arena -->"
PAGE = ROOT / "docs" / "arena.md"
FIGURES = ROOT / "docs" / "assets"
MARK = "<!-- Made by docs/build_arena.py from results/arena.json; do not edit below. -->"

#: Each part of pace switched off.
OFF = (
    "without-times=pace:haste=0.0",
    "without-losses=pace:utility=0.0",
    "without-queue=pace:share=0.0",
    "without-floor=pace:floor=0.0",
)
ABLATED = f"""\
```console
turnout arena pace {" ".join(OFF)} --seeds 3 --results results/pace
```

*without losses* also ignores data sizes and replies: cohorts then follow only queues and times."""

#: Values of each parameter of pace that were tried beside its default, one at a time.
TRIED = {
    "floor": (0.0, 0.25, 0.6),
    "share": (0.5, 0.85, 1.0),
    "haste": (0.25, 0.5, 2.0, 4.0),
    "utility": (0.0, 0.25, 1.0, 2.0),
    "memory": (10.0, 25.0, 100.0, 200.0),
}
#: Where defaults are chosen, and from which seed on.
TUNED_IN, FIRST_SEED = ("contexts", "scarce labels", "data only"), 100
VARIED = f"""\
```console
turnout arena pace haste-2=pace:haste=2.0 ... --first-seed {FIRST_SEED} --seeds 3 \\
    {" ".join(f"--task '{name}'" for name in TUNED_IN)} --results results/pace/sensitivity
```

`python docs/build_arena.py --sensitivity` prints the whole command. It changes one parameter at a
time. We chose the defaults (dotted lines) on these tasks and seeds, not on those of the tables
above."""

HARDER = """\
These tasks are longer, larger or more hostile than the first nine. Nothing was tuned on them, and
they were chosen before anything but `random` had run in them."""

HOW_TO_READ = f"""\
- *time / {BASELINE}* is the geometric mean of the times to the target, divided by those of
  `{BASELINE}` and paired by seed, with a 95 % bootstrap interval. Both times are cut off where the
  run of `{BASELINE}` ended, in seconds. A run that never reached the target counts as that long.
- *never* is the number of runs that did not reach the target.
- *won* is the share of the time that the oracle saves. The *oracle* has the objective and the floor
  of `{OURS}` and is told the true expected times, chances to answer and losses. The *unfair oracle*
  has no floor. Oracles have no rank, and a dash means that the oracle was not run.
- *final accuracy* is that after equal rounds. *at equal time* is the difference to `{BASELINE}`
  when the shorter of both runs ends.
- *chance to be faster* compares a run of the selector with any run of `{BASELINE}`, over tasks
  drawn at random.
- *mean rank* is the rank among the selectors that have all tasks.
- *faster / slower* counts tasks with a significant difference: a paired test per task, corrected
  for the number of tasks (Holm).
- *least share* is the part of its fair share that the least served client got. Below one half
  counts as *unfair*. *least answered* counts answers in time instead of places, against an equal
  share of all answers."""


def page_part(arena: Arena, tasks: tuple[ArenaTask, ...]) -> str:
    """Return the part of the page that is made from results.

    Args:
        arena: The results.
        tasks: All tasks.
    """
    overall = overall_of(arena, tasks)
    lines = [
        MARK,
        "",
        "## Over all tasks",
        "",
        HOW_TO_READ,
        "",
        *overall_table(overall).markdown(),
        "",
    ]
    lines += [
        "![Time against fairness](assets/arena-front.png)",
        "",
        "*Time against fairness: left is faster, up is fairer. The dashed line is half of a fair "
        "share.*",
        "",
        "![Accuracy against fairness](assets/arena-accuracy.png)",
        "",
        f"*Final accuracy minus {BASELINE}'s, paired by seed: right is better, up is fairer.*",
        "",
        "![Performance profile](assets/arena-profile.png)",
        "",
        f"*Share of runs that reach the target faster than {BASELINE} by each factor. The band is "
        f"the 95 % interval of `{OURS}`. The four fastest others have names.*",
        "",
        "## Selector by selector",
        "",
        *_records(overall),
        "",
        f"## Goals for `{OURS}`",
        "",
        "We set these goals before we measured.",
        "",
        *goals_table(goals_of(arena, tasks, OURS)).markdown(),
        "",
    ]
    if ABLATION.exists():
        ablated = overall_of(Arena.read(ABLATION), tasks)
        lines += [f"## What each part of `{OURS}` does", "", ABLATED, ""]
        lines += [*overall_table(ablated).markdown(), "", *_by_task(ablated, tasks), ""]
        lacking = [task.label for task in tasks if Arena.read(ABLATION).trials(task) is None]
        lines += [f"**Not run yet:** {', '.join(lacking)}.", ""] if lacking else []
    if SENSITIVITY.exists():
        lines += [f"## What each parameter of `{OURS}` does", "", VARIED, ""]
        lines += ["![Time and fairness by parameter](assets/arena-sensitivity.png)", ""]
        kept = Arena.read(SENSITIVITY)
        lacking = [task.label for task in tasks_named(TUNED_IN) if kept.trials(task) is None]
        lines += [f"**Not run yet:** {', '.join(lacking)}.", ""] if lacking else []
    harder = Arena.read(HARDER_RESULTS)
    lines += _harder(harder)
    for number, task in enumerate((*tasks, *tasks_in("harder")), 1):
        lines += [f"## {number}. {task.title}", "", f"`{task.label}`. {task.what}", ""]
        text = task_table(arena if task in tasks else harder, task)
        lines += [*text.markdown(), ""] if text.rows else ["Not run yet.", ""]
    made = ", ".join(f"{name} {version}" for name, version in arena.file.made_with.items())
    return "\n".join([*lines, f"Made with {made}."]) + "\n"


def _harder(arena: Arena) -> list[str]:
    """Return the parts on the harder tasks and on the bars of the second version.

    Args:
        arena: The results of the harder tasks.
    """
    tasks, own = tasks_in("harder"), bars()
    overall = overall_of(arena, tasks)
    lacking = [task.label for task in tasks if arena.trials(task) is None]
    lines = ["## Over the harder tasks", "", HARDER, ""]
    if overall:
        lines += [*overall_table(overall).markdown(), ""]
        lines += ["![Time against fairness](assets/arena-harder.png)", ""]
        lines += ["*Time against fairness on the harder tasks that were run.*", ""]
        lines += _by_task(overall, [task for task in tasks if task.label not in lacking])
        lines += ["", *_against_before(arena, tasks), ""]
    lines += [f"**Not run yet:** {', '.join(lacking)}.", ""] if lacking else []
    reporting = [task.label for task in tasks_named() if task.reports]
    lines += [f"## Bars for `{own['selector']}`", ""]
    lines += [f"`{own['selector_is']}` was to clear these bars. They were committed, in", ""]
    lines[-2] += " `turnout/studies/pace_bars.toml`, before it met any task that reports. Those are"
    lines[-2] += f" {', '.join(reporting)}. A bar stays open while its interval holds it."
    return [*lines, *goals_table(bars_of(arena, tasks_named())).markdown(), ""]


def _against_before(arena: Arena, tasks: Sequence[ArenaTask]) -> list[str]:
    """Return a table of the second version's time over the first's, a row a task."""
    own = bars()
    lines = [f"| task | time of `{own['selector']}` / time of `{own['before']}` |", "|---|---|"]
    for task, ratio in ratio_to_before(arena, tasks).items():
        span = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        lines.append(f"| {task or '**together**'} | {span} |")
    return lines


def _by_task(overall: dict[str, Overall], tasks: Sequence[ArenaTask]) -> list[str]:
    """Return a table of time over the baseline's and least share, a row a task."""
    shown = {label: own for label, own in overall.items() if label != BASELINE}
    lines = ["The next table shows *time / random* and, in brackets, *least share* by task:", ""]
    lines += [f"| task | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for task in tasks:
        cells = []
        for own in shown.values():
            met = [duel for duel in own.duels if duel.task.label == task.label]
            cells += [f"{duel.ratio:.2f} ({duel.least_share:.2f})" for duel in met] or ["-"]
        lines.append(f"| {task.label} | {' | '.join(cells)} |")
    return lines


def _records(overall: dict[str, Overall]) -> list[str]:
    return [
        f"- `{label}`: {sentence_of(own.duels)}"
        for label, own in overall.items()
        if label != BASELINE
    ]


def captioned(text: str, overall: dict[str, Overall], where: str) -> str:
    """Return a page with the figure of means and what it says.

    Args:
        text: The page before.
        overall: By label.
        where: Where the figures are, from that page.
    """
    ours = overall[OURS]
    n_faster = sum(duel.time == Side.BETTER for duel in ours.duels)
    least = min(duel.least_share for duel in ours.duels)
    seeds = sorted({duel.n_seeds for own in overall.values() for duel in own.duels})
    shown = "-".join(str(number) for number in dict.fromkeys((seeds[0], seeds[-1])))
    quicker = [own.least_share for own in overall.values() if own.ratio.value < ours.ratio.value]
    caption = (
        f"*[The arena]({where}arena.md): every selector trains on the same {len(ours.duels)} tasks "
        f"with {shown} seeds and is compared with `{BASELINE}`. Left is faster, up is fairer. Our "
        f"`{OURS}` takes {ours.ratio.value:.2f} of {BASELINE}'s time ({ours.ratio.low:.2f} to "
        f"{ours.ratio.high:.2f}). It is significantly faster on {n_faster} tasks and gives every "
        f"client at least {least:.2f} of a fair share on all tasks."
    )
    if quicker:
        caption += " With the selectors to the left of it, the least served clients get "
        caption += f"{min(quicker):.2f} to {max(quicker):.2f} of a fair share on average."
    alt = "Time to the target against the share of the least served client, for every selector"
    caption = f"![{alt}]({where}assets/arena-means.png)\n\n{caption}*"
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{caption}\n{END}{rest.split(END)[1]}"


def variants() -> list[str]:
    """Return the variants of the sensitivity figure, as the command takes them."""
    return [
        f"{name}-{value:g}={OURS}:{name}={value}" for name, own in TRIED.items() for value in own
    ]


def sweeps_of(arena: Arena) -> list[Varied]:
    """Return what each parameter does.

    Args:
        arena: The results of the variants.
    """
    usual = turnout.make(OURS).parameters
    tasks = [task for task in tasks_named(TUNED_IN) if arena.trials(task) is not None]
    names = [task.label for task in tasks]
    sweeps = []
    for name, own in TRIED.items():
        values = tuple(sorted({*own, usual[name]}))
        labels = [OURS if value == usual[name] else f"{name}-{value:g}" for value in values]
        duels = [{duel.task.label: duel for duel in duels_of(arena, tasks, x)} for x in labels]
        sweeps.append(
            Varied(
                name,
                values,
                usual[name],
                {task: [by_task[task].ratio for by_task in duels] for task in names},
                {task: [by_task[task].least_share for by_task in duels] for task in names},
            )
        )
    return sweeps


def main() -> None:
    """Write everything, or compare the texts."""
    if "--sensitivity" in sys.argv:
        where = " ".join(f"--task '{name}'" for name in TUNED_IN)
        print(f"turnout arena {OURS} {' '.join(variants())} --first-seed {FIRST_SEED} --seeds 3")
        print(f"    {where} --results {SENSITIVITY.parent.relative_to(ROOT)}")
        return
    arena, tasks = Arena.read(RESULTS), tasks_in("first")
    overall = overall_of(arena, tasks)
    before = PAGE.read_text(encoding="utf-8")
    texts = {
        PAGE: before.split(MARK)[0] + page_part(arena, tasks),
        STANDINGS: standings_text(overall),
    }
    for path, where in CAPTIONED.items():
        texts[path] = captioned(path.read_text(encoding="utf-8"), overall, where)
    if "--check" in sys.argv:
        for path, text in texts.items():
            if text != path.read_text(encoding="utf-8"):
                sys.exit(f"{path.name} differs from results/arena.json: run make arena.")
        return
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    draw_means(overall, [FIGURES / "arena-means.png"])
    draw_front(overall, TIME, [FIGURES / "arena-front.png"])
    if HARDER_RESULTS.exists():
        harder = overall_of(Arena.read(HARDER_RESULTS), tasks_in("harder"))
        draw_front(harder, TIME, [FIGURES / "arena-harder.png"])
    draw_front(overall, ACCURACY, [FIGURES / "arena-accuracy.png"])
    draw_profile(arena, tasks, tuple(overall), [FIGURES / "arena-profile.png"])
    if SENSITIVITY.exists():
        draw_sweeps(sweeps_of(Arena.read(SENSITIVITY)), [FIGURES / "arena-sensitivity.png"])


if __name__ == "__main__":
    main()
