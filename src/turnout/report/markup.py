"""Words and tables of the page as HTML. Everything that comes from files is escaped here."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from turnout.report.curves import time_unit
from turnout.report.groups import WorldGroup
from turnout.report.reading import CellSettings, Problem
from turnout.report.summary import COLUMNS, Column, Row
from turnout.report.targets import Reached, reached, targets_of
from turnout.statistics import Estimate

__all__ = [
    "chips",
    "describe",
    "problem_list",
    "settings_of",
    "summary_table",
    "target_table",
]

#: Keys that name what an encoded object is; its other keys are its settings.
_TYPE_KEYS = ("kind", "schedule", "type", "dataclass")
_MAIN_MODELS = ("availability", "volatility", "timing")
_MAIN_RECIPES = ("source", "partition", "model", "aggregation")
_TARGET_NOTE = (
    "The first round after which the test accuracy is at least so high, and the virtual time then. "
    "Where not every seed got there, the mean is over those that did and does not compare."
)
_DEEPEST = 4
_MOST_ITEMS = 6
_MOST_PARTS = 9
_BRIEF = 2
_LONGEST = 60


def describe(world: WorldGroup) -> str:
    """Return the world in one sentence of plain text."""
    settings, sizes = world.settings, world.cohort_sizes
    models = dict(_fields(settings.world))
    shown = {name: models[name] for name in _MAIN_MODELS if name in models} or models
    parts = [f"{name.replace('_', ' ')} {_brief(value)}" for name, value in shown.items()]
    if settings.policy:
        parts.append(f"round policy {_brief(settings.policy)}")
    recipe = dict(_fields(settings.training))
    parts += [f"{name} {_brief(recipe[name])}" for name in _MAIN_RECIPES if name in recipe]
    kind = settings.kind if settings.kind == "simulation" else f"{settings.kind} run"
    wanted = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    sentence = (
        f"A {kind} of {settings.n_clients:,} clients, {wanted} wanted in each of "
        f"{settings.n_rounds:,} rounds"
    )
    return f"{sentence}; {'; '.join(parts[:_MOST_PARTS])}." if parts else f"{sentence}."


def _fields(encoded: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the fields of an encoded object, without the name of its type."""
    inside = encoded.get("fields", encoded)
    fields = inside if isinstance(inside, Mapping) else encoded
    return [(str(key), value) for key, value in fields.items() if key not in _TYPE_KEYS]


def _brief(value: Any) -> str:
    """Return an encoded model with its first plain settings."""
    if not isinstance(value, Mapping):
        return _model(value)
    fields = [(key, item) for key, item in _fields(value) if not isinstance(item, Mapping)]
    inside = ", ".join(f"{key.replace('_', ' ')} {_model(item)}" for key, item in fields[:_BRIEF])
    more = ", …" if len(fields) > _BRIEF else ""
    return f"{_kind(value)} ({inside}{more})" if inside else _kind(value) or "none"


def _kind(value: Mapping[str, Any]) -> str:
    named = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
    return str(named).rpartition(":")[2].rpartition(".")[2]


def _model(value: Any, depth: int = 0) -> str:
    """Return an encoded value in words: by-class (rates 0.1, 0.3)."""
    if isinstance(value, Mapping) and depth < _DEEPEST:
        inside = ", ".join(f"{key} {_model(item, depth + 1)}" for key, item in _fields(value))
        name = _kind(value)
        return f"{name} ({inside})" if name and inside else name or inside or "none"
    if isinstance(value, list) and depth < _DEEPEST:
        shown = ", ".join(_model(item, depth + 1) for item in value[:_MOST_ITEMS])
        return f"{shown}, …" if len(value) > _MOST_ITEMS else shown
    if value is None or isinstance(value, float):
        return "none" if value is None else f"{value:g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def chips(order: Mapping[str, int]) -> str:
    """Return the legend of the whole page: one button per selector."""
    return "\n".join(
        f'<button type="button" class="chip" aria-pressed="true" data-selector="{index}">'
        f"{_swatch(index)}{escape(name)}</button>"
        for name, index in order.items()
    )


def _swatch(index: int) -> str:
    return f'<span class="swatch series-{index % 8} dash-{index // 8 % 3}"></span>'


def problem_list(problems: Sequence[Problem]) -> str:
    """Return the warnings at the top; nothing if there are none."""
    if not problems:
        return ""
    items = "\n".join(
        f"<li><b>{escape(one.kind.capitalize())}</b> "
        f"{f'<code>{escape(one.where)}</code> ' if one.where else ''}{escape(one.message)}</li>"
        for one in problems
    )
    words = Counter(one.kind for one in problems)
    counted = ", ".join(f"{n} {kind}" for kind, n in words.items())
    is_open = " open" if len(problems) <= 6 else ""
    return (
        f'<details class="problems" role="note"{is_open}>'
        f"<summary>Read this first: {escape(counted)}</summary>\n<ul>\n{items}\n</ul></details>"
    )


def summary_table(rows: Sequence[Row], order: Mapping[str, int]) -> str:
    """Return the table of means, with the best of each column marked."""
    shown = [column for column in COLUMNS if any(column.key in row.estimates for row in rows)]
    scales = {column.key: _scale(column, rows) for column in shown}
    head = "".join(_heading(column, scales[column.key][0]) for column in shown)
    body = "\n".join(
        f'<tr data-selector="{order[row.name]}"><th scope="row" title="{escape(row.name)}">'
        f"{_swatch(order[row.name])}{escape(row.name)}</th><td>{row.n_seeds}</td>"
        f"{''.join(_cell(row, column.key, scales[column.key][1]) for column in shown)}</tr>"
        for row in rows
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Summary table"><table>'
        f'<thead><tr><th scope="col">Selector</th><th scope="col">Seeds</th>{head}</tr></thead>'
        f"\n<tbody>\n{body}\n</tbody></table></div>"
    )


