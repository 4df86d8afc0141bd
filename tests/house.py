"""Count the package and trace walks through it: ``python -m tests.house --help``.

As a script it needs ``python -P``, since folders beside it are named as modules of Python are.

A *walk* is one thing that users do. It is traced in a new process, and three numbers are kept:

* functions: the functions and methods of the package that were called. Lambdas, comprehensions,
  generator expressions, class bodies and ``<module>`` do not count, nor does anything that is
  called while a module is being imported;
* files: those that hold these functions;
* crossings: the distinct ordered pairs (file of the caller, file of the called function), both in
  the package and not the same. The caller is whoever called directly: what numpy, typer or the
  ``__init__`` of a dataclass calls in turn crosses nothing.

Walks use public names only, so that modules may move. Lines are counted once: as docstring, import,
comment, blank or code, in this order.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
KINDS = ("code", "docstrings", "imports", "comments", "blank")
NOT_ENTRIES = {"__init__.py", "__main__.py"}
IMPORTING = "<frozen importlib._bootstrap>"  #: on the stack while a module is being imported
SHORT = 60  #: lines; a shorter module with one importer might be part of it
#: A comparison with training on digits that takes seconds, in one process: others are not traced.
COMPARE = (
    *("compare", "random", "e3cs", "--train", "--out", "runs", "--rounds", "3"),
    *("--clients", "10", "--cohort", "3", "--seeds", "2", "--jobs", "1"),
)


# Counting ---------------------------------------------------------------------------------------


def lines_of(text: str) -> Counter[str]:
    """Return how many lines of a module are of each kind."""
    kinds = ["code" if line.strip() else "blank" for line in text.splitlines()]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            kinds[token.start[0] - 1] = "comments"
    for node in ast.walk(ast.parse(text)):
        found: ast.stmt
        if isinstance(node, ast.Import | ast.ImportFrom):
            found, kind = node, "imports"
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found, kind = node.body[0], "docstrings"
        else:
            continue
        part = slice(found.lineno - 1, found.end_lineno)
        kinds[part] = [kind] * len(kinds[part])
    return Counter(kinds)


def imports_of(text: str, modules: Set[str]) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner if inner <= modules else {str(node.module), *inner}
    return found & modules


def count(package: Path) -> dict[str, Any]:
    """Return the numbers of a package; importers are modules, tests do not count."""
    paths = sorted(package.rglob("*.py"))
    modules = {_dotted(path.relative_to(package.parent)): path for path in paths}
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items()}
    lines = {name: lines_of(text) for name, text in texts.items()}
    importers: dict[str, list[str]] = defaultdict(list)
    packages: dict[str, Counter[str]] = defaultdict(Counter)
    for name, path in modules.items():
        for other in imports_of(texts[name], modules.keys()) - {name}:
            importers[other].append(name)
        inside = path.parent != package
        part = path.relative_to(package).parts[0] if inside else "(top level)"
        packages[part] += Counter(code=lines[name]["code"], files=1)
    files = {name: path for name, path in modules.items() if path.name != "__init__.py"}
    single = {name: importers[name][0] for name in files if len(importers[name]) == 1}
    names = Counter(path.name for path in files.values()).most_common()
    total = sum(lines.values(), Counter())
    return {
        "files": len(paths),
        "entries": len({path.relative_to(package).parts[0] for path in paths} - NOT_ENTRIES),
        "lines": total.total(),
        **{kind: total[kind] for kind in KINDS},
        "one importer": len(single),
        "short, one importer": {n: by for n, by in single.items() if lines[n].total() < SHORT},
        "names": {name: many for name, many in names if many > 2},
        "packages": dict(sorted(packages.items(), key=lambda item: -item[1]["code"])),
    }


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


# Tracing ----------------------------------------------------------------------------------------


class Trace:
    """Sees the calls of functions of the package, in this thread and in those that it starts."""

    def __init__(self, package: Path) -> None:
        self._root = str(package) + os.sep
        self._calls: set[tuple[CodeType, CodeType | None]] = set()  # (called, caller)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Trace what happens inside."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def numbers(self) -> dict[str, list[Any]]:
        """Return the files, functions and crossings, sorted."""
        functions = {(self._file(code), code.co_qualname) for code, _ in self._calls}
        pairs = {
            (self._file(caller), self._file(code))
            for code, caller in self._calls
            if caller is not None and self._is_ours(caller)
        }
        return {
            "files": sorted({file for file, _ in functions}),
            "functions": sorted(functions),
            "crossings": sorted(pair for pair in pairs if pair[0] != pair[1]),
        }

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event != "call" or not is_named or not self._is_ours(code):
            return
        call = (code, frame.f_back.f_code if frame.f_back else None)
        if call not in self._calls and not self._is_importing(frame):
            self._calls.add(call)

    @staticmethod
    def _is_importing(frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename == IMPORTING:
                return True
            frame = frame.f_back
        return False

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._root)

    def _file(self, code: CodeType) -> str:
        return code.co_filename.removeprefix(self._root)


# Walks, each in a folder of its own ---------------------------------------------------------------


def simulate(trace: Trace) -> None:
    """Make a world and a selector, and simulate, as the first tutorial does."""
    import turnout

    make_world, run = turnout.environments.e3cs_world, turnout.simulate
    with trace.on():
        world = make_world(n_clients=100, seed=1)
        run(turnout.make("e3cs", quota=0.5), world, cohort_size=20, n_rounds=50)


def simulate_command(trace: Trace) -> None:
    """Do the same by the command line, which shows it in a table."""
    _command(trace, "simulate", "e3cs", "--world", "e3cs", "--rounds", "50")


def compare(trace: Trace) -> None:
    """Train two selectors on digits and compare them."""
    _command(trace, *COMPARE)


def report(trace: Trace) -> None:
    """Write the report of a comparison that another process has run."""
    subprocess.run([sys.executable, "-P", "-m", "turnout", *COMPARE], check=True)
    _command(trace, "report", "runs", "--out", "report.html")


def reproduce(trace: Trace) -> None:
    """Run a paper's experiments, shortened, judge its claims and draw its figures."""
    few = ("--rounds", "20", "--seeds", "2", "--jobs", "1")
    _command(trace, "reproduce", "e3cs-arxiv", *few, "--out", "runs")


