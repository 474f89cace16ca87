"""Models that name the class of an image: a vision Transformer, and convolutions.

Images are (batch, channels, rows, columns); a model is built for images of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from headloom.errors import InputError, ShapeError
from headloom.mechanism.attention_layer import WithConstants
from headloom.mechanism.grid import Grid
from headloom.mechanism.positions import sinusoidal
from headloom.mechanism.shapes import describe
from headloom.mechanism.watching import layers_of
from headloom.models.blocks import EncoderBlock, closing_norm
from headloom.models.configuration import Architecture
from headloom.models.dense import Dropout
from headloom.models.image_attention import ImageSelfAttention
from headloom.models.predictor import Predictor

#: What the class is read from.
ReadOut = Literal["class token", "mean"]


@dataclass(frozen=True)
class ImageShape:
    """The size of every image: channels (1 grey, 3 colour), rows and columns of pixels."""

    channels: int
    rows: int
    columns: int

    def check(self, images: Tensor) -> None:
        """Raise an InputError where images are not of this size."""
        expected = (self.channels, self.rows, self.columns)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ShapeError(
                f"the images are {describe(images)}; this model reads (batch, {self.channels}, "
                f"{self.rows}, {self.columns}). Give images of that size."
            )


class ImageClassifier(Predictor):
    """Makes one vector of an image (`outputs`), and from it the score of each class.

    Args: shape: of the images; classes: how many there are; width: of the vector.
    """

    purpose = "classifies images (headloom evaluate, headloom trace --file)"

    def __init__(self, shape: ImageShape, classes: int, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.class_scores = nn.Linear(width, classes)
        nn.init.xavier_uniform_(self.class_scores.weight)
        nn.init.zeros_(self.class_scores.bias)

    def logits(self, outputs: Tensor) -> Tensor:
        """Scores of every class, (..., classes), from outputs (..., width)."""
        result: Tensor = self.class_scores(outputs)
        return result

    @property
    def last_map(self) -> nn.Linear:
        """See Predictor.last_map."""
        return self.class_scores

    def forward(self, images: Tensor) -> Tensor:
        """Scores of every class: (batch, channels, rows, columns) to (batch, classes)."""
        return self.logits(self.outputs(images))


class VisionTransformer(ImageClassifier, WithConstants):
    """A Transformer encoder on the patches of an image, a sequence.

        z_0 = [class token; x_1 E; ...; x_N E] + positions        x_i: the pixels of patch i
        z_l = block_l(z_{l-1})
        output = norm(z_L) of the class token, or its mean over the patches

    Args:
        shape: of the images.
        classes: how many there are.
        architecture: sizes and choices; its decoder layers are not used. Positions are "learned",
            "sinusoidal" or "none", in the order of the patches, row by row.
        patch: rows and columns of a patch.
        read: from the class token, which stands before the patches, or from the mean of these.

    Raises: InputError: images that do not split into patches, or other positions.
    Source: Dosovitskiy et al. 2021, equations 1 to 4.
    """

    sinusoids: Tensor

    def __init__(
        self,
        shape: ImageShape,
        classes: int,
        architecture: Architecture,
        *,
        patch: tuple[int, int] = (4, 4),
        read: ReadOut = "class token",
    ) -> None:
        super().__init__(shape, classes, architecture.width)
        self.architecture, self.read = architecture, read
        if min(patch) < 1 or shape.rows % patch[0] or shape.columns % patch[1]:
            raise InputError(
                f"model.patch {list(patch)}: images of {shape.rows} x {shape.columns} pixels do "
                "not split into such patches. Choose divisors of the rows and of the columns."
            )
        before = int(read == "class token")
        self.grid = Grid(shape.rows // patch[0], shape.columns // patch[1], before)
        width = architecture.width
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
                f'model.positions "{architecture.positions}": patches lie in rows and columns, not '
                'in a line. Choose "learned", "sinusoidal" or "none".'
            )
        self.hold_constants()
        self.dropout = Dropout(architecture.dropout)
        self.encoder = nn.ModuleList(
            EncoderBlock(architecture) for _ in range(architecture.encoder_layers)
        )
        for _, layer in layers_of(self):
            layer.grids = (self.grid, self.grid)
        self.encoder_norm = closing_norm(architecture)

    def constants(self) -> dict[str, Tensor]:
        """See WithConstants.constants."""
        if self.architecture.positions != "sinusoidal":
            return {}
        return {"sinusoids": sinusoidal(self.grid.length, self.architecture.width)}

    def outputs(self, images: Tensor) -> Tensor:
        """(batch, width), of images (batch, channels, rows, columns)."""
        self.shape.check(images)
        vectors = self.patches(images).flatten(2).transpose(1, 2)
        if self.grid.before:
            first = self.class_token.expand(images.shape[0], 1, -1)
            vectors = torch.cat((first, vectors), 1)
        if self.architecture.positions == "learned":
            vectors = vectors + self.positions
        elif self.architecture.positions == "sinusoidal":
            vectors = vectors + self.sinusoids
        vectors = self.dropout(vectors)
        for block in self.encoder:
            vectors = block(vectors, None)
        normed: Tensor = self.encoder_norm(vectors)
        return normed[:, 0] if self.grid.before else normed.mean(1)


@dataclass(frozen=True)
class Region:
    """A rectangle of places: its first row and column, and how many of each."""

    row: int
    column: int
    rows: int
    columns: int

    def of(self, features: Tensor) -> Tensor:
        """The features in the rectangle, (batch, channels, rows, columns)."""
        bottom, right = self.row + self.rows, self.column + self.columns
        return features[:, :, self.row : bottom, self.column : right]

    def check(self, rows: int, columns: int) -> None:
        """Raise an InputError where the rectangle is not within so many rows and columns."""
        if (
            min(self.row, self.column) < 0
            or min(self.rows, self.columns) < 1
            or self.row + self.rows > rows
            or self.column + self.columns > columns
        ):
            raise InputError(
                f"model.region [{self.row}, {self.column}, {self.rows}, {self.columns}]: the last "
                f"features have {rows} rows and {columns} columns. Give first row, first column, "
                "rows and columns of a rectangle within."
            )


@dataclass(frozen=True)
class Convolutions:
    """Sizes and choices of a `ConvolutionalClassifier`.

    Args:
        channels: of each convolution of 3 x 3, in order.
        halved: after which of them (1 = the first) rows and columns are halved.
        attention: after which of them the block of attention stands; None: nowhere.
        inner_channels, value_channels, pooled, spectral_norm: of the block, see ImageSelfAttention.
        batch_norm: whether each convolution of 3 x 3 is followed by one.
        region: where the class is read; None: at all places.

    Raises: InputError: no convolution, or a place that there is not.
    """

    channels: tuple[int, ...] = (16, 16, 16)
    halved: tuple[int, ...] = ()
    attention: int | None = None
    inner_channels: int | None = None
    value_channels: int | None = None
    pooled: bool = False
    spectral_norm: bool = True
    batch_norm: bool = False
    region: Region | None = None

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise InputError(
                f"model.channels {list(self.channels)}: give the channels of one convolution at "
                "least, 1 or more each."
            )
        layers = len(self.channels)
        for name, places in (("halved", self.halved), ("attention", (self.attention,))):
            for place in places:
                if place is not None and not 1 <= place <= layers:
                    raise InputError(
                        f"model.{name} {place}: model.channels has convolutions 1 to {layers}. "
                        "Choose one of these."
                    )

    def sizes_after(self, shape: ImageShape) -> tuple[int, int]:
        """Rows and columns of the last features. Raises: InputError: nothing is left."""
        times = 2 ** len(set(self.halved))
        rows, columns = shape.rows // times, shape.columns // times
        if not rows or not columns:
            raise InputError(
                f"model.halved {list(self.halved)}: of {shape.rows} x {shape.columns} pixels "
                "nothing is left. Halve less often."
            )
        return rows, columns


class ConvolutionalClassifier(ImageClassifier):
    """Convolutions of 3 x 3, each with a ReLU; the class is read from a mean of the last features.

        x <- relu(norm(convolution(x)))       once for each of the channels
        x <- gamma o(x) + x                   after one of them: ImageSelfAttention
        output = mean of x over the region

    Without attention, and with nothing halved, a place of the last features sees as many pixels to
    each side as there are convolutions.

    Raises: InputError: a region outside of the features, sizes that cannot be halved.
    """

    def __init__(self, shape: ImageShape, classes: int, convolutions: Convolutions) -> None:
        super().__init__(shape, classes, convolutions.channels[-1])
        rows, columns = convolutions.sizes_after(shape)
        if convolutions.region is not None:
            convolutions.region.check(rows, columns)
        self.choices = convolutions
        widths = (shape.channels, *convolutions.channels)
        self.convolutions = nn.ModuleList(
            _convolution(before, after, bias=not convolutions.batch_norm)
            for before, after in pairwise(widths)
        )
        norm = nn.BatchNorm2d if convolutions.batch_norm else nn.Identity
        self.norms = nn.ModuleList(norm(channels) for channels in convolutions.channels)
        self.attention = (
            None
            if convolutions.attention is None
            else ImageSelfAttention(
                convolutions.channels[convolutions.attention - 1],
                inner_channels=convolutions.inner_channels,
                value_channels=convolutions.value_channels,
                pooled=convolutions.pooled,
                spectral_norm=convolutions.spectral_norm,
            )
        )

    def features(self, images: Tensor) -> Tensor:
        """The last features, (batch, channels, rows, columns), of images of the model's size."""
        self.shape.check(images)
        features = images
        layers = zip(self.convolutions, self.norms, strict=True)
        for number, (convolution, norm) in enumerate(layers, 1):
            features = relu(norm(convolution(features)))
            if self.attention is not None and number == self.choices.attention:
                features = self.attention(features)
            if number in self.choices.halved:
                features = max_pool2d(features, 2)
        return features

    def outputs(self, images: Tensor) -> Tensor:
        """(batch, channels of the last convolution)."""
        region = self.choices.region
        features = self.features(images)
        return (features if region is None else region.of(features)).mean((2, 3))


def _convolution(channels: int, to: int, *, bias: bool) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, to, 3, padding=1, bias=bias)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution
