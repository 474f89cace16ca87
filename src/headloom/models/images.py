"""Image classifiers: a vision Transformer, and convolutions.

Images are (batch, channels, rows, columns); a model reads images of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import WithConstants
from headloom.mechanism.grid import Grid
from headloom.mechanism.positions import sinusoidal
from headloom.mechanism.shapes import describe
from headloom.mechanism.watching import layers_of
from headloom.models.arguments import by_name
from headloom.models.blocks import closing_norm, encoder_blocks, stacked
from headloom.models.configuration import Architecture, BlockChoices
from headloom.models.dense import Dropout
from headloom.models.image_attention import ImageSelfAttention
from headloom.models.predictor import Predictor

#: Vector from which the class is predicted.
ReadOut = Literal["class token", "mean"]


class ImageShape(NamedTuple):
    """Size of an image: channels (1 grey, 3 colour), rows and columns of pixels."""

    channels: int
    rows: int
    columns: int

    def check(self, images: Tensor) -> None:
        """Raise a ShapeError if images have another size."""
        expected = (self.channels, self.rows, self.columns)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ShapeError(
                f"the images are {describe(images)}; this model reads (batch, {self.channels}, "
                f"{self.rows}, {self.columns}). Give images of that size."
            )


class ImageClassifier(Predictor):
    """Base of image classifiers: one vector of an image (`outputs`), then the class scores.

    Args: shape: of the images; classes: their number; width: of the vector.
    """

    purpose = "classifies images (headloom evaluate, headloom trace --file)"
    last = "class_scores"

    def __init__(self, shape: ImageShape, classes: int, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.class_scores = nn.Linear(width, classes)
        nn.init.xavier_uniform_(self.class_scores.weight)
        nn.init.zeros_(self.class_scores.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Score the classes.

        Args: images: (batch, channels, rows, columns).
        Returns: logits, (batch, classes).
        """
        return self.logits(self.outputs(images))


