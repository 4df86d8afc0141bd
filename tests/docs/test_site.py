"""What the site adds to mkdocs: pages from elsewhere, turned links, nothing from other hosts."""

import importlib.util
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks():
    return loaded("site_hooks")


@pytest.mark.parametrize(
    ("source", "page", "link", "turned"),
    [
        ("docs/index.md", "index.md", "../CHANGELOG.md", "changelog.md"),
        ("docs/howto/data.md", "howto/data.md", "../../CHANGELOG.md#x", "../changelog.md#x"),
        ("docs/howto/data.md", "howto/data.md", "../metrics.md", "../metrics.md"),
        ("CHANGELOG.md", "changelog.md", "docs/papers/e3cs.md", "papers/e3cs.md"),
        ("docs/index.md", "index.md", "https://a.org/b.md", "https://a.org/b.md"),
        ("docs/index.md", "index.md", "#part", "#part"),
    ],
)
def test_links_go_where_the_file_is_in_the_site(hooks, source, page, link, turned):
    assert hooks.turned(f"see [it]({link}).", page, source) == f"see [it]({turned})."


def test_figures_of_the_tutorial_stay_beside_their_page(hooks):
    source, page = "examples/02_train.py", "tutorial/02_train.md"
    text = "![svg](02_train_6_0.svg) and [next](03_compare.py)."
    assert page in hooks.STEPS.values()
    following = Path(next(name for name in hooks.STEPS if "03_" in name)).stem
    text = text.replace("03_compare", following)
    wanted = f"![svg](02_train_6_0.svg) and [next]({following}.md)."
    assert hooks.turned(text, page, source) == wanted


def test_images_that_are_not_in_the_site_are_found(hooks, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one two.svg").touch()
    (tmp_path / "top.png").touch()
    there = "<img src='../one%20two.svg'><img alt=x src=\"/top.png#x\"><img src=data:image/png,>"
    (tmp_path / "a" / "b" / "index.html").write_text(there)
    assert hooks.missing_images(tmp_path) == []
    (tmp_path / "index.html").write_text('<p><img alt="" src="a/two.svg"></p>')
    assert hooks.missing_images(tmp_path) == ["index.html: a/two.svg"]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.org/a.js"></script>',
        "<script async src=//cdn.org/a.js></script>",
        '<link rel="stylesheet" href="https://fonts.org/a.css">',
        '<link href="http://fonts.org/a.css" rel="preload">',
        "<img alt='x' src='https://img.org/a.png'>",
        "body { background: url( 'https://img.org/a.png') }",
        '@import "https://fonts.org/a.css";',
    ],
)
def test_what_would_be_fetched_from_other_hosts_is_found(hooks, text):
    assert len(hooks.external_loads(text)) == 1


def test_links_and_own_files_are_no_loads(hooks):
    text = """<a href="https://a.org">a</a> <link rel="canonical" href="https://a.org/">
    <script src="assets/a.js"></script> <img src="../a.png"> <i style="a: url(data:image/png)">"""
    assert hooks.external_loads(text) == []


def test_a_page_goes_to_the_longest_pattern_it_matches(hooks):
    nav = ["index.md", {"How": ["how/b.md", "how/*.md", {"Flower": ["how/flower-*.md"]}]}]
    pages = ["how/a.md", "how/b.md", "how/flower-a.md", "index.md"]
    assert hooks.expanded(nav, pages) == [
        "index.md",
        {"How": ["how/b.md", "how/a.md", {"Flower": ["how/flower-a.md"]}]},
    ]


def test_pages_may_be_called_by_the_names_of_their_files(hooks):
    assert hooks.expanded([{"*": "a/*.md"}], ["a/pow-d.md"]) == [{"pow-d": "a/pow-d.md"}]


def test_every_public_package_has_a_page(hooks):
    modules = hooks.public_modules()
    assert {"turnout", "turnout.data", "turnout.live.flower"} <= set(modules)
    assert not any(name.startswith("turnout.cli") for name in modules)
    assert 10 < len(modules) < 30


def test_code_in_docstrings_becomes_code_in_markdown():
    as_markdown = loaded("site_docstrings").as_markdown
    assert as_markdown("Do::\n\n    x = 1\n\nEnd.") == "Do:\n\n    x = 1\n\nEnd."
    shown = as_markdown("Text.\n\n>>> a = 1\n>>> a\n1\n\nMore.")
    assert shown == "Text.\n\n```pycon\n>>> a = 1\n>>> a\n1\n```\n\nMore."


def test_every_extra_stands_on_the_install_page():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = [name for name in project["optional-dependencies"] if f"| `{name}` |" not in page]
    assert not missing
    assert f"turnout-{project['version']}-py3" in page
