import ast
import base64
import csv
import errno
import html
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from jinja2 import nodes

import turnout.report
from tests.report.folders import LABELS, change_json, change_rounds, run_folder
from turnout.core.errors import MissingExtra, OutputError
from turnout.report import write_report
from turnout.report.page import describe, templates
from turnout.results import open_runs

ALLOWED = (
    "turnout.core.errors",
    "turnout.core.files",
    "turnout.core.names",
    "turnout.core.plain",
    "turnout.core.require",
    "turnout.core.types",
    "turnout.report",
    "turnout.results",
    "turnout.twin",  # fits a world to the records and plays their choices in it
)


def data_of(page):
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])


def own_part(page):
    """The page without plotly's own script."""
    return re.sub(r"<script>/\*\*\n\* plotly.js.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_says_what_it_shows(report):
    page = report.path.read_text(encoding="utf-8")
    assert "<title>demo · turnout report</title>" in page
    assert (
        "A simulation of 40 clients, 8 wanted in each of 60 rounds; availability always; "
        "volatility by-class (rates 0.1, 0.3, 0.6, 0.9); timing linear-contextual (training "
        "s 1, 2, 3, 4, cold start s 1, …); no deadline."
    ) in page
    for heading in ("Summary", "Differences", "Regret", "Fairness", "Settings and versions"):
        assert f"<h3>{heading}</h3>" in page
        place = re.search(rf'<a href="#([\w-]+)">{heading}</a>', page)[1]
        assert page.count(f'<section id="{place}"') == 1
    assert page.count('class="chip"') == len(LABELS)
    assert f"numpy = {np.__version__}" in page
    assert "quota = 0.5" in page
    assert report.problems == []
    assert 'class="problems" role' not in page


def test_the_page_loads_nothing(report):
    page = own_part(report.path.read_text(encoding="utf-8"))
    assert len(page) < 2_000_000
    inside = re.sub(r'href="(#|data:text/csv;charset=utf-8;base64,)', "", page)
    assert not re.search(r"""(src|href|action)\s*=|url\(|@import|https?://|//cdn""", inside)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 3
    assert "script-src 'sha256-" in policy


def test_the_same_cells_give_the_same_page(experiment, report, tmp_path):
    again = write_report([experiment], tmp_path / "again.html")
    assert again.path.read_bytes() == report.path.read_bytes()


ATTACK = '</script><script>alert("x")</script><img src=x onerror=alert(1)>\u2028'


@pytest.fixture
def hostile(tmp_path):
    """Every text of a run folder tries to be a script."""
    root = run_folder(tmp_path / "<b>runs", "random", "e3cs-0", seeds=1, n_rounds=5)
    cell = root / "random" / "seed-0"
    change_json(
        cell / "config.json",
        label=ATTACK,
        selector=ATTACK,
        experiment=ATTACK,
        parameters={ATTACK: ATTACK},
        world={"availability": {"kind": ATTACK, ATTACK: ATTACK}},
        policy={"kind": ATTACK},
        classes={"names": [ATTACK] * 4, "what": ATTACK},
    )
    change_rounds(cell, lambda t: {ATTACK: 1.0})
    (cell / "versions.json").write_text(json.dumps({ATTACK: ATTACK}))
    broken = root / "e3cs-0" / "seed-0" / "config.json"
    broken.write_text(json.dumps({"label": ATTACK, "n_clients": ATTACK}))
    return root


def test_text_from_files_is_only_text(hostile, tmp_path):
    report = write_report([hostile], tmp_path / "r.html")
    page = own_part(report.path.read_text(encoding="utf-8"))
    assert report.n_cells == 1
    assert report.problems[0].kind == "damaged"
    assert page.count("<script") == 3  # data and our own two; plotly's was cut out
    assert "<img" not in page
    assert "<b>runs" not in page
    assert page.count("alert") > 5  # it is there, as text
    # plotly reads a little HTML in labels, so these are escaped once more
    texts = []

    def walk(value):
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                walk(item)

    walk(data_of(page)["charts"])
    assert any("alert" in text for text in texts)
    allowed = {"<br>", "<extra>", "</extra>"}
    assert {tag for text in texts for tag in re.findall(r"<[^>]*>", text)} <= allowed


def test_every_template_escapes_what_it_shows():
    environment = templates()
    names = environment.list_templates()
    assert {"page.html", "world.html", "problems.html"} <= set(names)
    for name in names:
        source, _, _ = environment.loader.get_source(environment, name)
        assert environment.get_template(name).environment.autoescape is True
        tree = environment.parse(source)
        assert not list(tree.find_all((nodes.EvalContextModifier, nodes.MarkSafe))), name
        filters = {node.name for node in tree.find_all(nodes.Filter)}
        assert filters <= {"capitalize", "groupby", "length", "tojson"}, name  # never "safe"
    template = environment.from_string("{{ text }} {{ text | tojson }}")
    assert "<" not in template.render(text=ATTACK)


def test_only_packaged_files_are_trusted():
    """``Markup`` is asked for once, and wraps style sheets and the two scripts only."""
    folder = Path(turnout.report.__file__).parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    mentions = re.compile("Markup|markupsafe|__html__")
    assert [name for name, source in sources.items() if mentions.search(source)] == ["page.py"]
    page = sources["page.py"]
    assert len(mentions.findall(page)) == 2  # the one line of "trusted"
    calls = [node for node in ast.walk(ast.parse(page)) if isinstance(node, ast.Call)]
    wrapped = [ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "trusted"]
    assert sorted(wrapped) == [
        "''.join((packaged(name) for name in styles))",
        "packaged('report.css') + packaged('live.css')",
        "script",
    ]
    assert 'styles = ["report.css", "live.css"] if' in page
    assert "[trusted(script) for script in scripts]" in page
    assert 'scripts = [plotly_js(), packaged("figures.js"), packaged("report.js")]' in page


@pytest.mark.parametrize(("module", "name"), [("plotly.offline", "plotly"), ("jinja2", "jinja2")])
def test_without_an_extra_the_error_names_it(module, name, small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    fix = re.escape(f"the report needs {name}: pip install 'turnout[report]'")
    with pytest.raises(MissingExtra, match=fix):
        write_report([small], tmp_path / "r.html")


def test_a_file_that_cannot_be_written_is_an_error_with_the_fix(small, tmp_path):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "folder.html", tmp_path / "file" / "r.html"):
        with pytest.raises(OutputError, match=r"cannot be written .*--out"):
            write_report([small], out)
    assert {path.name for path in tmp_path.iterdir()} == {"small", "folder.html", "file"}
    report = write_report([small], tmp_path / "new" / "deep.html")
    assert report.path.exists()


def test_a_page_that_is_not_finished_leaves_nothing_behind(small, tmp_path, monkeypatch):
    def refuse(source, target):
        assert Path(source).parent == Path(target).parent
        raise OSError(errno.EROFS, "Read-only file system")

    out = tmp_path / "r.html"
    out.write_text("the old page")
    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OutputError, match=r"Read-only file system"):
        write_report([small], out)
    assert {path.name for path in tmp_path.iterdir()} == {"small", "r.html"}
    assert out.read_text() == "the old page"


