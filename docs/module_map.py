"""Write ``docs/modules.md``: which package imports which, drawn from the imports themselves."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "turnout"
PAGE = ROOT / "docs" / "modules.md"

_HEAD = """# Module map

<!-- Made by docs/module_map.py from the imports; do not edit. -->

A package may import packages below it and none above. `lint-imports` enforces this
(`pyproject.toml`).
[A round, file by file](design.md#a-round-file-by-file) follows one round through the packages.
"""


def parts() -> list[str]:
    """Return the packages and modules directly inside turnout."""
    folders = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()]
    files = [path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")]
    return sorted([*folders, *files])


def imports(names: list[str]) -> dict[str, set[str]]:
    """Return what each part imports directly."""
    graph = grimp.build_graph("turnout", cache_dir=None)
    found: dict[str, set[str]] = {name: set() for name in names}
    for module in graph.modules:
        top = module.split(".")[1:2]
        if not top or top[0] not in found:
            continue
        targets = graph.find_modules_directly_imported_by(module)
        tops = {target.split(".")[1] for target in targets if target.count(".")}
        found[top[0]] |= tops & set(names) - {top[0]}
    return found


def layers(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the parts in layers: each only imports from layers behind it in the list."""
    level: dict[str, int] = {}

    def height(name: str) -> int:
        if name not in level:
            level[name] = 1 + max((height(below) for below in edges[name]), default=0)
        return level[name]

    for name in edges:
        height(name)
    highest = max(level.values())
    return [sorted(n for n in edges if level[n] == h) for h in range(highest, 0, -1)]


def purpose(name: str) -> str:
    """Return the first line of a part's docstring."""
    path = SOURCE / name / "__init__.py"
    tree = ast.parse((path if path.exists() else SOURCE / f"{name}.py").read_text("utf-8"))
    return (ast.get_docstring(tree) or "").split("\n")[0]


def page() -> str:
    """Return the whole page."""
    edges = imports(parts())
    rows = [
        f"| `{name}` | {purpose(name)} | {', '.join(f'`{n}`' for n in sorted(edges[name]))} |"
        for layer in layers(edges)
        for name in layer
    ]
    table = ["| package | purpose | imports |", "|---|---|---|", *rows]
    return _HEAD + "\n" + "\n".join(table) + "\n"


def main() -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text("utf-8") == text:
        return 0
    print("docs/modules.md differs from the imports: run make docs.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
