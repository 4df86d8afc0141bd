"""An LSTM over packed texts, forward and backward, without automatic differentiation.

PyTorch has fast kernels for texts of one length only. Here a step in time processes the texts that
are still going on, and everything that does not depend on the time before it is done at once for
all times: the products with the inputs, the factors of the gradient, and the gradients of weights.
The numbers are those of ``torch.nn.LSTM`` to float tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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
