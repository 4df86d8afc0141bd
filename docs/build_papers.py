"""Write the pages of ``docs/papers/results``, their figures and the index: ``make papers``.

Everything comes from ``results/*.json``; hand-written pages get tables between their marks.
``--check`` writes nothing and fails if a page differs from what its results say. Figures are not
compared: pixels differ between machines.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from PIL import Image

from turnout.studies import Preset, ResultsFile, Trials, Verdict, load_preset, preset_names
from turnout.studies.measures import measure_named, shown
from turnout.studies.paper_figures import differences_of, draw, panels_of
from turnout.studies.paper_tables import (
    Judged,
    TextTable,
    all_tables,
    claims_table,
    count_sentence,
    judged_claims,
)
from turnout.studies.presets import Setting

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = ROOT / "docs" / "papers" / "results"
INDEX = ROOT / "docs" / "papers" / "index.md"

#: The hand-written page about the paper of each preset.
PROSE = {
    "e3cs-arxiv": "e3cs",
    "e3cs-arxiv-training": "e3cs",
    "e3cs-journal": "e3cs",
    "e3cs-letters": "e3cs",
    "e3cs-training": "e3cs",
    "nccb": "nccb",
    "rbcs-f": "rbcs-f",
    "rbcs-f-training": "rbcs-f",
    "ucb-cs": "ucb-cs",
    "ucb-cs-fmnist": "ucb-cs",
}

#: Where a hand-written page has a table of results.
MEASURED = re.compile(r"<!-- measured: (?P<name>\w+) -->\n.*?<!-- end -->\n", re.DOTALL)

#: The experiments in the tables of all training with E3CS's journal form, and the schemes.
TRAINED = ("e3cs-letters", "e3cs-training")
COMPARED = ("FedCS", "E3CS-0", "E3CS-inc", "Random", "pow-d")

#: Bytes of a figure that has fewer colours here than where it is drawn by the command.
LARGE = 200_000

#: The part of a hand-written page that the index shows too.
IN_SHORT = re.compile(r"^## In short\n\n(?P<text>.*?)\n\n## ", re.DOTALL | re.MULTILINE)

#: What no preset covers: the paper's task, its figures and tables, and why.
NOT_RUN = (
    (
        "E3CS, CIFAR-10 (journal)",
        "",
        "",
        "Fig. 6, Table III: 19 (Random) to 30 s (FedCS) of one core a round, 13 to 21 hours a run",
    ),
    ("E3CS, CIFAR-10 (arXiv)", "", "", "Fig. 5, Table III: an estimated 16 to 38 hours a run"),
    ("E3CS, other cohort sizes (journal)", "", "", "Appendix C: we do not have the supplement"),
    ("E3CS, images of EMNIST Letters", "", "", "Fig. 5, Table II: we do not have the images"),
    ("RBCS-F, CIFAR-10", "", "", "Figs. 5 to 7: an estimated 8 s a round"),
    ("NCCB, Superuser and Yelp", "", "", "Tables 1, 2, Figs. 3 to 5: we do not have the texts"),
)

_READ = (
    "Comparisons are paired by seed; ± is half the 95 % interval. "
    "[How verdicts are made](../verdicts.md)."
)

_INDEX_HEAD = """# The papers, claim by claim

<!-- Made by docs/build_papers.py from results; do not edit. -->

This page lists every claim of the papers that we judged, with its verdict. The linked pages have
the numbers, figures and commands. [How verdicts are made](verdicts.md).
"""


class Paper(NamedTuple):
    """A preset, what is kept of its runs, and what it was judged to be."""

    preset: Preset
    file: ResultsFile
    judged: list[Judged]
    has_page: bool

    @classmethod
    def named(cls, name: str) -> Self:
        """Return a preset with its results, if there are any."""
        preset, path = load_preset(name), RESULTS / f"{name}.json"
        file = ResultsFile.read(path, name) if path.exists() else ResultsFile(name)
        for setting, times in file.parts:
            now = preset.experiment_of(preset.setting(setting), times)
            file.check(setting, times, now.table())
        return cls(preset, file, judged_claims(preset, file), path.exists())

    @property
    def parts(self) -> dict[str, Trials]:
        """The results of each setting in the paper's own length."""
        return {label: part for (label, times), part in self.file.parts.items() if times == 1}

    @property
    def heading(self) -> str:
        """The title, with a link if there is a page."""
        title = self.preset.title
        return f"[{title}](results/{self.preset.name}.md)" if self.has_page else title