class VisionTransformer(ImageClassifier, WithConstants):
    """Transformer encoder on the sequence of an image's patches.

        z_0 = [class token; x_1 E; ...; x_N E] + positions        x_i: the pixels of patch i
        z_l = block_l(z_{l-1})
        output = norm(z_L) of the class token, or its mean over the patches

    Args:
        image: size of every image, (channels, rows, columns).
        classes: number of classes.
        patch: rows and columns of a patch, or one number for both.
        read: use the output of the class token, before the patches, or the mean of the patches.
        layers: number of blocks.
        positions: "learned", "sinusoidal" or "none", in the order of the patches, row by row.
        width, heads, feed_forward, activation, dropout, choices: see `headloom.LanguageModel`.

    Raises: InputError: images do not split into patches, or other positions. TypeError: an
        unknown argument.
    Source: Dosovitskiy et al. 2021, equations 1 to 4.

    >>> model = VisionTransformer(image=(3, 8, 8), classes=10, patch=4, width=32, layers=2)
    >>> model(torch.randn(1, 3, 8, 8)).shape
    torch.Size([1, 10])
    """

    sinusoids: Tensor

    @by_name(width=64, feed_forward=128, activation="gelu")
    def __init__(
        self,
        image: Sequence[int],
        classes: int,
        *,
        patch: int | Sequence[int] = (4, 4),
        read: ReadOut = "class token",
        layers: int = 4,
        positions: Literal["learned", "sinusoidal", "none"] = "learned",
        **choices: Unpack[BlockChoices],
    ) -> None:
        shape = ImageShape(*image)
        architecture = Architecture(encoder_layers=layers, positions=positions, **choices)
        width = architecture.width
        super().__init__(shape, classes, width)
        patch = (patch, patch) if isinstance(patch, int) else (patch[0], patch[1])
        self.architecture, self.read = architecture, read
        if min(patch) < 1 or shape.rows % patch[0] or shape.columns % patch[1]:
            raise InputError(
                f"model.patch {list(patch)}: images of {shape.rows} x {shape.columns} pixels do "
                "not split into such patches. Choose divisors of the rows and of the columns."
            )
        before = int(read == "class token")
        self.grid = Grid(shape.rows // patch[0], shape.columns // patch[1], before)
        self.patches = nn.Conv2d(shape.channels, width, patch, stride=patch)
        nn.init.xavier_uniform_(self.patches.weight.view(width, -1))
        if self.patches.bias is not None:
            nn.init.zeros_(self.patches.bias)
        if self.grid.before:
            self.class_token = nn.Parameter(torch.zeros(width))
        if architecture.positions == "learned":
            self.positions = nn.Parameter(torch.empty(self.grid.length, width))
            nn.init.normal_(self.positions, std=0.02)
        elif architecture.positions not in ("sinusoidal", "none"):
            raise InputError(
                f'model.positions "{architecture.positions}" is for sequences, not for patches in '
                'rows and columns. Choose "learned", "sinusoidal" or "none".'
            )
        self.hold_constants()
        self.dropout = Dropout(architecture.dropout)
        self.encoder = encoder_blocks(architecture)
        for _, layer in layers_of(self):
            layer.grids = (self.grid, self.grid)
        self.encoder_norm = closing_norm(architecture)

    def constants(self) -> dict[str, Tensor]:
        if self.architecture.positions != "sinusoidal":
            return {}
        return {"sinusoids": sinusoidal(self.grid.length, self.architecture.width)}

    def outputs(self, images: Tensor) -> Tensor:
        """Encode images (batch, channels, rows, columns) as (batch, width)."""
        self.shape.check(images)
        vectors = self.patches(images).flatten(2).transpose(1, 2)
        if self.grid.before:
            first = self.class_token.expand(images.shape[0], 1, -1)
            vectors = torch.cat((first, vectors), 1)
        if self.architecture.positions == "learned":
            vectors = vectors + self.positions
        elif self.architecture.positions == "sinusoidal":
            vectors = vectors + self.sinusoids
        normed = stacked(self.encoder, self.encoder_norm, self.dropout(vectors), None)
        return normed[:, 0] if self.grid.before else normed.mean(1)


def check_convolutions(
    channels: Sequence[int], halved: Sequence[int], attention: int | None
) -> None:
    """Raise an InputError if there are no convolutions, or one is named that does not exist."""
    if not channels or min(channels) < 1:
        raise InputError(
            f"model.channels {list(channels)}: give the channels of at least one convolution, 1 "
            "or more each."
        )
    for name, places in (("halved", halved), ("attention", (attention,) if attention else ())):
        for place in places:
            if not 1 <= place <= len(channels):
                raise InputError(
                    f"model.{name} {place}: model.channels has convolutions 1 to {len(channels)}. "
                    "Choose one of these."
                )


class ConvolutionalClassifier(ImageClassifier):
    """Convolutions of 3 x 3 with ReLU, and SAGAN's attention block after one of them.

        x <- relu(norm(convolution(x)))       for each entry of channels
        x <- gamma o(x) + x                   after one of them: ImageSelfAttention
        output = mean of x over the region

    Without attention and halving, a position of the last features depends on as many pixels to each
    side as there are convolutions.

    Args:
        image: size of every image, (channels, rows, columns).
        classes: number of classes.
        channels: of each convolution, in order.
        halved: numbers of the convolutions (from 1) after which rows and columns are halved.
        attention: number of the convolution before the attention block; None or 0: no block.
        inner_channels, value_channels, pooled, spectral_norm: of the block, see
            `headloom.ImageSelfAttention`.
        batch_norm: whether batch normalisation follows each convolution.
        region: part of the last features that is averaged for the class, (first row, first column,
            rows, columns); None: all.

    Raises: InputError: a region outside of the features, or too many halvings. TypeError: an
        unknown argument.
    Source: Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", for the block.

    >>> model = ConvolutionalClassifier(image=(1, 8, 8), classes=10, channels=(8, 8), attention=2)
    >>> model(torch.randn(1, 1, 8, 8)).shape
    torch.Size([1, 10])
    """

    @by_name()
    def __init__(
        self,
        image: Sequence[int],
        classes: int,
        *,
        channels: Sequence[int] = (16, 16, 16, 16),
        halved: Sequence[int] = (),
        attention: int | None = 4,
        inner_channels: int | None = None,
        value_channels: int | None = None,
        pooled: bool = False,
        spectral_norm: bool = True,
        batch_norm: bool = True,
        region: Sequence[int] | None = None,
    ) -> None:
        check_convolutions(channels, halved, attention)
        shape = ImageShape(*image)
        super().__init__(shape, classes, channels[-1])
        divisor = 2 ** len(set(halved))
        rows, columns = shape.rows // divisor, shape.columns // divisor
        if not rows or not columns:
            raise InputError(
                f"model.halved {list(halved)}: images of {shape.rows} x {shape.columns} pixels are "
                "too small for so many halvings. Halve less often."
            )
        top, left, height, width = region or (0, 0, rows, columns)
        bottom, right = top + height, left + width
        if not (0 <= top < bottom <= rows and 0 <= left < right <= columns):
            raise InputError(
                f"model.region {[top, left, height, width]}: the last features have {rows} rows "
                f"and {columns} columns. Give first row, first column, rows and columns of a "
                "rectangle within."
            )
        self.region = None if region is None else (slice(top, bottom), slice(left, right))
        self.halved, self.attention_after = tuple(halved), attention
        self.convolutions = nn.ModuleList(
            _convolution(before, after, bias=not batch_norm)
            for before, after in pairwise((shape.channels, *channels))
        )
        norm = nn.BatchNorm2d if batch_norm else nn.Identity
        self.norms = nn.ModuleList(norm(count) for count in channels)
        self.attention = None
        if attention:
            self.attention = ImageSelfAttention(
                channels[attention - 1], inner_channels=inner_channels,
                value_channels=value_channels, pooled=pooled, spectral_norm=spectral_norm,
            )  # fmt: skip

    def features(self, images: Tensor) -> Tensor:
        """Return the last features, (batch, channels, rows, columns), of images."""
        self.shape.check(images)
        features = images
        layers = zip(self.convolutions, self.norms, strict=True)
        for number, (convolution, norm) in enumerate(layers, 1):
            features = relu(norm(convolution(features)))
            if self.attention is not None and number == self.attention_after:
                features = self.attention(features)
            if number in self.halved:
                features = max_pool2d(features, 2)
        return features

    def outputs(self, images: Tensor) -> Tensor:
        """Return the mean of the last features over the region, (batch, last channels)."""
        features = self.features(images)
        return (features if self.region is None else features[:, :, *self.region]).mean((2, 3))


def _convolution(channels: int, to: int, *, bias: bool) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, to, 3, padding=1, bias=bias)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution
