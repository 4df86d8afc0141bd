"""Write the tables of ``docs/reliability.md`` from two files of ``results``.

Everything below the mark is made here. ``--check`` writes nothing and fails if the page differs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import turnout

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "reliability.json"
FAULTS = ROOT / "results" / "faults.json"
PAGE = ROOT / "docs" / "reliability.md"
MARK = "<!-- Made by docs/build_reliability.py from results; do not edit below. -->"

SHARES = ("0.01", "0.1", "0.3")
MODES = ("bare", "bounds", "guarded")
HONEST = "honest"
#: Columns of a result, one per run.
HOSTILE, LEAST = 0, 1

#: Places of a run: selector, behaviour, share and mode -> one list per seed.
Cells = Mapping[tuple[str, ...], list[list[float]]]

#: What a method prefers by design, even beyond twice the fair share.
WHY = {
    "afl": "draws from the quarter with the highest losses, weighted by data",
    "cpow-d": "selects the candidates with the highest losses",
    "divfl": "selects the updates that stand for many others, for as long as they do",
    "fed-cbs": "draws clients with balanced labels first, and all labels may be true",
    "fedcs by=packing": "selects the clients that reply soonest",
    "k-linucb": "uses the reported loss as reward and selects the best predictions",
    "hics-fl": "draws the group first whose bias shows the most balanced labels",
    "nccb": "uses the reported loss as reward and selects the best predictions",
    "ocs": "draws in proportion to the length of updates",
    "oort": "selects the leaders by loss and speed whenever they are available",
    "pow-d": "selects the candidates with the highest losses",
    "rbcs-f": "selects the shortest predicted times, and a time of 0 may be true",
    "ucb-cs": "selects the highest indices, which are losses plus a bonus",
}

INTRODUCTION = """\
Each cell shows the places of the hostile clients as a multiple of their fair share: **bare / with
bounds / with `guarded`** (floor {floor:g}, cap {cap:g}, without bounds). It is the mean of
{n_seeds} seeds over rounds {first} to {last}, with {n_clients} clients, {cohort_size} places, 90 %
of the clients available and 60 to 90 % success. The last column is the share of the least served
honest client, over all seeds and shares. *Honest* shows the same clients without the lie: their
share is the method's own preference. A share of 1 % is a single client per seed. There, the numbers
of methods that rank clients depend strongly on which client it is.

The tables cover {selectors}. A selector that is missing from a table cannot see that behaviour.
{missing}{fewer}"""


FAULTS_INTRODUCTION = """\
`benchmarks/faults.py` runs the tests of each row and counts them. *long* marks rows of `make long`,
which tries random cases and every file operation far more often than CI does. The other rows were
tried as in CI. The tests assume that a rename is on disk when it returns.

**{n_kills:,} kills at random moments** are counted below, in {n_rows} rows. After a kill, the work
is started again; in the end everything is compared with work that was never killed. Nodes and
clients *in memory* are functions in the process of the server, so a kill takes a fraction of a
second and not a deployment. Deployments with processes and networks of their own are killed in
`tests/live/flower/test_deployment.py` and `tests/live/nvflare/test_simulator.py`."""


def faults_part(saved: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the section on faults, damaged files and odd input.

    Args:
        saved: The file's content.
    """
    kills = [row["tries"] for row in saved.values() if row.get("is_kill") and row["tries"]]
    introduction = FAULTS_INTRODUCTION.format(n_kills=sum(kills), n_rows=len(kills))
    lines = ["## Faults, damaged files and odd input", "", introduction, ""]
    lines += ["| fault or attack | tries | tests that failed | outcome | tests |", "|---" * 5 + "|"]
    for fault, row in saved.items():
        files = dict.fromkeys(test.split("::")[0] for test in row["tests"])
        tries = f"{row['tries']:,}" + (", long" if row["long"] else "")
        tried = f"{tries} | {row['failed']}" if row["tries"] else "not tried yet | -"
        where = ", ".join(f"`{file}`" for file in files)
        lines.append(f"| {fault} | {tried} | {row['outcome']} | {where} |")
    return lines


