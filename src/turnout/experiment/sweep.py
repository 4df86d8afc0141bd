"""A sweep: experiments that differ only in what it names, all made before anything is run."""

from __future__ import annotations

import itertools
import math
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.files import writing_to
from turnout.core.names import nearest, shortened
from turnout.experiment.codec import REPLACES, ConfigError, Key, key_of, spelled
from turnout.experiment.config import Experiment, read_toml, table_digest
from turnout.experiment.grid import check_that_it_runs, kept_in, run_experiment
from turnout.experiment.variants import Variant, short, variants_of
from turnout.results.files import SWEEP, slug, write_json
from turnout.results.results import Results
from turnout.training import Training
from turnout.worlds import Environment, FixedDeadline, WorkSchedule

#: Keys that say what a table is; its other fields belong to what it was before.
_TAGS = ("kind", "preset", "schedule")

#: Longest name of a value in the name of a folder.
_LONGEST = 40


class Point(NamedTuple):
    """One experiment of a sweep.

    Attributes:
        settings: What each key of the sweep is here: a number, or the name of its value. Empty
            if nothing is swept.
        experiment: The experiment.
    """

    settings: Mapping[str, Any]
    experiment: Experiment

    def folder(self, root: Path) -> Path:
        """Return the folder of its results.

        Args:
            root: The folder of the sweep.
        """
        return root / slug(_name(self.settings)) if self.settings else root


