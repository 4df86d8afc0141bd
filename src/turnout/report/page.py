"""The report: one page that needs no network, made of templates, style, scripts and data."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import io
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from turnout.core.files import write_atomically, writing_to
from turnout.core.names import import_extra, shortened
from turnout.report.charts import sections, world_charts
from turnout.report.figure import Chart
from turnout.report.live import live_views
from turnout.report.to_plotly import plotly_chart, plotly_maps
from turnout.results import open_runs
from turnout.results.catalogue import at_targets, shown_in
from turnout.results.groups import VariantCells, WorldGroup, differences, refuse_mixed
from turnout.results.metric import Facts, Metric
from turnout.results.reader import Cell, Problem
from turnout.results.results import cell_row
from turnout.results.scores import Scores, Versus
from turnout.results.sensitivity import is_one_sweep, point_name
from turnout.results.statistics import Estimate
from turnout.results.tables import (
    Entry,
    Mark,
    ScoreTable,
    compared_metrics,
    difference_table,
    mean_table,
    suitable,
    targets_of,
    usual_metrics,
)

if TYPE_CHECKING:
    from jinja2 import Environment

#: Names that commands give to experiments; such a page is titled by its folder.
_COMMANDS = ("", "compare", "simulate", "train")
#: Experiments that the title names.
_MOST_NAMES = 3


#: The remedy for runs of several worlds.
_ONE_WORLD = (
    "Report them one at a time, or allow mixed worlds (--allow-mixed): one section per world."
)


class Report(NamedTuple):
    """A report that was written.

    Attributes:
        path: The page.
        rows: The summary tables, each row with its world_id.
        problems: The warnings of the page.
        n_cells: Cells shown.
    """

    path: Path
    rows: list[tuple[str, Row]]
    problems: list[Problem]
    n_cells: int


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    allow_mixed: bool = False,
) -> Report:
    """Write the page of experiment folders and cell folders.

    Args:
        paths: Run folders: experiments, single cells or folders above them.
        out: The file to write; missing folders are made.
        allow_mixed: Whether runs of different worlds get a section each. Otherwise they are
            refused, unless they are the points of one sweep.

    Returns:
        The path of the page, the rows of its summary and its warnings.

    Raises:
        InvalidInput: If nothing can be shown, or the runs do not compare.
        OutputError: If the file cannot be written.
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    worlds, problems = _read(paths, allow_mixed)
    path = _write(Path(out), render(worlds, problems))
    rows = [
        (world.settings.world_id, row)
        for world in worlds
        for row in summary_rows(world, suitable(world, shown_in("report")))
    ]
    return Report(path, rows, problems, sum(len(world.cells) for world in worlds))


def report_page(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Return the page, with a section for each world.

    Args:
        paths: Run folders, as ``write_report`` takes them.

    Raises:
        InvalidInput: If nothing can be shown.
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    return render(*_read(paths, allow_mixed=True))


def _read(
    paths: Iterable[str | os.PathLike[str]], allow_mixed: bool
) -> tuple[Sequence[WorldGroup], list[Problem]]:
    """Return the worlds to show, and the warnings."""
    results = open_runs(*paths)
    worlds, problems = results.worlds, list(results.problems)
    is_swept = is_one_sweep(worlds)
    if not (allow_mixed or is_swept):
        refuse_mixed(worlds, _ONE_WORLD)
    if len(worlds) > 1 and not is_swept:
        text = "; ".join(differences(worlds))
        message = f"{len(worlds)} worlds: compare only inside a section. They differ: {text}."
        problems.insert(0, Problem("mixed", "", message))
    return worlds, problems


def _write(out: Path, page: str) -> Path:
    """Write the page; a character that no file can hold, such as half an emoji, becomes ``?``."""
    with writing_to(out, "choose another file with --out"):
        if out.exists() and not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, "the file is read-only")
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page.encode("utf-8", "replace"))
    return out


