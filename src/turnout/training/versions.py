"""Models and answers in memory, where rounds overlap.

A client trains on the model that it got, whatever has become of the global model since. In a
simulation it need not train at once: when the first answer on a version is due, all clients that
have begun on this version train together. A version is kept while somebody has it who has not been
aggregated yet. So at most one model for each client at work and each answer in the buffer is in
memory, beside as many versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turnout.core.plain import below
from turnout.core.types import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor

#: The number of a choice, and a client of it.
Piece = tuple[int, int]
_REPORTS = "reports."


@dataclass(frozen=True)
class Done:
    """What a client has trained.

    Attributes:
        version: The model that it started from.
        weights: (P,) its own model.
        num_examples: Its training examples.
        reports: What it reports, by name: a number or a vector.
    """

    version: int
    weights: Tensor
    num_examples: int
    reports: Mapping[str, FloatArray]


class Versions:
    """The models that clients work on, and what they have trained on them."""

    def __init__(self) -> None:
        self.number = 0  #: of the present global model
        self.models: dict[int, Tensor] = {}
        self.due: dict[Piece, int] = {}  #: who has begun and has not trained, with the version
        self.done: dict[Piece, Done] = {}
        self.most = 0  #: models in memory at the same time so far

    @property
    def n_kept(self) -> int:
        """Models in memory: versions, and answers that are not aggregated yet."""
        return len(self.models) + len(self.done)

    def start(self, weights: Tensor, round: int, clients: IntArray) -> None:
        """Give clients the present model.

        Args:
            weights: The model.
            round: The number of their choice.
            clients: Who gets it.
        """
        if clients.size:
            self.models[self.number] = weights
            self.due |= dict.fromkeys(((round, client) for client in clients.tolist()), self.number)

    def begun_on(self, version: int) -> tuple[IntArray, IntArray]:
        """Return the choices and clients that have not trained on a version yet.

        Args:
            version: The version.
        """
        pieces = [piece for piece, own in self.due.items() if own == version]
        rounds, clients = np.array(pieces, dtype=np.int64).reshape(-1, 2).T
        return rounds, clients

    def finished(self, piece: Piece, done: Done) -> None:
        """Keep what a client has trained.

        Args:
            piece: The client and its choice.
            done: What it has trained.
        """
        del self.due[piece]
        self.done[piece] = done
        self.most = max(self.most, self.n_kept)

    def advance(self) -> None:
        """Go on to the next global model, and forget the versions that nobody has."""
        self.number += 1
        used = {*self.due.values(), *(done.version for done in self.done.values())}
        self.models = {number: self.models[number] for number in sorted(used)}

    def state(self) -> dict[str, Array]:
        """Return everything as arrays."""
        done = list(self.done.values())
        rows = [model.cpu().numpy() for model in self.models.values()]
        own = [each.weights.cpu().numpy() for each in done]
        n_weights = (rows or own or [np.zeros(0, np.float32)])[0].size
        state: dict[str, Array] = {
            "number": np.array(self.number),
            "most": np.array(self.most),
            "models": np.array([*self.models], dtype=np.int64),
            "weights": np.array(rows, dtype=np.float32).reshape(len(rows), n_weights),
            "due": _pieces(self.due),
            "due_on": np.array([*self.due.values()], dtype=np.int64),
            "done": _pieces(self.done),
            "done_on": np.array([each.version for each in done], dtype=np.int64),
            "examples": np.array([each.num_examples for each in done], dtype=np.int64),
            "own": np.array(own, dtype=np.float32).reshape(len(own), n_weights),
        }
        for name in done[0].reports if done else ():
            state[f"{_REPORTS}{name}"] = np.array([each.reports[name] for each in done])
        return state

    def load_state(self, state: Mapping[str, Array], like: Tensor) -> None:
        """Continue from what ``state`` returned.

        Args:
            state: The arrays.
            like: A model, whose device and type the others have.
        """
        import torch

        def tensors(name: str) -> list[Tensor]:
            return [torch.from_numpy(np.array(row)).to(like) for row in state[name]]

        self.number, self.most = int(state["number"]), int(state["most"])
        self.models = dict(zip(state["models"].tolist(), tensors("weights"), strict=True))
        due, done = (map(tuple, state[name].tolist()) for name in ("due", "done"))
        self.due = dict(zip(due, state["due_on"].tolist(), strict=True))
        reports = below(_REPORTS, state)
        self.done = {
            piece: Done(
                int(state["done_on"][row]),
                own,
                int(state["examples"][row]),
                {name: values[row] for name, values in reports.items()},
            )
            for row, (piece, own) in enumerate(zip(done, tensors("own"), strict=True))
        }


def deviations(
    weights: Tensor, local: Sequence[Tensor], bases: Sequence[Tensor | None], n: int
) -> FloatArray:
    """Return (s,) the squared distance of each update from the mean of the fresh ones.

    NaN if none is fresh.

    Args:
        weights: (P,) the global model.
        local: The model of each client.
        bases: The model that each started from; None = the global one, which is fresh.
        n: How many of the numbers are weights; buffers follow.
    """

    def update(row: int) -> FloatArray:
        base = bases[row]
        step = local[row][:n] - (weights if base is None else base)[:n]
        return np.asarray(step.cpu().numpy(), dtype=np.float64)

    fresh = [row for row in range(len(local)) if bases[row] is None]
    if not fresh:
        return np.full(len(local), np.nan)
    mean = np.zeros(n)
    for row in fresh:
        mean += update(row) / len(fresh)
    return np.array([np.square(update(row) - mean).sum() for row in range(len(local))])


def _pieces(pieces: Mapping[Piece, object]) -> IntArray:
    return np.array([*pieces], dtype=np.int64).reshape(-1, 2)
