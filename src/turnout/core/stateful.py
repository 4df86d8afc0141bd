"""Parameters, state, clone, repr and growth from two naming rules.

``__init__`` takes keyword-only parameters and stores each under its own name, nothing else. Learned
values are in attributes whose names end in ``_``: NumPy arrays, or plain bool, int and float.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from turnout.core import require
from turnout.core.domains import parameter_domains
from turnout.core.errors import InvalidInput, NotReset, StateFileError
from turnout.core.types import Array

__all__ = ["NOT_NEGATIVE", "Range", "Stateful"]

_Scalar = bool | int | float

#: No machine has the memory for more clients.
MOST_CLIENTS = 10**10

#: Largest magnitude of a learned number, unless its selector says otherwise.
LARGEST_STATE = 1e150


class Range(NamedTuple):
    """The range of a learned number. Without arguments, it and its square must be finite.

    Args:
        least: The smallest.
        most: The largest.
        may_be_nan: Whether NaN is allowed.
    """

    least: float = -LARGEST_STATE
    most: float = LARGEST_STATE
    may_be_nan: bool = False

    def check(self, name: str, values: Array | _Scalar) -> None:
        """Raise ``StateFileError`` unless all numbers are inside.

        Args:
            name: Name in the state.
            values: The numbers.
        """
        values = np.asarray(values)
        inside = (values >= self.least) & (values <= self.most)
        if self.may_be_nan:
            inside |= np.isnan(values)
        if not inside.all():
            bad = values[~inside].flat[0]
            raise StateFileError(
                f"{name} must be inside [{self.least:g}, {self.most:g}], got {bad}."
            )


#: Counts and other numbers that cannot be negative.
NOT_NEGATIVE = Range(0.0)


class Stateful:
    """An object with parameters and learned state, sized by the number of clients."""

    #: The range of each part of the state, by name. Any other part is at most 1e150.
    state_ranges: ClassVar[Mapping[str, Range]] = MappingProxyType({})

    #: State that older files lack. It starts as ``reset`` leaves it.
    later_state: ClassVar[frozenset[str]] = frozenset()

    n_clients_: int

    def reset(self, n_clients: int) -> None:
        """Forget everything and allocate the state. Overrides call ``super().reset`` first.

        Args:
            n_clients: The number of clients, available or not.
        """
        self.check_parameters()
        self.n_clients_ = require.integer("n_clients", n_clients, minimum=1, maximum=MOST_CLIENTS)

    def check_parameters(self) -> None:
        """Raise ``InvalidInput`` if a parameter is outside the domain that its type hint declares.

        An override calls ``super().check_parameters()`` and checks conditions between parameters.
        """
        for name, domain in parameter_domains(type(self).__init__).items():
            domain(name, getattr(self, name))

    def check_state(self) -> None:
        """Raise ``StateFileError`` if parts of a loaded state, each in range, do not fit."""

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Return the names of the constructor's parameters."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @classmethod
    def default_parameters(cls) -> dict[str, Any]:
        """Return the defaults of the constructor's parameters."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        optional = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
        return {p.name: p.default for p in optional}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters as they were given."""
        return {name: getattr(self, name) for name in self.parameter_names()}

    @property
    def n_clients(self) -> int:
        """The number of clients the state is allocated for."""
        try:
            return self.n_clients_
        except AttributeError:
            name = type(self).__name__
            raise NotReset(
                f"{name} has no state yet: call reset(n_clients) first; a reset of your own "
                "begins with super().reset(n_clients)."
            ) from None

    def state(self) -> dict[str, Array]:
        """Return a copy of everything learned, as arrays."""
        return {name: np.array(value) for name, value in self._learned().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; nothing changes if it does not fit.

        Args:
            state: What ``state()`` returned for the same number of clients.

        Raises:
            StateFileError: Names, types or sizes differ, or a number is outside its range.
        """
        fresh = self._fresh(self.n_clients)
        expected = fresh._learned()
        state = {
            name: np.array(expected[name]) for name in self.later_state & expected.keys()
        } | dict(state)
        if state.keys() != expected.keys():
            odd = ", ".join(sorted(state.keys() ^ expected.keys()))
            raise StateFileError(f"the state does not fit {type(self).__name__}: check {odd}.")
        fitted = {name: _like(name, state[name], value) for name, value in expected.items()}
        if fitted["n_clients_"] != self.n_clients:
            raise StateFileError(
                f"n_clients is {fitted['n_clients_']} in the state and {self.n_clients} here: "
                "reset to the saved size and use grow(n_clients) afterwards."
            )
        for name, value in fitted.items():
            self.state_ranges.get(name, Range()).check(name, value)
        vars(fresh).update(fitted)
        fresh.check_state()
        vars(self).update(fitted)

    def check_sizes(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Refuse a saved state of another size before anything of that size is allocated.

        Args:
            state: The saved state.
            n_clients: The number of clients that it should fit.

        Raises:
            StateFileError: The length of an array does not fit that number of clients.
        """
        # Two tiny states show how each shape depends on the number of clients: linearly, by axis.
        one, two = (self._fresh(n).state() for n in (1, 2))
        for name in state.keys() & one.keys():
            sizes = zip(one[name].shape, two[name].shape, strict=True)
            wanted = tuple(a + (b - a) * (n_clients - 1) for a, b in sizes)
            if one[name].shape != two[name].shape and state[name].shape != wanted:
                raise StateFileError(
                    f"{name} has shape {state[name].shape}, and n_clients = {n_clients} needs "
                    f"{wanted}."
                )

    def clone(self) -> Self:
        """Return a new object with the same parameters and no state."""
        return type(self)(**self.parameters)

    def grow(self, n_clients: int) -> None:
        """Make room for more clients. Known clients keep their state, new ones start fresh.

        An array whose shape depends on the number of clients is per client. Any other is shared.

        Args:
            n_clients: The new number of clients, not below the present one.
        """
        n_clients = require.integer("n_clients", n_clients, minimum=1)
        if n_clients < self.n_clients:
            raise InvalidInput(
                f"n_clients can only grow: got {n_clients}, have {self.n_clients}. "
                "Clients that leave stay in the state and become unavailable."
            )
        # An array is per client if its shape differs between fresh states of the two sizes.
        before, after = (self._fresh(n)._learned() for n in (self.n_clients, n_clients))
        for name, value in self._learned().items():
            old, new = np.shape(before[name]), np.shape(after[name])
            if old == new:
                continue
            rows = tuple(slice(0, length) for length in old)
            grown = after[name]
            assert isinstance(grown, np.ndarray)
            grown[rows] = value
            setattr(self, name, grown)
        self.n_clients_ = n_clients

    def __repr__(self) -> str:
        """Return the call that makes this object again."""
        inside = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{type(self).__name__}({inside})"

    def _fresh(self, n_clients: int) -> Self:
        fresh = self.clone()
        fresh.reset(n_clients)
        return fresh

    def _learned(self) -> dict[str, Array | _Scalar]:
        learned = {
            name: value
            for name, value in vars(self).items()
            if name.endswith("_") and not name.startswith("_")
        }
        for name, value in learned.items():
            if not isinstance(value, np.ndarray | bool | int | float):
                kind = type(value).__name__
                raise TypeError(f"{name} must be an array, bool, int or float, not {kind}.")
        return learned


def _like(name: str, saved: Array, fresh: Array | _Scalar) -> Array | _Scalar:
    if not isinstance(fresh, np.ndarray):
        if saved.ndim != 0 or saved.dtype.kind != np.array(fresh).dtype.kind:
            kind = type(fresh).__name__
            raise StateFileError(f"{name} must be a single {kind}, got {saved.dtype} {saved}.")
        return type(fresh)(saved.item())
    # An array that is empty after ``reset`` takes its shape from the first feedback.
    same_shape = saved.shape == fresh.shape or (fresh.size == 0 and saved.ndim == fresh.ndim)
    if saved.dtype != fresh.dtype or not same_shape:
        raise StateFileError(
            f"{name} must be {fresh.dtype} of shape {fresh.shape}, got {saved.dtype} of shape "
            f"{saved.shape}."
        )
    return np.array(saved)
