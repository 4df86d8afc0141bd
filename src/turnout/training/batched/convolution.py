"""Convolution, ReLU and 2x2 max pooling of several clients at once, as one matrix product.

With a kernel of k x k, the four outputs under one pooling window depend on one (k + 1) x (k + 1)
patch of the input. So all patches, 2 apart, become the columns of a matrix, and each kernel
becomes four rows: itself at its four places inside the patch, zero elsewhere. The product has the
four values of each pooling window in four blocks; pooling is a maximum of blocks. Compared with
unfolding into k x k patches this multiplies the arithmetic by ((k + 1) / k)^2 but divides the
copying by 2.8 (for k = 5). With few channels copying takes most of the time.

Examples are the last axis: (a, channels, height, width, n). Everything that is copied or added is
then a run of n numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turnout.training.batched.layers import Layer, Space, where_above_0
from turnout.training.batched.weights import Stacked


class ConvReluPool(Layer):
    """Convolution with an odd kernel and stride 1, ReLU, 2x2 max pooling.

    Args:
        x: (a, channels, height, width, n) the inputs.
        space: Gives memory.
        weight: (a, out, channels, k, k) the kernels.
        bias: (a, out) or None.
        is_first: Whether no layer below needs a gradient.
        padding: Zeros around the inputs.

    """

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
        """Store the place of the gradient of the outputs; return that of the inputs."""
        self.gradient = gradient.view(self.pooled.shape)
        self.lower = self.space.take(*self.pooled.shape)
        self.of_rows = self.space.take(*self.rows.shape)
        (top_left, top_right), (bottom_left, bottom_right) = (
            half.unbind(1) for half in self._kernels(self.of_rows).unbind(1)
        )
        self.of_kernels = top_left, top_right, bottom_left, bottom_right
        return None if self.is_first else self._connect_below()

    def backward(self) -> None:
        """Update kernels and bias."""
        where_above_0(self.gradient, self.pooled, 0.0, grad_input=self.gradient)
        if self.bias is not None:
            self.bias.descend(self.gradient.sum(2))
        self._unpool()
        torch.bmm(self.products, self.columns_turned, out=self.of_rows)
        if not self.is_first:
            self._back_to_inputs()
        top_left, top_right, bottom_left, bottom_right = self.of_kernels
        self.weight.descend((top_left + top_right).add_(bottom_left).add_(bottom_right))

    def _padded(self) -> Tensor:
        """Return the memory of the inputs with zeros around them."""
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
        """Compute relu(maximum of the four blocks + bias); store which block is largest."""
        top_left, top_right, bottom_left, bottom_right = self.blocks
        top_right_wins, bottom_right_wins, bottom_wins = self.wins
        torch.sub(top_right, top_left, out=top_right_wins)
        torch.sub(bottom_right, bottom_left, out=bottom_right_wins)
        torch.maximum(top_left, top_right, out=top_left)
        torch.maximum(bottom_left, bottom_right, out=bottom_left)
        torch.sub(bottom_left, top_left, out=bottom_wins)
        torch.maximum(top_left, bottom_left, out=self.pooled)
        if self.offset is not None:
            self.pooled.add_(self.offset)
        self.pooled.relu_()

    def _unpool(self) -> None:
        """Overwrite the four blocks with their gradient: only the first largest gets any."""
        top_left, top_right, bottom_left, bottom_right = self.blocks
        top_right_wins, bottom_right_wins, bottom_wins = self.wins
        where_above_0(self.gradient, bottom_wins, 0.0, grad_input=self.lower)
        upper = self.gradient.sub_(self.lower)
        where_above_0(upper, top_right_wins, 0.0, grad_input=top_right)
        torch.sub(upper, top_right, out=top_left)
        where_above_0(self.lower, bottom_right_wins, 0.0, grad_input=bottom_right)
        torch.sub(self.lower, bottom_right, out=bottom_left)

    def _connect_below(self) -> Tensor:
        """Pair each part of the patches with the place in the inputs that it came from.

        Even and odd rows and columns are kept apart, so that each sum is over adjacent numbers.
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
