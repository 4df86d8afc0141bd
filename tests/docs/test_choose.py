"""The tables of docs/choose.md: as made from the results, by the commands above them."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages():
    place = ROOT / "docs" / "build_choose.py"
    spec = importlib.util.spec_from_file_location("build_choose", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
