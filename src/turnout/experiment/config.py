"""An experiment: selectors x seeds in one world, with or without training, from TOML or Python."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from turnout import require
from turnout.data.data_files import content_id
from turnout.environments import Environment
from turnout.errors import InvalidInput
from turnout.experiment.codec import ConfigError, decode, encode
from turnout.experiment.lines import line_of
from turnout.experiment.variants import Variant, variant_of
from turnout.experiment.worlds import WORLDS, environment, resolved_world
from turnout.names import nearest
from turnout.policies import FixedDeadline, RoundPolicy
from turnout.runs.files import slug
from turnout.training import Federation, Training
from turnout.training.recipe import OBSERVATION

__all__ = ["Experiment"]

#: Sizes of a world that is not named.
_N_CLIENTS, _COHORT_SIZE, _N_ROUNDS = 100, 20, 500


@dataclass(frozen=True)
class Experiment:
    """A grid of selectors and seeds; every field is plain data once it is built.

    >>> experiment = Experiment(selectors=["random", "e3cs:quota=0.8"], world="e3cs", seeds=3)
    >>> experiment.seeds, experiment.n_clients, experiment.selectors[1].label
    ((0, 1, 2), 100, 'e3cs quota=0.8')
    """

    selectors: Sequence[Variant | Mapping[str, Any] | str]
    name: str = "experiment"
    #: A name of ``WORLDS``, a table or an ``Environment`` (whose seed does not matter).
    world: Mapping[str, Any] | str | Environment = "volatile"
    n_clients: int = 0  #: 0 = as the named world, else 100
    cohort_size: int = 0  #: 0 = as the named world, else 20; never more than all
    n_rounds: int = 0  #: 0 = as the named world, else 500
    seeds: Sequence[int] | int = 5  #: a list, or a number n for 0 .. n - 1
    policy: Mapping[str, Any] | str | RoundPolicy = field(default_factory=FixedDeadline)
    training: Mapping[str, Any] | Training | None = None  #: None = simulate without training

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(("name",), f"must be a text, got {self.name!r}.")
        n_clients, cohort_size, n_rounds = _usual_sizes(self.world)
        self._set("n_clients", _positive("n_clients", self.n_clients or n_clients))
        usual = min(cohort_size, self.n_clients)
        self._set("cohort_size", _positive("cohort_size", self.cohort_size or usual))
        if self.cohort_size > self.n_clients:
            fix = f"must be at most n_clients = {self.n_clients}, got {self.cohort_size}."
            raise ConfigError(("cohort_size",), fix)
        self._set("n_rounds", _positive("n_rounds", self.n_rounds or n_rounds))
        self._set("world", resolved_world(self.world))
        self._set("seeds", _checked_seeds(self.seeds))
        policy = encode(self.policy)
        self._set("policy", encode(decode(policy, RoundPolicy, ("policy",))))
        if self.training is not None:
            training = encode(self.training)
            self._set("training", encode(decode(training, Training, ("training",))))
        self._set("selectors", _checked_selectors(self.selectors))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read an experiment; errors name the file, the line and the key."""
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{file} cannot be read: {error}.") from error
        try:
            return cls.from_table(tomllib.loads(text), default_name=file.stem)
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput(f"{file} is not TOML: {error}.") from error
        except ConfigError as error:
            line = line_of(text, error.key)
            where = file.name if line is None else f"{file.name}, line {line}"
            raise InvalidInput(f"{where}: {error}") from error

    @classmethod
    def from_table(cls, table: Mapping[str, Any], default_name: str = "experiment") -> Self:
        """Return the experiment of a table as TOML has it; unknown keys are errors."""
        known = [item.name for item in dataclasses.fields(cls)]
        for name in table:
            if name not in known:
                raise ConfigError((name,), f"unknown key {name!r}.{nearest(name, known)}")
        for name in ("n_clients", "cohort_size", "n_rounds"):
            if name in table:
                _positive(name, table[name])
        if "selectors" not in table:
            raise ConfigError(("selectors",), "is missing: list at least one selector.")
        return cls(**({"name": default_name} | dict(table)))

    def table(self) -> dict[str, Any]:
        """Return the resolved experiment as plain data; ``from_table`` reads it back."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        fields["selectors"] = [variant.table() for variant in self.variants]
        table: dict[str, Any] = encode(fields)
        if self.training is None:
            del table["training"]
        return {"name": self.name} | table

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The selectors, checked."""
        return tuple(variant_of(variant) for variant in self.selectors)

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds, as a list."""
        assert isinstance(self.seeds, tuple)  # resolved when built
        return self.seeds

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the selectors, in order."""
        return tuple(variant.label for variant in self.variants)

    @property
    def world_id(self) -> str:
        """12 hexadecimal digits; runs with the same ones compare."""
        parts = ("world", "n_clients", "cohort_size", "n_rounds", "policy")
        made_of = {name: encode(getattr(self, name)) for name in parts}
        if isinstance(self.training, Mapping):
            about = {name: self.training[name] for name in self.training if name not in OBSERVATION}
            made_of["training"] = about
        return _digest(made_of)

    @property
    def digest(self) -> str:
        """12 hexadecimal digits of everything except the name."""
        return _digest({key: value for key, value in self.table().items() if key != "name"})

    def environment(self, seed: int) -> Environment:
        """Return the world of one seed."""
        assert isinstance(self.world, Mapping)  # resolved when built
        return environment(self.world, self.n_clients, seed)

    def round_policy(self) -> RoundPolicy:
        """Return the round policy."""
        made: RoundPolicy = decode(self.policy, RoundPolicy, ("policy",))
        return made

    def recipe(self) -> Training | None:
        """Return what is trained, None for a simulation without training."""
        if self.training is None:
            return None
        made: Training = decode(self.training, Training, ("training",))
        return made

    def data_content(self) -> dict[str, str]:
        """Return a mark of what is in the files of the data, empty if there are none."""
        recipe = self.recipe()
        path = None if recipe is None else recipe.source.find()
        return {} if path is None else {"data_sha256": content_id(path)}

    def federation(self, seed: int) -> Federation | None:
        """Return the clients that train in one seed's world, None without training."""
        recipe = self.recipe()
        return None if recipe is None else Federation(recipe, self.n_clients, seed)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen


def _usual_sizes(world: Any) -> tuple[int, int, int]:
    if isinstance(world, Environment):
        return world.n_clients, _COHORT_SIZE, _N_ROUNDS
    name = world.get("preset") if isinstance(world, Mapping) else world
    named = WORLDS.get(name) if isinstance(name, str) else None
    if named is None:
        return _N_CLIENTS, _COHORT_SIZE, _N_ROUNDS
    return named.example.n_clients, named.cohort_size, named.n_rounds


def _positive(name: str, value: Any) -> int:
    try:
        return require.integer(name, value, minimum=1)
    except InvalidInput as error:
        raise ConfigError((name,), str(error)) from error


def _checked_seeds(seeds: Any) -> tuple[int, ...]:
    if isinstance(seeds, int):
        return tuple(range(_positive("seeds", seeds)))
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
    variants = tuple(variant_of(item, ("selectors", i)) for i, item in enumerate(selectors))
    seen: dict[str, str] = {}
    for i, variant in enumerate(variants):
        folder = slug(variant.label)
        if folder in seen:
            raise ConfigError(
                ("selectors", i, "label"),
                f"{variant.label!r} and {seen[folder]!r} would share the folder {folder!r}; "
                "give each selector a label of its own.",
            )
        seen[folder] = variant.label
    return variants


def _digest(table: Mapping[str, Any]) -> str:
    text = json.dumps(table, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
