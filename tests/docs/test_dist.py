"""The wheel: the package, its licence and its version; nothing else."""

import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import turnout

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "turnout"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "golden", folder / "tests" / "golden", ignore=ignored)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Deprecat" not in done.stdout + done.stderr
    (path,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = (path for path in PACKAGE.rglob("*") if path.is_file())
    assert files == {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in sources
        if "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_version_and_licence_are_right(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    head = HeaderParser().parsestr(wheel.read(name).decode())
    assert head["Name"] == "turnout"
    assert head["Version"] == turnout.__version__
    assert head["License-Expression"] == "Apache-2.0"
    assert head.get_all("License-File") == ["LICENSE"]
    licence = wheel.read(name.replace("METADATA", "licenses/LICENSE")).decode()
    assert "Apache License" in licence
    required = [line for line in head.get_all("Requires-Dist") if "extra ==" not in line]
    assert [line.partition(">")[0].partition("<")[0] for line in required] == ["numpy"]
