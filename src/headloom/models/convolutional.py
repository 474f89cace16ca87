"""Convolutions that name the class of an image, with SAGAN's attention between them or without."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from headloom.errors import InputError
from headloom.models.image_attention import ImageSelfAttention
from headloom.models.image_classifier import ImageClassifier, ImageShape

__all__ = ["ConvolutionalClassifier", "Convolutions", "Region"]


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