@dataclass(frozen=True)
class Sweep:
    """An experiment, and the values of some of its settings; without any it is one experiment.

    Sizes are those of the experiment, whatever else is swept.

    Args:
        base: The experiment that is changed.
        axes: By dotted key, such as ``training.partition.alpha``: the values by their names. A
            number is its own name.
    """

    base: Experiment
    axes: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read an experiment with or without ``[sweep]``; errors name the file, line and key.

        Args:
            path: The file.
        """
        return read_toml(path, cls.from_table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], default_name: str = "experiment") -> Self:
        """Return the sweep of a table as TOML has it.

        Args:
            table: An experiment's table, with or without ``sweep``.
            default_name: The experiment's name if the table has none.
        """
        experiment = {name: value for name, value in table.items() if name != "sweep"}
        return cls(Experiment.from_table(experiment, default_name)).over(table.get("sweep", {}))

    def over(self, table: Mapping[str, Any]) -> Self:
        """Return the sweep over further keys.

        Args:
            table: A list of values by dotted key, as ``[sweep]`` has it. The key
                ``selectors.LABEL.PARAMETER`` makes variants of a selector, any other key makes
                experiments.

        Raises:
            ConfigError: A key or its values are wrong; ``key`` names it.

        >>> sweep = Sweep(Experiment(["random", "e3cs"])).over({"n_clients": [50, 100]})
        >>> [point.experiment.n_clients for point in sweep.points()]
        [50, 100]

        """
        sweep = self
        for key, values in _flat(table):
            where: Key = ("sweep", *key)
            if not isinstance(values, list | tuple):
                raise ConfigError(where, f"must be a list of values, got {values!r}.")
            if not values:
                raise ConfigError(where, "is an empty list: a sweep needs at least one value.")
            if key[0] == "selectors":
                swept = _swept_selectors(sweep.base, key, values)
                sweep = replace(sweep, base=replace(sweep.base, selectors=swept))
                continue
            if spelled(key) in sweep.axes:
                raise ConfigError(where, "is swept twice: give all its values in one list.")
            named = {_value_name(value): value for value in values}
            if len(named) < len(values):
                raise ConfigError(where, f"has a value twice: {', '.join(map(short, values))}.")
            sweep = replace(sweep, axes={**sweep.axes, spelled(key): named})
        return sweep

    @property
    def n_cells(self) -> int:
        """How many runs the sweep has."""
        n_points = math.prod(len(values) for values in self.axes.values())
        return n_points * len(self.base.selectors) * len(self.base.seeds)

    @property
    def digest(self) -> str:
        """12 hexadecimal digits of everything except the name."""
        if not self.axes:
            return self.base.digest
        values = {key: list(named.values()) for key, named in self.axes.items()}
        return table_digest({"experiment": self.base.digest, "sweep": values})

    def points(self) -> tuple[Point, ...]:
        """Return the experiments, checked.

        Raises:
            ConfigError: A value does not fit, or two points are the same.
        """
        points: list[Point] = []
        names: dict[str, str] = {}  # by what must be each point's own
        for chosen in itertools.product(*self.axes.values()):
            point = self._point(dict(zip(self.axes, chosen, strict=True)))
            name = _name(point.settings)
            for own, what in ((point.experiment.world_id, "world"), (slug(name), "folder")):
                other = names.setdefault(own, name)
                if other != name:
                    problem = f"{other} and {name} have the same {what}: leave one of them out."
                    raise ConfigError(("sweep", *_parts(next(iter(self.axes)))), problem)
            points.append(point)
        return tuple(points)

    def _point(self, settings: Mapping[str, Any]) -> Point:
        """Return the experiment with the values of these names."""
        if not settings:
            return Point({}, self.base)
        table = self.base.table()
        for key, name in settings.items():
            table = _changed(table, _parts(key), self.axes[key][name], key)
        title = f"{self.base.name}, {_name(settings)}"
        try:
            return Point(settings, Experiment.from_table({**table, "name": title}))
        except InvalidInput as error:
            shared = {_parts(key): _n_shared(_parts(key), key_of(error)) for key in settings}
            where: Key = ("sweep", *max(shared, key=shared.__getitem__))
            raise ConfigError(where, f"with {_name(settings)}: {error}") from error


#: Default number of rounds of a run with training.
N_TRAINED_ROUNDS = 100


def compare(
    selectors: Sequence[Variant | Mapping[str, Any] | str],
    world: Mapping[str, Any] | str | Environment | Sequence[str] = "volatile",
    *,
    training: Training | Mapping[str, Any] | bool = False,
    targets: Sequence[float] = (),
    sweep: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    deadline: float | None = None,
    out: str | os.PathLike[str] | None = None,
    n_rounds: int = 0,
    n_clients: int = 0,
    cohort_size: int = 0,
    seeds: Sequence[int] | int = 5,
    bounds: Mapping[str, bool] | bool = False,
    schedule: WorkSchedule | Mapping[str, Any] | None = None,
    **running: Any,
) -> Results:
    """Run selectors in the same simulated federations and compare them, as ``turnout compare``.

    Args:
        selectors: At least one variant, table or text such as ``"e3cs:quota=0.8"``.
        world: A name of ``turnout worlds``, a table, an ``Environment`` or a TOML file; several
            names or files are a sweep.
        training: What is trained: a recipe or its table, True for the usual one; False simulates
            without training.
        targets: Accuracies whose rounds and time are reported; only with training.
        sweep: Lists of values by dotted key, such as ``{"training.partition.alpha": [0.1, 1]}``: an
            experiment for each.
        deadline: Seconds until a round closes; None = no deadline.
        out: The run folder. What it holds already is reused or resumed. None keeps the results in
            memory only.
        n_rounds: Rounds per run; 0 = that of the world, with training 100.
        n_clients: Number of clients; 0 = that of the world.
        cohort_size: Clients asked for per round; 0 = that of the world.
        seeds: The seeds, or how many.
        bounds: Whether what clients claim is compared with what others do; see ``Experiment``.
        schedule: When clients get work and when a round ends; None does not let rounds overlap.
        running: How the runs are computed, such as ``n_jobs``; see ``run_experiment``.

    Returns:
        The results. With one world, ``results.estimate("success_ratio")`` has a mean for each
        selector; with several, ``results.worlds`` has the results of each.

    Raises:
        InvalidInput: Something is unknown or does not fit; nothing was run.
        FolderError: The folder belongs to another experiment, or is in use.

    >>> results = compare(["random", "e3cs"], "e3cs", n_rounds=20, seeds=2, n_jobs=1)
    >>> results.labels, len(results.runs)
    (('random', 'e3cs'), 4)

    """
    sizes = {"n_clients": n_clients, "cohort_size": cohort_size, "n_rounds": n_rounds}
    worlds = [*world] if isinstance(world, list | tuple) and world else [world]
    others: dict[str, Any] = {"seeds": seeds, "bounds": bounds, "schedule": schedule}
    settings = settings_of(worlds[0], _recipe(training, targets), deadline, **sizes, **others)
    plan = Sweep(Experiment(selectors, "compare", **settings), world_axis(worlds)).over(sweep)
    with kept_in(out) as root:
        results = joined(run_sweep(plan, root, **running), root)
        return results.in_memory() if out is None else results


def settings_of(
    world: Any, training: Any, deadline: float | None, *, n_rounds: int = 0, **others: Any
) -> dict[str, Any]:
    """Return the arguments of ``Experiment`` except the selectors, with usual defaults.

    Args:
        world: A name, a TOML file, a table or an environment.
        training: A recipe or its table; None simulates without training.
        deadline: Seconds until a round closes; None = no deadline.
        n_rounds: Rounds per run; 0 = that of the world, with training 100.
        others: Further arguments of ``Experiment``.
    """
    n_rounds = require.integer("n_rounds", n_rounds, minimum=0)
    usual = usual_settings(world)
    given = {
        name: value
        for name, value in others.items()
        if name not in usual or not (value is None or (isinstance(value, int) and value == 0))
    }
    policy = usual.pop("policy", FixedDeadline())
    usual_rounds = usual.pop("n_rounds", 0)
    return {
        "world": read_world(world),
        "training": training,
        "policy": policy if deadline is None else FixedDeadline(deadline),
        "n_rounds": n_rounds or (usual_rounds if training is None else N_TRAINED_ROUNDS),
        **usual,
        **given,
    }


def joined(results: Sequence[Results], folder: Path) -> Results:
    """Return the results of all points of a sweep as one.

    Args:
        results: The results of each point.
        folder: The folder of the sweep.
    """
    runs = [run for each in results for run in each.runs]
    notes = [note for each in results for note in each.notes]
    return Results(runs=runs, notes=notes, folder=folder)


def read_world(world: Any) -> Any:
    """Return a world as ``Experiment`` takes it: the table of a TOML file, anything else as it is.

    Args:
        world: A name, a file, a table or an environment.

    Raises:
        InvalidInput: The file cannot be read.
    """
    if not _is_file(world):
        return world
    table = _world_file(world)
    own = table.get("world")
    if own is None:
        own = {name: value for name, value in table.items() if name not in _USUAL}
    return _placed(own, Path(world).parent)


#: What the file of a world may say about runs in it, beside the table ``world``.
_USUAL = ("n_clients", "cohort_size", "n_rounds", "policy")


def _is_file(world: Any) -> bool:
    return isinstance(world, str | os.PathLike) and Path(world).suffix == ".toml"


def _world_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"world {path} cannot be read: {error}.", field="world") from error


def usual_settings(world: Any) -> dict[str, Any]:
    """Return the sizes and the policy that the file of a world suggests; empty for other worlds.

    Args:
        world: A name, a file, a table or an environment.
    """
    table = _world_file(world) if _is_file(world) else {}
    return {name: table[name] for name in _USUAL if name in table}


def _placed(table: Any, folder: Path) -> Any:
    """Return a table whose paths lead to files beside it, where there are such files."""
    if not isinstance(table, Mapping):
        return table
    placed = {name: _placed(value, folder) for name, value in table.items()}
    path = placed.get("path")
    if isinstance(path, str) and path and (folder / path).is_file():
        placed["path"] = (folder / path).as_posix()
    return placed


def world_axis(worlds: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the axis of several worlds; empty for one world.

    Args:
        worlds: Names and files.

    Raises:
        InvalidInput: A world was given twice, or a file cannot be read.
    """
    if len(worlds) < 2:
        return {}
    for text in worlds:
        require.instance("world", text, str)
    named = {Path(text).stem if text.endswith(".toml") else text: text for text in worlds}
    if len(named) < len(worlds):
        raise InvalidInput(f"world names one world twice: {', '.join(worlds)}.", field="world")
    return {"world": {name: read_world(text) for name, text in named.items()}}