def page(paper: Paper) -> str:
    """Return the page of a preset."""
    preset, file, judged, _ = paper
    prose = PROSE[preset.name]
    parts = [
        f"# {preset.title}: results",
        "<!-- Made by docs/build_papers.py from results; do not edit. -->",
        f"{preset.paper}. Discussion: [{prose}.md](../{prose}.md).",
        _commands(preset, file),
        "\n".join(f"- {note}" for note in preset.notes),
        _missing(preset, file),
        f"## Claims\n\n{count_sentence(judged)}\n\n{_READ}",
        _markdown(claims_table(judged, title="")) if judged else "",
        "## Numbers",
        *(_markdown(table) for table in all_tables(preset, file)),
        *_figures(paper),
        _made_with(file),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def index(papers: Sequence[Paper]) -> str:
    """Return the page with all claims."""
    everything = [one for paper in papers for one in paper.judged]
    n_pages = sum(any(one.is_counted for one in paper.judged) for paper in papers)
    counts = count_sentence(everything, pages=n_pages)
    parts = [_INDEX_HEAD.rstrip(), _in_short(), "## Verdicts", _overview(papers), counts]
    parts.append(_coverage(papers))
    for paper in papers:
        parts += [f"## {paper.heading}", _verdicts(paper.judged)]
        parts.append(_missing(paper.preset, paper.file))
    return "\n\n".join(part for part in parts if part) + "\n"


def _in_short() -> str:
    """Return what the hand-written pages say in short, one paper after the other."""
    parts = [
        "## In short",
        "The pages of the papers have the details and list every error that we found in the texts.",
    ]
    for name in dict.fromkeys(PROSE.values()):
        text = (INDEX.parent / f"{name}.md").read_text(encoding="utf-8")
        title, short = text.splitlines()[0].removeprefix("# "), IN_SHORT.search(text)
        if short is None:
            raise SystemExit(f"docs/papers/{name}.md has no section 'In short' for the index.")
        parts += [f"### [{title}]({name}.md)", short["text"]]
    return "\n\n".join(parts)


def _verdicts(judged: Sequence[Judged]) -> str:
    """Return a row for each claim and a column for each setting, which are listed if many."""
    settings = {one.setting: one for one in judged}
    claims = dict.fromkeys((one.place, one.claim.says) for one in judged)
    found = {(one.place, one.claim.says, one.setting): _remarked(one) for one in judged}
    names = [_column(one) for one in settings.values()]
    heads = [str(i) for i in range(1, len(names) + 1)] if len(names) > 1 else names
    rows = [
        (*claim, *(found.get((*claim, setting), "") for setting in settings)) for claim in claims
    ]
    if not rows:
        return ""
    table = _table(("where", "the paper says", *heads), *rows)
    listed = "\n".join(f"{i}. {name}" for i, name in enumerate(names, 1))
    return f"{table}\n\n{listed}" if len(names) > 1 else table


def _column(one: Judged) -> str:
    """Return a setting in words: its name, seeds and why its verdicts are not counted."""
    n_seeds = one.ours.n_seeds
    words = [one.setting or "verdict", f"{n_seeds} {'seed' if n_seeds == 1 else 'seeds'}"]
    words += [f"not counted: {one.differs}"] if one.differs else []
    return ", ".join(words)


def _overview(papers: Sequence[Paper]) -> str:
    rows = []
    for paper in papers:
        counted = Counter(one.verdict for one in paper.judged if one.is_counted)
        if paper.has_page:
            rows.append((paper.heading, *(str(counted[verdict]) for verdict in Verdict)))
        else:
            rows.append((paper.heading, *("not run",) * len(Verdict)))
    return _table(("experiment", *(str(verdict) for verdict in Verdict)), *rows)


def _coverage(papers: Sequence[Paper]) -> str:
    """Return which figures and tables were run, in part or not at all."""
    rows = []
    for preset, file, *_ in papers:
        numbers = tuple(figure.number for figure in preset.figures)
        states: dict[str, set[str]] = {figure.name: set() for figure in preset.figures}
        for figure in preset.figures:
            panels = [setting for setting in preset.settings if figure.is_of(setting)]
            states[figure.name] |= _states(preset, file, panels, (figure.number,))
        for table in preset.numbers:
            title = re.match(r"Tables? \w+(?: and \w+)?", table.title)
            if title is not None:
                labels = table.settings or [setting.label for setting in preset.settings]
                blocks = [setting for setting in preset.settings if setting.label in labels]
                states.setdefault(title[0], set()).update(_states(preset, file, blocks, numbers))
        cells = [
            ", ".join(name for name, found in states.items() if _whole(found) == state)
            for state in ("run", "in part", "not run")
        ]
        rows.append((preset.title, *cells))
    whole = _table(("experiment", "run", "in part", "not run"), *rows, *NOT_RUN)
    return f"## Figures and tables\n\n{whole}"


def _states(
    preset: Preset, file: ResultsFile, settings: Sequence[Setting], numbers: tuple[int, ...]
) -> set[str]:
    """Return what was run of some figures in settings that have any of their schemes."""
    states = set()
    for setting in settings:
        labels = preset.schemes_for(setting, numbers, times=1, extras=False)
        seeds = preset.experiment_of(setting).seeds
        lacking = file.missing(setting.label, 1, labels, seeds)
        n_lacking = sum(len(those) for those in lacking.values())
        if labels:
            state = "not run" if n_lacking == len(labels) * len(seeds) else "in part"
            states.add(state if n_lacking else "run")
    return states


def _whole(states: set[str]) -> str:
    """Return the state of a figure from those of its settings."""
    return next(iter(states)) if len(states) == 1 else "in part"


def _remarked(one: Judged) -> str:
    """Return a verdict; one that could have been another stands out if it is decided."""
    if one.claim.by_construction:
        return f"{one.verdict}, by construction"
    return f"{one.verdict}" if one.verdict is Verdict.UNDECIDED else f"**{one.verdict}**"


def _missing(preset: Preset, file: ResultsFile) -> str:
    """Say which settings were not run, or only in part."""
    none, some = [], []
    numbers = tuple(figure.number for figure in preset.figures)
    for setting, times, labels in preset.plans(preset.settings, numbers, extras=True):
        seeds = preset.experiment_of(setting).seeds
        lacking = file.missing(setting.label, times, labels, seeds)
        n_lacking = sum(len(those) for those in lacking.values())
        name = setting.label or "all of it"
        name += f", {times} times as long" if times > 1 else ""
        if n_lacking == len(labels) * len(seeds):
            none.append(name)
        elif n_lacking:
            some.append(f"{name} ({_lacking(lacking)})")
    parts = [f"**Not run yet:** {'; '.join(none)}."] if none else []
    parts += [f"**Partly run:** {'; '.join(some)}."] if some else []
    return "\n\n".join(parts)


def _lacking(lacking: Mapping[str, list[int]]) -> str:
    """Return which schemes lack how many seeds, in words."""
    by_number: dict[int, list[str]] = {}
    for label, seeds in lacking.items():
        by_number.setdefault(len(seeds), []).append(label)
    return "; ".join(
        f"{number} {'seed' if number == 1 else 'seeds'} of {', '.join(labels)} missing"
        for number, labels in sorted(by_number.items())
    )


def _commands(preset: Preset, file: ResultsFile) -> str:
    """Return the commands that make what is there: all of it, or setting by setting."""
    command = f"turnout reproduce {preset.name}"
    if not _missing(preset, file):
        return f"```console\n{command} --results results\n```"
    lines = []
    for setting in preset.settings:
        part = file.parts.get((setting.label, 1))
        if part is not None:
            lines.append(f'{command} --setting "{setting.label}"{_which(preset, setting, part)}')
    return "\n".join(("```console", *(f"{line} --results results" for line in lines), "```"))


def _which(preset: Preset, setting: Setting, part: Trials) -> str:
    """Return the options that choose what a setting has: its figures, with or without extras."""
    numbers = tuple(figure.number for figure in preset.figures if figure.is_of(setting))
    drawn = [
        number
        for number in numbers
        if set(preset.schemes_for(setting, (number,), times=1, extras=False)) <= set(part.labels)
    ]
    some = bool(drawn) and len(drawn) < len(numbers)  # without any complete, all are under way
    figures = f" --figure {' '.join(map(str, drawn))}" if some else ""
    wanted = preset.schemes_for(setting, numbers, times=1, extras=True)
    plain = preset.schemes_for(setting, numbers, times=1, extras=False)
    has_extras = set(wanted) - set(plain) <= set(part.labels)
    return figures + ("" if has_extras else " --no-extras")


def _markdown(table: TextTable) -> str:
    title = f"{table.title}:\n\n" if table.title else ""
    return title + "\n".join(table.markdown())


def _figures(paper: Paper) -> list[str]:
    """Return the figures with their captions; those of differences follow their own."""
    lines = []
    for figure in paper.preset.figures:
        stem = f"{paper.preset.name}/figure-{figure.number}"
        if panels_of(figure, paper.parts):
            caption = f"*{figure.name}, ours. {figure.caption}*".replace(". *", ".*")
            lines.append(f"![{figure.name}, ours]({stem}.png)\n\n{caption}")
        if differences_of(figure, paper.parts):
            name = f"{figure.name}, ours, minus {figure.against} with the same seed"
            caption = f"*{name}. {figure.caption} Axes differ.*"
            lines.append(f"![{name}]({stem}-differences.png)\n\n{caption}")
    return lines


def _made_with(file: ResultsFile) -> str:
    known = [
        f"{name} {file.made_with[name]}"
        for name in ("turnout", "numpy", "torch", "python")
        if name in file.made_with
    ]
    return f"Made with {', '.join(known)}." if known else ""


def _hand_written(papers: Sequence[Paper]) -> dict[Path, str]:
    """Return the hand-written pages, with the tables of results that they have marks for."""
    theorems = json.loads((RESULTS / "theorems.json").read_text(encoding="utf-8"))
    tables = {name: _table(*lines) for name, lines in theorems.items()}
    trained = [paper for paper in papers if paper.preset.name in TRAINED]
    tables["e3cs_rounds"] = _by_setting(trained, ("seeds", "target", *COMPARED), _rounds)
    tables["e3cs_final"] = _by_setting(trained, COMPARED, _final)
    for preset, file, *_ in papers:
        made = {table.title: table for table in all_tables(preset, file)}
        if preset.cost is not None and preset.cost.title in made:
            cost = made[preset.cost.title]
            tables[f"cost_{preset.name.replace('-', '_')}"] = "\n".join(cost.markdown())

    def table(mark: re.Match[str]) -> str:
        return f"<!-- measured: {mark['name']} -->\n{tables[mark['name']]}\n<!-- end -->\n"

    pages = (INDEX.parent / f"{name}.md" for name in sorted(set(PROSE.values())))
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    return {page: MEASURED.sub(table, text) for page, text in texts.items()}


def _rounds(preset: Preset, part: Trials) -> tuple[str, ...]:
    """Return seeds, the target of a preset's claims and the median rounds to it."""
    claimed = (claim.measure for claim in preset.claims)
    measure = next(name for name in claimed if measure_named(name).is_time_to)
    target = f"{float(measure.rpartition('-')[2]):.0%}"
    return (str(part.n_seeds(part.labels[0])), target, *_compared(part, measure))


def _final(preset: Preset, part: Trials) -> tuple[str, ...]:
    """Return mean final accuracies with their intervals."""
    return tuple(_compared(part, "final-hold-out"))


def _compared(part: Trials, measure: str) -> list[str]:
    """Return a measure of each scheme that is compared; empty for one that was not run."""
    return [
        shown(part.values(label, measure), measure_named(measure)) if label in part.labels else ""
        for label in COMPARED
    ]


def _by_setting(
    papers: Sequence[Paper],
    headings: Sequence[str],
    cells: Callable[[Preset, Trials], tuple[str, ...]],
) -> str:
    """Return a table with a row for each setting that was run."""
    rows = (
        (setting.label, *cells(preset, part))
        for preset, file, *_ in papers
        for setting in preset.settings
        if (part := file.parts.get((setting.label, 1))) is not None
    )
    return _table(("setting", *headings), *rows)


def _table(headings: Sequence[str], *rows: Sequence[str]) -> str:
    return _markdown(TextTable("", tuple(headings), tuple(map(tuple, rows))))


def _shrink(path: Path) -> None:
    """Keep 256 colours of a large figure: its file is then a third as large.

    Bands over bands have more, which nobody misses. Scales of colours would, and are small.
    """
    if path.stat().st_size > LARGE:
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def main() -> int:
    """Write the pages, or check them."""
    is_check = "--check" in sys.argv[1:]
    texts: dict[Path, str] = {}
    papers = [Paper.named(name) for name in preset_names()]
    for paper in papers:
        if not paper.has_page:
            continue
        preset = paper.preset
        texts[PAGES / f"{preset.name}.md"] = page(paper)
        if not is_check:
            folder, order = PAGES / preset.name, preset.experiment.labels
            folder.mkdir(parents=True, exist_ok=True)
            for figure in preset.figures:
                for path in draw(figure, paper.parts, folder, order=order, formats=("png",)):
                    _shrink(path)
    texts[INDEX] = index(papers)
    texts |= _hand_written(papers)
    unmade = [p for p in PAGES.glob("*.md") if p not in texts]  # of presets that are gone
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text]
    for path in stale:
        if is_check:
            print(f"{path.relative_to(ROOT)} differs from its results: run make papers.")
        else:
            path.write_text(texts[path], encoding="utf-8")
    for path in unmade:
        print(f"{path.relative_to(ROOT)} belongs to no results: delete it.")
    return 1 if unmade or (is_check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
