"""Write docs/selectors/<name>.md from the docstrings, so that code and pages cannot drift apart.

``python docs/build_pages.py`` writes; ``--check`` only compares and fails when a page is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import turnout
from turnout.registry import find

FOLDER = Path(__file__).parent / "selectors"
HEADINGS = re.compile(r"^([A-Z][a-z]+):\s+", re.MULTILINE)
ORDER = {
    "Idea": "What it picks",
    "Setting": "What it needs to see",
    "Limits": "When it fails",
    "Deviations": "Deviations from the paper",
    "Equations": "Where the equations are",
    "Symbols": "Symbols",
    "Cost": "Cost",
    "Checked": "How it was checked",
    "Paper": "Paper",
}


def sections(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the title and the text under each heading of a selector's module docstring."""
    title, _, body = inspect.cleandoc(docstring).partition("\n")
    parts = HEADINGS.split(body.strip())
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return title, {name: inspect.cleandoc(text) for name, text in texts.items()}


def unwrapped(text: str) -> str:
    """Return text with its lines joined; a line that starts with a number starts a point."""
    return re.sub(r"\s*\n\s*(?!\s|\d+\. )", " ", text).strip()


def page(name: str) -> str:
    """Return the page of one selector."""
    cls = find(name)
    module = sys.modules[cls.__module__]
    title, texts = sections(module.__doc__ or "")
    signature = inspect.signature(cls.__init__)
    parameters = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    lines = [f"# {title.rstrip('.')}", ""]
    shown = ", ".join(f"{p.name}={p.default!r}" for p in parameters)
    lines += ["```python", f"turnout.make({name!r}{', ' if shown else ''}{shown})", "```", ""]
    for heading, caption in ORDER.items():
        if heading in texts:
            lines += [f"## {caption}", "", unwrapped(texts[heading]), ""]
    lines += [f"Source: `{cls.__module__.replace('.', '/')}.py`. This page is made from it.", ""]
    return "\n".join(lines)


def index() -> str:
    """Return the table of all selectors."""
    lines = ["# Selectors", "", "| name | what it is |", "|---|---|"]
    for name in turnout.names(plugins=False):
        title, _ = sections(sys.modules[find(name).__module__].__doc__ or "")
        lines.append(f"| [`{name}`]({name}.md) | {title.partition(': ')[2]} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write or compare all pages."""
    pages = {f"{name}.md": page(name) for name in turnout.names(plugins=False)}
    pages["index.md"] = index()
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