def _recipe(training: Any, targets: Sequence[float]) -> Any:
    """Return a recipe or its table with the targets in it; None without training."""
    if not isinstance(targets, list | tuple):
        problem = f"targets must be a list of accuracies, got {targets!r}."
        raise InvalidInput(problem, field="targets")
    if training is False or training is None:
        if targets:
            raise InvalidInput("targets need training: give training=True.", field="targets")
        return None
    training = {} if training is True else training
    if targets and isinstance(training, Training):
        return replace(training, target_accuracy=tuple(targets))
    if targets and isinstance(training, Mapping):
        return {**training, "target_accuracy": list(targets)}
    return training


def run_sweep(
    sweep: Sweep,
    folder: str | os.PathLike[str],
    run: Callable[..., Results] = run_experiment,
    **options: Any,
) -> list[Results]:
    """Run what is missing of a sweep, each point in a folder of its own.

    Args:
        sweep: The sweep.
        folder: Holds the folders of the points. An experiment without a sweep is in the folder
            itself.
        run: Runs an experiment in a folder.
        options: For ``run``; see ``run_experiment``.

    Returns:
        The results of each point, in the order of ``sweep.points()``.

    Raises:
        InvalidInput: A point does not fit; nothing was run.
        OutputError: A folder cannot be written.
    """
    require.instance("sweep", sweep, Sweep)
    points = sweep.points()
    if len(points) > 1:
        for point in points:
            check_that_it_runs(point.experiment, point.experiment.selectors)
    results = []
    for point in points:
        place = point.folder(Path(folder))
        with writing_to(place):
            if point.settings:
                place.mkdir(parents=True, exist_ok=True)
                write_json(place / SWEEP, point.settings)
        results.append(run(point.experiment, place, **options))
    return results


