"""Write ``docs/arena.md``, its figures and the package's standings from ``results/arena.json``.

Everything below the mark is made here. ``--check`` writes nothing and fails if a text differs.
Figures are not compared: pixels differ between machines.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import turnout
from turnout.studies import Arena, ArenaTask, tasks_named
from turnout.studies.arena_figures import (
    ACCURACY,
    TIME,
    Varied,
    draw_front,
    draw_means,
    draw_profile,
    draw_sweeps,
)
from turnout.studies.arena_tables import (
    energy_table,
    fedbuff_tables,
    goals_table,
    overall_table,
    overlap_table,
    protocol_table,
    task_table,
)
from turnout.studies.arena_tasks import ORACLES, tasks_in
from turnout.studies.bars import bars, bars_of, overlap_bars_of, ratio_to_before
from turnout.studies.standings import (
    BASELINE,
    OURS,
    Duel,
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
OVERLAP_RESULTS = ROOT / "results" / "overlap" / "arena.json"
ENERGY_RESULTS = ROOT / "results" / "energy" / "arena.json"
OVERLAP_PLAN = ROOT / "results" / "overlap" / "plan.toml"
FEDBUFF = ROOT / "results" / "fedbuff"
ABLATION = ROOT / "results" / "pace" / "arena.json"
SENSITIVITY = ROOT / "results" / "pace" / "sensitivity" / "arena.json"
STANDINGS = ROOT / "src" / "turnout" / "studies" / "arena_standings.json"
#: Pages that show the figure of means, and how far the figures are from them.
CAPTIONED = {ROOT / "README.md": "docs/", ROOT / "docs" / "index.md": ""}
BEGIN, END = "<!-- arena: made by docs/build_arena.py -->", "<!-- end of arena -->"
#: The page that gives advice, and the marks around its table of standings.
CHOOSE = ROOT / "docs" / "choose.md"
BEGIN_STANDINGS, END_STANDINGS = BEGIN.replace("arena:", "standings:"), "<!-- end of standings -->"
PAGE = ROOT / "docs" / "arena.md"
FIGURES = ROOT / "docs" / "assets"
MARK = "<!-- Made by docs/build_arena.py from results/arena.json; do not edit. -->"
MADE_UP_TO_HERE = "<!-- End of what docs/build_arena.py makes. -->"

#: A cell with an interval, which stays on one line.
INTERVAL = re.compile(r"(?<=\| )[\d.,+-]+ (?:\([\d.,+-]+ to [\d.,+-]+\)|± [\d.]+)(?= \|)")

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

TASKS = """\
*reporting*: nothing was tuned on the task, and seeds count from 0. *tuning, other seeds*:
defaults of `pace` were chosen on the task with seeds from 100 on, and what it shows here has
seeds from 0 on. Means over tasks leave it out. Only its own section, and goals, ablations and
rounds that overlap, which were planned for all nine first tasks, count it. *tuning*: the task
never reports."""

TUNED = """\
Defaults of `pace` were chosen on these three tasks with seeds from 100 on. Their results have other
seeds, but the same worlds, and they are kept apart."""

HARDER = """\
These tasks are longer, larger or more hostile than the first nine. Nothing was tuned on them, and
they were chosen before anything but `random` had run in them."""

OVERLAP = f"""\
The first nine tasks again, in buffered rounds ([FedBuff](howto/overlap.md)) with as many clients at
work as synchronous rounds of `{BASELINE}` have on average. A buffer holds half of that. Runs have
as many replies and evaluations as the synchronous ones, and a world changes after as many places.
The bars were written down in `results/overlap/plan.toml` before anything was run. A bar is open
until all of it was run, and a bar of time stays open while its interval holds it.

