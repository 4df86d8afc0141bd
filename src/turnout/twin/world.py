"""A fitted world: what was learned, what is a guess, and the files that hold it."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from turnout.core.errors import InvalidInput, OutputError, StateFileError
from turnout.core.files import UNREADABLE, read_npz, write_atomically, write_npz
from turnout.core.types import BoolArray, FloatArray
from turnout.core.version import __version__
from turnout.experiment.codec import decode, encode
from turnout.experiment.config import world_table
from turnout.worlds import (
    Environment,
    FittedArrays,
    FittedAvailability,
    FittedPopulation,
    FittedSuccess,
    FittedTimes,
    FixedDeadline,
    Moment,
    RoundPolicy,
    SyntheticLoss,
)
from turnout.worlds.base import History
from turnout.worlds.fitted import EFFECTS

#: The levels of durations that stand for all of them.
_LEVELS = (np.arange(40) + 0.5) / 40


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing about the federation, and how well the records show it.

    Attributes:
        name: What it is.
        value: What it is like, in words.
        learned_from: From how many observations.
        n_clients: How many clients showed it.
        is_guess: Whether the records say nothing about it.
        remark: What is a guess, or what to know; may be empty.
    """

    name: str
    value: str
    learned_from: str
    n_clients: int
    is_guess: bool
    remark: str = ""


