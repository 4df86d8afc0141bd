"""Write the pages of ``docs/papers/results``, their figures and the index: ``make papers``.

Everything comes from ``results/*.json``; hand-written pages get tables between their marks.
``--check`` writes nothing and fails if a page differs from what its results say. Figures are not
compared: pixels differ between machines.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from PIL import Image

from turnout.report.figure import Axis, Chart, Guide, Line, Mark, Panel
from turnout.report.to_matplotlib import write_figure
from turnout.results.statistics import LEVEL, estimate
from turnout.studies import Preset, ResultsFile, Trials, Verdict, load_preset, preset_names
from turnout.studies.measures import measure_named, shown
from turnout.studies.paper_figures import differences_of, draw, panels_of
from turnout.studies.paper_tables import (
    Judged,
    TextTable,
    all_tables,
    claims_table,
    details,
    judged_claims,
)
from turnout.studies.plan import HEADLINE, Ruling, load_plan, read_headline
from turnout.studies.presets import Setting

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = ROOT / "docs" / "papers" / "results"
INDEX = ROOT / "docs" / "papers" / "index.md"
EXPLORED = INDEX.with_name("explored.md")
FOREST = INDEX.with_name("headline.svg")

#: The hand-written page about the paper of each preset.
PROSE = {
    "e3cs-arxiv": "e3cs",
    "e3cs-arxiv-training": "e3cs",
    "e3cs-journal": "e3cs",
    "e3cs-letters": "e3cs",
    "e3cs-training": "e3cs",
    "nccb": "nccb",
    "nccb-text": "nccb",
    "rbcs-f": "rbcs-f",
    "rbcs-f-training": "rbcs-f",
    "ucb-cs": "ucb-cs",
    "ucb-cs-fmnist": "ucb-cs",
    "ucb-cs-grid": "ucb-cs",
}

#: Where a hand-written page has a table of results.
MEASURED = re.compile(r"<!-- measured: (?P<name>\w+) -->\n.*?<!-- end -->\n", re.DOTALL)

#: The experiments in the tables of all training with E3CS's journal form, and the schemes.
TRAINED = ("e3cs-letters", "e3cs-training")
COMPARED = ("FedCS", "E3CS-0", "E3CS-inc", "Random", "pow-d")

#: Bytes of a figure that has fewer colours here than where it is drawn by the command.
LARGE = 200_000

#: What no preset covers: the paper's task, its figures and tables, and why.
NOT_RUN = (
    (
        "E3CS, CIFAR-10 (journal)",
        "",
        "",
        "Fig. 6, Table III: 19 (Random) to 30 s (FedCS) of one core a round, 13 to 21 hours a run",
    ),
    (
        "E3CS, CIFAR-10 (arXiv)",
        "",
        "",
        "Fig. 5, Table III: 35 (Random) to 66 s (FedCS) of one core a round, 19 to 37 hours a run",
    ),
    ("E3CS, other cohort sizes (journal)", "", "", "Appendix C: we do not have the supplement"),
    ("E3CS, images of EMNIST Letters", "", "", "Fig. 5, Table II: we do not have the images"),
    ("RBCS-F, CIFAR-10", "", "", "Figs. 5 to 7: 6 s of one core a round"),
    ("NCCB, Superuser and Yelp", "", "", "Tables 1, 2, Figs. 3 to 5: we do not have the texts"),
)

_READ = (
    "Effects are differences between schemes with the same seed, with half the 95 % interval; of "
    "times, ratios with their interval. These claims are explored, not decided: see the [headline "
    "claims](../index.md)."
)

#: The colour of a verdict in the forest plot, as a number of the palette, and its meaning.
VERDICTS = {
    Verdict.HOLDS: 2,
    Verdict.FAILS: 1,
    Verdict.UNDECIDED: 0,
    Verdict.NOT_REACHED: 4,
    None: "#bbbbbb",
}
#: Verdicts in the order in which a reader looks for them, and for several claims.
ORDER = {
    "holds": "hold",
    "fails": "fail",
    "undecided": "undecided",
    "not reached": "not reached",
    "still running": "still running",
    "not run yet": "not run yet",
}
#: The ends of the forest plot: 0 separates "holds" from "fails", 1 is the planned effect.
ENDS = (-3.0, 5.0)

_MADE = "<!-- Made by docs/build_papers.py from results; do not edit. -->"

_INDEX_HEAD = f"""# What the papers promise, and what we measured