def target_table(world: WorldGroup, order: Mapping[str, int]) -> str:
    """Return rounds and time to some accuracies; nothing without any accuracy."""
    found = {target: reached(world, target) for target in targets_of(world)}
    if not found:
        return ""
    times = [one.seconds.mean for of in found.values() for one in of.values() if one.seconds.n]
    unit, scale = time_unit(max(times, default=0.0))
    head = "".join(
        f'<th scope="col">{target:g}, rounds</th><th scope="col">{target:g}, time ({unit})</th>'
        for target in found
    )
    body = "\n".join(
        f'<tr data-selector="{order[variant.name]}"><th scope="row">{_swatch(order[variant.name])}'
        f"{escape(variant.name)}</th>"
        f"{''.join(_reached_cells(of[variant.name], scale) for of in found.values())}</tr>"
        for variant in world.variants
    )
    return (
        '<h4 class="second">Rounds and time to an accuracy</h4>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Rounds to accuracy"><table>'
        f'<thead><tr><th scope="col">Selector</th>{head}</tr></thead>'
        f'\n<tbody>\n{body}\n</tbody></table></div><p class="note">{_TARGET_NOTE}</p>'
    )


def _reached_cells(one: Reached, scale: float) -> str:
    if one.rounds.n == 0:
        never = f'<td>&ndash;<span class="mark">0 of {one.n_seeds} seeds</span></td>'
        return 2 * never
    mark = ' class="best"' if one.is_first else ""
    word = "fewest rounds" if one.is_first else ""
    word = word if one.is_complete else f"{one.rounds.n} of {one.n_seeds} seeds"
    shown = f'<span class="mark">{word}</span>' if word else ""
    return f"<td{mark}>{_number(one.rounds, 1.0)}{shown}</td><td>{_number(one.seconds, scale)}</td>"


def _heading(column: Column, unit: str) -> str:
    title = f"{column.title} ({unit})" if unit else column.title
    way = "at own quota" if column.better == "neither" else f"{column.better} is better"
    return (
        f'<th scope="col" title="{escape(column.meaning)}">{escape(title)}'
        f'<span class="way">{way}</span></th>'
    )


def _scale(column: Column, rows: Sequence[Row]) -> tuple[str, float]:
    if not column.is_time:
        return "", 1.0
    return time_unit(
        max(abs(row.estimates[column.key].mean) for row in rows if column.key in row.estimates)
    )


def _cell(row: Row, key: str, scale: float) -> str:
    if key not in row.estimates:
        return "<td>&ndash;</td>"
    mark, word = "", ""
    if key in row.best:
        mark, word = ' class="best"', '<span class="mark">best</span>'
    elif key in row.tied:
        mark, word = ' class="tied"', '<span class="mark">≈ best</span>'
    return f"<td{mark}>{_number(row.estimates[key], scale)}{word}</td>"


def _number(one: Estimate, scale: float) -> str:
    mean, half_width = one.mean / scale, one.half_width / scale
    size = abs(mean)
    digits = 0 if size >= 1_000 else 1 if size >= 100 else 2 if size >= 10 else 3
    text = f"{mean:,.{digits}f}".replace("-", "&minus;")
    if not math.isfinite(half_width):
        return text
    return f'{text} <span class="margin">± {half_width:,.{digits}f}</span>'


def settings_of(world: WorldGroup) -> str:
    """Return everything that made the results, and with which versions."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(variant.name)}</th>'
        f"<td>{escape(variant.cells[0].settings.selector)}</td>"
        f"<td>{escape(_parameters(variant.cells[0].settings))}</td>"
        f"<td>{variant.cells[0].settings.cohort_size:,}</td>"
        f"<td>{escape(', '.join(map(str, variant.seeds)))}</td></tr>"
        for variant in world.variants
    )
    settings = world.settings
    made = {
        "experiments": sorted({cell.settings.experiment for cell in world.cells}),
        "kind": settings.kind,
        "n_clients": settings.n_clients,
        "cohort_size": world.cohort_sizes,
        "n_rounds": settings.n_rounds,
        "world_id": settings.world_id,
        "world": settings.world,
        "policy": settings.policy,
        "classes": settings.classes,
        "training": settings.training,
    }
    written = Counter(json.dumps(cell.versions, sort_keys=True) for cell in world.cells)
    versions = "\n".join(
        f"<li>{n} cells: {escape(_pairs(json.loads(text)))}</li>" for text, n in written.items()
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Selectors">'
        '<table class="words"><thead><tr><th scope="col">Selector</th><th scope="col">Method</th>'
        '<th scope="col">Parameters</th><th scope="col">Wanted per round</th>'
        '<th scope="col">Seeds</th></tr></thead>'
        f"\n<tbody>\n{rows}\n</tbody></table></div>\n"
        f"<h4>Written by</h4>\n<ul>\n{versions}\n</ul>\n"
        "<details><summary>World and sizes</summary>"
        f"<pre>{escape(json.dumps(made, indent=2))}</pre></details>"
    )


def _parameters(settings: CellSettings) -> str:
    return _pairs(settings.parameters) or "defaults"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_model(value)}" for key, value in values.items())
