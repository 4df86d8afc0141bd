"""The page: template, style, script, plotly and data in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from turnout.errors import MissingExtra
from turnout.report.charts import sections
from turnout.report.figures import Chart
from turnout.report.groups import WorldGroup
from turnout.report.markup import (
    chips,
    describe,
    problem_list,
    settings_of,
    summary_table,
    target_table,
)
from turnout.report.reading import Problem
from turnout.report.summary import Row

__all__ = ["plotly_js", "render"]

_TABLE_NOTE = (
    "Mean over seeds ± half the 95 % confidence interval (Student). "
    "Best: best mean. ≈ best: the paired difference to it over the shared seeds may be zero."
)


def plotly_js() -> str:
    """Return plotly's own script, or say how to install it."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError as error:
        raise MissingExtra("the report needs plotly: pip install 'turnout[report]'") from error
    script: str = offline.get_plotlyjs()
    return script


def render(
    worlds: Sequence[WorldGroup], rows: Sequence[Sequence[Row]], problems: Sequence[Problem]
) -> str:
    """Return the page; the same cells give the same page, byte for byte."""
    names = dict.fromkeys(variant.name for world in worlds for variant in world.variants)
    order = {name: index for index, name in enumerate(names)}
    data: dict[str, Any] = {"charts": {}, "maps": {}}
    bodies = [
        _world(world, rows[number], f"w{number}", order, data, len(worlds) > 1)
        for number, world in enumerate(worlds)
    ]
    experiments = dict.fromkeys(cell.settings.experiment for w in worlds for cell in w.cells)
    title = ", ".join(name for name in experiments if name) or "turnout report"
    scripts = [_script(plotly_js()), _script(_resource("report.js"))]
    filled = {
        "title": escape(title),
        "policy": escape(_security_policy(scripts)),
        "style": _resource("report.css"),
        "problems": problem_list(problems),
        "chips": chips(order),
        "worlds": "\n".join(bodies),
        "data": _json(data),
        "plotly": scripts[0],
        "script": scripts[1],
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], _resource("template.html"))


def _world(
    world: WorldGroup,
    rows: Sequence[Row],
    prefix: str,
    order: Mapping[str, int],
    data: dict[str, Any],
    is_one_of_many: bool,
) -> str:
    """Return one world as HTML and put what its charts draw into ``data``."""
    parts = [f'<article id="{prefix}">']
    if is_one_of_many:
        parts.append(f"<h2>World {int(prefix[1:]) + 1}</h2>")
    parts.append(f'<p class="world">{escape(describe(world))}</p>')
    parts.append(f"<section><h3>Summary</h3>{summary_table(rows, order)}")
    parts.append(f'<p class="note">{_TABLE_NOTE}</p>{target_table(world, order)}</section>')
    for section in sections(world, order):
        figures = "\n".join(_figure(chart, prefix, data) for chart in section.charts)
        heading = f"<h3>{escape(section.title)}</h3>"
        parts.append(f'<section>{heading}<div class="charts">\n{figures}\n</div></section>')
    parts.append(f"<section><h3>Settings and versions</h3>{settings_of(world)}</section></article>")
    return "\n".join(parts)


def _figure(chart: Chart, prefix: str, data: dict[str, Any]) -> str:
    key = f"{prefix}-{chart.key}"
    menus, kind = "", "wide" if chart.is_wide else ""
    if chart.maps is None:
        data["charts"][key] = {"traces": chart.traces, "layout": chart.layout}
    else:
        data["maps"][key] = chart.maps
        kind += " map"
        menus = (
            f'<p class="menus"><label>Selector <select id="{key}-selector"></select></label> '
            f'<label>Run <select id="{key}-run"></select></label></p>'
        )
    title, caption = escape(chart.title), escape(chart.caption)
    return (
        f'<figure class="{kind}"><h4>{title}</h4>{menus}'
        f'<div class="drawing" id="{key}" role="img" aria-label="{title}. {caption}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _json(data: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    return resources.files("turnout.report").joinpath(name).read_text(encoding="utf-8")


def _script(text: str) -> str:
    """Return a script as a browser will see it, so that its hash fits."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _security_policy(scripts: Sequence[str]) -> str:
    """Return a policy under which only these scripts run and nothing is fetched."""
    digests = (hashlib.sha256(script.encode("utf-8")).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(one).decode('ascii')}'" for one in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
