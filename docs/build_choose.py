"""Write the tables of ``docs/choose.md`` from ``results/choose.json``.

A table stands between its marks, below the command that measures it. ``--run`` runs these commands
first. ``--check`` writes nothing and fails if the page differs.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "choose.json"
PAGE = ROOT / "docs" / "choose.md"

#: A command, and the table that it measures.
MEASURED = re.compile(
    r"```sh\n(?P<command>turnout compare [^`]+)```\n\n"
    r"<!-- measured: (?P<name>\w+) -->\n(?P<table>.*?)<!-- end -->\n",
    re.DOTALL,
)

#: The columns of each table: key of the metric, heading, form.
FAIRNESS = (
    ("jain_of_counts", "Jain's index", ".3f"),
    ("minimum_rate", "least selected client, share of rounds", ".3f"),
)
COLUMNS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "failures": (("success_ratio", "replies per place", ".3f"), *FAIRNESS),
    "stragglers": (("round_time_s", "seconds per round", ".1f"), *FAIRNESS),
    "training": (
        ("accuracy", "accuracy", ".3f"),
        ("worst_accuracy", "accuracy of the worst tenth", ".3f"),
        ("rounds_to_0.9", "rounds to 90 %", ".0f"),
        ("success_ratio", "replies per place", ".3f"),
    ),
}

#: Selectors that need more words than their label.
NAMES = {
    "guarded inner=oort": "`guarded` around `oort`",
    "fedcs": "`fedcs`, told the rates",
    "fedcs by=expected-duration": "`fedcs`, told the times",
}
#: Differences with a smaller chance, after Holm's correction, are starred.
CHANCE = 0.05

#: What ``turnout compare --json`` says of each selector, by table.
Results = Mapping[str, Sequence[Mapping[str, Any]]]


def page_with(page: str, results: Results) -> str:
    """Return the page with its tables made anew.

    Args:
        page: The page.
        results: What was measured, by table.
    """

    def made(match: re.Match[str]) -> str:
        lines = table(results[match["name"]], COLUMNS[match["name"]])
        return match[0].replace(match["table"], "\n" + "\n".join(lines) + "\n\n")

    return MEASURED.sub(made, page)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a table, and the differences of its first column in words.

    Args:
        rows: The selectors.
        columns: Key, heading and form of each column.
    """
    headings = " | ".join(["selector", *(heading for _, heading, _ in columns)])
    lines = [f"| {headings} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [_cell(row, key, form) for key, _, form in columns]
        lines.append(f"| {_name(row)} | {' | '.join(cells)} |")
    key, heading, form = columns[0]
    steps = [f"{_name(row)} {_estimate(row['difference'][key], '+' + form)}" for row in rows[1:]]
    return [*lines, "", f"Difference to {_name(rows[0])}, {heading}: {'; '.join(steps)}."]


def measured(page: str) -> dict[str, list[dict[str, Any]]]:
    """Run the commands of the page, and return what they say about the columns of its tables.

    Args:
        page: The page.
    """
    results = {}
    for match in MEASURED.finditer(page):
        name, words = match["name"], shlex.split(match["command"].replace("\\\n", " "))
        command = [sys.executable, "-m", *words, "--json", "--out", f"runs/choose-{name}"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
        results[name] = kept(json.loads(done.stdout), [key for key, _, _ in COLUMNS[name]])
    return results


def kept(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return what is kept of the output of ``turnout compare``.

    Args:
        rows: The selectors.
        keys: The metrics that a table shows.
    """
    return [
        {
            "label": row["label"],
            "metrics": {key: row["metrics"][key] for key in keys},
            "difference": {key: row["difference"][key] for key in keys if row["difference"]},
        }
        for row in rows
    ]


def _name(row: Mapping[str, Any]) -> str:
    return NAMES.get(row["label"], f"`{row['label']}`")


def _cell(row: Mapping[str, Any], key: str, form: str) -> str:
    entry, chance = row["metrics"][key], row["difference"].get(key, {}).get("p")
    star = "*" if chance is not None and chance < CHANCE else ""
    reached = entry.get("reached", entry["n"])
    part = "" if reached == entry["n"] else f", {reached} of {entry['n']} seeds"
    return f"{_estimate(entry, form)}{star}{part}"


def _estimate(entry: Mapping[str, Any], form: str) -> str:
    return f"{entry['mean']:{form}} ± {entry['ci95']:{form.lstrip('+')}}"


def main() -> None:
    """Write the page, or compare it."""
    page = PAGE.read_text(encoding="utf-8")
    if "--run" in sys.argv:
        text = json.dumps(measured(page), indent=1, allow_nan=False)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    whole = page_with(page, json.loads(RESULTS.read_text(encoding="utf-8")))
    if "--check" not in sys.argv:
        PAGE.write_text(whole, encoding="utf-8")
    elif whole != page:
        sys.exit(f"{PAGE.relative_to(ROOT)} differs from its results: run make choose.")


if __name__ == "__main__":
    main()