{_MADE}

We test {{n}} headline claims of five papers. A plan (`src/turnout/studies/plan.toml`) fixed each
claim, its measure and the number of its seeds before the runs that decide it. `turnout reproduce
headline` runs it. Other pages explain [how verdicts are made](verdicts.md), list [errors in the
papers](errata.md) and show [everything else that we measured](explored.md).
"""

_CAPTION = (
    "*Each claim has a unit of its own. 0 is the border between holds and fails, and 1 is the "
    "effect for which the number of seeds was planned: the paper's number where it prints one "
    "(mark), else a choice of ours. Bars are 95 % intervals. Grey effects come from the pilot, the "
    "runs before the plan, which set the number of seeds and do not count.*"
)

_EXPLORED = (
    "This page shows the effects of all claims that we measured besides the [headline "
    "claims](index.md). No plan fixed them before their runs. Most have three to ten seeds, and "
    "many overlap, so there are no verdicts here. An interval that is far from zero is a hint, "
    "not a finding."
)

#: The papers in the order of the index: the page of their claims, the start of their places, and
#: what the method does.
PAPERS = (
    (
        "E3CS, journal form",
        "e3cs",
        ("journal", "ours"),
        "It prefers clients that usually answer in time and guarantees each a minimum chance: none "
        "(E3CS-0), or the same for all from a quarter of training on (E3CS-inc).",
    ),
    ("E3CS, arXiv form", "e3cs", ("arXiv",), "The same method as first posted."),
    (
        "RBCS-F",
        "rbcs-f",
        ("",),
        "It learns who is fast and owes every client a share of the rounds; V weighs time against "
        "that debt.",
    ),
    (
        "UCB-CS",
        "ucb-cs",
        ("",),
        "It prefers clients whose loss was high when they last trained, or who have not trained "
        "for long.",
    ),
    (
        "NCCB",
        "nccb",
        ("",),
        "It groups clients by their texts, and a small network learns whose training helps most.",
    ),
)


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
        _MADE,
        f"{preset.paper}. Discussion: [{prose}.md](../{prose}.md).",
        _commands(preset, file),
        "\n".join(f"- {note}" for note in preset.notes),
        _missing(preset, file),
        f"## Claims\n\n{_READ}",
        _explored(judged),
        "## Numbers",
        *(_markdown(table) for table in all_tables(preset, file)),
        *_figures(paper),
        _made_with(file),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _explored(judged: Sequence[Judged]) -> str:
    """Return claims with short cells; readings and the numbers of every scheme unfold."""
    if not judged:
        return "No claim can be judged yet: the schemes that it compares were not all run."
    table = claims_table(judged, title="")
    shown = [i for i, name in enumerate(table.headings) if name not in {"alone", "as published"}]
    rows = ([row[i] for i in shown] for row in (table.headings, *table.rows))
    unfolded = "".join(f"<li>{html.escape(text)}</li>\n" for text in details(judged))
    summary = "<summary>Readings, and the numbers of every scheme</summary>"
    return f"{_table(*rows)}\n\n<details>{summary}\n<ul>\n{unfolded}</ul>\n</details>"


def index(rulings: Sequence[Ruling], papers: Sequence[Paper]) -> str:
    """Return the page that a reader finishes: the forest plot, five paragraphs and the table."""
    parts = [
        _INDEX_HEAD.format(n=len(rulings)).rstrip(),
        f"![The headline claims: effects, intervals and verdicts]({FOREST.name})",
        _CAPTION,
        _counted(rulings),
        *(_paragraph(name, page, starts, does, rulings) for name, page, starts, does in PAPERS),
        "## The headline claims",
        _headlines(rulings),
        "An effect is the mean over all settings of a claim, paired by seed: a ratio of times or "
        "losses (x), or a difference (pt: points of accuracy). Of several comparisons, the weakest "
        "counts and is shown. Numbers in parentheses are of the pilot and do not count. What the "
        "paper prints is shown as its mean. Hours are what the runs of a claim take on one core; "
        "claims share runs.",
        _coverage(papers),
        "## Readings fixed after a look",
        "No headline claim is among these. We changed or added them when results had been seen:",
        "\n".join(f"- {text}" for text in _after_a_look(papers)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def explored(papers: Sequence[Paper]) -> str:
    """Return the page of all claims that no plan fixed."""
    parts = ["# Explored", _MADE, _EXPLORED]
    for paper in papers:
        parts += [f"## {paper.heading}", _explored(paper.judged) if paper.judged else ""]
        parts.append(_missing(paper.preset, paper.file))
    return "\n\n".join(part for part in parts if part) + "\n"


def _counted(rulings: Sequence[Ruling]) -> str:
    """Return how many headline claims have which verdict."""
    counts = Counter(one.text for one in rulings)
    words = ", ".join(
        f"{counts[text]} {text if counts[text] == 1 else plural}"
        for text, plural in ORDER.items()
        if counts[text]
    )
    return (
        f"**{len(rulings)} headline claims: {words}.** Holm's correction keeps the chance of any "
        f"wrong verdict among them at {LEVEL * 100:.0f} %."
    )


def _paragraph(
    name: str, page: str, starts: tuple[str, ...], does: str, rulings: Sequence[Ruling]
) -> str:
    """Return what a method does, and what the runs say about it, verdict by verdict."""
    own, texts = _of_paper(rulings, page, starts), []
    for verdict in ORDER:
        claims = "; ".join(_said(one) for one in own if one.text == verdict)
        texts += [f"**{verdict.capitalize()}:** {claims}."] if claims else []
    return f"**[{name}]({page}.md).** {does} {' '.join(texts)}"


def _of_paper(rulings: Sequence[Ruling], page: str, starts: tuple[str, ...]) -> list[Ruling]:
    """Return the headline claims of a paper."""
    return [
        one
        for one in rulings
        if one.headline.paper == page and one.headline.claim.place.startswith(starts)
    ]


def _said(one: Ruling) -> str:
    """Return a claim in a few words with our effect and the paper's."""
    ours = f"{'' if one.verdict else 'pilot '}{one.effect}"
    numbers = [ours, _papers_number(one, "the paper ")]
    if one.verdict == Verdict.UNDECIDED and one.finding:  # why, if a time is not known
        numbers.append(one.finding.deciding.partition(", ")[2])
    says = one.headline.short.partition(": ")[2]
    return f"{says} ({', '.join(number for number in numbers if number)})"


