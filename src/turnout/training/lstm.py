"""Next-word prediction, without automatic differentiation.

Most of the work is in two places. The LSTM skips everything after the last label of a text. The
layer that scores every word of the vocabulary only processes positions that have a next word, one
block at a time, and replaces its scores by their gradient in place. If the rule of a step allows
it, only the client's own words are updated in the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from turnout.core.types import Array
from turnout.data.base import PADDING
from turnout.training.engine import Engine, Losses, Stacked, Task
from turnout.training.modules import NextWord, input_tensor, label_tensor
from turnout.training.reference import ClientLosses

# An LSTM over packed texts, forward and backward. PyTorch has fast kernels for texts of one length
# only. Here a step in time processes the texts that have not ended, and everything that does not
# depend on the time before is done at once for all times: the products with the inputs, the factors
# of the gradient, and the gradients of weights. The numbers are those of ``torch.nn.LSTM`` to float
# tolerance.


class Steps(NamedTuple):
    """Where the rows of each time are in a packed sequence, the longest text first.

    Attributes:
        sizes: How many texts are still going on, never more than at the time before.
        before: The row of the same text at the time before, for all rows after the first time.
    """

    sizes: list[int]
    before: Tensor

    @classmethod
    def of(cls, batch_sizes: Tensor, device: torch.device) -> Steps:
        """Return those of a ``PackedSequence``.

        Args:
            batch_sizes: As there.
            device: Where the sequence is.
        """
        sizes = batch_sizes.tolist()
        rows = torch.arange(sum(sizes))
        before = rows[sizes[0] :] - torch.repeat_interleave(batch_sizes[:-1], batch_sizes[1:])
        return cls(sizes, before.to(device))


class LstmLayer:
    """One layer; ``forward`` keeps what ``backward`` needs.

    Args:
        weights: Of the inputs (4h, d) and of the states (4h, h), and the two biases (4h,).
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.of_input, self.of_state, *self.biases = weights

    def forward(self, x: Tensor, steps: Steps, reads: Tensor | None = None) -> Tensor:
        """Return the states (rows, h).

        Args:
            x: (n, d) the inputs.
            steps: Which rows belong to which time.
            reads: (rows,) which input each row reads; ``None``: each its own. A word that comes
                often is multiplied once.
        """
        h = self.of_state.shape[1]
        gates = torch.addmm(self.biases[0] + self.biases[1], x, self.of_input.T)
        if reads is not None:
            gates = gates.index_select(0, reads)
        cells, squashed, states = (gates.new_empty(gates.shape[0], h) for _ in range(3))
        turned = self.of_state.T.contiguous()
        into_kept, new, out = torch.split(gates, [2 * h, h, h], 1)
        views = (gates, into_kept, *into_kept.chunk(2, 1), new, out, cells, squashed, states)
        before: tuple[Tensor, Tensor] | None = None  # states and cells of the time before
        split = (torch.split(view, steps.sizes) for view in views)
        for size, *now in zip(steps.sizes, *split, strict=True):
            gate, both, into, kept, new, out, cell, small, state = now
            if before is not None:
                gate.addmm_(before[0][:size], turned)
            both.sigmoid_()
            out.sigmoid_()
            torch.mul(into, new.tanh_(), out=cell)
            if before is not None:
                cell.addcmul_(kept, before[1][:size])
            torch.mul(out, torch.tanh(cell, out=small), out=state)
            before = state, cell
        self.saved = x, reads, gates, cells, squashed, states
        return states

    def backward(self, gradient: Tensor, steps: Steps) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the inputs and of the weights, in their order.

        Args:
            gradient: (rows, h) of the states; it is changed.
            steps: As for ``forward``.
        """
        x, reads, gates, cells, squashed, states = self.saved
        h, first = self.of_state.shape[1], steps.sizes[0]
        into, kept, new, out = gates.chunk(4, 1)
        factors = torch.empty_like(gates)  # of the gradient of a cell, and of a state, on each gate
        of_into, of_kept, of_new, of_out = factors.chunk(4, 1)
        torch.mul(into, 1.0 - into, out=of_into).mul_(new)
        torch.mul(kept, 1.0 - kept, out=of_kept)
        of_kept[first:] *= cells.index_select(0, steps.before)
        of_kept[:first] = 0.0
        torch.mul(into, 1.0 - new * new, out=of_new)
        torch.mul(out, 1.0 - out, out=of_out).mul_(squashed)
        of_cell = (1.0 - squashed * squashed).mul_(out)  # of the gradient of a state on its cell
        carried = gradient.new_zeros(first, h)
        after: Tensor | None = None  # factors of the time after
        views = (factors, factors[:, : 3 * h].view(-1, 3, h), of_out, of_cell, kept, gradient)
        split = (torch.split(view, steps.sizes) for view in views)
        for now in reversed(list(zip(*split, strict=True))):
            factor, of_gates, of_out, of_cell, kept, of_state = now
            cell = carried[: of_state.shape[0]]
            if after is not None:
                of_state[: after.shape[0]].addmm_(after, self.of_state)
            cell.addcmul_(of_state, of_cell)
            of_gates.mul_(cell[:, None])
            of_out.mul_(of_state)
            cell.mul_(kept)
            after = factor
        of_before = factors[first:].T @ states.index_select(0, steps.before)
        of_bias = factors.sum(0)
        if reads is not None:
            factors = factors.new_zeros(x.shape[0], 4 * h).index_add_(0, reads, factors)
        return factors @ self.of_input, [factors.T @ x, of_before, of_bias, of_bias]


#: Scores that are held at a time.
BLOCK = 1 << 21

#: A loss above this is computed from the scores: chances below e^-87 are inexact or 0 as floats.
FAR = 80.0


class Text(Engine):
    """Trains ``NextWord``, one client in each thread."""

    name: ClassVar[str] = "text"
    is_shareable: ClassVar[bool] = True

    module: NextWord

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
        return Losses(*np.array(report.summary())[:, None])


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


def _packed(words: Tensor, labels: Tensor) -> PackedSequence:
    """Return (words, labels) without what is after the last label of each text: it changes nothing.

    At least one word of each text is kept.
    """
    place = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    lengths = (place * (labels != PADDING)).amax(1).clamp_(min=1)
    both = torch.stack((words, labels), dim=2)
    return pack_padded_sequence(both, lengths.cpu(), batch_first=True, enforce_sorted=False)