def page_part(saved: Mapping[str, Any], faults: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the part of the page that is made from results.

    Args:
        saved: What hostile clients gained.
        faults: What was tried besides.
    """
    cells: Cells = {tuple(key.split(" | ")): gains for key, gains in saved["cells"].items()}
    n_clients, cohort_size, n_rounds, n_seeds, first = saved["settings"]["sizes"]
    floor, cap = saved["settings"]["guard"]
    introduction = INTRODUCTION.format(
        floor=floor,
        cap=cap,
        n_seeds=n_seeds,
        first=first,
        last=n_rounds - 1,
        n_clients=n_clients,
        cohort_size=cohort_size,
        selectors=", ".join(f"`{name}`" for name in sorted({key[0] for key in cells})),
        missing=not_measured(cells),
        fewer=fewer_seeds(cells, n_seeds),
    ).rstrip()
    lines = [MARK, "", *faults_part(faults), ""]
    lines += ["## Hostile clients", "", introduction, "", *goals(cells, floor, cap), ""]
    for behaviour in dict.fromkeys(key[1] for key in cells):
        lines += [f"### {behaviour[0].upper()}{behaviour[1:]}", "", *table(cells, behaviour), ""]
    return "\n".join(lines)


def not_measured(cells: Cells) -> str:
    """Return a sentence on selectors that are not in the file; empty if all are.

    Args:
        cells: All results.
    """
    known = {key[0] for key in cells}
    missing = [f"`{name}`" for name in turnout.list_selectors(plugins=False) if name not in known]
    missing = [name for name in missing if name not in ("`guarded`", "`mix`")]  # made of others
    return (
        f"Not measured yet: {', '.join(missing)}; `make reliability` adds it. " if missing else ""
    )


def fewer_seeds(cells: Cells, n_seeds: int) -> str:
    """Return a sentence on selectors that have fewer seeds than the others; empty if none has.

    Args:
        cells: All results.
        n_seeds: How many the others have.
    """
    least: dict[str, int] = {}
    for key, gains in cells.items():
        least[key[0]] = min(len(gains), least.get(key[0], n_seeds))
    short = [f"`{name}` {n}" for name, n in sorted(least.items()) if n < n_seeds]
    return f"Fewer seeds so far: {', '.join(short)}; `make reliability` adds them." if short else ""


def table(cells: Cells, behaviour: str) -> list[str]:
    """Return the table of one behaviour.

    Args:
        cells: All results.
        behaviour: Its name.
    """
    lines = ["| selector | 1 % | 10 % | 30 % | least honest |", "|---|---|---|---|---|"]
    for selector in sorted({key[0] for key in cells if key[1] == behaviour}):
        gained = [
            " / ".join(f"{_mean(cells[selector, behaviour, share, mode]):.2f}" for mode in MODES)
            for share in SHARES
        ]
        least = " / ".join(
            f"{min(_least(cells[selector, behaviour, share, mode]) for share in SHARES):.2f}"
            for mode in MODES
        )
        lines.append(f"| `{selector}` | {' | '.join(gained)} | {least} |")
    return lines


def goals(cells: Cells, floor: float, cap: float) -> list[str]:
    """Return the results of the three goals, with every row that missed one.

    Args:
        cells: All results.
        floor: The guarantee's floor.
        cap: The guarantee's cap.
    """
    lies = [key for key in cells if key[1] != HONEST]
    bare, bounded, guarded = ([key for key in lies if key[3] == mode] for mode in MODES)
    doubled = [key for key in bounded if _mean(cells[key]) > 2.0]
    most = max(_mean(cells[key]) for key in guarded)
    least = min(_least(cells[key]) for key in guarded)
    n_bare = sum(_mean(cells[key]) > 2.0 for key in bare)
    lines = [
        f"- **With bounds, no client gets more than twice its fair share**: true in "
        f"{len(bounded) - len(doubled)} of {len(bounded)} cells; bare in {len(bare) - n_bare}.",
        f"- **With `guarded`, no client gets more than {cap:g}**: at most {most:.2f}, "
        "within one place.",
        f"- **With `guarded`, no honest client gets less than {floor:g}**: at least {least:.2f}, "
        "within one place.",
    ]
    if doubled:
        lines += [
            "",
            "The table lists the cells above 2 with bounds, and the share of the same clients when "
            "honest. These are preferences of the methods, and bounds must not change them: an "
            "honest client may have a triple loss or a time of 0. `guarded` prevents them.",
            "",
            "| selector | behaviour | share | with bounds | honest | what its paper does |",
            "|---|---|---|---|---|---|",
        ]
    for selector, behaviour, share, mode in doubled:
        gained = _mean(cells[selector, behaviour, share, mode])
        usual = _mean(cells[selector, HONEST, share, mode])
        percent = f"{float(share):.0%}".replace("%", " %")
        numbers, why = f"{percent} | {gained:.2f} | {usual:.2f}", WHY.get(selector, "")
        lines.append(f"| `{selector}` | {behaviour} | {numbers} | {why} |")
    return lines


def _mean(gains: list[list[float]]) -> float:
    return sum(run[HOSTILE] for run in gains) / len(gains)


def _least(gains: list[list[float]]) -> float:
    return min(run[LEAST] for run in gains)


def main() -> None:
    """Write the page, or compare it."""
    made = page_part(*(json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, FAULTS)))
    page = PAGE.read_text(encoding="utf-8")
    whole = page.partition(MARK)[0].rstrip() + "\n\n" + made
    if "--check" not in sys.argv:
        PAGE.write_text(whole, encoding="utf-8")
    elif whole != page:
        sys.exit(f"{PAGE.relative_to(ROOT)} differs from its results: run make reliability.")


if __name__ == "__main__":
    main()
