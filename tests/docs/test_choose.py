"""The tables of docs/choose.md: as made from the results, by the commands above them."""

import importlib.util
import json
import math
import re
from pathlib import Path

import pytest

from turnout.results.statistics import Interval
from turnout.studies.arena_tasks import tasks_in
from turnout.studies.standings import Duel, Overall, Side

ROOT = Path(__file__).parents[2]


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages():
    return loaded("build_choose")


def row(label, mean, chance=None, n=5, **more):
    difference = {} if chance is None else {"rate": {"mean": 0.1, "ci95": 0.02, "p": chance}}
    metrics = {"rate": {"mean": mean, "ci95": 0.0123, "n": n, **more}, "other": {}}
    return {"label": label, "metrics": metrics, "difference": difference}


def test_the_page_is_made_from_the_results(pages):
    page = pages.PAGE.read_text(encoding="utf-8")
    results = json.loads(pages.RESULTS.read_text(encoding="utf-8"))
    assert pages.page_with(page, results) == page
    assert [match["name"] for match in pages.MEASURED.finditer(page)] == [*pages.COLUMNS]
    for match in pages.MEASURED.finditer(page):
        words = match["command"].replace("\\\n", " ").split()
        labels = [each["label"].split()[0] for each in results[match["name"]]]
        assert labels == [word.split(":")[0] for word in words[2 : 2 + len(labels)]]


def test_a_number_that_moved_shows_in_the_page(pages):
    page = pages.PAGE.read_text(encoding="utf-8")
    results = json.loads(pages.RESULTS.read_text(encoding="utf-8"))
    results["failures"][1]["metrics"]["success_ratio"]["mean"] = 0.123
    changed = pages.page_with(page, results)
    assert "| `round-robin` | 0.123 ± " in changed
    assert len(changed.splitlines()) == len(page.splitlines())


def test_cells_have_stars_and_seeds(pages):
    rows = [row("random", 0.5), row("fedcs", 0.6, 0.01, reached=3), row("oort", 0.7, 0.2)]
    lines = pages.table(rows, [("rate", "how often", ".2f")])
    assert lines[2:5] == [
        "| `random` | 0.50 ± 0.01 |",
        "| `fedcs`, told the rates | 0.60 ± 0.01*, 3 of 5 seeds |",
        "| `oort` | 0.70 ± 0.01 |",
    ]
    assert lines[-1].startswith("Difference to `random`, how often: `fedcs`, told the rates +0.10")
    assert pages.kept(rows, ["rate"])[1] == {
        "label": "fedcs",
        "metrics": {"rate": rows[1]["metrics"]["rate"]},
        "difference": rows[1]["difference"],
    }


def stood(ratio, least_share, n_tasks=3, duel_share=None):
    """A selector that did equally well in some tasks."""
    share = least_share if duel_share is None else duel_share
    tasks = tasks_in("first")[:n_tasks]
    level = Side.LEVEL
    duels = tuple(
        Duel(task, 5, ratio, 0, level, level, 0.0, math.nan, level, share, math.nan)
        for task in tasks
    )
    one = Interval(ratio, ratio, ratio)
    return Overall(duels, one, one, one, one, least_share)


def test_the_advice_follows_from_the_standings_and_leaves_out_the_oracles():
    arena = loaded("build_arena")
    overall = {
        "oracle": stood(0.4, 0.9),
        "fed-cbs": stood(0.6, 0.1),
        "tifl": stood(0.65, 0.7, n_tasks=2),  # fair, but not on all tasks
        "refl": stood(0.7, 0.6),
        "pace": stood(0.8, 0.65),
        "random": stood(1.0, 0.55),
    }
    text = arena.advice(overall)
    assert "on 3 tasks on which nothing was tuned, `refl` is the fastest" in text
    assert "It takes 0.70 of the time" in text
    assert "share on average: 0.10 with `fed-cbs` and 0.70 with `tifl`." in text
    assert "oracle" not in text
    table = arena.standings_table(overall)
    assert "oracle" not in table
    assert (
        "| [`tifl`](selectors/tifl.md) | 2 of 3 | 0.65 (0.65 to 0.65) | 0 / 0 | 0.70 | 0 |" in table
    )
    page = f"before\n{arena.BEGIN}\nold\n{arena.END}\nafter"
    caption = arena.captioned(page, overall, "docs/")
    assert "oracle" not in caption
    assert "the least served client gets this part of a fair share on average: 0.10" in caption


def test_advice_without_anyone_faster_says_nothing_of_them():
    arena = loaded("build_arena")
    text = arena.advice({"pace": stood(0.8, 0.65), "random": stood(1.0, 0.55)})
    assert text.endswith("(0.80 to 0.80).")


def test_what_the_page_says_of_newer_selectors_is_what_the_arena_found(pages):
    page = pages.PAGE.read_text(encoding="utf-8")
    paragraph = page[page.index("**Nine of these rest") :].split("\n\n")[0]
    faster, others = (
        re.findall("`([a-z-]+)`", part) for part in paragraph.split("below that of")[1].split(";")
    )
    standings = json.loads((ROOT / "src/turnout/studies/arena_standings.json").read_text("utf-8"))
    assert len(faster[1:] + others[:-1]) == 9
    for name in faster[1:]:
        assert standings[name]["time"][2] < 1.0
    for name in others[:-1]:
        assert standings[name]["time"][2] >= 1.0
    for name in faster[1:] + others[:-1]:
        assert standings[name]["record"].startswith("Faster than random in none of"), name
