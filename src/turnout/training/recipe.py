"""The recipe of a training: data, model, local work and aggregation as plain settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from turnout.core import require
from turnout.core.domains import BelowOne, Count, Flag, NonNegative, Positive, check_fields, choice
from turnout.core.errors import InvalidInput
from turnout.core.names import shortened
from turnout.core.plain import LATER
from turnout.data import ClientCode, Digits, Dirichlet, Partition, Source
from turnout.training.aggregate import Aggregation, MeanReturned
from turnout.training.local import LocalWork
from turnout.training.models import Mlp, Model
from turnout.training.server import ServerOptimizer, TakeMean

#: What makes each trainer, imported only when something is trained. The first is the default.
TRAINERS: Mapping[str, str] = {
    "fast": "turnout.training.fast:best_trainer",
    "batched": "turnout.training.fast:FastTrainer",
    "reference": "turnout.training.reference:ReferenceTrainer",
}

#: What happens to buffers that change during training. The first is the default.
BUFFERS = ("average", "local")

#: Settings of how a run is computed and evaluated. They do not change what is trained.
OBSERVATION = frozenset(
    {"evaluate_every", "evaluate_clients_every", "target_accuracy", "stop_at_target"}
    | {"trainer", "device"}
)

#: What a recipe is made of, beside plain values.
_PARTS = (Source, Partition, Model, LocalWork, Aggregation, ClientCode, ServerOptimizer)


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that defines a federated training, except clients, selector and environment.

    It can be built without PyTorch. The defaults train an MLP on the embedded digits.

    Args:
        source: The dataset.
        partition: How it is divided among clients. Try ``Dirichlet(alpha=0.5)`` first.
        hold_out: Share of its examples that each client keeps for evaluation, inside [0, 1).
        model: What is trained.
        local: How long and by which rule a client trains. The default is E = 5 and B = 10 of
            FedAvg (McMahan et al. 2017): small clients have small batches.
        aggregation: How the returned models become the next global model.
        server_lr: Factor on the step of the global model, > 0.
        evaluate_every: Rounds between two evaluations on the test set. The last round is always
            evaluated.
        evaluate_clients_every: The same for each client's own examples. It is slower.
        target_accuracy: One accuracy or several, inside (0, 1]. The rounds and the time to each
            are reported.
        stop_at_target: Whether the run ends when the highest target is reached.
        trainer: ``"batched"`` trains clients side by side, ``"reference"`` one after the other.
            ``"fast"`` is the batched one; for a module that it cannot batch, a short trial decides.
        device: A device of PyTorch such as ``"cpu"`` or ``"cuda"``.
        code: How each client's data becomes its code, for selectors that need features.
        buffers: What happens to buffers that change during training, such as those of batch
            normalisation.
            ``"average"``: they are averaged with the weights, and clients start from the mean.
            ``"local"``: each client keeps its own from round to round and is evaluated with them.
        server: What the server does with the aggregated model: take it, or treat it as a step of
            momentum, Adam or Yogi.
        participants: Your own subclass of ``turnout.training.Federation``, as ``"module:Name"``. It
            may change what clients do, report or remember. Empty: the class itself.
        label_noise: Scale of the Laplace noise on the column ``label_counts``, how many examples of
            each label a client says it has. 0 tells the true counts. None: clients tell nothing,
            and selectors that need the column are refused.

    >>> Training(target_accuracy=0.9).target_accuracy
    (0.9,)
    """

    source: Source = field(default_factory=Digits)
    partition: Partition = field(default_factory=Dirichlet)
    hold_out: BelowOne = 0.0
    model: Model = field(default_factory=Mlp)
    local: LocalWork = field(default_factory=lambda: LocalWork(epochs=5, batch_size=10, lr=0.05))
    aggregation: Aggregation = field(default_factory=MeanReturned)
    server_lr: Positive = 1.0
    evaluate_every: Count = 1
    evaluate_clients_every: Count = 10
    target_accuracy: tuple[float, ...] = ()
    stop_at_target: Flag = False
    trainer: Annotated[str, choice(*TRAINERS)] = next(iter(TRAINERS))
    device: str = "cpu"
    code: ClientCode = field(default_factory=ClientCode, metadata=LATER)
    buffers: Annotated[str, choice(*BUFFERS)] = field(default=BUFFERS[0], metadata=LATER)
    server: ServerOptimizer = field(default_factory=TakeMean, metadata=LATER)
    participants: str = field(default="", metadata=LATER)
    label_noise: NonNegative | None = field(default=0.0, metadata=LATER)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Training).items():
            if kind in _PARTS and not isinstance(getattr(self, name), kind):
                hint = " Ready(module) holds a torch.nn.Module." if name == "model" else ""
                raise InvalidInput(
                    f"{name} must be a {kind.__name__}, got {_shown(self, name)}.{hint}", field=name
                )
        check_fields(self)
        object.__setattr__(self, "target_accuracy", _targets(self.target_accuracy))
        if self.stop_at_target and not self.target_accuracy:
            raise InvalidInput(
                "stop_at_target needs a target_accuracy, such as 0.9.", field="stop_at_target"
            )
        if not isinstance(self.participants, str) or self.participants.count(":") > 1:
            raise InvalidInput(
                f"participants must be 'module:Name', got {self.participants!r}.",
                field="participants",
            )
        if not isinstance(self.device, str) or not self.device:
            raise InvalidInput(
                f"device must be a name such as 'cpu' or 'cuda', got {self.device!r}.",
                field="device",
            )

    def may_go_on_after(self, n_rounds: int) -> bool:
        """Return whether a run that ended can go on as if more rounds had been planned.

        The last round is always measured; a longer run may not measure the same one.

        Args:
            n_rounds: The round after which it ended.
        """
        every = (self.evaluate_every, self.evaluate_clients_every)
        return all(n_rounds % n_between == 0 for n_between in every)


def _targets(setting: Any) -> tuple[float, ...]:
    targets = setting if isinstance(setting, list | tuple) else (setting,)
    checked = (require.number("target_accuracy", t, above=0.0, maximum=1.0) for t in targets)
    return tuple(sorted(set(checked)))


def _shown(training: Training, name: str) -> str:
    text = " ".join(repr(getattr(training, name)).split())
    return shortened(text, 60)