def test_a_read_only_page_is_kept(small, tmp_path, monkeypatch):
    out = tmp_path / "r.html"
    out.write_text("the old page")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != out)  # root may write all
    with pytest.raises(OutputError, match=r"the file is read-only"):
        write_report([small], out)
    assert out.read_text() == "the old page"


def test_the_page_holds_the_numbers_of_every_run(training, tmp_path):
    page = write_report([training], tmp_path / "r.html").path.read_text(encoding="utf-8")
    content = re.search(r'href="data:text/csv;charset=utf-8;base64,([^"]*)"', page)[1]
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(content).decode())))
    assert [(row["label"], row["seed"]) for row in rows] == [
        (label, seed) for label in ("random", "e3cs-0.5", "fedcs") for seed in "01"
    ]
    summary = json.loads((training / "fedcs" / "seed-1" / "summary.json").read_text())
    assert float(rows[-1]["cep"]) == summary["cep"]
    assert rows[0]["regret_bound"] == ""  # Random promises none
    assert str(training) not in base64.b64decode(content).decode()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"kind": "fixed-deadline", "seconds": "inf", "force_stop": True}, "no deadline."),
        (
            {"kind": "fixed-deadline", "seconds": 30.0, "force_stop": True},
            "round policy fixed-deadline (seconds 30, force stop true).",
        ),
        (
            {"kind": "first-k", "count": 5, "seconds": "inf"},
            "round policy first-k (count 5), no deadline.",
        ),
    ],
)
def test_a_policy_without_limit_is_called_no_deadline(policy, words, small):
    change_json(small / "random" / "seed-0" / "config.json", policy=policy)
    (world,) = open_runs(small / "random" / "seed-0").worlds
    assert describe(world).endswith(f"; {words}")


def test_half_a_character_does_not_break_the_page(small, tmp_path):
    cell = small / "random" / "seed-0"
    (cell / "versions.json").write_text('{"turnout": "\\ud800", "\\udfff": 1}')
    change_json(cell / "config.json", parameters={"note": "\ud83d"})
    page = write_report([small], tmp_path / "r.html").path.read_text(encoding="utf-8")
    assert "turnout = ?" in page
    assert "note = ?" in page


def test_report_reads_files_and_knows_nothing_of_selectors():
    for path in Path(turnout.report.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
                if node.module in ("turnout", "turnout.core"):
                    names = [f"{node.module}.{one.name}" for one in node.names]
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            else:
                continue
            inside = [name for name in names if name.split(".")[0] == "turnout"]
            assert all(name.startswith(ALLOWED) for name in inside), path.name
