"""Execute scripts of the tutorial as notebooks: ``python docs/build_tutorial.py examples/01_x.py``.

The page, its figures and the notebook go to build/tutorial. A cell that fails is an error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "tutorial"
#: Seconds that a cell, or the start of the kernel, may take on a busy machine.
TIMEOUT_S = 600


def executed(script: Path) -> nbformat.NotebookNode:
    """Return a script as a notebook with its output; warnings and logs are left out.

    Args:
        script: Python with cells in the percent format. It runs in an empty folder.
    """
    notebook = jupytext.read(script, fmt="py:percent")
    notebook.metadata.kernelspec = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    with TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=TIMEOUT_S,
            coalesce_streams=True,
            startup_timeout=TIMEOUT_S,
            extra_arguments=["--InlineBackend.figure_formats={'svg'}"],
            resources={"metadata": {"path": folder}},
        ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def page(notebook: nbformat.NotebookNode, stem: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its figures by name.

    Args:
        notebook: With its output.
        stem: The name of the script.
    """
    resources = {"unique_key": stem, "output_files_dir": ""}
    text, resources = MarkdownExporter().from_notebook_node(notebook, resources)
    files = f"[notebook](../docs/tutorial/{stem}.ipynb)"
    return text.replace("\n\n", f"\n\n*This page as a file: {files}.*\n\n", 1), resources["outputs"]


def main() -> None:
    """Execute each script and write what the site needs."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:]:
        script = Path(name)
        notebook = executed(script)
        text, figures = page(notebook, script.stem)
        for figure, content in figures.items():
            (FOLDER / figure).write_bytes(content)
        nbformat.write(notebook, FOLDER / f"{script.stem}.ipynb")
        (FOLDER / f"{script.stem}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
