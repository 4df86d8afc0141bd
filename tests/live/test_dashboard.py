"""The Grafana dashboard asks only for series that are really exported."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.live.test_followers import played
from turnout.live import Prometheus
from turnout.live.alerts import KINDS
from turnout.live.round import BY_SERVER

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "examples" / "grafana" / "turnout.json").read_text()
)
QUERIES = [
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    *(v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"),
]


@pytest.fixture
def exported(ticking):
    """The labels, with their values, of every series that a run exports, by name."""
    metrics = Prometheus()
    live, _ = played(metrics)
    live.session.journal.note(BY_SERVER, 1, {"accuracy": 0.5})
    labels = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for one in family.samples:
            for name, value in one.labels.items():
                labels.setdefault(one.name, {}).setdefault(name, set()).add(value)
    return labels


def test_every_query_names_series_and_labels_that_exist(exported):
    for query in QUERIES:
        names = re.findall(r"turnout_\w+", query)
        assert names
        for name in names:
            assert name in exported, f"{name} in {query}"
        known = set().union(*(exported[name] for name in names))
        grouped = re.findall(r"by \((\w+)\)", query)
        used = {label for inside in re.findall(r"{([^}]*)}", query) for label in _labels(inside)}
        assert used | set(grouped) <= known, query
        for label, value in re.findall(r'(\w+)="([^"$]+)"', query):
            assert value in exported[names[0]][label], query


def _labels(matchers):
    return re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)


def test_every_series_but_those_of_the_library_is_shown(exported):
    shown = {name for query in QUERIES for name in re.findall(r"turnout_\w+", query)}
    ours = {name for name in exported if not name.endswith(("_created", "_count"))}
    assert ours == shown


def test_legends_name_labels_that_exist(exported):
    labels = {label for known in exported.values() for label in known}
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels


def test_all_kinds_of_alerts_are_there_from_the_start(exported):
    assert exported["turnout_alerts_total"]["kind"] == set(KINDS)


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(x + i, y + j) for i in range(w) for j in range(h)}
        assert not cells & taken
        assert x + w <= 24
        taken |= cells
