"""The section about the twin in the report of a live run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.report.live_folders import live_folder
from turnout.report import write_report
from turnout.report.charts import sections, twin_charts
from turnout.report.figure import Line
from turnout.results import open_runs


def twin_of(folder):
    (world,) = open_runs(folder).worlds
    found = {section.title: section for section in sections(world, {"e3cs": 0})}
    return found.get("Twin")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return live_folder(tmp_path_factory.mktemp("live") / "site", n_rounds=60)


def test_the_record_lies_in_the_band_of_the_worlds(folder):
    charts = twin_of(folder).charts
    assert [len(chart.panels) for chart in charts] == [3, 3]
    for panel in (panel for chart in charts for panel in chart.panels):
        fitted, recorded = (mark for mark in panel.marks if isinstance(mark, Line))
        assert (fitted.name, recorded.name) == ("fitted", "recorded")
        inside = (recorded.y >= fitted.low - 1e-9) & (recorded.y <= fitted.high + 1e-9)
        assert inside.mean() > 0.5, panel.x.label


def test_the_page_has_the_section_and_is_the_same_twice(folder, tmp_path):
    pages = [write_report([folder], tmp_path / name).path.read_text() for name in ("a", "b")]
    assert pages[0] == pages[1]
    assert ">Twin<" in pages[0]
    assert "do not trust the twin" in pages[0]


def test_a_short_run_has_none(tmp_path):
    assert twin_of(live_folder(tmp_path / "site", n_rounds=10)) is None


def test_runs_whose_rounds_overlap_are_left_out(folder):
    (world,) = open_runs(folder).worlds
    (cell,) = world.cells
    run = cell.run
    stale = dataclasses.replace(run, staleness=np.zeros(run.clients.size, dtype=np.int64))
    overlapping = dataclasses.replace(cell, choices=stale)
    assert overlapping.run.overlaps
    (variant,) = world.variants

    def charts(*cells):
        variants = (dataclasses.replace(variant, cells=cells),)
        return list(twin_charts(dataclasses.replace(world, variants=variants), {"e3cs": 0}))

    assert charts(overlapping) == []
    assert len(charts(overlapping, cell)) == 2
