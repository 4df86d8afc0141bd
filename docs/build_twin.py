"""Write the numbers of ``docs/twin.md`` from ``results/twin.json`` (``benchmarks/twin.py``).

Everything below the mark is made here, and so is the example of ``docs/howto/twin.md``.
``--check`` writes nothing and fails if the page differs.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "twin.json"
PAGE = ROOT / "docs" / "twin.md"
HOW_TO = ROOT / "docs" / "howto" / "twin.md"
EXAMPLE = ROOT / "examples" / "flower-records"
BEGIN, END = "<!-- example: made by docs/build_twin.py -->\n", "<!-- end of example -->"
MARK = "<!-- Made by docs/build_twin.py from results/twin.json; do not edit below. -->"

#: Errors of parameters, and metrics that are predicted.
ERRORS = ("availability error", "success error", "duration error")
PARAMETERS = ("availability", "success", "seconds")
METRICS = ("success", "round length", "participation")

Row = Mapping[str, Any]


def pairs(row: Row, metric: str, rules: Mapping[str, Any]) -> tuple[int, int]:
    """Return the pairs of selectors that differ by more than noise, and those in the right order.

    Args:
        row: One log.
        metric: What is compared.
        rules: What counts as noise.
    """
    n_pairs = n_right = 0
    for one, other in itertools.combinations(row["predictions"].values(), 2):
        (a, a_noise, a_twin), (b, b_noise, b_twin) = one[metric], other[metric]
        least = rules["least_noise"] * max(abs(a), abs(b))
        if abs(a - b) > rules["noise"] * max(float(np.hypot(a_noise, b_noise)), least):
            n_pairs += 1
            n_right += (a > b) == (a_twin > b_twin)
    return n_pairs, n_right


def error_of(rows: Iterable[Row], metric: str) -> float:
    """Return the median over selectors, seeds and logs of the relative error.

    Args:
        rows: The logs.
        metric: What was predicted.
    """
    found = [
        abs(x[metric][2] / x[metric][0] - 1.0) for r in rows for x in r["predictions"].values()
    ]
    return float(np.median(found))


def coverage_of(rows: Sequence[Row], name: str) -> float:
    """Return the share of all cases inside of their interval.

    Args:
        rows: The logs.
        name: What was predicted.
    """
    cases = [row["coverage"][name] for row in rows if name in row["coverage"]]
    return sum(share * n for share, n in cases) / sum(n for _, n in cases)


def verdicts(saved: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Return each bar with what was measured, and whether it holds.

    Args:
        saved: The results.
    """
    rows, bars, rules = saved["rows"], saved["bars"], saved["rules"]
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    found: list[tuple[str, str, str, bool]] = []
    for name in ERRORS:
        by_world = [np.mean([r["errors"][name] for r in rows if r["world"] == w]) for w in worlds]
        worst = float(max(by_world))
        text = f"{float(np.median(by_world)):.3f}, worst world {worst:.3f}"
        found.append((name, f"at most {bars[name]:.2f} in each world", text, worst <= bars[name]))
    for metric in METRICS:
        by_world = [error_of([r for r in rows if r["world"] == w], metric) for w in worlds]
        middle = float(np.median(by_world))
        text = f"{middle:.1%}, worst world {max(by_world):.1%}"
        is_held = middle <= bars["prediction error"]
        found.append((f"{metric}, error", "at most 10 %, median over worlds", text, is_held))
    for metric in METRICS:
        counted = [pairs(row, metric, rules) for row in rows]
        n_pairs, n_right = (sum(each) for each in zip(*counted, strict=True))
        text = f"{n_right} of {n_pairs} pairs, {n_right / n_pairs:.1%}"
        found.append(
            (f"{metric}, order", "at least 90 %", text, n_right / n_pairs >= bars["order"])
        )
    low, high = bars["coverage at least"], bars["coverage at most"]
    for name in rows[0]["coverage"]:
        share = coverage_of(rows, name)
        found.append(
            (f"{name}, coverage", "85 to 95 %", f"{share:.1%}", bool(low <= share <= high))
        )
    for name in PARAMETERS:
        share, lowest, where = stated(saved["stated"], name)
        text = f"{share:.1%}, worst world {lowest:.0%} ({where})"
        is_held = bool(low <= share <= high)
        found.append((f"true {name}, stated interval", "85 to 95 %", text, is_held))
    for name, share in unseen(saved["phones"]):
        found.append((name, "85 to 95 %", f"{share:.1%}", bool(low <= share <= high)))
    cost = saved["cost"]
    found.append(
        (
            "a round of 5,000 clients",
            "at most 3 times the world volatile",
            f"{cost['round cost']:.2f} times, {1e3 * cost['twin']:.1f} ms of processor time; the "
            f"fit took {cost['fit_s']:.1f} s",
            cost["round cost"] <= bars["round cost"],
        )
    )
    return found


