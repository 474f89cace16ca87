"""Self-attention between all positions of an image, as a block between convolutions.

    f(x) = W_f x,  g(x) = W_g x,  h(x) = W_h x,  v(x) = W_v x           convolutions of 1 x 1
    s_ij = f(x_i)^T g(x_j)
    beta_{j,i} = exp(s_ij) / sum_i exp(s_ij)
    o_j = v(sum_i beta_{j,i} h(x_i))
    y_j = gamma o_j + x_j                                               gamma from 0

Source: Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import is_parametrized

from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import AttentionLayer
from headloom.mechanism.grid import Grid
from headloom.mechanism.shapes import describe


def learned_weight(convolution: nn.Conv2d) -> nn.Parameter:
    """Return a convolution's trainable weight: with spectral norm, the weight before division."""
    normed = is_parametrized(convolution, "weight")
    return convolution.get_parameter("parametrizations.weight.original" if normed else "weight")


class ImageSelfAttention(AttentionLayer):
    """Self-attention block of SAGAN. The queries are g(x), the keys f(x), the values h(x).

    There is one head and no factor 1 / sqrt(depth). Since gamma starts at 0, the untrained block
    returns its input exactly.

    Args:
        channels: C, of the input and of the output.
        inner_channels: of f and g, the depth of queries and keys. None: C / 8, as in the paper.
        value_channels: of h. None: as inner_channels, as in the paper; its authors' code has C / 2.
        pooled: whether keys and values are max-pooled 2 x 2, as in the authors' code (where queries
            are called theta, keys phi and values g): a quarter of the keys.
        spectral_norm: whether each of the four matrices is divided by its largest singular value,
            so that no score exceeds the product of the two norms.

    Raises: InputError: a number of channels below 1.

    >>> block = ImageSelfAttention(16)
    >>> images = torch.rand(2, 16, 8, 8)
    >>> bool((block(images) == images).all())
    True
    """

    def __init__(
        self,
        channels: int,
        *,
        inner_channels: int | None = None,
        value_channels: int | None = None,
        pooled: bool = False,
        spectral_norm: bool = True,
    ) -> None:
        super().__init__(heads=1, kv_heads=1, kind="encoder")
        inner = max(channels // 8, 1) if inner_channels is None else inner_channels
        values = inner if value_channels is None else value_channels
        if min(channels, inner, values) < 1:
            raise InputError(
                f"ImageSelfAttention: {channels} channels, {inner} of queries and keys, {values} "
                "of values; expected 1 or more of each."
            )
        self.channels, self.pooled = channels, pooled
        self.f = _convolution(channels, inner, spectral_norm)
        self.g = _convolution(channels, inner, spectral_norm)
        self.h = _convolution(channels, values, spectral_norm)
        self.v = _convolution(values, channels, spectral_norm)
        self.gamma = nn.Parameter(torch.zeros(()))

    def extra_repr(self) -> str:
        """Describe this block for print(model)."""
        return f"channels={self.channels}, pooled={self.pooled}, gamma={self.gamma.item():g}"

    def forward(self, images: Tensor) -> Tensor:
        """Add attention over all positions to each position.

        Args: images: x, (batch, C, rows, columns); the batch can be empty; if pooled, rows and
            columns are even.
        Returns: y, of the same shape.
        Raises: ShapeError: other channels or dimensions, no pixels, or odd sizes with pooling.
        """
        if images.ndim != 4 or images.shape[1] != self.channels or not all(images.shape[2:]):
            raise ShapeError(
                f"ImageSelfAttention: the images are {describe(images)}; expected (batch, "
                f"{self.channels}, rows, columns), 1 row and 1 column or more."
            )
        rows, columns = images.shape[2:]
        if self.pooled and (rows % 2 or columns % 2):
            raise ShapeError(
                f"ImageSelfAttention: {rows} x {columns} pixels do not split into 2 x 2; pad the "
                "images to even sizes, or choose pooled=False."
            )
        keys, values = self.f(images), self.h(images)
        query_grid = Grid(rows, columns)
        key_grid = query_grid
        if self.pooled:
            keys, values = max_pool2d(keys, 2), max_pool2d(values, 2)
            key_grid = Grid(rows // 2, columns // 2)
        # (batch, 1, rows * columns, channels)
        parts = self.g(images), keys, values
        sequences = (part.flatten(2).transpose(1, 2)[:, None] for part in parts)
        output = self.attend(*sequences, scale=1.0, grids=(query_grid, key_grid))
        attended = output[:, 0].mT.reshape(images.shape[0], output.shape[-1], rows, columns)
        # 0 - x is +0 for both zeros, and y - (+0) is y for both: while gamma is 0 even -0 stays.
        return torch.sub(images, 0.0 - self.gamma * self.v(attended))

    def matrices(self, gradients: bool = False) -> dict[str, Tensor]:
        """Return W_Q = W_g^T, W_K = W_f^T, W_V = W_h^T, W_O = W_v^T of the head; without gamma.

        With spectral norm these are the divided matrices; the gradients are of the trainable
        weights before division.
        """

        def matrix(convolution: nn.Conv2d) -> Tensor:
            if not gradients:
                return convolution.weight
            learned = learned_weight(convolution)
            return torch.zeros_like(learned) if learned.grad is None else learned.grad

        projections = {"W_Q": self.g, "W_K": self.f, "W_V": self.h, "W_O": self.v}
        return {name: matrix(part).flatten(1).T[None] for name, part in projections.items()}


def _convolution(channels: int, to: int, normed: bool) -> nn.Conv2d:
    """Return a convolution of 1 x 1 without a bias: a matrix."""
    convolution = nn.Conv2d(channels, to, 1, bias=False)
    nn.init.xavier_uniform_(convolution.weight)
    if normed:
        spectral_norm(convolution)
    return convolution
