"""The sensitivity of a metric to a swept parameter of selectors or setting of worlds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnout.core.types import FloatArray
from turnout.results.files import SWEEP, DamagedFile, read_json
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.metric import Facts, Metric

#: From this ratio of the largest value to the smallest on, an axis is logarithmic.
_WIDE = 50.0


class Response(NamedTuple):
    """The numbers of one selector at each swept value.

    Attributes:
        name: The selector, with its parameters that stay.
        label: The label of its first variant.
        places: The values, in order; empty for a selector without the parameter.
        values: (seeds, places) the metric; (seeds, 1) for such a selector.
    """

    name: str
    label: str
    places: tuple[Any, ...]
    values: FloatArray


class Sensitivity(NamedTuple):
    """A metric against one swept parameter or setting.

    Attributes:
        key: The parameter or setting.
        where: The other swept settings, in words; empty if there are none.
        metric: The metric.
        responses: One per selector.
    """

    key: str
    where: str
    metric: Metric[Facts]
    responses: tuple[Response, ...]

    @property
    def places(self) -> list[Any]:
        """All values that were tried: numbers in ascending order, others as they were run."""
        tried = list(dict.fromkeys(place for each in self.responses for place in each.places))
        return sorted(tried) if all(map(_is_number, tried)) else tried

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(map(_is_number, self.places))

    @property
    def is_wide(self) -> bool:
        """Whether the values are numbers that are best shown on a logarithmic axis."""
        places = self.places
        return self.is_numeric and bool(places[0] > 0 and places[-1] / places[0] >= _WIDE)


def parameter_panels(
    world: WorldGroup, metric: Metric[Facts], where: str = ""
) -> Iterator[Sensitivity]:
    """Yield a panel for each parameter of which a selector has several values in a world.

    Selectors without the parameter are shown for comparison.

    Args:
        world: Cells that compare.
        metric: The metric.
        where: The name of the world.
    """
    for key in dict.fromkeys(name for each in world.variants for name in _parameters(each)):
        groups: dict[str, dict[Any, VariantCells]] = {}
        for variant in world.variants:
            parameters = _parameters(variant)
            if key in parameters:
                place = _plain(parameters.pop(key))
                rest = json.dumps([_method(variant), parameters], sort_keys=True)
                groups.setdefault(rest, {})[place] = variant
        swept = [those for those in groups.values() if len(those) > 1]
        if not swept:
            continue
        names = _names([next(iter(those.values())) for those in swept], key)
        responses = [
            _response(name, {place: (world, v) for place, v in those.items()}, metric)
            for name, those in zip(names, swept, strict=True)
        ]
        methods = {_method(variant) for those in swept for variant in those.values()}
        for variant in world.variants:
            if _method(variant) not in methods:
                level = _response(variant.name, {key: (world, variant)}, metric)
                responses.append(level._replace(places=()))
        yield Sensitivity(key, where, metric, tuple(each for each in responses if each.values.size))


def world_panels(worlds: Sequence[WorldGroup], metric: Metric[Facts]) -> Iterator[Sensitivity]:
    """Yield a panel for each setting of worlds that a sweep went over, and each rest of settings.

    Args:
        worlds: The worlds; those that belong to no sweep are left out.
        metric: The metric.
    """
    points = [(world, swept_settings(world)) for world in worlds]
    for key in dict.fromkeys(name for _, settings in points for name in settings):
        panels: dict[str, dict[Any, WorldGroup]] = {}
        for world, settings in points:
            if key in settings:
                rest = {name: value for name, value in settings.items() if name != key}
                panels.setdefault(_words(rest), {})[settings[key]] = world
        for where, by_place in panels.items():
            if len(by_place) < 2:
                continue
            names = dict.fromkeys(v.name for world in by_place.values() for v in world.variants)
            runs = (
                {at: (w, v) for at, w in by_place.items() for v in w.variants if v.name == name}
                for name in names
            )
            responses = (_response(*one, metric) for one in zip(names, runs, strict=True))
            shown = tuple(each for each in responses if each.values.size and len(each.places) > 1)
            if shown:
                yield Sensitivity(key, where, metric, shown)


def is_one_sweep(worlds: Sequence[WorldGroup]) -> bool:
    """Return whether worlds are points of the same sweep.

    Args:
        worlds: The worlds.
    """
    folders = {world.cells[0].path.resolve().parents[2] for world in worlds}
    return len(folders) == 1 and all(map(swept_settings, worlds))


def point_name(world: WorldGroup) -> str:
    """Return the values of a world's point in a sweep, empty if it is of none.

    Args:
        world: Cells that compare.
    """
    return _words(swept_settings(world))


def swept_settings(world: WorldGroup) -> dict[str, Any]:
    """Return the value of each key that a sweep went over, empty if the world is of none.

    Args:
        world: Cells that compare.
    """
    try:
        return read_json(world.cells[0].path.resolve().parent.parent / SWEEP)
    except DamagedFile:
        return {}


def _response(
    name: str, runs: Mapping[Any, tuple[WorldGroup, VariantCells]], metric: Metric[Facts]
) -> Response:
    """Return the numbers of the seeds that every value was run with."""
    places = sorted(runs) if all(map(_is_number, runs)) else list(runs)
    numbers = [world.scores.values(v.name, metric) for world, v in (runs[at] for at in places)]
    seeds = sorted(set.intersection(*(set(each) for each in numbers)))
    values = np.array([[each[seed] for each in numbers] for seed in seeds], dtype=np.float64)
    return Response(name, next(iter(runs.values()))[1].name, tuple(places), values)


def _method(variant: VariantCells) -> str:
    return variant.cells[0].settings.selector.rpartition(":")[2]


def _parameters(variant: VariantCells) -> dict[str, Any]:
    return dict(variant.cells[0].settings.parameters)


def _names(variants: Sequence[VariantCells], key: str) -> list[str]:
    """Return the names of selectors, with the parameters in which those of one method differ."""
    names = []
    for variant in variants:
        same = [_parameters(each) for each in variants if _method(each) == _method(variant)]
        differing = {
            name: value
            for name, value in _parameters(variant).items()
            if name != key and any(each.get(name) != value for each in same)
        }
        names.append(f"{_method(variant)} {_words(differing)}".strip())
    return names


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_plain(value)}" for name, value in settings.items())


def _plain(value: Any) -> Any:
    """Return a value that can be a place on an axis."""
    if isinstance(value, Mapping):
        return "-".join(str(item) for item in value.values())
    return value if isinstance(value, int | float | str) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