def _papers_number(one: Ruling, before: str = "") -> str:
    headline = one.headline
    return before + headline.shown(headline.planned) if headline.printed else ""


def _headlines(rulings: Sequence[Ruling], page: str = "") -> str:
    """Return a row for each claim with short cells; the papers' own sentences unfold.

    On the index, rows link to the pages of the papers; on such a page, it names them.
    """
    rows = [
        (
            one.headline.short if page else f"[{one.headline.short}]({_place(one)})",
            _papers_number(one),
            one.effect if one.verdict else f"({one.effect})",
            one.interval if one.verdict else f"({one.interval})",
            f"{one.n_done} of {one.headline.seeds}",
            f"**{one.text}**" if one.verdict else f"{one.text}{one.cost and f' ({one.cost})'}",
        )
        for one in rulings
        if page in ("", one.headline.paper)
    ]
    heads = ("claim", "paper", "ours", "95 % interval", "seeds", "verdict")
    said = "".join(
        f"<li><b>{html.escape(one.headline.short)}</b>: {html.escape(_sentence(one))}</li>\n"
        for one in rulings
        if page in ("", one.headline.paper)
    )
    summary = "<summary>The sentences behind the rows, and what stands in for the papers' tasks"
    return f"{_table(heads, *rows)}\n\n<details>{summary}</summary>\n<ul>\n{said}</ul>\n</details>"


def _place(one: Ruling) -> str:
    return f"{one.headline.paper}.md#headline-claims"


def _sentence(one: Ruling) -> str:
    """Return the sentence of a claim, where it stands, and how it was measured."""
    headline, plan = one.headline, load_plan()
    places = list(plan.places(headline))
    stand_ins = dict.fromkeys(group.stand_in for _, group, _ in places if group.stand_in)
    n = len(places) * max(len(group.suffixes) for _, group, _ in places)
    over = "any of" if headline.claim.is_anywhere else "pooled over"
    where = "one setting" if n == 1 else f"{over} {n} settings"
    parts = [f"{headline.claim.says} ({headline.claim.place})", where, *stand_ins]
    return "; ".join(parts) + "."