def flower(trace: Trace) -> None:
    """Run one round of Flower's loop, with all nodes in this process."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": os.getcwd()}
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.supercore.task_identity import TaskIdentity

    flower = import_module("turnout.integrations.flower")  # a lasting path, wherever the code is
    app = ClientApp()
    replies: dict[str, Message] = {}
    describe = import_module("turnout.integrations.flower.client").describe
    describe(app, stable_id=lambda _, context: context.node_config["partition-id"])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 1.0})
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    def push(messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            node = message.metadata.dst_node_id
            names.append(f"message-{len(replies)}")
            message.metadata.__dict__["_message_id"] = names[-1]  # as Flower's own grids do
            context = Context(1, node, {"partition-id": node}, RecordDict(), {})
            replies[names[-1]] = app(message, context)
        return names

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    inner = FedAvg(fraction_evaluate=0.0)
    strategy = flower.SelectingStrategy(inner, "e3cs", cohort_size=5, seed=1)
    grid = SimpleNamespace(
        get_node_ids=lambda: list(range(10, 19)),
        push_messages=push,
        pull_messages=lambda names: [replies[name] for name in names],
    )
    with trace.on():
        strategy.start(grid, ArrayRecord([np.zeros(3)]), num_rounds=1)


def http(trace: Trace) -> None:
    """Open one round of a served federation and report its outcomes."""
    from fastapi.testclient import TestClient

    from turnout.serve import create_app, make_token, open_database, writing

    engine = open_database("sqlite:///turnout.db")
    with writing(engine) as connection:
        token = make_token(connection, "walk", "admin", None)
    headers = {"Authorization": f"Bearer {token}"}
    client = TestClient(create_app(engine), base_url="http://127.0.0.1:8717", headers=headers)
    path = "/federations/demo"
    definition = {"name": "demo", "selector": "e3cs", "cohort_size": 5, "seed": 1}
    client.post("/federations", json=definition).raise_for_status()
    clients = {"clients": [f"c{i}" for i in range(10)], "columns": {"num_samples": [*range(1, 11)]}}
    client.put(f"{path}/clients", json=clients).raise_for_status()
    with trace.on():
        chosen = client.post(f"{path}/rounds").raise_for_status().json()
        outcomes = [{"client": client_id, "seconds": 1.0} for client_id in chosen["clients"]]
        ended = client.post(f"{path}/rounds/0/outcomes", json={"outcomes": outcomes})
    assert ended.json()["state"] == "closed", ended.text


def _command(trace: Trace, *arguments: str) -> None:
    from turnout.__main__ import main

    sys.argv = ["turnout", *arguments]
    with trace.on():
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise


WALKS: dict[str, Callable[[Trace], None]] = {
    "simulate": simulate,
    "simulate (command)": simulate_command,
    "compare --train": compare,
    "report": report,
    "Flower round": flower,
    "HTTP round": http,
    "reproduce e3cs-arxiv": reproduce,
}


def walk(name: str, package: Path) -> dict[str, list[Any]]:
    """Return the files, functions and crossings of a walk, traced in a new process."""
    command = [sys.executable, "-P", str(HERE), "--source", str(package.parents[1])]
    environment = os.environ | {"PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+") as log:
        ended = subprocess.run(
            [*command, "--trace", name], cwd=folder, env=environment, stdout=log, stderr=log
        )
        if ended.returncode:
            log.seek(0)
            raise SystemExit(f"{log.read()[-4000:]}\nThe walk {name!r} failed; see above.")
        return dict(json.loads(Path(folder, "trace.json").read_text()))


def _trace_here(name: str, package: Path) -> None:
    """Take a walk in this process and write ``trace.json`` into the working directory."""
    import turnout

    assert Path(turnout.__file__).parent == package, f"{turnout.__file__} is not in {package}"
    trace = Trace(package)
    WALKS[name](trace)
    Path("trace.json").write_text(json.dumps(trace.numbers()))


# Printing -----------------------------------------------------------------------------------------


def print_counts(counts: dict[str, Any], *, lists: bool) -> None:
    """Print what was counted as Markdown; ``lists`` names the short modules."""
    short = counts["short, one importer"]
    sizes = {kind: counts[kind] for kind in ("files", "entries", "lines", *KINDS, "one importer")}
    print("| what | number |\n|---|---|")
    for what, number in {**sizes, f"... and under {SHORT} lines": len(short)}.items():
        print(f"| {what} | {number:,} |")
    parts = (f"{n} {one['code']:,} ({one['files']})" for n, one in counts["packages"].items())
    print("\nCode lines (files):", ", ".join(parts))
    names = (f"{name} {many}" for name, many in counts["names"].items())
    print("\nNames of more than two files:", ", ".join(names))
    if lists:
        print(f"\nUnder {SHORT} lines, with one importer:\n")
        print(*(f"- {name} <- {importer}" for name, importer in short.items()), sep="\n")


def main() -> None:
    """Count and trace, and print two tables."""
    parser = argparse.ArgumentParser(description="Count the package and trace walks through it.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument("--walk", choices=WALKS, help="only this walk, without counting")
    parser.add_argument("--list", action="store_true", help="name the modules and touched files")
    parser.add_argument("--source", type=Path, metavar="DIR", help="another checkout")
    parser.add_argument("--trace", choices=WALKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    package = (given.source or HERE.parents[1]).resolve() / "src" / "turnout"
    if given.trace:
        _trace_here(given.trace, package)
        return
    content: dict[str, Any] = {"walks": {}}
    if not given.walk:
        content["package"] = count(package)
        print_counts(content["package"], lists=given.list)
    print("\n| walk | files | functions | crossings |\n|---|---|---|---|", flush=True)
    for name in [given.walk] if given.walk else WALKS:
        found = walk(name, package)
        numbers = {what: len(those) for what, those in found.items()}
        content["walks"][name] = {**numbers, "touched": found["files"], "pairs": found["crossings"]}
        print(f"| {name} |", " | ".join(map(str, numbers.values())), "|", flush=True)
    for name, numbers in content["walks"].items() if given.list else ():
        print(f"\n{name}:\n", *(f"- {file}" for file in numbers["touched"]), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
