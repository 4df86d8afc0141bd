import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import turnout

ROOT = Path(__file__).parents[1]


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
    found = importlib.import_module(module)
    assert doctest.testmod(found, extraglobs={"turnout": turnout}).failed == 0


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def test_readme_examples_run_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(ROOT / "README.md")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_every_public_name_is_documented():
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    missing = [name for name in turnout.__all__ if f"`{name}" not in reference]
    assert not missing


def test_links_between_pages_resolve():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"