def _after_a_look(papers: Sequence[Paper]) -> list[str]:
    """Return what was changed after results had been seen."""
    claims = (claim.after_look for paper in papers for claim in paper.preset.claims)
    settings = (
        f"{paper.preset.title}: {setting.label} ({setting.differs})"
        for paper in papers
        for setting in paper.preset.settings
        if "added later" in setting.differs
    )
    return [text for text in dict.fromkeys((*claims, *settings)) if text]


def forest(rulings: Sequence[Ruling]) -> Chart:
    """Return the forest plot: a row per claim, the first on top."""
    rowed = list(zip(range(len(rulings), 0, -1), rulings, strict=True))
    ticks = {float(y): one.headline.short for y, one in rowed}
    marks: list[Mark] = [Guide("x", 0.0), Guide("x", 1.0, "dot")]
    for verdict, colour in VERDICTS.items():
        rows = [(float(y), *_position(one)) for y, one in rowed if one.verdict == verdict]
        at, mean, low, high = np.array(rows).reshape(-1, 4).T
        how: dict[str, Any] = {"role": "points", "size": 6.0, "x_range": np.stack([low, high])}
        marks += (
            [Line(str(verdict or "pilot, not counted"), colour, mean, at, **how)] if rows else []
        )
    printed = np.array([y for y, one in rowed if one.headline.printed], dtype=np.float64)
    paper = Line("the paper's number", 6, np.ones(printed.size), printed, role="points", size=5.0)
    panel = Panel(
        [*marks, paper],
        Axis("fails  <  0  <  holds; 1 is the planned effect", low=ENDS[0], high=ENDS[1]),
        Axis(ticks=ticks, tick_size=8.0, low=0.3, high=len(rulings) + 0.7),
        height=0.26 * len(rulings),
    )
    return Chart(FOREST.stem, "Headline claims", "", [panel], is_wide=True)


def _position(one: Ruling) -> tuple[float, ...]:
    """Return mean and ends of an effect on the axis of the forest plot, within its ends."""
    headline, effect = one.headline, one.finding.effect if one.finding else estimate(())
    unit = headline.planned - headline.border
    ends = (effect.mean, effect.low, effect.high)
    return tuple(float(np.clip((end - headline.border) / unit, *ENDS)) for end in ends)


def _coverage(papers: Sequence[Paper]) -> str:
    """Return which figures and tables were run, in part or not at all."""
    rows = []
    for paper in papers:
        preset, file = paper.preset, paper.file
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
        for name in preset.in_part:
            if states[name] != {"not run"}:
                states[name].add("in part")
        by_state: dict[str, dict[str, list[str]]] = {"run": {}, "in part": {}, "not run": {}}
        for name, found in states.items():
            because = by_state[_whole(found)]
            because.setdefault(preset.in_part.get(name, ""), []).append(name)
        cells = [
            "; ".join(
                ", ".join(names) + (f" ({reason})" if reason else "")
                for reason, names in because.items()
            )
            for because in by_state.values()
        ]
        rows.append((paper.heading, *cells))
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


def _hand_written(papers: Sequence[Paper], rulings: Sequence[Ruling]) -> dict[Path, str]:
    """Return the hand-written pages, with the tables of results that they have marks for."""
    theorems = json.loads((RESULTS / "theorems.json").read_text(encoding="utf-8"))
    tables = {name: _table(*lines) for name, lines in theorems.items()}
    tables |= {
        f"headline_{name.replace('-', '_')}": _headlines(rulings, name)
        for name in dict.fromkeys(PROSE.values())
    }
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
    plan = load_plan()
    found = plan.rulings(read_headline(RESULTS / f"{HEADLINE}.json", plan))
    found = [
        one if one.finding else one._replace(finding=plan.pilot(one.headline, RESULTS))
        for one in found
    ]
    rulings = [one for _, page, starts, _ in PAPERS for one in _of_paper(found, page, starts)]
    texts[INDEX], texts[EXPLORED] = index(rulings, papers), explored(papers)
    if not is_check:
        write_figure(forest(rulings), [FOREST])
    texts |= _hand_written(papers, rulings)
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
