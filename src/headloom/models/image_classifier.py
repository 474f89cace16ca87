"""What models share that name the class of an image.

Images are (batch, channels, rows, columns); a model is built for images of one size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe, real_tensor, whole_number
from headloom.models.predictor import Predictor

__all__ = ["ImageClassifier", "ImageShape", "check_images", "convolved"]


@dataclass(frozen=True)
class ImageShape:
    """The size of every image: channels (1 grey, 3 colour), rows and columns of pixels."""

    channels: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        for name in ("channels", "rows", "columns"):
            whole_number("ImageShape", name, getattr(self, name), 1)

    def check(self, images: Tensor) -> None:
        """Raise an InputError where images are no numbers, or not of this size."""
        check_images("the model", images)
        expected = (self.channels, self.rows, self.columns)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ShapeError(
                f"the images are {describe(images)}; this model reads (batch, {self.channels}, "
                f"{self.rows}, {self.columns}). Give images of that size."
            )


def check_images(name: str, images: Tensor) -> None:
    """Raise an InputError where images are no tensor of numbers with fractions."""
    if not real_tensor(name, "images", images).is_floating_point():
        raise InputError(
            f"{name}: images are {images.dtype}; expected a floating-point type. Convert them, as "
            "in images.float() / 255."
        )


def convolved(convolution: nn.Module, images: Tensor) -> Tensor:
    """The first convolution of images. Raises: InputError: another type, or device, than its."""
    try:
        features: Tensor = convolution(images)
    except RuntimeError:
        weight = next(convolution.parameters())
        if (images.dtype, images.device) == (weight.dtype, weight.device):
            raise
        raise InputError(
            f"the images are {images.dtype} on {images.device}, the model {weight.dtype} on "
            f"{weight.device}. Convert one of them, as in images.to({weight.dtype})."
        ) from None
    return features


class ImageClassifier(Predictor):
    """Makes one vector of an image (`outputs`), and from it the score of each class.

    Args: shape: of the images; classes: how many there are; width: of the vector.
    Raises: InputError: fewer than two classes.
    """

    purpose = "classifies images (headloom evaluate, headloom trace --image)"

    def __init__(self, shape: ImageShape, classes: int, width: int) -> None:
        super().__init__()
        if not isinstance(shape, ImageShape):
            raise InputError(f"images of {shape!r}; expected an ImageShape.")
        if whole_number(type(self).__name__, "classes", classes) < 2:
            raise InputError(f"{classes} class: there is nothing to tell apart. Give two or more.")
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
