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
from torch.nn import functional

from turnout.training.batched.layers import Layer, Space, where_above_0
from turnout.training.batched.weights import Stacked

__all__ = ["ConvReluPool"]


class ConvReluPool(Layer):
    """Convolution with an odd kernel and stride 1, ReLU, 2x2 max pooling."""

    def __init__(
        self, weight: Stacked, bias: Stacked | None, is_first: bool, padding: int = 0
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.is_first = is_first
        self.padding = padding
        self.space = Space(weight.value.device)
        g, out, channels, k, _ = weight.value.shape
        self.rows = torch.zeros(g, 4 * out, channels * (k + 1) ** 2, device=weight.value.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return (a, out, height', width', n)."""
        p = self.padding
        x = functional.pad(x, (0, 0, p, p, p, p)) if p else x
        self.x_shape = x.shape
        a, channels, height, width, n = x.shape
        out, k = self.weight.value.shape[1], self.weight.value.shape[3]
        h, w = (height - k + 1) // 2, (width - k + 1) // 2
        patches = self.space.take("patches", a, channels, k + 1, k + 1, h, w, n)
        patches.copy_(x.unfold(2, k + 1, 2).unfold(3, k + 1, 2).permute(0, 1, 5, 6, 2, 3, 4))
        self.patches = patches.view(a, -1, h * w * n)
        self._kernels(self.rows[:a]).copy_(self.weight.value[:a, None, None])
        blocks = self.space.take("blocks", a, 4 * out, h * w * n)
        torch.bmm(self.rows[:a], self.patches, out=blocks)
        self.blocks = blocks.view(a, 4, out, h * w * n)
        return self._pool().view(a, out, h, w, n)

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Move kernels and bias."""
        gradient = gradient.reshape(self.out.shape)
        where_above_0(gradient, self.out, 0.0, grad_input=gradient)
        if self.bias is not None:
            self.bias.descend(gradient.sum(2))
        self._unpool(gradient)
        a = gradient.shape[0]
        blocks = self.blocks.flatten(1, 2)
        of_rows = torch.bmm(blocks, self.patches.transpose(1, 2))
        below = None if self.is_first else self._below(blocks)
        (one, two), (three, four) = (pair.unbind(1) for pair in self._kernels(of_rows).unbind(1))
        self.weight.descend((one + two).add_(three).add_(four))
        return below if below is None else self._without_padding(below, a)

    def _kernels(self, rows: Tensor) -> Tensor:
        """Return the four places of each kernel in the rows, (a, 2, 2, out, channels, k, k)."""
        _, out, channels, k, _ = self.weight.value.shape
        patch = (k + 1) ** 2
        block = out * channels * patch
        shape = (rows.shape[0], 2, 2, out, channels, k, k)
        strides = (4 * block, 2 * block + k + 1, block + 1, channels * patch, patch, k + 1, 1)
        return rows.as_strided(shape, strides)

    def _pool(self) -> Tensor:
        """Return relu(maximum of the four blocks + bias), and remember which one was the first."""
        one, two, three, four = self.blocks.unbind(1)
        shape = one.shape
        self.two_wins = torch.sub(two, one, out=self.space.take("two_wins", *shape))
        self.four_wins = torch.sub(four, three, out=self.space.take("four_wins", *shape))
        upper = torch.maximum(one, two, out=one)
        lower = torch.maximum(three, four, out=three)
        self.lower_wins = torch.sub(lower, upper, out=self.space.take("lower_wins", *shape))
        self.out = torch.maximum(upper, lower, out=self.space.take("out", *shape))
        if self.bias is not None:
            self.out.add_(self.bias.value[: shape[0], :, None])
        return self.out.relu_()

    def _unpool(self, gradient: Tensor) -> None:
        """Write the gradient of the four blocks over them: only the first largest gets any."""
        one, two, three, four = self.blocks.unbind(1)
        lower = self.space.take("lower", *gradient.shape)
        where_above_0(gradient, self.lower_wins, 0.0, grad_input=lower)
        upper = gradient.sub_(lower)
        where_above_0(upper, self.two_wins, 0.0, grad_input=two)
        torch.sub(upper, two, out=one)
        where_above_0(lower, self.four_wins, 0.0, grad_input=four)
        torch.sub(lower, four, out=three)

    def _below(self, blocks: Tensor) -> Tensor:
        """Return the gradient of the inputs: that of the patches, added where they overlap."""
        a, channels, height, width, n = self.x_shape
        k = self.weight.value.shape[3]
        h, w = (height - k + 1) // 2, (width - k + 1) // 2
        half = (k + 1) // 2
        of_patches = self.space.take("patches", *self.patches.shape)  # they are not needed again
        torch.bmm(self.rows[:a].transpose(1, 2), blocks, out=of_patches)
        parts = of_patches.view(a, channels, half, 2, half, 2, h, w, n).permute(
            0, 2, 4, 1, 3, 5, 6, 7, 8
        )
        # Even and odd rows and columns apart, so that what is added is in one piece.
        planes = self.space.take("planes", a, channels, 2, 2, -(-height // 2), -(-width // 2), n)
        planes.zero_()
        for i in range(half):
            for j in range(half):
                planes[..., i : i + h, j : j + w, :] += parts[:, i, j]
        below = planes.permute(0, 1, 4, 2, 5, 3, 6)
        return below.reshape(a, channels, 2 * below.shape[2], 2 * below.shape[4], n)

    def _without_padding(self, below: Tensor, a: int) -> Tensor:
        _, _, height, width, _ = self.x_shape
        p = self.padding
        return below[:a, :, p : height - p, p : width - p]
