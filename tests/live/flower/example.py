"""The example's folder, importable, and its app with a task that needs no torch."""

import importlib
import json
import shutil
import sys
from pathlib import Path

from turnout.experiment import read_cell

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flower-volatile"


def load(name):
    """Import a module of the example's folder."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLE))


def tiny_app(folder):
    """Copy the example, with the tiny task in place of its own."""
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("tiny_task.py"), app / "flower_volatile" / "task.py")
    return app


def recorded(records):
    """Return the rounds on record so far by number; a line that is being written does not count."""
    rounds = {}
    for path in Path(records).glob("*/seed-*/rounds.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                entry = json.loads(line)
                rounds[entry["round"]] = entry
    return rounds


def finished_run(records):
    """Return the choices of a run that is complete."""
    (path,) = Path(records).glob("*/seed-*")
    return read_cell(path).run
