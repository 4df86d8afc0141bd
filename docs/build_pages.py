"""Write docs/selectors/<name>.md and docs/metrics.md from the code: they cannot drift apart.

``python docs/build_pages.py`` writes; ``--check`` only compares and fails when a page is stale.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import turnout
from turnout.describe import HEADINGS, Description, describe
from turnout.runs.catalogue import GROUPS, all_metrics

FOLDER = Path(__file__).parent
#: The target that stands for all in the glossary.
TARGET = 0.9
INTRODUCTION = """\
Every number that a run is judged by. The key is its name in `summary.json` and with `--json`.
Tables show times in the unit that is easiest to read. Files have them in seconds."""
REMARKS = f"""\
Keys with {TARGET:g} stand for one metric per target accuracy (`--target`). They are null if the run
never got there. Metrics of the hold-out are there if clients hold out examples.

Source: `turnout/runs/learning.py` and `turnout/runs/participation.py`. This page is made from
them."""

CHOOSE = "[Which one should I use?](../choose.md)"
NEEDS = """\
With all parameters at their defaults.

- *Told before*: columns that the server must know about its clients before the round. Those in
  brackets are used if they are there. *Reported after*: metrics in the replies of clients.
  [Reference](../reference.md#columns-and-metrics) explains both.
- *Polls*: some clients evaluate the current model before the choice, on all their examples or on a
  mini-batch.
- *Promises*: what every client can count on. For `e3cs` it is a chance in each round, for `guarded`
  and `rbcs-f` a count over many rounds.
- *ms*: select and observe at a million clients, where it was [measured](../speed.md)."""


def page(description: Description) -> str:
    """Return the page of one selector."""
    lines = [f"# {description.title.rstrip('.')}", "", "```python", description.call, "```", ""]
    if description.parameters:
        lines += [
            "## Parameters",
            "",
            "| name | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{p.name}` | `{p.default!r}` | {p.allowed} | {p.meaning} |"
            for p in description.parameters
        ]
        lines.append("")
    for heading, caption in HEADINGS.items():
        lines += [f"## {caption}", "", description.texts[heading], ""]
    source = description.module.replace(".", "/")
    lines += [f"Try it: `{description.command}`", ""]
    lines += [f"Source: `{source}.py`. This page is made from it.", ""]
    return "\n".join(lines)


def index(descriptions: list[Description]) -> str:
    """Return the tables of all selectors: what they are, and what they need and promise."""
    lines = ["# Selectors", "", CHOOSE, "", "| name | what it is |", "|---|---|"]
    lines += [f"| [`{d.name}`]({d.name}.md) | {d.summary}. |" for d in descriptions]
    lines += ["", "## What each one needs and promises", "", NEEDS, ""]
    lines += ["| name | told before | reported after | polls | promises | ms |"]
    lines += ["|---|---|---|---|---|---|", *map(needs, descriptions)]
    return "\n".join([*lines, ""])


def needs(description: Description) -> str:
    """Return the row of a selector: what it declares, and what a round costs."""
    told = [f"`{name}`" for name in description.needs_columns]
    told += [f"(`{name}`)" for name in description.uses_columns]
    reported = [f"`{name}`" for name in description.needs_metrics]
    cells = [", ".join(told), ", ".join(reported), description.polls or ""]
    cells += [promise(turnout.make(description.name)), milliseconds(description.name)]
    row = [f"[`{description.name}`]({description.name}.md)", *(cell or "-" for cell in cells)]
    return f"| {' | '.join(row)} |"


def promise(selector: turnout.Selector) -> str:
    """Return what a selector with its defaults promises to every client."""
    if rate := selector.guaranteed_rate():
        return f"{rate:.0%} of the rounds in the long run"
    quota = selector.quota_at(0)
    return f"{quota:.0%} of an equal share" if quota else ""


def milliseconds(name: str) -> str:
    """Return what a round takes at a million clients, from the table on the page of speeds."""
    speeds = (FOLDER / "speed.md").read_text(encoding="utf-8")
    row = re.search(rf"│ {name} +│(?:[^│]*│){{3}} +([\d.]+|-)", speeds)
    return row[1] if row else ""


def glossary() -> str:
    """Return the page of all metrics."""
    lines = ["# Metrics", "", INTRODUCTION, ""]
    for group, sentence in GROUPS.items():
        metrics = [metric for metric in all_metrics([TARGET]) if metric.group == group]
        lines += [f"## {group.capitalize()}", "", sentence, ""]
        lines += ["| key | name | meaning | unit | better |", "|---|---|---|---|---|"]
        for metric in metrics:
            meaning = f"{metric.meaning} {metric.detail}".rstrip()
            unit = metric.unit or "-"
            lines.append(
                f"| `{metric.key}` | {metric.title} | {meaning} | {unit} | {metric.better} |"
            )
        lines.append("")
    lines += [REMARKS, ""]
    return "\n".join(lines)


def main() -> None:
    """Write or compare all pages."""
    descriptions = [describe(name) for name in turnout.names(plugins=False)]
    pages = {f"selectors/{description.name}.md": page(description) for description in descriptions}
    pages["selectors/index.md"] = index(descriptions)
    pages["metrics.md"] = glossary()
    stale = [
        name
        for name, text in pages.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"stale pages, run python docs/build_pages.py: {stale}" if stale else 0)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")


if __name__ == "__main__":
    main()
