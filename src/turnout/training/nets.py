"""The networks of the recipes in ``models.py``, in PyTorch.

All return logits: the softmax is part of the loss. Networks for images and vectors are a plain
``Sequential`` of standard layers, so that a trainer can read them layer by layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from turnout.errors import MissingExtra

try:
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtra("training needs PyTorch: pip install 'turnout[torch]'") from error


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
