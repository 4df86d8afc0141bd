"""The page: templates, style, scripts and data in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from turnout.names import import_extra
from turnout.report.download import cells_csv
from turnout.report.figures import Chart
from turnout.report.sensitivity import world_charts
from turnout.report.views import world_view
from turnout.results.groups import WorldGroup
from turnout.runs.reader import Problem

if TYPE_CHECKING:
    from jinja2 import Environment


def render(worlds: Sequence[WorldGroup], problems: Sequence[Problem]) -> str:
    """Return the page; the same cells give the same page, byte for byte.

    Args:
        worlds: The groups of cells that compare, one section each.
        problems: What the reader must know first.

    Raises:
        MissingExtra: If Jinja2 or plotly is not installed.
    """
    names = dict.fromkeys(variant.name for world in worlds for variant in world.variants)
    order = {name: number for number, name in enumerate(names)}
    views = [world_view(world, f"w{number}", order) for number, world in enumerate(worlds)]
    sweep = list(world_charts(worlds, order))
    experiments = dict.fromkeys(cell.settings.experiment for w in worlds for cell in w.cells)
    styles = ["report.css", "live.css"] if any(view.live for view in views) else ["report.css"]
    scripts = [_plotly_js(), packaged("report.js")]
    trusted = _needed("markupsafe").Markup  # only for files that turnout and plotly ship
    return (
        templates()
        .get_template("page.html")
        .render(
            title=", ".join(name for name in experiments if name) or "turnout report",
            policy=_security_policy(scripts),
            style=trusted("".join(packaged(name) for name in styles)),
            scripts=[trusted(script) for script in scripts],
            problems=problems,
            order=order,
            sweep=sweep,
            worlds=views,
            data=_data({"sweep": sweep} | {view.id: view.charts for view in views}),
            cells=cells_csv(cell for world in worlds for cell in world.cells),
        )
    )


def templates(*more: str) -> Environment:
    """Return the templates of the page; every value that they show is escaped.

    Args:
        *more: Packages with further templates.

    Raises:
        MissingExtra: If Jinja2 is not installed.
    """
    jinja2 = _needed("jinja2")
    environment: Environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name) for name in ("turnout.report", *more)]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _data(charts_of: Mapping[str, Iterable[Chart]]) -> dict[str, dict[str, Any]]:
    """Return what the script draws, by the id of the element it is drawn in."""
    charts: dict[str, Any] = {}
    maps: dict[str, Any] = {}
    for place, those in charts_of.items():
        for chart in those:
            if chart.maps is None:
                charts[f"{place}-{chart.key}"] = {"traces": chart.traces, "layout": chart.layout}
            else:
                maps[f"{place}-{chart.key}"] = chart.maps
    return {"charts": charts, "maps": maps}


def _needed(module: str) -> Any:
    """Return a module of the extra ``report``, or say how to install it."""
    name = module.partition(".")[0]
    return import_extra(module, f"the report needs {name}: pip install 'turnout[report]'")


def _plotly_js() -> str:
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
