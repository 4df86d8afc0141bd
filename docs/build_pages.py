"""Write docs/selectors/<name>.md from the docstrings, so that code and pages cannot drift apart.

``python docs/build_pages.py`` writes; ``--check`` only compares and fails when a page is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

import turnout
from turnout.describe import HEADINGS, Description, describe

FOLDER = Path(__file__).parent / "selectors"


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


def main() -> None:
    """Write or compare all pages."""
    descriptions = [describe(name) for name in turnout.names(plugins=False)]
    pages = {f"{description.name}.md": page(description) for description in descriptions}
    pages["index.md"] = index(descriptions)
    stale = [
        name
        for name, text in pages.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"stale pages, run python docs/build_pages.py: {stale}" if stale else 0)
    FOLDER.mkdir(exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")


if __name__ == "__main__":
    main()
