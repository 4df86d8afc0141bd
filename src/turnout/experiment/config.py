"""An experiment: selectors x seeds in one world, with or without training, from TOML or Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from turnout.core import require
from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.data import FederatedData
from turnout.data.files import content_id
from turnout.experiment.codec import ConfigError, Key, decode, encode, key_of
from turnout.experiment.variants import Variant, variants_of
from turnout.results.files import slug
from turnout.training import Federation, Training
from turnout.training.federation import federation_of
from turnout.training.recipe import OBSERVATION
from turnout.worlds import (
    WORLDS,
    Environment,
    FixedDeadline,
    RoundPolicy,
    WorkSchedule,
    named_world,
)

# --------------------------------------------------------------------------------------------------
# TOML files whose errors name the line: where a key stands in a text.
# --------------------------------------------------------------------------------------------------

_T = TypeVar("_T")

_HEADER = re.compile(r"^\s*(\[{1,2})\s*([^\[\]]+?)\s*\]{1,2}\s*(#.*)?$")
_ASSIGNED = re.compile(r"(?:^|[{,\s])\s*([A-Za-z0-9_.\"'-]+)\s*=")


def read_toml(path: str | os.PathLike[str], build: Callable[[dict[str, Any], str], _T]) -> _T:
    """Build an object from a file; errors name the file, the line and the key.

    Args:
        path: The file.
        build: Makes it of the file's table and name.

    Raises:
        InvalidInput: The file cannot be read, or what is in it is wrong.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}.") from error
    try:
        return build(tomllib.loads(text), file.stem)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{file} is not TOML: {error}.") from error
    except InvalidInput as error:
        line = line_of(text, key_of(error))
        where = file.name if line is None else f"{file.name}, line {line}"
        raise InvalidInput(f"{where}: {error}", field=error.field) from error


def line_of(text: str, key: Key) -> int | None:
    r"""Return the line of a key, counted from 1, or of the nearest table around it.

    >>> line_of('name = "x"\n[[selectors]]\nname = "e3cs"\n', ("selectors", 0, "name"))
    3
    """
    lines = _lines(text)
    by_name = [line for path, line in lines.items() if path[-1:] == key[-1:]]
    if key not in lines and key[:-1] not in lines and len(by_name) == 1:
        return by_name[0]
    paths = (key[:size] for size in range(len(key), 0, -1))
    return next((lines[path] for path in paths if path in lines), None)


def _lines(text: str) -> dict[Key, int]:
    """Return the line on which each key is first assigned or opened."""
    lines: dict[Key, int] = {}
    here: Key = ()
    arrays: Counter[Key] = Counter()  # tables of each array so far
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header:
            here = _opened(header.group(2), header.group(1) == "[[", arrays)
            lines.setdefault(here, number)
        elif not line.lstrip().startswith("#"):
            outer = here
            for match in _ASSIGNED.finditer(line):  # further ones are inside of the first
                path = (*outer, *_parts(match.group(1)))
                outer = path if outer is here else outer
                lines.setdefault(path, number)
    return lines


def _opened(name: str, is_array: bool, arrays: Counter[Key]) -> Key:
    """Return the path of a table header; entries of arrays of tables are numbered."""
    path: Key = ()
    *outer, last = _parts(name)
    for part in outer:
        path = (*path, part)
        path = (*path, arrays[path] - 1) if arrays[path] else path
    path = (*path, last)
    arrays[path] += is_array
    return (*path, arrays[path] - 1) if arrays[path] else path


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


# --------------------------------------------------------------------------------------------------
# Worlds as tables: what an environment is made of, without its size and its seed.
# --------------------------------------------------------------------------------------------------

_NOT_IN_TABLE = ("n_clients", "seed")
_PARTS = tuple(field.name for field in fields(Environment) if field.name not in _NOT_IN_TABLE)


