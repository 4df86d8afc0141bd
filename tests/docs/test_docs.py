import doctest
import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import turnout
from turnout.cli import app
from turnout.core.describe import describe
from turnout.core.errors import MissingExtra
from turnout.studies import load_preset

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "install.md",
    ROOT / "docs" / "choose.md",
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
    *sorted((ROOT / "docs" / "papers").glob("*.md")),
]

#: What makes a printed command short: the last value of an option counts.
SHORT = {
    "simulate": ["--rounds", "3"],
    "train": ["--rounds", "3"],
    "compare": ["--rounds", "3", "--seeds", "1", "--jobs", "1"],
    "recommend": ["--rounds", "3", "--seeds", "2", "--jobs", "1"],
    "audit": [],
    "data": [],
    "report": [],
    "show": [],
    "export": [],
}

#: Data that is not embedded, a path on a server, and a world of somebody's own records.
NOT_HERE = {"fashion-mnist", "/var/lib/app/runs", "my-federation.toml", "runs/live"}


def test_selector_pages_are_made_from_the_current_docstrings():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build_pages.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    sorted(
        info.name
        for info in pkgutil.walk_packages(turnout.__path__, "turnout.")
        if not info.name.endswith("__main__")
    ),
)
def test_docstring_examples_run(module):
    try:
        tested = importlib.import_module(module)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert doctest.testmod(tested, extraglobs={"turnout": turnout}).failed == 0


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


#: Pages whose code runs here; the other how-tos run in the tests of what they are about.
PRINTED_CODE = [
    "README.md",
    "docs/index.md",
    *(
        f"docs/howto/{page}.md"
        for page in ("data", "guarantee", "privacy", "results", "sweeps", "worlds")
    ),
]


@pytest.mark.parametrize("name", PRINTED_CODE)
def test_python_examples_run_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = blocks((ROOT / name).read_text(encoding="utf-8"), "python")
    assert examples
    for example in examples:
        exec(compile(example, name, "exec"), {})


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each turnout command in a page's blocks of commands."""
    printed = "".join(blocks(text, "(?:sh|console)")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in printed.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["turnout"]]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if commands(page.read_text(encoding="utf-8"))],
    ids=lambda page: page.stem,
)
def test_printed_commands_have_these_options(page):
    for arguments in commands(page.read_text(encoding="utf-8")):
        result = CliRunner().invoke(app, [*arguments, "--help"])
        assert result.exit_code == 0, f"{arguments}: {result.output}"


def test_printed_settings_of_papers_exist():
    pages = [*ROOT.glob("docs/papers/**/*.md"), *PAGES]
    printed = [words for page in pages for words in commands(page.read_text(encoding="utf-8"))]
    reproduced = [words for words in printed if words[0] == "reproduce"]
    assert len(reproduced) > 15
    for words in reproduced:
        preset = load_preset(words[1])
        labels = [words[place + 1] for place, word in enumerate(words) if word == "--setting"]
        assert [preset.setting(label).label for label in labels] == labels


def test_every_figure_of_a_paper_is_there():
    for page in ROOT.glob("docs/papers/results/*.md"):
        for name in re.findall(r"!\[.*?\]\((.+?)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), f"{page.name}: {name}"


def test_the_pages_of_papers_are_those_of_their_results():
    script = ROOT / "docs" / "build_papers.py"
    made = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (0, "")


def test_the_index_of_papers_counts_the_headline_claims_alone():
    text = (ROOT / "docs" / "papers" / "index.md").read_text(encoding="utf-8")
    n_claims, counts = re.search(r"\*\*(\d+) headline claims: (.*?)\.\*\*", text).groups()
    assert sum(map(int, re.findall(r"\d+", counts))) == int(n_claims)
    assert len(re.findall(r"\| \d+ of \d+ \| .* \|\n", text)) == int(n_claims)
    rows = re.findall(r"\| \[(.*?)\]\((.*?)\.md#headline-claims\) (\|.*\n)", text)
    assert len(rows) == int(n_claims)
    for short, paper, numbers in rows:  # the page that a row links to has the row
        own = (ROOT / "docs" / "papers" / f"{paper}.md").read_text(encoding="utf-8")
        assert f"| {short} {numbers}" in own.partition("## Headline claims")[2]
    explored = (ROOT / "docs" / "papers" / "explored.md").read_text(encoding="utf-8")
    assert explored.count("| where | the paper says |") == 10
    assert "| verdict |" not in explored


@pytest.mark.parametrize(
    "name",
    [
        "README",
        "index",
        "data",
        "experiments",
        "guarantee",
        "privacy",
        "report",
        "results",
        "sweeps",
        "training",
    ],
)
def test_printed_commands_run(name, tmp_path, monkeypatch):
    page = next(page for page in PAGES if page.stem == name)
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    for table in blocks(text, "toml"):
        Path("experiment.toml").write_text(table, encoding="utf-8")
    for arguments in commands(text):
        if arguments[0] in SHORT and not any(word in NOT_HERE for word in arguments):
            result = CliRunner().invoke(app, [*arguments, *SHORT[arguments[0]]])
            assert result.exit_code == 0, f"{arguments}: {result.output}"


def test_a_round_is_followed_through_files_that_exist():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = text.partition("## A round, file by file")[2].partition("\n## ")[0]
    files = re.findall(r"^\d+\. `(.+?)`", section, re.MULTILINE)
    assert 10 < len(files) < 20
    assert [name for name in files if not (ROOT / "src" / "turnout" / name).is_file()] == []


def test_the_page_to_choose_by_names_every_selector_and_rules_out_by_what_is_declared():
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    descriptions = [describe(name) for name in turnout.list_selectors(plugins=False)]
    assert [d.name for d in descriptions if f"(selectors/{d.name}.md)" not in page] == []
    columns, reports, polls = re.findall(r"(?ms)^[123]\. (.*?)(?=^\d\. )", page)

    def named(text: str) -> set[str]:
        return {d.name for d in descriptions if f"`{d.name}`" in text}

    unusual = {"context", "features", "success_rate"}
    assert named(columns) == {d.name for d in descriptions if unusual & {*d.needs_columns}}
    assert named(reports) == {d.name for d in descriptions if d.needs_metrics}
    assert named(polls) == {d.name for d in descriptions if d.polls}


def test_every_public_name_is_documented():
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    missing = [name for name in turnout.__all__ if f"`{name}" not in reference]
    assert not missing


def test_links_between_pages_resolve():
    for page in [*PAGES, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"


def test_the_arena_says_which_selectors_are_missing_from_which_task():
    kept = json.loads((ROOT / "results" / "arena.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "arena.md").read_text(encoding="utf-8")
    note = re.search(r"\*\*Missing selectors\.\*\*(.*?)\n\n", page, re.DOTALL)[1]
    for part in kept["parts"]:
        has = {selector["label"] for selector in part["experiment"]["selectors"]}
        for name in sorted(set(turnout.list_selectors(plugins=False)) - has):
            assert f"`{name}`" in note, (part["setting"], name)
            if name not in ("guarded", "mix"):
                sentence = next(x for x in note.split(". ") if f"`{name}`" in x)
                assert f"`{part['setting']}`" in sentence or "missing there too" in sentence, name
