"""Recipes of models.

A recipe is a frozen dataclass of plain settings and needs no PyTorch until ``build``. Input and
output sizes follow from the data. Weights are initialised as PyTorch does it. The docstring of each
network says what its paper leaves open.
"""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from turnout.core import require
from turnout.core.domains import CheckedFields, Count, integer, several
from turnout.core.errors import InvalidInput
from turnout.core.names import import_object
from turnout.data.base import FederatedData

if TYPE_CHECKING:
    from torch import nn

#: Smallest side of an image that two 5x5 convolutions with 2x2 pooling leave anything of.
SMALLEST_SIDE = 16


class Model(ABC):
    """Builds a module for some data. A subclass is a frozen dataclass of plain settings."""

    @abstractmethod
    def build(self, data: FederatedData) -> nn.Module:
        """Return a new module with random weights. The caller has seeded torch.

        Args:
            data: Gives the shape of an example and the number of classes.

        """


@dataclass(frozen=True, slots=True)
class Logistic(Model):
    """Multinomial logistic regression: one linear layer with bias (UCB-CS on Synthetic(1,1))."""

    def build(self, data: FederatedData) -> nn.Module:
        """Return Flatten, Linear."""
        return _mlp(self, data, ())


@dataclass(frozen=True, slots=True)
class Mlp(CheckedFields, Model):
    """Multi-layer perceptron with ReLU (UCB-CS on Fashion-MNIST; the widths are ours).

    Args:
        hidden: Width of each hidden layer. An empty list is logistic regression.

    """

    hidden: Annotated[tuple[int, ...], several("layer widths", integer(1))] = (200, 200)

    def build(self, data: FederatedData) -> nn.Module:
        """Return Flatten, then Linear and ReLU per hidden layer, then Linear."""
        return _mlp(self, data, self.hidden)


@dataclass(frozen=True, slots=True)
class EmnistCnn(Model):
    """The CNN of E3CS, task 1: two 5x5 convolutions of 10 channels, layers of 1280 and 256.

    543,468 weights for 28x28x1 and 26 classes. The text leaves open the activation (here ReLU after
    every layer but the last), the padding (none), and whether pooling follows each convolution or
    only the second (each, as RBCS-F says of its own network).
    """

    def build(self, data: FederatedData) -> nn.Module:
        """Return the network."""
        return _cnn(self, data, channels=(10, 10), hidden=(1280, 256))


@dataclass(frozen=True, slots=True)
class CifarCnn(Model):
    """The CNN of E3CS and RBCS-F, task 2: two 5x5 convolutions of 64 channels, 384 and 192.

    797,962 weights for 32x32x3 and 10 classes. Left open by the texts: as for ``EmnistCnn``.
    """

    def build(self, data: FederatedData) -> nn.Module:
        """Return the network."""
        return _cnn(self, data, channels=(64, 64), hidden=(384, 192))


@dataclass(frozen=True, slots=True)
class FashionCnn(Model):
    """The CNN of RBCS-F, task 1: 5x5 convolutions of 20 and 50 channels, a layer of 500.

    431,080 weights for 28x28x1 and 10 classes. The text names ReLU for the layer of 500 only; here
    it also follows each convolution. No padding.
    """

    def build(self, data: FederatedData) -> nn.Module:
        """Return the network."""
        return _cnn(self, data, channels=(20, 50), hidden=(500,))


@dataclass(frozen=True, slots=True)
class StackedLstm(CheckedFields, Model):
    """Next-word prediction by a stacked LSTM (NCCB: 200, 200 and 2 layers; 5 layers for Yelp).

    Choices of ours: no dropout, and the output layer has its own weights.

    Args:
        embedding: Width of the word embedding, >= 1.
        hidden: Width of each LSTM layer, >= 1.
        layers: Number of LSTM layers, >= 1.

    """

    embedding: Count = 200
    hidden: Count = 200
    layers: Count = 2

    def build(self, data: FederatedData) -> nn.Module:
        """Return the network; the vocabulary is the number of classes."""
        from turnout.training.modules import NextWord

        if not data.is_text:
            raise InvalidInput(
                f"model StackedLstm needs texts, a label at each position; {data.name} has labels "
                f"of shape {data.y.shape}. Use Logistic, Mlp or a CNN."
            )
        return NextWord(data.n_classes, self.embedding, self.hidden, self.layers)


@dataclass(frozen=True, slots=True)
class Custom(Model):
    """Your own module, by the name of the class or function that builds it.

    The class or function returns a ``torch.nn.Module`` that gives one score per class.

    Args:
        path: Its name as ``"package.module:Name"``.
        parameters: Its arguments. ``example_shape`` and ``n_classes`` are filled in from the data
            if it takes them and they are not set here.

    """

    path: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or len(self.path.split(":")) != 2:
            raise InvalidInput(f"path must be 'module:factory', got {self.path!r}.", field="path")
        if not isinstance(self.parameters, Mapping):
            raise require.wrong("parameters", "be a table", self.parameters)

    def build(self, data: FederatedData) -> nn.Module:
        """Import the factory and call it."""
        factory = self._factory()
        of_data = {"example_shape": data.example_shape, "n_classes": data.n_classes}
        signature = inspect.signature(factory)
        filled = {name: of_data[name] for name in of_data if name in signature.parameters}
        arguments = filled | dict(self.parameters)
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise InvalidInput(
                f"parameters do not fit {self.path}: {error}. Arguments called example_shape and "
                "n_classes are filled in; give the others in parameters, or a default."
            ) from error
        try:
            module: nn.Module = factory(**arguments)
        except Exception as error:  # the user's own code
            what = f"{type(error).__name__}: {error}"
            raise InvalidInput(f"path {self.path!r} was called and failed: {what}.") from error
        return module

    def _factory(self) -> Callable[..., Any]:
        factory: Callable[..., Any] = import_object(self.path)
        if not callable(factory):
            raise InvalidInput(f"path {self.path!r} is not a class or function.")
        return factory


@dataclass(frozen=True, slots=True, eq=False)
class Ready(Model):
    """A module that exists already. Every seed starts from its weights.

    For Python only: a configuration cannot hold a module. Use ``Custom`` there.

    Args:
        module: The module. It is copied.

    """

    module: nn.Module

    def build(self, data: FederatedData) -> nn.Module:
        """Return a copy."""
        return copy.deepcopy(self.module)


def _mlp(model: Model, data: FederatedData, hidden: tuple[int, ...]) -> nn.Module:
    from turnout.training.modules import mlp

    if data.is_text:
        raise InvalidInput(
            f"model {type(model).__name__} needs images or vectors; {data.name} has texts. "
            "Use StackedLstm."
        )
    return mlp(math.prod(data.example_shape), hidden, data.n_classes)


def _cnn(
    model: Model, data: FederatedData, channels: tuple[int, ...], hidden: tuple[int, ...]
) -> nn.Module:
    from turnout.training.modules import cnn

    shape = data.example_shape
    if data.is_text or len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        raise InvalidInput(
            f"model {type(model).__name__} needs images (channels, height, width) of at least "
            f"{SMALLEST_SIDE}x{SMALLEST_SIDE}; {data.name} has examples of shape {shape}. "
            "Give grey images a channel with x[:, None], or use Mlp, Logistic or Custom."
        )
    return cnn(shape, channels, hidden, data.n_classes)
