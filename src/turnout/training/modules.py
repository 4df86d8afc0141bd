"""PyTorch modules: the networks of the recipes, checks against the data, weights as a vector.

Everything that all trainers must do in the same way is here: how examples become tensors, how the
loss of a label is measured, and in which order the weights are. Batch normalisation needs special
care: its running moments are buffers and not weights, and it cannot normalise a single example.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from turnout.core.errors import MissingExtra

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error

from turnout.core.errors import InvalidInput
from turnout.core.names import import_object
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array
from turnout.data.base import PADDING, FederatedData
from turnout.training.local import SEEDS
from turnout.training.models import Model, Ready

#: Number of examples on which a new module is tried.
PROBE = 2

#: What a module raises for examples that it cannot take.
REFUSALS = (RuntimeError, ValueError, IndexError, TypeError)


def initial_module(model: Model | nn.Module, data: FederatedData, seed: int) -> nn.Module:
    """Return the module of a recipe, checked against the data.

    Args:
        model: A recipe, or a module, which is copied and keeps its weights.
        data: The examples that it must accept.
        seed: Fixes the weights of a recipe.

    """
    if isinstance(model, nn.Module):
        model = Ready(model)
    if not isinstance(model, Model):
        raise InvalidInput(f"model must be a Model or a torch.nn.Module, got {model!r}.")
    with seeded(int(stream(seed, Purpose.INIT).integers(SEEDS))):
        module = model.build(data)
    _check_weights(module)
    _check_answers(module, data)
    return module


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's own generators inside the block and restore them afterwards.

    Args:
        seed: The seed.
        device: A GPU whose generator is seeded too.

    """
    on_gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def device_named(name: str | torch.device) -> torch.device:
    """Return a device of PyTorch.

    Args:
        name: Its name, for example ``"cpu"`` or ``"cuda:0"``.

    Raises:
        InvalidInput: This machine does not have it.

    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()
        if device.type == "cpu" and device.index:  # PyTorch accepts any number
            raise RuntimeError("the cpu has no number")
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InvalidInput(
            f"device {str(name)!r} cannot be used: this machine has {_devices()}.", field="device"
        ) from error
    return device


def input_tensor(data: FederatedData, x: Array, device: torch.device | None = None) -> Tensor:
    """Return examples as a model sees them: ``x * scale + shift``, or word numbers.

    Args:
        data: Gives scale and shift.
        x: The examples.
        device: Where the tensor goes.

    """
    if data.is_text:
        return torch.from_numpy(x.astype(np.int64)).to(device)
    values = torch.from_numpy(x.astype(np.float32)).to(device)
    if data.scale != 1.0:
        values.mul_(data.scale)
    if data.shift != 0.0:
        values.add_(data.shift)
    return values


def label_tensor(y: Array, device: torch.device | None = None) -> Tensor:
    """Return labels as a tensor of int64, targets as one of float32.

    Args:
        y: The labels or targets.
        device: Where the tensor goes.

    """
    kind = np.float32 if y.dtype.kind == "f" else np.int64
    return torch.from_numpy(y.astype(kind)).to(device)


#: Returns the loss of each label: (k, outputs) scores and (k,) labels to (k,).
Loss = Callable[[Tensor, Tensor], Tensor]

_LOSSES: Mapping[str, Loss] = {
    "cross-entropy": partial(functional.cross_entropy, reduction="none"),
    "squared-error": lambda scores, targets: (scores[:, 0] - targets).square(),
    "absolute-error": lambda scores, targets: (scores[:, 0] - targets).abs(),
}


def loss_named(name: str, module: nn.Module, data: FederatedData) -> Loss:
    """Return a loss by its name, or a function of the user's; it is tried on a few examples.

    Args:
        name: One of ``LOSSES``, or ``"module:function"``.
        module: The module whose scores it gets.
        data: The examples that it is tried on.

    """
    if name in _LOSSES:
        if data.has_targets is (name == "cross-entropy"):
            kind = "targets of a regression" if data.has_targets else "labels of classes"
            fix = "squared-error" if data.has_targets else "cross-entropy"
            raise InvalidInput(
                f"loss is {name!r} but {data.name} has {kind}: use loss = {fix!r}.", field="loss"
            )
        return _LOSSES[name]
    loss: Loss = import_object(name)
    n = min(PROBE, data.x.shape[0])
    labels = label_tensor(data.y[:n])
    scores = tried(module, data, n)
    try:
        losses = loss(*counted(scores.cpu(), labels))
    except Exception as error:  # whatever a user's function raises
        raise InvalidInput(f"loss {name} cannot be used: {error}", field="loss") from error
    wanted = (int((labels != PADDING).sum()) if data.is_text else n,)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != wanted:
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidInput(
            f"loss {name} must return one loss for each of {wanted[0]} labels, a tensor of shape "
            f"{wanted}, got {got}.",
            field="loss",
        )
    return loss


def counted(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and labels of what counts: one row per example or, in texts, per word.

    Args:
        scores: (n, outputs) or, for texts, (n, length, classes).
        labels: (n,) or (n, length). ``PADDING`` does not count in texts.

    """
    if labels.ndim == 1:
        return scores, labels
    counts = labels != PADDING
    return scores[counts], labels[counts]


