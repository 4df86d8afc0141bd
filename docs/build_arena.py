"""Write ``docs/arena.md`` and its figures from ``results/arena.json``.

Everything below the mark is made here. ``--check`` writes nothing and fails if the page differs.
Figures are not compared: pixels differ between machines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from turnout.arena import Arena, ArenaTask, tasks_named
from turnout.arena.standing import BASELINE, Overall, overall_of, sentence_of
from turnout.arena.tables import draw_front, draw_profile, overall_table, task_table
from turnout.papers.tables import TextTable

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "arena.json"
ABLATION = ROOT / "results" / "pace" / "arena.json"
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

*without losses* also ignores data sizes and answers: cohorts then follow queues and times alone."""

HOW_TO_READ = f"""\
*time / {BASELINE}* is the geometric mean of the times to the target over {BASELINE}'s, paired by
seed, with a 95 % bootstrap interval; a run that never got there counts with its length.
*chance to be faster* compares a run of the selector with any run of {BASELINE}, over tasks drawn at
random. *mean rank* is among the selectors that have all tasks. *faster / slower* counts tasks with
a paired test per task, corrected for the number of tasks (Holm). *least share* is what the least
served client got of its fair share; below one half counts as *unfair*."""


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
        *_table(overall_table(overall)),
        "",
    ]
    lines += [
        "![Time against fairness](assets/arena-front.png)",
        "",
        "*Time against fairness: left is faster, up is fairer. The dashed line is half of fair.*",
        "",
        "![Performance profile](assets/arena-profile.png)",
        "",
        f"*Share of runs that reach the target faster than {BASELINE} by each factor.*",
        "",
        "## Selector by selector",
        "",
        *_records(overall),
        "",
    ]
    if ABLATION.exists():
        ablated = overall_of(Arena.read(ABLATION), tasks)
        lines += ["## What each part of `pace` does", "", ABLATED, ""]
        lines += [*_table(overall_table(ablated)), ""]
    for number, task in enumerate(tasks, 1):
        lines += [f"## {number}. {task.title}", "", f"`{task.label}`. {task.what}", ""]
        text = task_table(arena, task)
        lines += [*_table(text), ""] if text.rows else ["Not run yet.", ""]
    made = ", ".join(f"{name} {version}" for name, version in arena.file.made_with.items())
    return "\n".join([*lines, f"Made with {made}."]) + "\n"


def _records(overall: dict[str, Overall]) -> list[str]:
    return [
        f"- `{label}`: {sentence_of(own.duels)}"
        for label, own in overall.items()
        if label != BASELINE
    ]


def _table(text: TextTable) -> list[str]:
    rule = "|" + "---|" * len(text.headings)
    rows = [text.headings, *text.rows]
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return [first, rule, *others]


def main() -> None:
    """Write the page, or compare it."""
    arena, tasks = Arena.read(RESULTS), tasks_named()
    before = PAGE.read_text(encoding="utf-8")
    prose = before.split(MARK)[0]
    after = prose + page_part(arena, tasks)
    if "--check" in sys.argv:
        if after != before:
            sys.exit(f"{PAGE.name} differs from results/arena.json: run make arena.")
        return
    PAGE.write_text(after, encoding="utf-8")
    overall = overall_of(arena, tasks)
    draw_front(overall, [FIGURES / "arena-front.png"])
    draw_profile(arena, tasks, tuple(overall), [FIGURES / "arena-profile.png"])


if __name__ == "__main__":
    main()