def render(worlds: Sequence[WorldGroup], problems: Sequence[Problem]) -> str:
    """Return the page; the same cells give the same page, byte for byte.

    Args:
        worlds: The groups of cells that compare, one section each.
        problems: What the reader must know first.

    Raises:
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    cells = [cell for world in worlds for cell in world.cells]
    names = dict.fromkeys(variant.name for world in worlds for variant in world.variants)
    order = {name: number for number, name in enumerate(names)}
    views = [world_view(world, f"w{number}", order) for number, world in enumerate(worlds)]
    sweep = list(world_charts(worlds, order))
    styles = ["report.css", "live.css"] if any(view["live"] for view in views) else ["report.css"]
    scripts = [plotly_js(), packaged("figures.js"), packaged("report.js")]
    page = templates().get_template("page.html")
    return page.render(
        title=title_of(cells) or "turnout report",
        policy=_security_policy(scripts),
        style=trusted("".join(packaged(name) for name in styles)),
        scripts=[trusted(script) for script in scripts],
        problems=problems,
        order=order,
        sweep=sweep,
        worlds=views,
        data=figures(
            {"sweep": sweep}
            | {view["id"]: view["charts"] for view in views}
            | {live.id: live.charts for view in views for live in view["live"]}
        ),
        cells=cells_csv(cells),
    )


def write_advice(shown: Mapping[str, Any], out: str | os.PathLike[str]) -> Path:
    """Write the page of ``turnout recommend --from``, which has no script; return its path.

    Args:
        shown: Title, headings, rows, sentences and lines to change, as plain data.
        out: The file to write; missing folders are made.

    Raises:
        OutputError: If the file cannot be written.
        MissingExtra: If Jinja2 is not installed.
    """
    style = trusted(packaged("report.css") + packaged("live.css"))
    page = templates().get_template("advice.html")
    return _write(Path(out), page.render(policy=_security_policy([]), style=style, **shown))


def trusted(shipped: str) -> Any:
    """Return text that pages show as it is: only for files that turnout and plotly ship."""
    return _needed("markupsafe").Markup(shipped)


def title_of(cells: Iterable[Cell]) -> str:
    """Return the title of a page: the experiments, or the folders of those without a name.

    Args:
        cells: The cells that are shown.
    """
    names = dict.fromkeys(
        cell.path.resolve().parents[1].name
        if cell.settings.experiment in _COMMANDS
        else cell.settings.experiment
        for cell in cells
    )
    shown = [name for name in names if name]
    return ", ".join([*shown[:_MOST_NAMES], "…"] if len(shown) > _MOST_NAMES else shown)


def templates() -> Environment:
    """Return the templates of the pages; every value that they show is escaped.

    Raises:
        MissingExtra: If Jinja2 is not installed.
    """
    jinja2 = _needed("jinja2")
    environment: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("turnout.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def figures(charts: Mapping[str, Iterable[Chart]]) -> dict[str, dict[str, Any]]:
    """Return what the script draws, by the id of the element it is drawn in.

    Args:
        charts: The charts of each part of the page.
    """
    data: dict[str, dict[str, Any]] = {"charts": {}, "maps": {}}
    for place, those in charts.items():
        for chart in those:
            kind, drawn = ("maps", plotly_maps) if chart.is_menu else ("charts", plotly_chart)
            data[kind][f"{place}-{chart.key}"] = drawn(chart)
    return data


def _needed(module: str) -> Any:
    """Return a module of the extra ``report``, or say how to install it."""
    name = module.partition(".")[0]
    return import_extra(module, f"the report needs {name}: pip install 'turnout[report]'")


def plotly_js() -> str:
    """Return plotly's script as a browser will see it, so that its hash fits."""
    script: str = _needed("plotly.offline").get_plotlyjs()
    return script.replace("\r\n", "\n").replace("\r", "\n")


def packaged(name: str) -> str:
    """Return a text that turnout ships with the report.

    Args:
        name: The file.
    """
    return resources.files("turnout.report").joinpath(name).read_text(encoding="utf-8")