```console
turnout arena {BASELINE} {OURS} --task overlap --seeds 10 --results results/overlap
```"""

FEDBUFF_CLAIM = f"""\
FedBuff's paper says that buffers need fewer updates and less time than synchronous rounds that ask
30 % more clients than they wait for, and than one new model per update (FedAsync). This is its
setting with a stand-in: 500 clients with Fashion-MNIST, 130 of them at work, half-normal times, and
buffers of 10. Each schedule has the learning rates that were best on seeds 100 and 101. The rows
of FedAsync have buffers of one, which add the steps of clients. FedAsync itself mixes models
(`mixes` of `Buffered`); this was not run, so the second claim is not judged for it.
`results/fedbuff/plan.toml` has the grid, and was written before the runs of the table.

```console
turnout arena {BASELINE} --task fedbuff --seeds 10 --results results/fedbuff
```"""

ENERGY = f"""\
*energy* is what the devices of the chosen spent on work until the target was reached. A ratio is a
geometric mean over seeds with a 95 % interval, and a run counts at most as much as that of
`{BASELINE}` spent in all its rounds. `budget` is `guarded` around `{OURS}` with at most 30 kJ for
each client, by what a round is expected to take. None of these selectors looks at batteries, but
clients whose battery is low are not available.

```console
turnout arena {BASELINE} {OURS} e3cs oort budget=guarded:inner={OURS},max_energy_j=30000.0 \\
    --task energy --seeds 5 --results results/energy
```"""

HOW_TO_READ = f"""\
- *time / {BASELINE}* is the geometric mean of the times to the target, divided by those of
  `{BASELINE}` and paired by seed, with a 95 % bootstrap interval. Both times are cut off where the
  run of `{BASELINE}` ended, in seconds. A run that never reached the target in its rounds counts as
  that long. Means, ranks and tests use these numbers.
- *never* is the number of runs that did not reach the target.
- *won* is the share of the time that the oracle saves. The *oracle* has the objective and the floor
  of `{OURS}` and is told the true expected times, chances to answer and losses. The *unfair oracle*
  has no floor. Oracles have no rank. A dash means that the oracle was not run, or that it saves
  less than a tenth, of which a share would be chance.
- *accuracy* is the final accuracy minus that of `{BASELINE}`, after equal rounds. *at equal time*
  is the difference when the shorter of both runs ends. A dash, or no such column: results of an
  older version lack it.
- *tasks* are those that the selector was run on. A mean over fewer tasks cannot be compared with
  the others: look at the tables of these tasks instead.
- *mean rank* is the rank among the selectors that have all tasks.
- *faster / slower* counts tasks with a significant difference: a paired test per task, corrected
  for the number of tasks (Holm). ▲ and ▼ in the table of a single task are those of its own test,
  without this correction, so there may be more of them.
- *least share* is the part of its fair share that the least served client got. Below one half
  counts as *unfair*. *least answered* counts answers in time instead of places, against an equal
  share of all answers."""


def page_part(arena: Arena, tasks: tuple[ArenaTask, ...]) -> str:
    """Return the part of the page that is made from results.

    Args:
        arena: The results.
        tasks: All tasks.
    """
    reporting = [task for task in tasks if task.reports]
    overall, harder = overall_of(arena, reporting), Arena.read(HARDER_RESULTS)
    lines = [MARK, "", "## Results", "", _headline(overall), ""]
    lines += [*_compared(overall, len(reporting)), ""]
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
        "## How to read the tables",
        "",
        HOW_TO_READ,
        "",
        "## The tasks",
        "",
        TASKS,
        "",
        *protocol_table((*tasks, *tasks_in("harder", "tuning")), arena, harder).markdown(),
        "",
        "## Selector by selector",
        "",
        *_records(overall),
        "",
        "## The tasks of the tuning",
        "",
        TUNED,
        "",
        *overall_table(overall_of(arena, [x for x in tasks if not x.reports])).markdown(),
        "",
        f"## Goals for `{OURS}`",
        "",
        "We set these goals for all nine tasks before we measured. Parameters were chosen on three",
        "of them, with other seeds.",
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
    lines += [*_harder(harder), *_overlap(Arena.read(OVERLAP_RESULTS), arena)]
    lines += _energy(Arena.read(ENERGY_RESULTS))
    for number, task in enumerate((*tasks, *tasks_in("harder")), 1):
        lines += [f"## {number}. {task.title}", "", f"`{task.label}`. {task.what}", ""]
        text = task_table(arena if task in tasks else harder, task)
        lines += [*text.markdown(), ""] if text.rows else ["Not run yet.", ""]
    made = ", ".join(f"{name} {version}" for name, version in arena.file.made_with.items())
    text = "\n".join([*lines, f"Made with {made}.", "", MADE_UP_TO_HERE])
    return INTERVAL.sub(lambda found: found[0].replace(" ", "\u00a0"), text)


def _headline(overall: dict[str, Overall]) -> str:
    """Return what came out in two sentences, made from the numbers."""
    ours = overall[OURS]
    least = min(duel.least_share for duel in ours.duels)
    value, low, high = (f"{number:.2f}" for number in ours.ratio)
    faster = [
        f"`{label}` ({own.ratio.value:.2f}, least share {own.least_share:.2f})"
        for label, own in overall.items()
        if own.ratio.value < ours.ratio.value
        and len(own.duels) == len(ours.duels)
        and label not in ORACLES
    ]
    text = f"**On {len(ours.duels)} tasks on which nothing was tuned, `{OURS}` takes {value} of"
    text += f" {BASELINE}'s time to the target ({low} to {high}), and every client gets at least"
    text += f" {least:.2f} of a fair share.** "
    arrived = ours.n_runs - ours.n_never
    text += f"{arrived} of its {ours.n_runs} runs got there. "
    if faster:
        text += f"Faster in the mean: {', '.join(faster)}."
    else:
        text += "No selector that ran on all of these tasks is faster in the mean."
    return text


def _compared(overall: dict[str, Overall], n_tasks: int) -> list[str]:
    """Return a table of the selectors that have all tasks, and one of the others."""
    whole = {x: own for x, own in overall.items() if len(own.duels) == n_tasks}
    part = {x: own for x, own in overall.items() if x not in whole}
    lines = overall_table(whole).markdown()
    if part:
        lines += ["", "These selectors have results on some of the tasks only. A mean over other"]
        lines[-1] += " tasks cannot be compared with those above."
        lines += ["", *overall_table(part).markdown()]
    return lines


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
        lines += [*_compared(overall, len(tasks) - len(lacking)), ""]
        lines += ["![Time against fairness](assets/arena-harder.png)", ""]
        lines += ["*Time against fairness on the harder tasks that were run.*", ""]
        lines += _by_task(overall, [task for task in tasks if task.label not in lacking])
        lines += [*_against_before(arena, [task for task in tasks_named() if task.reports]), ""]
    lines += [f"**Not run yet:** {', '.join(lacking)}.", ""] if lacking else []
    reporting = [task.label for task in tasks_named() if task.reports]
    lines += [f"## Bars for `{own['selector']}`", ""]
    lines += [f"`{own['selector_is']}` was to clear these bars. They were committed, in", ""]
    lines[-2] += " `turnout/studies/pace_bars.toml`, before it met any task that reports. Those are"
    lines[-2] += f" {', '.join(reporting)}. A bar stays open while its interval holds it."
    return [*lines, *goals_table(bars_of(arena, tasks_named())).markdown(), ""]


def _overlap(arena: Arena, synchronous: Arena) -> list[str]:
    """Return the part on rounds that overlap.

    Args:
        arena: The results of the group "overlap".
        synchronous: The results of the same tasks without buffers.
    """
    plan = tomllib.loads(OVERLAP_PLAN.read_text(encoding="utf-8"))
    text = overlap_table(arena, synchronous)
    tasks = tasks_in("overlap")
    lacking = [task.plain for task in tasks if arena.trials(task) is None]
    lines = ["## Rounds that overlap", "", OVERLAP, ""]
    if text.rows:
        lines += ["Times are medians over seeds. *buffered pace / random* compares with", ""]
        lines[-2] += " synchronous rounds; ▲ and ▼ are better and worse by more than chance."
        lines += [*text.markdown(), "", *overall_table(overall_of(arena, tasks)).markdown(), ""]
    lines += [f"**Not run yet:** {', '.join(lacking)}.", ""] if lacking else []
    lines += [*goals_table(overlap_bars_of(arena, synchronous, plan)).markdown(), ""]
    plan = tomllib.loads((FEDBUFF / "plan.toml").read_text(encoding="utf-8"))
    tables = fedbuff_tables(Arena.read(FEDBUFF / "arena.json"), plan)
    parts = [line for table in tables if table.rows for line in (*table.markdown(), "")]
    lines += ["### FedBuff's own claim", "", FEDBUFF_CLAIM, ""]
    return [*lines, *(parts or ["**Not run yet.**", ""])]


def _energy(arena: Arena) -> list[str]:
    """Return the part on batteries.

    Args:
        arena: The results of the group "energy".
    """
    lines = ["## Energy", "", ENERGY, ""]
    for task in tasks_in("energy"):
        text = energy_table(arena, task)
        lines += [f"### {task.title}", "", f"`{task.label}`. {task.what}", ""]
        lines += [*text.markdown(), ""] if text.rows else ["Not run yet.", ""]
    return lines


def _against_before(arena: Arena, tasks: Sequence[ArenaTask]) -> list[str]:
    """Return a table of the second version's time over the first's, a row a task."""
    own, ratios = bars(), ratio_to_before(arena, tasks)
    lines = ["", f"| task | time of `{own['selector']}` / time of `{own['before']}` |", "|---|---|"]
    for task, ratio in ratios.items():
        span = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        lines.append(f"| {task or '**together**'} | {span} |")
    return lines if ratios else []


def _by_task(overall: dict[str, Overall], tasks: Sequence[ArenaTask]) -> list[str]:
    """Return a table of time over the baseline's and least share, a row a task."""
    shown = {label: own for label, own in overall.items() if label != BASELINE}
    lines = ["The next table shows *time / random* and, in brackets, *least share* by task:", ""]
    lines += [f"| task | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
    for task in tasks:
        cells = []
        for own in shown.values():
            met = [duel for duel in own.duels if duel.task.label == task.label]
            cells += [_ratio_and_share(duel) for duel in met] or ["-"]
        lines.append(f"| {task.label} | {' | '.join(cells)} |")
    return lines


def _ratio_and_share(duel: Duel) -> str:
    never = f", {duel.n_censored} never" if duel.n_censored else ""
    return f"{duel.ratio:.2f}{never} ({duel.least_share:.2f})"


def _records(overall: dict[str, Overall]) -> list[str]:
    return [
        f"- `{label}`: {sentence_of(own.duels)}"
        for label, own in overall.items()
        if label != BASELINE and label not in ORACLES
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
    quicker = faster_than(overall, OURS)
    caption = (
        f"*[The arena]({where}arena.md): every selector trains on the same {len(ours.duels)} tasks,"
        f" on which nothing was tuned, with {shown} seeds. Left is faster, up is fairer. Our "
        f"`{OURS}` takes {ours.ratio.value:.2f} of {BASELINE}'s time ({ours.ratio.low:.2f} to "
        f"{ours.ratio.high:.2f}). It is significantly faster on {n_faster} tasks and gives every "
        f"client at least {least:.2f} of a fair share on all tasks."
    )
    if quicker:
        caption += f" To the left of it, the least served client gets {shares_of(quicker)}."
    alt = "Time to the target against the share of the least served client, for every selector"
    caption = f"![{alt}]({where}assets/arena-means.png)\n\n{caption}*"
    return between(text, BEGIN, END, caption)


def between(text: str, begin: str, end: str, inner: str) -> str:
    """Return a page with other words between two marks.

    Args:
        text: The page before.
        begin: The first mark.
        end: The second mark.
        inner: What stands between them.
    """
    before, rest = text.split(begin)
    return f"{before}{begin}\n{inner}\n{end}{rest.split(end)[1]}"


def faster_than(overall: dict[str, Overall], slower: str) -> dict[str, Overall]:
    """Return the selectors with a shorter time than one, without those who are told the truth.

    Args:
        overall: By label.
        slower: The label of the one.
    """
    most = overall[slower].ratio.value
    return {
        label: own
        for label, own in overall.items()
        if own.ratio.value < most and label not in ORACLES
    }


def shares_of(overall: dict[str, Overall]) -> str:
    """Return what each selector gives its least served client, in words.

    Args:
        overall: By label.
    """
    parts = [f"{own.least_share:.2f} with `{label}`" for label, own in overall.items()]
    named = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"this part of a fair share on average: {named}"


def advice(overall: dict[str, Overall]) -> str:
    """Return which selector is the fastest of those that serve everyone in all tasks.

    Args:
        overall: By label.
    """
    n_tasks = len(overall[BASELINE].duels)
    fair = {
        label: own
        for label, own in overall.items()
        if label not in ORACLES and own.n_unfair == 0 and len(own.duels) == n_tasks
    }
    if not fair:
        return "In [the arena](arena.md), no selector serves every client in each task."
    best = min(fair, key=lambda label: fair[label].ratio.value)
    ratio = fair[best].ratio
    text = (
        f"In [the arena](arena.md), on {n_tasks} tasks on which nothing was tuned, `{best}` is the "
        "fastest of those that give every client at least half of its fair share in each task. "
        "It takes "
        f"{ratio.value:.2f} of the time of `{BASELINE}` ({ratio.low:.2f} to {ratio.high:.2f})."
    )
    if quicker := faster_than(overall, best):
        text += f" Among the faster ones, the least served client gets {shares_of(quicker)}."
    return text


def standings_table(overall: dict[str, Overall]) -> str:
    """Return a row for each selector: tasks, time, what the least served client got.

    Args:
        overall: By label.
    """
    n_tasks = len(overall[BASELINE].duels)
    lines = [
        f"| selector | tasks | time / `{BASELINE}` | faster / slower | least share | unfair in |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    pages = turnout.list_selectors(plugins=False)
    for label, own in overall.items():
        if label not in pages:  # oracles and variants
            continue
        sides = [duel.time for duel in own.duels]
        ratio = f"{own.ratio.value:.2f} ({own.ratio.low:.2f} to {own.ratio.high:.2f})"
        cells = [f"[`{label}`](selectors/{label}.md)", f"{len(own.duels)} of {n_tasks}", ratio]
        cells += [f"{sides.count(Side.BETTER)} / {sides.count(Side.WORSE)}"]
        cells += [f"{own.least_share:.2f}", str(own.n_unfair)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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
    reporting = tuple(task for task in tasks if task.reports)
    overall = overall_of(arena, reporting)
    before, rest = PAGE.read_text(encoding="utf-8").split(MARK)
    texts = {
        PAGE: before + page_part(arena, tasks) + rest.split(MADE_UP_TO_HERE)[1],
        STANDINGS: standings_text(overall),
    }
    for path, where in CAPTIONED.items():
        texts[path] = captioned(path.read_text(encoding="utf-8"), overall, where)
    chosen = between(CHOOSE.read_text(encoding="utf-8"), BEGIN, END, advice(overall))
    table = f"\n{standings_table(overall)}\n"
    texts[CHOOSE] = between(chosen, BEGIN_STANDINGS, END_STANDINGS, table)
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
    draw_profile(arena, reporting, tuple(overall), [FIGURES / "arena-profile.png"])
    if SENSITIVITY.exists():
        draw_sweeps(sweeps_of(Arena.read(SENSITIVITY)), [FIGURES / "arena-sensitivity.png"])


if __name__ == "__main__":
    main()