def world_of(world: Any, n_clients: int, seed: int = 0) -> Environment:
    """Return the environment that a name, a table or an ``Environment`` stands for.

    Args:
        world: A table may start from a named world: ``{preset = "e3cs", availability = {...}}``.
        n_clients: Number of clients.
        seed: Seed of everything random in it.

    Returns:
        The environment.

    Raises:
        ConfigError: The world is unknown, or its table has a wrong key or value.

    """
    if isinstance(world, str):
        world = _named(world, ("world",))
    if isinstance(world, Environment):
        return replace(world, n_clients=n_clients, seed=seed)
    if not isinstance(world, Mapping):
        raise ConfigError(("world",), f"must be a name or a table, got {world!r}.")
    parts = dict(world)
    preset = {}
    if "preset" in parts:
        example = _named(parts.pop("preset"), ("world", "preset"))
        preset = {name: getattr(example, name) for name in _PARTS}
    _check_names(parts, ["preset", *_PARTS], ("world",))
    sized = {"n_clients": n_clients, "seed": seed}
    environment: Environment = decode(preset | parts | sized, Environment, ("world",))
    return environment


def world_table(world: Environment) -> dict[str, Any]:
    """Return a world as plain data, without its size and its seed."""
    table: dict[str, Any] = encode(world)
    return {name: value for name, value in table.items() if name not in _NOT_IN_TABLE}


def class_names(world: Environment) -> dict[str, Any] | None:
    """Return the names of the classes of clients, or None if there is only one class."""
    values: Any = None
    if world.volatility.classes(world.n_clients).any():
        values, form, what = _innermost(world.volatility, "rates"), "{:g}", "success rate"
    elif world.timing.classes(world.n_clients).any():
        values, form, what = _innermost(world.timing, "training_s"), "{:g} s", "training time"
    if values is None:
        values, form, what = range(1, int(world.classes.max()) + 2), "{}", "class"
        if len(values) == 1:
            return None
    return {"names": [form.format(value) for value in values], "what": what}


def _named(name: Any, key: Key) -> Environment:
    try:
        return named_world(name).example
    except InvalidInput as error:
        raise ConfigError(key, str(error)) from error


def _check_names(table: Iterable[Any], allowed: Sequence[str], key: Key = ()) -> None:
    """Refuse keys that a table cannot have."""
    for name in table:
        if name not in allowed:
            raise ConfigError((*key, name), f"unknown key {name!r}.{nearest(name, allowed)}")


def _innermost(model: Any, attribute: str) -> Any:
    """Look through wrappers for the model that divides clients into classes."""
    while model is not None and not hasattr(model, attribute):
        model = getattr(model, "inner", None)
    return getattr(model, attribute, None)


#: Sizes of a world that is not named.
_N_CLIENTS, _COHORT_SIZE, _N_ROUNDS = 100, 20, 500

#: Characters that would lead out of the output folder, or cannot stand in a name of one.
_NOT_IN_NAMES = frozenset("/\\\0")
#: More seeds than make sense.
_MOST_SEEDS = 1_000_000
_NO_DEADLINE = FixedDeadline()