def _security_policy(scripts: Sequence[str]) -> str:
    """Return a policy under which only these scripts run and nothing is fetched."""
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def cells_csv(cells: Iterable[Cell]) -> str:
    """Return a table with one row per cell, as the address of a file inside the page.

    Args:
        cells: The cells of all worlds.

    Returns:
        A ``data:`` address of a CSV file; undefined numbers are empty.
    """
    rows = [cell_row(cell) for cell in cells]
    text = io.StringIO(newline="")
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        undefined = {name for name, v in row.items() if isinstance(v, float) and math.isnan(v)}
        writer.writerow(row | dict.fromkeys(undefined, ""))
    content = base64.b64encode(text.getvalue().encode("utf-8", "replace")).decode("ascii")
    return f"data:text/csv;charset=utf-8;base64,{content}"


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One selector in the summary table.

    Attributes:
        name: Label of the selector.
        n_seeds: Runs that count.
        n_reached: By column, the runs that have a number.
        estimates: By column; columns without a number are absent.
        best: Columns in which no other mean is better.
        tied: Columns whose paired difference to the best may be zero.
    """

    name: str
    n_seeds: int
    n_reached: Mapping[str, int]
    estimates: Mapping[str, Estimate]
    best: frozenset[str]
    tied: frozenset[str]


def summary_rows(world: WorldGroup, metrics: Sequence[Metric[Facts]]) -> list[Row]:
    """Return one row per selector, from summary.json or, without it, from the rounds.

    Args:
        world: The cells that compare.
        metrics: The columns.
    """
    scores = world.scores
    means = {metric.key: scores.estimate(metric) for metric in metrics}
    rankings = {metric.key: scores.ranking(metric) for metric in metrics}
    rows = []
    for name in scores.labels:
        n_reached = {metric.key: scores.n_reached(name, metric) for metric in metrics}
        estimates = {key: by_name[name] for key, by_name in means.items() if n_reached[key]}
        best = frozenset(key for key, ranking in rankings.items() if name in ranking.best)
        tied = frozenset(key for key, ranking in rankings.items() if name in ranking.tied)
        rows.append(Row(name, scores.n_seeds(name), n_reached, estimates, best, tied))
    return rows


#: Class of the style sheet and words of each mark.
_MARKS: Mapping[Mark, tuple[str, str]] = {
    "": ("", ""),
    "best": ("best", "best"),
    "leading": ("tied", "≈ best"),
    "tied": ("tied", "≈ best"),
    "clear": ("clear", ""),
}
_NONE, _MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


class PageCell(NamedTuple):
    """A number in a table."""

    text: str
    margin: str = ""  #: half the confidence interval
    remark: str = ""  #: such as "best" or "2 of 5 seeds"
    kind: str = ""  #: class of the style sheet: best, tied or clear


class Heading(NamedTuple):
    """The head of a column."""

    title: str
    meaning: str = ""  #: shown under the pointer
    note: str = ""  #: which direction is better
    is_extra: bool = False  #: shown on demand


class Table(NamedTuple):
    """Numbers of all selectors."""

    label: str  #: for screen readers
    headings: list[Heading]
    rows: list[tuple[str, list[PageCell]]]  #: the name of a selector and its numbers

    @property
    def has_extra(self) -> bool:
        """Whether some columns are shown on demand."""
        return any(heading.is_extra for heading in self.headings)


def world_view(world: WorldGroup, id: str, order: Mapping[str, int]) -> dict[str, Any]:
    """Return what the page shows of a world, for its template.

    Args:
        world: The cells that compare.
        id: The name of the world's element in the page.
        order: The number of each selector.
    """
    scores, usual, drawn = world.scores, usual_metrics(world), sections(world, order)
    # the digests of files differ by selector
    versions = Counter(
        pairs({name: value for name, value in sorted(cell.versions.items()) if name != "files"})
        for cell in world.cells
    )
    return {
        "id": id,
        "point": point_name(world),  # of a sweep; empty without one
        "sentence": describe(world),
        "live": live_views(world, id),  # for operators; empty for simulations
        "summary": _summary_table(scores, suitable(world, shown_in("report")), usual),
        "targets": target_table(scores, suitable(world, at_targets(targets_of(world.cells)))),
        "verdict": Versus(scores, usual[0], scores.labels[0]).sentence if usual else "",
        "differences": _difference_table(scores, usual),
        "sections": drawn,
        "charts": [chart for section in drawn for chart in section.charts],
        "variants": [_variant_row(variant) for variant in world.variants],
        "versions": versions,
        "settings": json.dumps(_settings(world), indent=2),
        "caution": scores.caution,
    }


def target_table(scores: Scores, metrics: Sequence[Metric[Facts]]) -> Table | None:
    """Return rounds and time to some accuracies.

    Args:
        scores: The numbers of the world.
        metrics: Rounds and time for each accuracy.

    Returns:
        Two columns per accuracy; None if there is no accuracy to ask for.
    """
    return _table("Rounds to accuracy", mean_table(scores, metrics)) if metrics else None


def _summary_table(
    scores: Scores, reported: Sequence[Metric[Facts]], usual: Collection[Metric[Facts]]
) -> Table:
    """Return the means over seeds; columns that are not usual are shown on demand."""
    shown = [m for m in reported if any(scores.n_reached(n, m) for n in scores.labels)]
    table, keys = _table("Summary table", mean_table(scores, shown)), {m.key for m in usual}
    headings = [
        heading._replace(is_extra=metric.key not in keys)
        for metric, heading in zip(shown, table.headings, strict=True)
    ]
    for label, entries in table.rows:
        entries.insert(0, PageCell(str(scores.n_seeds(label))))
    return table._replace(headings=[Heading("Seeds"), *headings])


def _difference_table(scores: Scores, metrics: Sequence[Metric[Facts]]) -> Table | None:
    """Return the differences to the first selector; None if it is alone."""
    if len(scores.labels) < 2:
        return None
    compared = compared_metrics(metrics)
    return _table(f"Difference to {scores.labels[0]}", difference_table(scores, compared))


def _table(label: str, content: ScoreTable) -> Table:
    headings = [
        Heading(metric.titled(scale), metric.meaning, metric.direction)
        for metric, scale in content.columns
    ]
    rows = [(name, [_entry(entry) for entry in entries]) for name, entries in content.rows]
    return Table(label, headings, rows)


def _entry(number: Entry) -> PageCell:
    """Return a number for the page; where seeds are missing, say how many there are."""
    text = _NONE if number.mean == "-" else number.mean.replace("-", _MINUS)
    kind, mark = _MARKS[number.mark]
    seeds = f"{number.reached} seeds" if number.reached else ""
    star = "*" if number.mark == "clear" else ""
    remark = ", ".join(filter(None, (mark, seeds)))
    return PageCell(f"{text}{star}", number.margin, remark, kind)


def _variant_row(variant: VariantCells) -> list[str]:
    settings, seeds = variant.cells[0].settings, ", ".join(map(str, variant.seeds))
    parameters = pairs(settings.parameters) or "defaults"
    return [variant.name, settings.selector, parameters, f"{settings.cohort_size:,}", seeds]


def _settings(world: WorldGroup) -> dict[str, object]:
    names = ("kind", "n_clients", "n_rounds", "world_id", "world", "policy", "classes", "training")
    return {
        "experiments": sorted({cell.settings.experiment for cell in world.cells}),
        "cohort_size": world.cohort_sizes,
        **{name: getattr(world.settings, name) for name in names},
    }


# Settings of a run in words: worlds, recipes and parameters as they stand in a run folder ---------

#: Keys that name what an encoded object is; its other keys are its settings.
_TYPE_KEYS = ("kind", "schedule", "type", "dataclass")
_MAIN_MODELS = ("availability", "volatility", "timing")
_MAIN_RECIPES = ("source", "partition", "model", "aggregation")
_FIXED_DEADLINE, _NO_DEADLINE = "fixed-deadline", "no deadline"
_INFINITE = ("inf", math.inf)
_MAX_DEPTH = 4
_MAX_ITEMS = 6
_MAX_PARTS = 9
_MAX_BRIEF_SETTINGS = 2
_MAX_CHARACTERS = 60


def describe(world: WorldGroup) -> str:
    """Return a world in one sentence.

    Args:
        world: The cells that compare; their common settings are described.

    Returns:
        Plain text, which may hold any text of the files.
    """
    settings, sizes = world.settings, world.cohort_sizes
    models = dict(_fields(settings.world))
    main_models = {name: models[name] for name in _MAIN_MODELS if name in models} or models
    parts = [f"{name.replace('_', ' ')} {_brief(value)}" for name, value in main_models.items()]
    if settings.policy:
        parts.append(_policy(settings.policy))
    recipe = dict(_fields(settings.training))
    parts += [f"{name} {_brief(recipe[name])}" for name in _MAIN_RECIPES if name in recipe]
    kind = settings.kind if settings.kind == "simulation" else f"{settings.kind} run"
    wanted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    sentence = (
        f"A {kind} of {settings.n_clients:,} clients, {wanted} wanted in each of "
        f"{settings.n_rounds:,} rounds"
    )
    return f"{sentence}; {'; '.join(parts[:_MAX_PARTS])}." if parts else f"{sentence}."


def pairs(values: Mapping[str, Any]) -> str:
    """Return settings as ``key = value, key = value``.

    Args:
        values: Parameters or versions, as JSON has them.
    """
    return ", ".join(f"{key} = {in_words(value)}" for key, value in values.items())


def in_words(value: Any, depth: int = 0) -> str:
    """Return an encoded value in words: ``by-class (rates 0.1, 0.3)``.

    Args:
        value: Anything that JSON can hold.
        depth: How many objects are around it; very deep ones are shown as JSON.
    """
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        settings = ", ".join(f"{key} {in_words(item, depth + 1)}" for key, item in _fields(value))
        name = _type_name(value)
        return f"{name} ({settings})" if name and settings else name or settings or "none"
    if isinstance(value, list) and depth < _MAX_DEPTH:
        items = ", ".join(in_words(item, depth + 1) for item in value[:_MAX_ITEMS])
        return f"{items}, …" if len(value) > _MAX_ITEMS else items
    if value is None or isinstance(value, float):
        return "none" if value is None else f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shortened(text, _MAX_CHARACTERS)


def _fields(encoded: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields of an encoded object, without the name of its type."""
    inner = encoded.get("fields", encoded)
    fields = inner if isinstance(inner, Mapping) else encoded
    return [(str(key), value) for key, value in fields.items() if key not in _TYPE_KEYS]


def _policy(policy: Mapping[str, Any]) -> str:
    """Return a round policy; a fixed deadline that is infinite is none."""
    fields = dict(_fields(policy))
    if fields.get("seconds") in _INFINITE:
        if _type_name(policy) == _FIXED_DEADLINE:
            return _NO_DEADLINE
        finite = {key: value for key, value in policy.items() if key != "seconds"}
        return f"round policy {_brief(finite)}, {_NO_DEADLINE}"
    return f"round policy {_brief(policy)}"


def _brief(value: Any) -> str:
    """Return an encoded model with its first plain settings."""
    if not isinstance(value, Mapping):
        return in_words(value)
    plain = [(key, item) for key, item in _fields(value) if not isinstance(item, Mapping)]
    first = plain[:_MAX_BRIEF_SETTINGS]
    settings = ", ".join(f"{key.replace('_', ' ')} {in_words(item)}" for key, item in first)
    more = ", …" if len(plain) > len(first) else ""
    name = _type_name(value)
    return f"{name} ({settings}{more})" if settings else name or "none"


def _type_name(value: Mapping[str, Any]) -> str:
    name = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
    return str(name).rpartition(":")[2].rpartition(".")[2]
