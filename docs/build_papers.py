"""Write the pages of ``docs/papers/results``, their figures and the index: ``make papers``.

Everything comes from ``results/*.json``. ``--check`` writes nothing and fails if a page differs
from what its results say. Figures are not compared: pixels differ between machines.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from turnout.papers import Preset, ResultsFile, Verdict, load_preset, preset_names
from turnout.papers.plots import draw
from turnout.papers.presets import Figure
from turnout.papers.tables import (
    Judged,
    TextTable,
    all_tables,
    claims_table,
    count_sentence,
    judged_claims,
)

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = ROOT / "docs" / "papers" / "results"
INDEX = ROOT / "docs" / "papers" / "index.md"

#: The hand-written page about the paper of each preset.
PROSE = {
    "e3cs-arxiv": "e3cs",
    "e3cs-arxiv-training": "e3cs",
    "e3cs-journal": "e3cs",
    "e3cs-training": "e3cs",
    "nccb": "nccb",
    "rbcs-f": "rbcs-f",
    "rbcs-f-training": "rbcs-f",
    "ucb-cs": "ucb-cs",
    "ucb-cs-fmnist": "ucb-cs",
}

_READ = "Paired by seed; ± is half the 95 % interval. [How verdicts are made](../verdicts.md)."

_INDEX_HEAD = """# The papers, claim by claim

<!-- Made by docs/build_papers.py from results; do not edit. -->

Every sentence of the papers that we judged, with its verdict. The pages behind the links have the
numbers, figures and commands. [How verdicts are made](verdicts.md). What we make of it, and every
error of the texts that we found: [E3CS](e3cs.md), [RBCS-F](rbcs-f.md), [UCB-CS](ucb-cs.md),
[NCCB](nccb.md).
"""


def page(name: str, preset: Preset, file: ResultsFile) -> str:
    """Return the page of a preset."""
    judged = judged_claims(preset, file)
    parts = [
        f"# {preset.title}: results",
        "<!-- Made by docs/build_papers.py from results; do not edit. -->",
        f"{preset.paper}. What we make of it: [{PROSE[name]}.md](../{PROSE[name]}.md).",
        f"```console\nturnout reproduce {name} --results results\n```",
        "\n".join(f"- {note}" for note in preset.notes),
        _missing(preset, file),
        f"## Claims\n\n{count_sentence(judged)}\n\n{_READ}",
        _markdown(claims_table(judged, title="")) if judged else "",
        "## Numbers",
        *(_markdown(table) for table in all_tables(preset, file)),
        *_figures(name, preset, file),
        _made_with(file),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index(pages: dict[str, list[Judged]]) -> str:
    """Return the page with all claims."""
    parts = [_INDEX_HEAD.rstrip(), _overview(pages)]
    for name, judged in pages.items():
        title = load_preset(name).title
        rows = [
            (
                str(one.claim.figure),
                one.claim.says,
                one.setting or "-",
                str(one.ours.n_seeds),
                one.verdict + (", by construction" if one.claim.by_construction else ""),
            )
            for one in judged
        ]
        headings = ("fig.", "the paper says", "setting", "seeds", "verdict")
        parts.append(f"## [{title}](results/{name}.md)")
        parts.append(_markdown(TextTable("", headings, tuple(rows))))
    return "\n\n".join(parts) + "\n"


def _overview(pages: dict[str, list[Judged]]) -> str:
    rows = []
    for name, judged in pages.items():
        counted = Counter(one.verdict for one in judged if not one.claim.by_construction)
        cells = (str(counted[verdict]) for verdict in Verdict)
        rows.append((f"[{load_preset(name).title}](results/{name}.md)", *cells))
    table = TextTable("", ("experiment", *(str(verdict) for verdict in Verdict)), tuple(rows))
    return _markdown(table)


def _missing(preset: Preset, file: ResultsFile) -> str:
    """Name the settings that were not run."""
    labels = [s.label for s in preset.settings if (s.label, 1) not in file.parts]
    return f"**Not run yet:** {'; '.join(labels)}." if labels else ""


def _markdown(table: TextTable) -> str:
    title = f"{table.title}:\n\n" if table.title else ""
    return title + "\n".join(table.markdown())


def _drawn(preset: Preset, file: ResultsFile) -> list[Figure]:
    """Return the figures of which at least one scheme has results."""
    there = {
        label for (_, times), part in file.parts.items() if times == 1 for label in part.schemes
    }
    return [figure for figure in preset.figures if there.intersection(figure.schemes)]


def _figures(name: str, preset: Preset, file: ResultsFile) -> list[str]:
    return [
        f"![Figure {figure.number}, ours]({name}/figure-{figure.number}.png)\n\n"
        f"*Fig. {figure.number}, ours. {figure.caption}*".replace(". *", ".*")
        for figure in _drawn(preset, file)
    ]


def _made_with(file: ResultsFile) -> str:
    known = [
        f"{name} {file.made_with[name]}"
        for name in ("turnout", "numpy", "torch", "python")
        if name in file.made_with
    ]
    return f"Made with {', '.join(known)}." if known else ""


def main() -> int:
    """Write the pages, or check them."""
    is_check = "--check" in sys.argv[1:]
    texts: dict[Path, str] = {}
    judged: dict[str, list[Judged]] = {}
    for name in preset_names():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        preset, file = load_preset(name), ResultsFile.read(path, name)
        judged[name] = judged_claims(preset, file)
        texts[PAGES / f"{name}.md"] = page(name, preset, file)
        if not is_check:
            folder = PAGES / name
            folder.mkdir(parents=True, exist_ok=True)
            parts = {label: part for (label, times), part in file.parts.items() if times == 1}
            for figure in _drawn(preset, file):
                draw(figure, parts, folder, formats=("png",))
    texts[INDEX] = index(judged)
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)} differs from its results: run make papers.")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