@dataclass(frozen=True, init=False)
class Experiment:
    """A grid of selectors and seeds in one world, checked when it is made.

    Args:
        selectors: At least one variant, table or text such as ``"e3cs:quota=0.8"``. A list of
            values, ``"e3cs:quota=[0,0.5]"``, is a variant for each.
        name: Its name, which is not part of its identity.
        world: A name of ``WORLDS``, a table or an ``Environment``, whose seed does not matter.
        n_clients: Number of clients; 0 = as the named world, else 100.
        cohort_size: Clients asked for per round; 0 = as the named world, else 20, and never more
            than all clients.
        n_rounds: Rounds per run; 0 = as the named world, else 500.
        seeds: The seeds, or a number n for 0 .. n - 1.
        policy: When a round closes: a policy, its table or the name of its kind.
        training: What is trained: a recipe or its table; None simulates without training.
        bounds: Limits on the claims of clients: True, or the switches of ``Bounds`` that are
            not the default; False believes every claim.
        schedule: When clients get work and when a round ends: a schedule or its table. None does
            not let rounds overlap.
        keep: Names of reports, such as ``update_sketch``, that run folders keep beside losses.
            They need d numbers for each choice; None keeps none.

    Raises:
        ConfigError: Something is unknown or does not fit; ``key`` names the place.
        InvalidInput: A size or a value is outside its domain.

    >>> experiment = Experiment(selectors=["random", "e3cs:quota=0.8"], world="e3cs", seeds=3)
    >>> experiment.seeds, experiment.n_clients, experiment.selectors[1].label
    ((0, 1, 2), 100, 'e3cs quota=0.8')

    """

    selectors: tuple[Variant, ...]
    name: str
    world: Environment  #: without its seed: see ``environment``
    n_clients: int
    cohort_size: int
    n_rounds: int
    seeds: tuple[int, ...]
    policy: RoundPolicy
    training: Training | None
    bounds: Mapping[str, bool] | None  #: every switch; None = everything is believed
    schedule: WorkSchedule | None  #: None = rounds do not overlap
    keep: tuple[str, ...] | None  #: reports that run folders keep; None = none

    def __init__(
        self,
        selectors: Sequence[Variant | Mapping[str, Any] | str],
        name: str = "experiment",
        world: Mapping[str, Any] | str | Environment = "volatile",
        n_clients: int = 0,
        cohort_size: int = 0,
        n_rounds: int = 0,
        seeds: Sequence[int] | int = 5,
        policy: Mapping[str, Any] | str | RoundPolicy = _NO_DEADLINE,
        training: Mapping[str, Any] | Training | None = None,
        bounds: Mapping[str, bool] | bool | None = False,
        schedule: Mapping[str, Any] | WorkSchedule | None = None,
        keep: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(("name",), f"must be a text, got {name!r}.")
        if name.startswith(".") or not _NOT_IN_NAMES.isdisjoint(name):
            raise ConfigError(("name",), f"must be a name and not a path, got {name!r}.")
        usual_clients, usual_cohort, usual_rounds = _usual_sizes(world)
        n_clients = require.integer("n_clients", n_clients, minimum=0) or usual_clients
        cohort_size = require.integer("cohort_size", cohort_size, minimum=0)
        work = None if schedule is None else decode(schedule, WorkSchedule, ("schedule",))
        cohort_size = cohort_size or min(usual_cohort, n_clients)
        if cohort_size > n_clients:
            fix = f"must be at most n_clients = {n_clients}, got {cohort_size}."
            raise ConfigError(("cohort_size",), fix)
        vars(self).update(  # the dataclass is frozen
            name=name,
            n_clients=n_clients,
            cohort_size=cohort_size,
            n_rounds=require.integer("n_rounds", n_rounds, minimum=0) or usual_rounds,
            world=world_of(world, n_clients),
            seeds=_checked_seeds(seeds),
            policy=decode(policy, RoundPolicy, ("policy",)),
            training=None if training is None else decode(training, Training, ("training",)),
            selectors=_checked_selectors(selectors),
            bounds=_checked_bounds(bounds),
            schedule=work if work is not None and work.overlaps else None,
            keep=_checked_keep(keep),
        )
        if self.schedule is not None:
            self.schedule.check(self.policy, n_clients)
            if self.keep:
                fix = "is not possible where rounds overlap: leave out keep, or the schedule."
                raise ConfigError(("keep",), fix)
        self.table()  # what cannot be written is refused here, not when the run begins

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read an experiment; errors name the file, the line and the key."""
        return read_toml(path, cls.from_table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], default_name: str = "experiment") -> Self:
        """Return the experiment of a table as TOML has it; unknown keys are errors."""
        if "sweep" in table:
            advice = "makes several experiments: read it with Sweep.from_toml."
            raise ConfigError(("sweep",), advice)
        _check_names(table, [field.name for field in fields(cls)])
        for name in ("n_clients", "cohort_size", "n_rounds"):
            if name in table:
                require.integer(name, table[name], minimum=1)
        if "selectors" not in table:
            raise ConfigError(("selectors",), "is missing: list at least one selector.")
        return cls(**({"name": default_name} | dict(table)))

    def table(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data; ``from_table`` reads it back."""
        values = {"name": self.name} | {
            each.name: getattr(self, each.name) for each in fields(self)
        }
        values["selectors"] = [variant.table() for variant in self.selectors]
        values["world"] = world_table(self.world)
        return {name: encode(value) for name, value in values.items() if value is not None}

    @property
    def title(self) -> str:
        """Its sizes in a few words."""
        sizes = (self.n_rounds, self.cohort_size, self.n_clients)
        return "{:,} rounds, {:,} of {:,} clients".format(*sizes)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the selectors, in order."""
        return tuple(variant.label for variant in self.selectors)

    @property
    def world_id(self) -> str:
        """12 hexadecimal digits; runs with the same ones compare."""
        table = self.table()
        of_runs = ("name", "selectors", "seeds", "keep")
        parts = {name: table[name] for name in table if name not in of_runs}
        if "training" in parts:
            recipe = parts["training"]
            parts["training"] = {name: recipe[name] for name in recipe if name not in OBSERVATION}
        return table_digest(parts)

    @property
    def digest(self) -> str:
        """12 hexadecimal digits of everything except the name."""
        return table_digest({key: value for key, value in self.table().items() if key != "name"})

    def environment(self, seed: int) -> Environment:
        """Return the world of one seed."""
        return replace(self.world, seed=seed)

    def data_content(self) -> dict[str, str]:
        """Return a mark of what is in the files of the data, empty if there are none."""
        path = None if self.training is None else self.training.source.find()
        return {} if path is None else {"data_sha256": content_id(path)}

    def federation(self, seed: int, data: FederatedData | None = None) -> Federation | None:
        """Return the clients that train in one seed's world, None without training."""
        recipe = self.training
        return None if recipe is None else federation_of(recipe, self.n_clients, seed, data=data)


def _checked_keep(keep: Any) -> tuple[str, ...] | None:
    if keep is None:
        return None
    is_list = isinstance(keep, list | tuple) and all(isinstance(name, str) for name in keep)
    if not is_list or not keep or len(set(keep)) < len(keep):
        fix = f'must list names of reports, such as ["update_sketch"], got {keep!r}.'
        raise ConfigError(("keep",), fix)
    return tuple(keep)


def _checked_bounds(bounds: Any) -> dict[str, bool] | None:
    if bounds is None or bounds is False:
        return None
    usual = Bounds().parameters
    if bounds is True:
        return usual
    if not isinstance(bounds, Mapping):
        fix = f"must be true, false or a table of switches, got {bounds!r}."
        raise ConfigError(("bounds",), fix)
    _check_names(bounds, [*usual], ("bounds",))
    for name, switch in bounds.items():
        require.boolean(f"bounds.{name}", switch)
    return usual | dict(bounds)


def _usual_sizes(world: Any) -> tuple[int, int, int]:
    if isinstance(world, Environment):
        return world.n_clients, _COHORT_SIZE, _N_ROUNDS
    name = world.get("preset") if isinstance(world, Mapping) else world
    named = WORLDS.get(name) if isinstance(name, str) else None
    if named is None:
        return _N_CLIENTS, _COHORT_SIZE, _N_ROUNDS
    return named.example.n_clients, named.cohort_size, named.n_rounds


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, int):
        return tuple(range(require.integer("seeds", seeds, minimum=1, maximum=_MOST_SEEDS)))
    try:
        numbers = tuple(require.integer("seeds", seed, minimum=0) for seed in seeds)
    except (InvalidInput, TypeError) as error:
        raise ConfigError(("seeds",), f"must be a number or a list of seeds: {error}") from error
    if not numbers or len(set(numbers)) < len(numbers):
        raise ConfigError(("seeds",), f"must be at least one and all different, got {seeds!r}.")
    return numbers


def _checked_selectors(selectors: Any) -> tuple[Variant, ...]:
    if not isinstance(selectors, list | tuple) or not selectors:
        raise ConfigError(("selectors",), f"must list at least one selector, got {selectors!r}.")
    variants = [variants_of(item, ("selectors", i)) for i, item in enumerate(selectors)]
    seen: dict[str, Variant] = {}  # by folder
    for i, variant in ((i, variant) for i, each in enumerate(variants) for variant in each):
        folder = slug(variant.label)
        if folder in seen:
            raise ConfigError(
                ("selectors", i, "label"),
                f"{variant.label!r} and {seen[folder].label!r} would share the folder {folder!r}; "
                "give each selector a label of its own.",
            )
        seen[folder] = variant
    return tuple(seen.values())


def table_digest(table: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits of plain data."""
    text = json.dumps(table, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
