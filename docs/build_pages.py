"""Write docs/selectors/<name>.md and docs/metrics.md from the code: they cannot drift apart.

``python docs/build_pages.py`` writes; ``--check`` only compares and fails when a page is stale.
"""

from __future__ import annotations

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
    """Return the table of all selectors."""
    lines = ["# Selectors", "", "| name | what it is |", "|---|---|"]
    lines += [f"| [`{d.name}`]({d.name}.md) | {d.summary}. |" for d in descriptions]
    return "\n".join([*lines, ""])


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