@dataclass(frozen=True, repr=False)
class FittedWorld:
    """A world that was fitted to the records of a federation.

    Attributes:
        arrays: What was learned.
        names: (n,) the clients.
        cohort_size: Answers wanted per round, as recorded last.
        n_rounds: Recorded rounds.
        policy: How a round ended, as recorded last.
        losses: What clients report when nothing is trained.
        reports_failure: Whether a crashed client sends an error.
        quantities: What was learned from how many observations, and what is a guess.
        notes: What a reader must know about the records.
        sources: The run folders.
        path: The TOML file; None = not saved.
    """

    arrays: FittedArrays
    names: tuple[str, ...]
    cohort_size: int
    n_rounds: int
    policy: RoundPolicy = field(default_factory=FixedDeadline)
    losses: SyntheticLoss = field(default_factory=SyntheticLoss)
    reports_failure: bool = False
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def environment(self) -> Environment:
        """The world, with seed 0. Each seed draws what the records leave open."""
        return self.environment_of()

    def environment_of(self, seed: int = 0, *, draw: bool = True) -> Environment:
        """Return the world of a seed.

        Args:
            seed: Seed of everything random in it.
            draw: Whether the seed draws the clients' effects from what the records leave open.
                Otherwise everyone has the best estimate.
        """
        source: Any = self.arrays if self.path is None else _beside(self.path).as_posix()
        return Environment(
            self.n_clients,
            seed,
            FittedAvailability(source, draw),
            FittedSuccess(source, draw),
            FittedTimes(source, draw),
            FittedPopulation(path=source, draw=draw),
            self.losses,
            self.reports_failure,
        )

    @property
    def availability(self) -> FloatArray:
        """(n,) best estimate of each client's share of rounds in which it is there."""
        return 1.0 / (1.0 + np.exp(-self.arrays.mean[:, EFFECTS.index("availability")]))

    @property
    def success(self) -> FloatArray:
        """(n,) best estimate of each client's chance not to fail."""
        return 1.0 / (1.0 + np.exp(-self.arrays.mean[:, EFFECTS.index("success")]))

    @property
    def seconds(self) -> FloatArray:
        """(n,) best estimate of each client's mean duration, in the middle of the records."""
        environment = self.environment_of(draw=False)
        moment = Moment(self.n_rounds // 2, self.n_clients, 0, History.fresh(self.n_clients))
        return np.asarray(environment.timing.column("expected_duration", moment))

    def in_time(self, deadline: float = math.inf) -> FloatArray:
        """Return (n,) the chance that each client, if it is chosen, answers before a deadline.

        Args:
            deadline: Seconds.
        """
        arrays = self.arrays
        own = arrays.mean[:, EFFECTS.index("seconds")]
        scale = np.sqrt(np.square(arrays.scale) + float(arrays.round_scale) ** 2)
        if deadline == math.inf:
            return self.success
        point = (math.log(deadline) - own) / np.maximum(scale, 1e-9)
        return self.success * np.interp(point, arrays.noise, arrays.noise_at, left=0.0, right=1.0)

    def expected(
        self, round: int, limits: FloatArray, took_part: BoolArray | None = None
    ) -> dict[str, FloatArray]:
        """Return (n,) what to expect of each client if it is chosen: the best estimates.

        Args:
            round: The round.
            limits: (k,) equally likely seconds that a round gives to answer; infinity = no limit.
            took_part: (n,) who took part in the round before; None = nobody.

        Returns:
            By name: success, seconds of work, seconds wasted, and utility, the loss of answers in
            time.
        """
        history = History.fresh(self.n_clients)
        if took_part is not None:
            history.took_part_[:] = took_part
        moment = Moment(round, self.n_clients, 0, history)
        environment = self.environment_of(draw=False)
        seconds = FittedTimes(self.arrays, draw=False).spread(moment, _LEVELS)  # type: ignore[arg-type]
        in_time = np.mean([(seconds <= limit).mean(axis=1) for limit in limits], axis=0)
        spent = np.mean([np.minimum(seconds, limit).mean(axis=1) for limit in limits], axis=0)
        useful = np.mean(
            [np.where(seconds <= limit, seconds, 0.0).mean(axis=1) for limit in limits], axis=0
        )
        success = self.success * in_time
        level = environment.population.loss_level(self.n_clients, 0)
        return {
            "success": success,
            "seconds": spent,
            "wasted": spent - self.success * useful,
            "utility": success * self.losses.mean(level, round),
        }

    def save(self, path: str | os.PathLike[str]) -> Self:
        """Write the world as a TOML file and, beside it, an ``.npz`` of the same name.

        Args:
            path: The TOML file; its folder must exist.

        Returns:
            The world as it is on the disk, which ``compare`` and all other commands accept.

        Raises:
            InvalidInput: The name does not end in .toml.
            OutputError: A file cannot be written.
        """
        file = Path(path)
        if file.suffix != ".toml":
            raise InvalidInput(f"path must end in .toml, got {str(path)!r}.", field="path")
        saved = replace(self, path=file)
        try:
            arrays = self.arrays.arrays() | {"names": np.array(self.names, dtype=np.str_)}
            write_npz(_beside(file), arrays)
            write_atomically(file, saved._text().encode())
        except (OSError, StateFileError) as error:
            raise OutputError(f"{file} cannot be written: {error}") from error
        return saved

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a world that ``save`` has written.

        Args:
            path: The TOML file.

        Raises:
            InvalidInput: A file is missing, damaged or no fitted world.
        """
        file = Path(path)
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            fit = table["fit"]
            loaded = read_npz(_beside(file))
            world = table["world"]
            return cls(
                FittedArrays.from_arrays(loaded),
                tuple(str(name) for name in loaded["names"]),
                int(table["cohort_size"]),
                int(table["n_rounds"]),
                decode(table["policy"], RoundPolicy, ("policy",)),
                decode(world["losses"], SyntheticLoss, ("world", "losses")),
                bool(world["reports_failure"]),
                tuple(Quantity(**entry) for entry in fit["quantities"]),
                tuple(fit["notes"]),
                tuple(fit["sources"]),
                file,
            )
        except InvalidInput:
            raise
        except UNREADABLE as error:
            raise InvalidInput(
                f"{file} must be a world that turnout fit has written, with its .npz beside it "
                f"({type(error).__name__}: {error}); fit it again.",
                field="path",
            ) from error

    def _text(self) -> str:
        world = world_table(self.environment)
        for part in world.values():
            if isinstance(part, dict) and "path" in part:
                part["path"] = Path(part["path"]).name
        fit = {
            "turnout": __version__,
            "sources": list(self.sources),
            "notes": list(self.notes),
            "quantities": [asdict(each) for each in self.quantities],
        }
        top = {
            "n_clients": self.n_clients,
            "cohort_size": self.cohort_size,
            "n_rounds": self.n_rounds,
            "policy": encode(self.policy),
        }
        lines = [
            "# Fitted by turnout fit. The arrays are in the .npz beside this file: move them "
            "together.",
            *_lines(top),
            "",
            "[world]",
            *_lines(world),
            "",
            "[fit]",
            *_lines(fit),
        ]
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        """Return the world in a few lines."""
        lines = [f"FittedWorld: {self.n_clients:,} clients, {self.n_rounds:,} recorded rounds"]
        lines += [f"  {each.name}: {each.value}" for each in self.quantities]
        return "\n".join(lines)


def _beside(path: Path) -> Path:
    return path.with_suffix(".npz")


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_toml(value)}" for name, value in table.items() if value is not None]


def _toml(value: Any) -> str:
    """Return plain data as TOML, on one line; tables within lists get a line each."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        items = [_toml(item) for item in value]
        is_long = any(isinstance(item, Mapping) for item in value)
        return "[\n  " + ",\n  ".join(items) + ",\n]" if is_long else f"[{', '.join(items)}]"
    return json.dumps(value)
