"""The vision Transformer: an image as a sequence of patches.

    z_0 = [class token; x_1 E; ...; x_N E] + positions        x_i: the pixels of patch i
    z_l = block_l(z_{l-1})
    output = norm(z_L) of the class token, or its mean over the patches

Source: Dosovitskiy et al. 2021, equations 1 to 4.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import WithConstants
from headloom.mechanism.grid import Grid
from headloom.mechanism.positions import sinusoidal
from headloom.mechanism.shapes import chosen
from headloom.mechanism.watching import layers_of
from headloom.models.blocks import EncoderBlock, closing_norm
from headloom.models.configuration import Architecture
from headloom.models.dense import Dropout
from headloom.models.image_classifier import ImageClassifier, ImageShape

__all__ = ["ReadOut", "VisionTransformer"]

#: What the class is read from.
ReadOut = Literal["class token", "mean"]


class VisionTransformer(ImageClassifier, WithConstants):
    """A Transformer encoder on the patches of an image.

    Args:
        shape: of the images.
        classes: how many there are.
        architecture: sizes and choices; its decoder layers are not used. Positions are "learned",
            "sinusoidal" or "none", in the order of the patches, row by row.
        patch: rows and columns of a patch.
        read: from the class token, which stands before the patches, or from the mean of these.

    Raises: InputError: images that do not split into patches, or other positions.
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
        chosen("VisionTransformer", "read", read, get_args(ReadOut))
        self.architecture, self.read = architecture, read
        self.grid = _grid(shape, patch, before=int(read == "class token"))
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


def _grid(shape: ImageShape, patch: tuple[int, int], before: int) -> Grid:
    if min(patch) < 1 or shape.rows % patch[0] or shape.columns % patch[1]:
        raise InputError(
            f"model.patch {list(patch)}: images of {shape.rows} x {shape.columns} pixels do not "
            "split into such patches. Choose divisors of the rows and of the columns."
        )
    return Grid(shape.rows // patch[0], shape.columns // patch[1], before)
