"""Next-word prediction, without automatic differentiation.

Most of the work is in the LSTM, which skips what is after the last label of a text (``lstm``), and
in the layer that scores every word of the vocabulary. Here it processes only positions that have a
next word, one block of them at a time, and its scores are replaced by their gradient in place. Only
the client's own words are updated in the embedding, if the rule allows it.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from turnout.data.base import PADDING, FederatedData
from turnout.training.batched.engine import Engine, Losses, Task
from turnout.training.batched.lstm import LstmLayer, Steps
from turnout.training.batched.weights import Stacked
from turnout.training.modules import input_tensor, label_tensor
from turnout.training.nets import NextWord
from turnout.training.reports import ClientLosses
from turnout.types import Array

#: Scores that are held at a time.
BLOCK = 1 << 21

#: A loss above this is computed from the scores: chances below e^-87 are inexact or 0 as floats.
FAR = 80.0


class Text(Engine):
    """Trains ``NextWord``, one client in each thread.

    Args:
        module: The module.
        data: The texts of all clients.

    """

    name: ClassVar[str] = "text"
    is_shareable: ClassVar[bool] = True

    def __init__(self, module: NextWord, data: FederatedData) -> None:
        self.module = module
        self.data = data

    def limit(self) -> int:
        """Return 1: the weights of one client already exceed a cache."""
        return 1

    def train(self, task: Task) -> Losses:
        """Train the client of a tile and write its model to ``task.out``."""
        tile, device = task.tile(), task.weights.device
        client = _Client(self.module, task, np.unique(self.data.x[np.unique(tile.rows[0])]))
        report = ClientLosses()
        for step in range(tile.n_steps):
            rows = tile.rows[0, step, : tile.size[0, step]]
            words = input_tensor(self.data, self.data.x[rows], device)
            losses = client.step(words, label_tensor(self.data.y[rows], device))
            report.add(float(losses.sum()) / max(1, losses.numel()), losses)
        client.finish()
        return _losses(report)

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of the module for texts."""
        scores: Tensor = self.module(x)
        return scores


class _Client:
    """One client's model."""

    def __init__(self, module: NextWord, task: Task, own_words: Array) -> None:
        weights = task.stacked([weight.shape for weight in module.parameters()])
        self.whole, *self.of_lstm, self.output, self.bias = weights
        n_words = self.whole.start.shape[0]
        own = np.arange(n_words) if task.rule.decay else own_words  # decay moves every word
        self.words = torch.from_numpy(own).long().to(task.weights.device)
        self.place = self.words.new_zeros(n_words)
        self.place[self.words] = torch.arange(own.size, device=task.weights.device)
        start = self.whole.start[self.words]
        self.embedding = Stacked(start, start[None].clone(), task.rule)
        values = [weight.value[0] for weight in self.of_lstm]
        self.layers = [LstmLayer(values[i : i + 4]) for i in range(0, len(values), 4)]

    def step(self, words: Tensor, labels: Tensor) -> Tensor:
        """Take a step on texts (n, length); return the losses of the labels that count."""
        packed = _packed(words, labels)
        words, labels = packed.data.unbind(1)
        has_label = labels != PADDING
        different, reads = torch.unique(self.place[words], return_inverse=True)
        steps = Steps.of(packed.batch_sizes, words.device)
        first, *others = self.layers
        states = first.forward(self.embedding.value[0].index_select(0, different), steps, reads)
        for layer in others:
            states = layer.forward(states, steps)
        losses, below = self._output_step(states[has_label], labels[has_label])
        gradient = torch.zeros_like(states)
        gradient[has_label] = below
        of_weights: list[Tensor] = []
        for layer in reversed(self.layers):
            gradient, own = layer.backward(gradient, steps)
            of_weights = own + of_weights
        self._embedding_step(different, gradient)
        for weight, its_gradient in zip(self.of_lstm, of_weights, strict=True):
            weight.descend(its_gradient[None])
        return losses

    def _output_step(self, states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Update the output layer; return losses and the gradient of the states, (labels, h)."""
        weight, bias = self.output.value[0], self.bias.value[0]
        of_weight, of_bias = torch.empty_like(weight), torch.zeros_like(bias)
        below = torch.empty_like(states)
        losses = states.new_empty(labels.numel())
        size = max(1, BLOCK // bias.numel())
        blocks = [
            torch.split(part, size) for part in (states, labels[:, None], losses[:, None], below)
        ]
        minus_1, share = bias.new_full((1, 1), -1.0), 1.0 / max(1, labels.numel())
        beta = 0.0  # the first block is written, the others are added
        for states_in, labels_in, losses_in, below_in in zip(*blocks, strict=True):
            scores = torch.addmm(bias, states_in, weight.T)
            gradient = torch.softmax(scores, 1)  # becomes that of the sum of the losses
            losses_in.copy_(_surprise(scores, gradient, labels_in))
            gradient.scatter_add_(1, labels_in, minus_1.expand_as(labels_in))
            torch.mm(gradient, weight, out=below_in)
            of_weight.addmm_(gradient.T, states_in, beta=beta, alpha=share)
            beta = 1.0
            of_bias.add_(gradient.sum(0), alpha=share)
        self.output.descend(of_weight[None])
        self.bias.descend(of_bias[None])
        return losses, below.mul_(share)

    def _embedding_step(self, words: Tensor, gradient: Tensor) -> None:
        of_all = torch.zeros_like(self.embedding.start)
        of_all[words] = gradient
        self.embedding.descend(of_all[None])

    def finish(self) -> None:
        """Copy the embedding of the client's words to those of all."""
        self.whole.value[0, self.words] = self.embedding.value[0]


def _surprise(scores: Tensor, chances: Tensor, labels: Tensor) -> Tensor:
    """Return ``-log`` of each label's chance, (n, 1), also if that is too small for a float."""
    losses = chances.gather(1, labels).log_().neg_()
    lost = torch.nonzero(losses[:, 0] > FAR)[:, 0]
    if lost.numel():
        losses[lost] = torch.log_softmax(scores[lost], 1).gather(1, labels[lost]).neg_()
    return losses


def _losses(report: ClientLosses) -> Losses:
    with np.errstate(invalid="ignore", over="ignore"):  # a loss that is not finite is marked later
        mean, std = np.mean(report.batch_losses), np.std(report.batch_losses)
    rms = (report.squares / max(1, report.n_labels)) ** 0.5
    return Losses(np.array([mean]), np.array([std]), np.array([rms]))


def _packed(words: Tensor, labels: Tensor) -> PackedSequence:
    """Return (words, labels) without what is after the last label of each text: it changes nothing.

    At least one word of each text is kept.
    """
    place = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    lengths = (place * (labels != PADDING)).amax(1).clamp_(min=1)
    both = torch.stack((words, labels), dim=2)
    return pack_padded_sequence(both, lengths.cpu(), batch_first=True, enforce_sorted=False)
