"""What is trained, on which data, by which rules: one recipe of plain settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from turnout import require
from turnout.data import Digits, Dirichlet, Partition, Source
from turnout.errors import InvalidInput
from turnout.names import shortened
from turnout.training.aggregate import Aggregation, MeanReturned
from turnout.training.local import LocalWork
from turnout.training.models import Mlp, Model

__all__ = ["OBSERVATION", "TRAINERS", "Training"]

#: Trainers by name; the first is the default.
TRAINERS = ("fast", "reference")

#: Settings that say how a run is computed and looked at, and do not change what it is about.
OBSERVATION = frozenset(
    {"evaluate_every", "evaluate_clients_every", "target_accuracy", "stop_at_target"}
    | {"trainer", "device"}
)


@dataclass(frozen=True, slots=True)
class Training:
    """Data, its division, model, local work and aggregation of a federation.

    Imports without PyTorch. The defaults train an MLP on the embedded digits.

    >>> Training(target_accuracy=0.9).target_accuracy
    (0.9,)
    """

    source: Source = field(default_factory=Digits)
    partition: Partition = field(default_factory=Dirichlet)
    hold_out: float = 0.0  #: share of its examples that each client keeps for evaluation
    model: Model = field(default_factory=Mlp)
    #: E = 5 and B = 10 of FedAvg (McMahan et al. 2017); small clients have small batches.
    local: LocalWork = field(default_factory=lambda: LocalWork(epochs=5, batch_size=10, lr=0.05))
    aggregation: Aggregation = field(default_factory=MeanReturned)
    server_lr: float = 1.0  #: factor on the step of the global model
    evaluate_every: int = 1  #: rounds between two looks at the test set; always after the last
    evaluate_clients_every: int = 10  #: the same for every client's own examples
    #: One accuracy or several whose rounds and time are reported.
    target_accuracy: tuple[float, ...] = ()
    stop_at_target: bool = False  #: whether the run ends when the highest target is reached
    trainer: str = TRAINERS[0]  #: "fast", or "reference": one client after the other
    device: str = "cpu"

    def __post_init__(self) -> None:
        kinds: dict[str, type] = {
            "source": Source,
            "partition": Partition,
            "model": Model,
            "local": LocalWork,
            "aggregation": Aggregation,
        }
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                hint = " Ready(module) holds a torch.nn.Module." if name == "model" else ""
                given = _shown(self, name)
                raise InvalidInput(
                    f"{name} must be a {kind.__name__}, got {given}.{hint}", field=name
                )
        if not 0.0 <= require.number("hold_out", self.hold_out) < 1.0:
            raise InvalidInput(
                f"hold_out must be inside [0, 1), got {self.hold_out!r}.", field="hold_out"
            )
        require.number("server_lr", self.server_lr, above=0.0)
        require.integer("evaluate_every", self.evaluate_every, minimum=1)
        require.integer("evaluate_clients_every", self.evaluate_clients_every, minimum=1)
        object.__setattr__(self, "target_accuracy", _targets(self.target_accuracy))
        if require.boolean("stop_at_target", self.stop_at_target) and not self.target_accuracy:
            raise InvalidInput(
                "stop_at_target needs a target_accuracy, such as 0.9.", field="stop_at_target"
            )
        require.choice("trainer", self.trainer, TRAINERS)
        if not isinstance(self.device, str) or not self.device:
            raise InvalidInput(
                f"device must be a name such as 'cpu' or 'cuda', got {self.device}.", field="device"
            )


def _targets(given: Any) -> tuple[float, ...]:
    several = given if isinstance(given, list | tuple) else (given,)
    checked = (require.number("target_accuracy", one, above=0.0, maximum=1.0) for one in several)
    return tuple(sorted(set(checked)))


def _shown(training: Training, name: str) -> str:
    text = " ".join(repr(getattr(training, name)).split())
    return shortened(text, 60)