def _flat(table: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield what is swept, by its key; ``a.b`` and ``"a.b"`` are the same."""
    if not isinstance(table, Mapping):
        raise ConfigError(("sweep",), f"must be a table of keys and lists, got {table!r}.")
    for name, value in table.items():
        inner = (*key, *_parts(name))
        if isinstance(value, Mapping):
            yield from _flat(value, inner)
        else:
            yield inner, value


def _parts(key: str) -> tuple[str, ...]:
    return tuple(key.split("."))


def _swept_selectors(base: Experiment, key: Key, values: Any) -> tuple[Variant, ...]:
    """Return the selectors, with a variant for each value of one's parameter."""
    label, parameter = ".".join(map(str, key[1:-1])), str(key[-1])
    meant = [item for item in base.selectors if label in (item.label, item.name)]
    if not meant:
        problem = f"there is no selector {label!r}.{nearest(label, base.labels)}"
        raise ConfigError(("sweep", *key), f"{problem} Write selectors.LABEL.PARAMETER.")
    selectors: list[Variant] = []
    for variant in base.selectors:
        table = {**variant.table(), parameter: values}
        try:
            selectors += variants_of(table) if variant in meant else [variant]
        except ConfigError as error:
            raise ConfigError(("sweep", *key), error.problem) from error
    return tuple(selectors)


def _changed(table: Mapping[str, Any], key: Key, value: Any, whole: str) -> dict[str, Any]:
    """Return a table with another value at a key."""
    name = str(key[0])
    if len(key) == 1:
        replaced = {old for new, old in REPLACES.values() if new == name}
        rest = {} if name in _TAGS else {k: v for k, v in table.items() if k not in replaced}
        return {**rest, name: value}
    inner = table.get(name)
    if not isinstance(inner, Mapping):
        has = "no" if inner is None else "no table"
        fix = "train with [training] or --train" if name == "training" else "check the key"
        problem = f"the experiment has {has} {name!r} to change: {fix}."
        raise ConfigError(("sweep", *_parts(whole)), problem)
    return {**table, name: _changed(inner, key[1:], value, whole)}


def _value_name(value: Any) -> Any:
    """Return the name of a value: itself, or the values of a table."""
    return value if isinstance(value, int | float | str) else shortened(short(value), _LONGEST)


def _name(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={name}" for key, name in settings.items())


def _n_shared(first: Key, second: Key) -> int:
    """Return the number of names that two keys share at their start."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