def stated(rows: Sequence[Row], name: str) -> tuple[float, float, str]:
    """Return how many clients' true parameters lie in the intervals that twins state.

    Args:
        rows: The logs.
        name: The parameter.

    Returns:
        The share over all logs, that of the worst world, and its name.
    """

    def share_of(some: Sequence[Row]) -> float:
        return sum(row[name][0] * row[name][1] for row in some) / sum(row[name][1] for row in some)

    by_world = {row["world"]: [x for x in rows if x["world"] == row["world"]] for row in rows}
    worst = min(by_world, key=lambda world: share_of(by_world[world]))
    return share_of(rows), share_of(by_world[worst]), worst


def unseen(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the coverage of phones that were not recorded, on average over halves by lot.

    Args:
        found: What was measured of phones.
    """
    return [
        (f"unseen phones {how}, coverage", float(np.mean([x[how] for x in found["other halves"]])))
        for how in ("by round", "by phone")
    ]


def later(saved: Mapping[str, Any]) -> list[str]:
    """Return how near the fitted and the recorded shares are to those of later rounds.

    Args:
        saved: The results.
    """
    names = ("availability error", "availability error, later", "recorded share, later")
    found = {}
    for world in dict.fromkeys(row["world"] for row in saved["rows"]):
        rows = [row["errors"] for row in saved["rows"] if row["world"] == world]
        found[world] = [float(np.mean([row[name] for row in rows])) for name in names]
    worst = max(found, key=lambda world: found[world][0])
    recorded, fitted, raw = found[worst]
    n_better = sum(each[1] <= each[2] + 0.001 for each in found.values())
    return [
        "The bar of availability takes the recorded rounds for the truth, so a twin that repeats "
        "them would have no error. In the worst world,",
        f"`{worst}`, the fitted share differs from the recorded one by {recorded:.3f}. From the "
        f"share in {saved['rules']['n_later']:,} later rounds, it differs by {fitted:.3f}, and the "
        f"recorded share by {raw:.3f}.",
        f"In {n_better} of {len(found)} worlds, the fitted share is as near to the later rounds as "
        "the recorded one, or nearer.",
        "",
    ]


def by_world(saved: Mapping[str, Any]) -> list[str]:
    """Return a table with a row for each world and selector that made the log.

    Args:
        saved: The results.
    """
    heads = ("world", "log", *METRICS, "right order", "coverage of answers, round length")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for world in dict.fromkeys(row["world"] for row in saved["rows"]):
        for log in dict.fromkeys(row["log"] for row in saved["rows"]):
            rows = [r for r in saved["rows"] if (r["world"], r["log"]) == (world, log)]
            errors = [f"{error_of(rows, metric):.1%}" for metric in METRICS]
            counted = [pairs(row, metric, saved["rules"]) for row in rows for metric in METRICS]
            n_pairs, n_right = (sum(each) for each in zip(*counted, strict=True))
            order = f"{n_right} of {n_pairs}"
            cover = ", ".join(f"{coverage_of(rows, x):.0%}" for x in ("answers", "round length"))
            lines.append(f"| {' | '.join((world, log, *errors, order, cover))} |")
    return lines


def by_selector(saved: Mapping[str, Any]) -> list[str]:
    """Return a table with the mean error of each selector that is predicted.

    Args:
        saved: The results.
    """
    names = dict.fromkeys(name for row in saved["rows"] for name in row["predictions"])
    lines = [f"| selector | {' | '.join(METRICS)} |", "|---" * 4 + "|"]
    for name in names:
        rows = [
            {"predictions": {name: row["predictions"][name]}}
            for row in saved["rows"]
            if name in row["predictions"]
        ]
        errors = [f"{error_of(rows, metric):.1%}" for metric in METRICS]
        lines.append(f"| {name} | {' | '.join(errors)} |")
    return lines


def phones(found: Mapping[str, Any]) -> list[str]:
    """Return the section on the recorded phones.

    Args:
        found: What was measured.
    """
    actual, twin = found["quantiles"]
    halves, right = found["other halves"], found["coverage"]["right, by round"]
    by_round, by_phone = ([half[how] for half in halves] for how in ("by round", "by phone"))
    rows = [
        ("phones there, mean", f"{found['there'][0]:.2f}", f"{found['there'][1]:.2f}"),
        *(
            (f"share of rounds there, {name} phone", f"{a:.2f}", f"{b:.2f}")
            for name, a, b in zip(("10 %", "median", "90 %"), actual, twin, strict=True)
        ),
        ("comes or goes, per phone and round", *(f"{x:.3f}" for x in found["changes"])),
    ]
    for label, metrics in found["selectors"].items():
        for metric, (a, b) in metrics.items():
            form = "{:.1f} s" if metric == "round length" else "{:.3f}"
            rows.append((f"{label}: {metric}", form.format(a), form.format(b)))
    return [
        "## Real traces: half of the phones predict the other half",
        "",
        f"The world was fitted to {found['n_fitted']} of the recorded phones: 300 rounds of 20 "
        f"minutes, logged by `random`. It then played {found['n_predicted']} clients that it had "
        "never seen. Their number per round was inside of its 90 % interval in "
        f"{found['coverage']['by round']:.0%} of the rounds, and their shares of rounds in "
        f"{found['coverage']['by phone']:.0%} of the phones.",
        f"{len(halves)} other halves, drawn by lot, gave {min(by_round):.0%} to "
        f"{max(by_round):.0%} of the rounds and {min(by_phone):.0%} to {max(by_phone):.0%} of the "
        "phones. A record is one history of a few days, and its rounds go together: where the twin "
        f"itself makes the other half, the share of rounds is from {right[0]:.0%} to "
        f"{right[1]:.0%} in nine of ten cases.",
        "",
        "| quantity | other half | twin |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def page_part(saved: Mapping[str, Any]) -> str:
    """Return the part of the page that is made from results.

    Args:
        saved: The results.
    """
    found = verdicts(saved)
    n_held = sum(held for *_, held in found)
    lines = [
        MARK,
        "",
        f"**{n_held} of {len(found)} bars hold.** "
        f"{len(saved['rows'])} logs of {saved['rules']['n_rounds']} rounds, seeds "
        f"{', '.join(map(str, saved['rules']['seeds']))}. Measured with commit "
        f"{', '.join(dict.fromkeys(saved['commits'].values()))}.",
        "",
        "| measured | bar | result | verdict |",
        "|---|---|---|---|",
        *(
            f"| {name} | {bar} | {text} | {'holds' if held else '**fails**'} |"
            for name, bar, text, held in found
        ),
        "",
        *later(saved),
        "## By world and log",
        "",
        "Medians of the relative error over selectors that did not make the log.",
        "",
        *by_world(saved),
        "",
        "## By selector",
        "",
        *by_selector(saved),
        "",
        *phones(saved["phones"]),
    ]
    return "\n".join(lines) + "\n"


def example_part() -> str:
    """Return what the command of the how-to prints for the recorded example."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [str(EXAMPLE), "--out", f"{folder}/fed.toml", "--check"]
        command = [sys.executable, "-m", "turnout", "fit", *arguments]
        environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
    text = done.stdout.decode().partition("\nWritten:")[0]
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def main() -> None:
    """Write or check the pages."""
    above = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    whole = HOW_TO.read_text(encoding="utf-8")
    before, rest = whole.split(BEGIN)
    pages = {
        PAGE: above + page_part(json.loads(RESULTS.read_text(encoding="utf-8"))),
        HOW_TO: f"{before}{BEGIN}```text\n{example_part()}\n```\n{END}{rest.partition(END)[2]}",
    }
    for path, page in pages.items():
        if "--check" not in sys.argv:
            path.write_text(page, encoding="utf-8")
        elif page != path.read_text(encoding="utf-8"):
            sys.exit(f"{path} is not what it is made of: run python docs/build_twin.py")


if __name__ == "__main__":
    main()
