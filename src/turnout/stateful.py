"""Parameters, state, clone, repr and growth from two naming rules.

``__init__`` takes keyword-only parameters and stores each under its own name, nothing else. What is
learned lives in attributes whose names end in ``_``: numpy arrays, or plain bool, int and float.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from turnout import require
from turnout.errors import InvalidInput, NotReset, StateFileError
from turnout.types import Array

__all__ = ["Stateful"]

_Scalar = bool | int | float

#: State that older files do not have; it starts as ``reset`` leaves it.
LATER = frozenset({"unanswered_"})


class Stateful:
    """An object with parameters and learned state, sized by the number of clients."""

    n_clients_: int

    def reset(self, n_clients: int) -> None:
        """Forget everything and allocate the state; overrides call ``super().reset`` first.

        Args:
            n_clients: The number of clients, available or not.
        """
        self.check_parameters()
        self.n_clients_ = require.integer("n_clients", n_clients, minimum=1)

    def check_parameters(self) -> None:
        """Raise ``InvalidInput`` if a parameter is outside its domain."""

    @classmethod
    def parameter_names(cls) -> tuple[str, ...]:
        """Return the names of the constructor's parameters."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    @classmethod
    def default_parameters(cls) -> dict[str, Any]:
        """Return what the constructor's parameters are unless they are given."""
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
            raise NotReset(f"{name} has no state yet: call reset(n_clients) first.") from None

    def state(self) -> dict[str, Array]:
        """Return a copy of everything learned, as arrays."""
        return {name: np.array(value) for name, value in self._learned().items()}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; nothing changes if it does not fit.

        Args:
            state: What ``state()`` returned for the same number of clients.

        Raises:
            StateFileError: Names, types or sizes differ.
        """
        fresh = self.clone()
        fresh.reset(self.n_clients)
        expected = fresh._learned()
        state = {name: np.array(expected[name]) for name in LATER & expected.keys()} | dict(state)
        if state.keys() != expected.keys():
            odd = ", ".join(sorted(state.keys() ^ expected.keys()))
            raise StateFileError(f"the state does not fit {type(self).__name__}: check {odd}.")
        fitted = {name: _like(name, state[name], value) for name, value in expected.items()}
        if fitted["n_clients_"] != self.n_clients:
            raise StateFileError(
                f"n_clients is {fitted['n_clients_']} in the state and {self.n_clients} here: "
                "reset to the saved size and use grow(n_clients) afterwards."
            )
        vars(self).update(fitted)

    def clone(self) -> Self:
        """Return a new object with the same parameters and no state."""
        return type(self)(**self.parameters)

    def grow(self, n_clients: int) -> None:
        """Make room for more clients; the known ones keep their state, the new ones start fresh.

        An array whose shape depends on the number of clients is per client, any other is shared.

        Args:
            n_clients: The new number of clients, not below the present one.
        """
        n_clients = require.integer("n_clients", n_clients, minimum=1)
        if n_clients < self.n_clients:
            raise InvalidInput(
                f"n_clients can only grow: got {n_clients}, have {self.n_clients}. "
                "Clients that leave stay in the state and become unavailable."
            )
        small, large = self.clone(), self.clone()
        small.reset(self.n_clients)
        large.reset(n_clients)
        before, after = small._learned(), large._learned()
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
    # An array that is empty after reset takes its shape from the first feedback.
    same_shape = saved.shape == fresh.shape or (fresh.size == 0 and saved.ndim == fresh.ndim)
    if saved.dtype != fresh.dtype or not same_shape:
        raise StateFileError(
            f"{name} must be {fresh.dtype} of shape {fresh.shape}, got {saved.dtype} of shape "
            f"{saved.shape}."
        )
    return np.array(saved)
