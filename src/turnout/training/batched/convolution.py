"""Convolution, ReLU and 2x2 max pooling of several clients at once, as one matrix product.

With a kernel of k x k, the four outputs under one pooling window depend on one (k + 1) x (k + 1)
patch of the input. So all patches, 2 apart, become the columns of a matrix, and each kernel
becomes four rows: itself at its four places inside the patch, zero elsewhere. The product has the
four values of each pooling window in four blocks; pooling is a maximum of blocks. That costs
((k + 1) / k)^2 of the arithmetic but copies 1 / 2.8 of what unfolding into k x k patches does (for
k = 5), and with few channels copying is what takes the time.

Examples stand last: (a, channels, height, width, n). Everything that is copied or added is then a
run of n numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.training.batched.layers import Layer, Space, where_above_0
from turnout.training.batched.weights import Stacked

__all__ = ["ConvReluPool"]


class ConvReluPool(Layer):
    """Convolution with an odd kernel and stride 1, ReLU, 2x2 max pooling."""

    def __init__(
        self,
        x: Tensor,
        space: Space,
        weight: Stacked,
        bias: Stacked | None,
        is_first: bool,
        padding: int = 0,
    ) -> None:
        self.x = x
        self.space = space
        self.weight = weight
        self.bias = bias
        self.is_first = is_first
        self.padding = padding
        a, out, channels, k, _ = weight.value.shape
        self.padded = self._padded()
        height, width, n = self.padded.shape[2:]
        h, w = (height - k + 1) // 2, (width - k + 1) // 2
        self.windows = self.padded.unfold(2, k + 1, 2).unfold(3, k + 1, 2)
        self.windows = self.windows.permute(0, 1, 5, 6, 2, 3, 4)
        self.patches = space.take(*self.windows.shape)
        self.columns = self.patches.view(a, -1, h * w * n)
        self.columns_turned = self.columns.transpose(1, 2)
        self.rows = space.take(a, 4 * out, channels * (k + 1) ** 2).zero_()
        self.kernels = self._kernels(self.rows)
        self.products = space.take(a, 4 * out, h * w * n)
        self.blocks = self.products.view(a, 4, out, h * w * n).unbind(1)
        self.wins = [space.take(a, out, h * w * n) for _ in range(3)]
        self.pooled = space.take(a, out, h * w * n)
        self.offset = None if bias is None else bias.value[:, :, None]
        self.out = self.pooled.view(a, out, h, w, n)

    def forward(self) -> None:
        """Compute (a, out, height', width', n)."""
        if self.padding:
            self._inside(self.padded).copy_(self.x)
        self.patches.copy_(self.windows)
        self.kernels.copy_(self.weight.value[:, None, None])
        torch.bmm(self.rows, self.columns, out=self.products)
        self._pool()

    def connect(self, gradient: Tensor) -> Tensor | None:
        """Note where the gradient of the outputs will be; return where that of the inputs will."""
        self.gradient = gradient.view(self.pooled.shape)
        self.lower = self.space.take(*self.pooled.shape)
        self.of_rows = self.space.take(*self.rows.shape)
        (one, two), (three, four) = (
            half.unbind(1) for half in self._kernels(self.of_rows).unbind(1)
        )
        self.of_kernels = one, two, three, four
        return None if self.is_first else self._connect_below()

    def backward(self) -> None:
        """Move kernels and bias."""
        where_above_0(self.gradient, self.pooled, 0.0, grad_input=self.gradient)
        if self.bias is not None:
            self.bias.descend(self.gradient.sum(2))
        self._unpool()
        torch.bmm(self.products, self.columns_turned, out=self.of_rows)
        if not self.is_first:
            self._back_to_inputs()
        one, two, three, four = self.of_kernels
        self.weight.descend((one + two).add_(three).add_(four))

    def _padded(self) -> Tensor:
        """Return where the inputs stand with zeros around them."""
        p = self.padding
        if not p:
            return self.x
        a, channels, height, width, n = self.x.shape
        return self.space.take(a, channels, height + 2 * p, width + 2 * p, n).zero_()

    def _inside(self, padded: Tensor) -> Tensor:
        p, (height, width) = self.padding, self.x.shape[2:4]
        return padded[:, :, p : p + height, p : p + width]

    def _kernels(self, rows: Tensor) -> Tensor:
        """Return the four places of each kernel in the rows, (a, 2, 2, out, channels, k, k)."""
        a, out, channels, k, _ = self.weight.value.shape
        patch = (k + 1) ** 2
        block = out * channels * patch
        shape = (a, 2, 2, out, channels, k, k)
        strides = (4 * block, 2 * block + k + 1, block + 1, channels * patch, patch, k + 1, 1)
        return rows.as_strided(shape, strides)

    def _pool(self) -> None:
        """Compute relu(maximum of the four blocks + bias); note which block came first."""
        one, two, three, four = self.blocks
        two_wins, four_wins, lower_wins = self.wins
        torch.sub(two, one, out=two_wins)
        torch.sub(four, three, out=four_wins)
        torch.maximum(one, two, out=one)
        torch.maximum(three, four, out=three)
        torch.sub(three, one, out=lower_wins)
        torch.maximum(one, three, out=self.pooled)
        if self.offset is not None:
            self.pooled.add_(self.offset)
        self.pooled.relu_()

    def _unpool(self) -> None:
        """Write the gradient of the four blocks over them: only the first largest gets any."""
        one, two, three, four = self.blocks
        two_wins, four_wins, lower_wins = self.wins
        where_above_0(self.gradient, lower_wins, 0.0, grad_input=self.lower)
        upper = self.gradient.sub_(self.lower)
        where_above_0(upper, two_wins, 0.0, grad_input=two)
        torch.sub(upper, two, out=one)
        where_above_0(self.lower, four_wins, 0.0, grad_input=four)
        torch.sub(self.lower, four, out=three)

    def _connect_below(self) -> Tensor:
        """Pair each part of the patches with the place in the inputs that it came from.

        Even and odd rows and columns stand apart, so that what is added is in one piece.
        """
        a, channels, height, width, n = self.padded.shape
        h, w = self.patches.shape[4:6]
        half = self.patches.shape[2] // 2
        self.rows_turned = self.rows.transpose(1, 2)
        parts = self.patches.view(a, channels, half, 2, half, 2, h, w, n)
        self.planes = self.space.take(a, channels, 2, 2, -(-height // 2), -(-width // 2), n)
        self.overlaps = [
            (self.planes[..., i : i + h, j : j + w, :], parts[:, :, i, :, j])
            for i in range(half)
            for j in range(half)
        ]
        self.joined = self.planes.permute(0, 1, 4, 2, 5, 3, 6)
        self.whole = self.space.take(*self.joined.shape)
        sides = 2 * self.joined.shape[2], 2 * self.joined.shape[4]
        self.cropped = self._inside(self.whole.view(a, channels, *sides, n))
        is_cut = self.cropped.numel() < self.whole.numel()
        self.below = self.space.take(*self.x.shape) if is_cut else self.cropped
        return self.below

    def _back_to_inputs(self) -> None:
        """Add the gradient of the patches where they overlap."""
        torch.bmm(self.rows_turned, self.products, out=self.columns)  # not needed any more
        self.planes.zero_()
        for place, part in self.overlaps:
            place.add_(part)
        self.whole.copy_(self.joined)
        if self.below is not self.cropped:
            self.below.copy_(self.cropped)
