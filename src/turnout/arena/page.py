"""The page of one selector: its record, each task, and whether it clears the bar."""

from __future__ import annotations

from collections.abc import Sequence

from turnout.arena.goals import goals_of
from turnout.arena.results import Arena
from turnout.arena.standing import overall_of, sentence_of
from turnout.arena.tables import duels_table, goals_table, overall_table
from turnout.arena.tasks import ArenaTask


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