def read_weights(module: nn.Module, buffers: Sequence[str] = ()) -> Tensor:
    """Return a new (P,) vector of the weights, in the order of ``module.parameters()``.

    Args:
        module: The module to read.
        buffers: Names of buffers that follow the weights.

    """
    with torch.no_grad():
        return torch.cat([array.reshape(-1).float() for array in _arrays(module, buffers)])


def load_weights(module: nn.Module, weights: Tensor, buffers: Sequence[str] = ()) -> None:
    """Copy a (P,) vector into the module; buffers of integers are rounded.

    Args:
        module: The module to change.
        weights: Its new weights.
        buffers: Names of buffers that follow the weights.

    """
    arrays = _arrays(module, buffers)
    parts = torch.split(weights.detach(), [array.numel() for array in arrays])
    with torch.no_grad():
        for array, part in zip(arrays, parts, strict=True):
            array.copy_((part if array.is_floating_point() else part.round()).view_as(array))


def _arrays(module: nn.Module, buffers: Sequence[str]) -> list[Tensor]:
    return [*module.parameters(), *(module.get_buffer(name) for name in buffers)]


def tried(module: nn.Module, data: FederatedData, n: int) -> Any:
    """Return what a module answers to the first examples while it trains.

    Args:
        module: The module, which may change its buffers.
        data: The examples.
        n: How many of them.

    """
    device = next(module.parameters()).device
    with seeded(0), torch.no_grad():
        return module.train()(input_tensor(data, data.x[:n], device))


def _devices() -> str:
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    mps = ["mps"] if torch.backends.mps.is_available() else []
    return ", ".join(["cpu", *cuda, *mps])


def _check_weights(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model must build a torch.nn.Module, got {module!r}.")
    kinds = {weight.dtype for weight in module.parameters()}
    if not kinds:
        raise InvalidInput(
            f"model {type(module).__name__} has no weights to train: add a layer with parameters."
        )
    if kinds != {torch.float32}:
        types = ", ".join(sorted(str(kind) for kind in kinds))
        raise InvalidInput(f"model must hold float32 weights, got {types}: call module.float().")


def _check_answers(module: nn.Module, data: FederatedData) -> None:
    """Try the module on a few examples: its output must fit the labels."""
    n = min(PROBE, data.x.shape[0])
    before = [buffer.clone() for buffer in module.buffers()]
    try:
        answer = tried(module, data, n)
    except REFUSALS as error:
        raise InvalidInput(
            f"model refuses examples of shape {data.example_shape} ({data.name}): {error}"
        ) from error
    for buffer, value in zip(module.buffers(), before, strict=True):
        buffer.copy_(value)
    wanted = (n, *data.y.shape[1:], data.n_classes)  # one output for a target
    if not isinstance(answer, Tensor) or tuple(answer.shape) != wanted:
        raise InvalidInput(_misfit(answer, wanted, data))


def _misfit(answer: object, wanted: tuple[int, ...], data: FederatedData) -> str:
    if not isinstance(answer, Tensor):
        return f"model must return a tensor of scores, got {type(answer).__name__}."
    got = tuple(answer.shape)
    if got[:-1] == wanted[:-1]:
        return (
            f"model gives {got[-1]} scores per label but {data.name} has {data.n_classes} classes:"
            " give its last layer one output per class."
        )
    return f"model must return scores of shape {wanted} for {wanted[0]} examples, got {got}."


def changing_buffers(module: nn.Module, data: FederatedData) -> tuple[str, ...]:
    """Return the names of the buffers of all layers that change a buffer while they train.

    Args:
        module: The module. It is copied.
        data: The examples that it is tried on.

    """
    after = copy.deepcopy(module)
    tried(after, data, min(PROBE, data.x.shape[0]))
    buffers = dict(module.named_buffers())
    changed = {
        _layer(name)
        for name, buffer in after.named_buffers()
        if not torch.equal(buffer, buffers[name])
    }
    names = tuple(name for name in buffers if _layer(name) in changed)
    for name in names:
        if buffers[name].is_complex():
            raise InvalidInput(
                f"model {type(module).__name__} changes its buffer {name} of complex numbers, "
                "which cannot be averaged with its weights: keep two of real numbers."
            )
    return names


def least_batch(module: nn.Module, data: FederatedData) -> int:
    """Return how many examples a mini-batch must hold: 2 if the module refuses a single one.

    Args:
        module: The module. It is copied.
        data: The examples that it is tried on.

    """
    try:
        tried(copy.deepcopy(module), data, 1)
    except REFUSALS:
        return 2
    return 1


def check_batches(
    module: nn.Module, data: FederatedData, batch_size: int | None, least: int
) -> None:
    """Raise an error if a client would have a mini-batch that is too small for the module.

    Args:
        module: The module.
        data: The examples of all clients.
        batch_size: Examples of a mini-batch; None for all.
        least: Examples that a mini-batch must hold.

    """
    n = data.num_samples
    size = n if batch_size is None else np.minimum(n, batch_size)
    lent = np.where(n % size == 0, 0, np.maximum(least - n % size, 0))  # to the last of a pass
    short = np.flatnonzero(size - lent < least)
    if short.size:
        raise InvalidInput(
            f"model {type(module).__name__} needs {least} examples in every mini-batch, as batch "
            f"normalisation does, but with batch_size={batch_size} client {short[0]} has "
            f"{n[short[0]]} training examples and a mini-batch of one. Use batch_size >= 3 and "
            "clients with two examples or more, or GroupNorm."
        )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def mlp(n_inputs: int, hidden: Sequence[int], n_classes: int) -> nn.Sequential:
    """Return a multi-layer perceptron with ReLU; without hidden layers, logistic regression.

    Args:
        n_inputs: Numbers in an example.
        hidden: Width of each hidden layer.
        n_classes: Number of outputs.

    """
    widths = [n_inputs, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], n_classes))


def cnn(
    shape: Sequence[int], channels: Sequence[int], hidden: Sequence[int], n_classes: int
) -> nn.Sequential:
    """Return 5x5 convolutions, each with ReLU and 2x2 max pooling, then a perceptron.

    Args:
        shape: Channels, height and width of an image.
        channels: Channels of each convolution.
        hidden: Width of each hidden layer of the perceptron.
        n_classes: Number of outputs.

    """
    before, height, width = shape
    layers: list[nn.Module] = []
    for after in channels:
        layers += [nn.Conv2d(before, after, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)]
        before, height, width = after, (height - 4) // 2, (width - 4) // 2
    return nn.Sequential(*layers, *mlp(before * height * width, hidden, n_classes))


class NextWord(nn.Module):
    """Embedding, stacked LSTM, one score per word of the vocabulary at each position.

    Args:
        n_words: Size of the vocabulary.
        embedding: Width of the embedding.
        hidden: Width of each LSTM layer.
        layers: Number of LSTM layers.

    """

    def __init__(self, n_words: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, n_words)

    def forward(self, words: Tensor) -> Tensor:
        """Return (texts, length, words) scores of the next word."""
        states, _ = self.lstm(self.embedding(words))
        scores: Tensor = self.output(states)
        return scores
