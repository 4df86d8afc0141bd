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
        starts: The first row of each time.
        sizes: How many texts are still going on, never more than at the time before.
        before: The row of the same text at the time before, for all rows after the first time.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    before: Tensor

    @classmethod
    def of(cls, batch_sizes: Tensor, device: torch.device) -> Steps:
        """Return those of a ``PackedSequence``.

        Args:
            batch_sizes: As there.
            device: Where the sequence is.
        """
        ends = batch_sizes.cumsum(0)
        sizes, starts = batch_sizes.tolist(), (ends - batch_sizes).tolist()
        rows = torch.arange(int(ends[-1]))
        before = rows[sizes[0] :] - torch.repeat_interleave(batch_sizes[:-1], batch_sizes[1:])
        return cls(tuple(starts), tuple(sizes), before.to(device))


class LstmLayer:
    """One layer; ``forward`` keeps what ``backward`` needs.

    Args:
        weights: Of the inputs (4h, d) and of the states (4h, h), and the two biases (4h,).
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.of_input, self.of_state, *self.biases = weights

    def forward(self, x: Tensor, steps: Steps) -> Tensor:
        """Return the states (rows, h).

        Args:
            x: (rows, d) the inputs.
            steps: Which rows belong to which time.
        """
        h = self.of_state.shape[1]
        gates = torch.addmm(self.biases[0] + self.biases[1], x, self.of_input.T)
        cells, squashed, states = (gates.new_empty(x.shape[0], h) for _ in range(3))
        turned, last = self.of_state.T.contiguous(), 0
        for start, size in zip(steps.starts, steps.sizes, strict=True):
            now, then = slice(start, start + size), slice(last, last + size)
            gate, cell = gates[now], cells[now]
            if start:
                gate.addmm_(states[then], turned)
            gate[:, : 2 * h].sigmoid_()
            gate[:, 2 * h : 3 * h].tanh_()
            gate[:, 3 * h :].sigmoid_()
            into, kept, new, out = gate.chunk(4, 1)
            torch.mul(into, new, out=cell)
            if start:
                cell.addcmul_(kept, cells[then])
            torch.tanh(cell, out=squashed[now])
            torch.mul(out, squashed[now], out=states[now])
            last = start
        self.saved = x, gates, cells, squashed, states
        return states

    def backward(self, gradient: Tensor, steps: Steps) -> tuple[Tensor, list[Tensor]]:
        """Return the gradients of the inputs and of the weights, in their order.

        Args:
            gradient: (rows, h) of the states; it is changed.
            steps: As for ``forward``.
        """
        x, gates, cells, squashed, states = self.saved
        h, first = self.of_state.shape[1], steps.sizes[0]
        into, kept, new, out = gates.chunk(4, 1)
        factors = torch.empty_like(gates)  # of the gradient of a cell, and of a state, on each gate
        of_into, of_kept, of_new, of_out = factors.chunk(4, 1)
        torch.mul(into, 1.0 - into, out=of_into).mul_(new)
        torch.mul(kept, 1.0 - kept, out=of_kept)
        of_kept[first:] *= cells[steps.before]
        of_kept[:first] = 0.0
        torch.mul(into, 1.0 - new * new, out=of_new)
        torch.mul(out, 1.0 - out, out=of_out).mul_(squashed)
        of_cell = (1.0 - squashed * squashed).mul_(out)  # of the gradient of a state on its cell
        carried = gradient.new_zeros(first, h)
        after = slice(0, 0)  # rows of the time after
        for start, size in zip(reversed(steps.starts), reversed(steps.sizes), strict=True):
            now, n_after = slice(start, start + size), after.stop - after.start
            of_state, cell = gradient[now], carried[:size]
            if n_after:
                of_state[:n_after].addmm_(factors[after], self.of_state)
            cell.addcmul_(of_state, of_cell[now])
            factors[now, : 3 * h].view(size, 3, h).mul_(cell[:, None])
            of_out[now] *= of_state
            cell *= kept[now]
            after = now
        of_input = factors.T @ x
        of_before = factors[first:].T @ states[steps.before]
        of_bias = factors.sum(0)
        return factors @ self.of_input, [of_input, of_before, of_bias, of_bias]
