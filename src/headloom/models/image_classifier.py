"""What models share that name the class of an image.

Images are (batch, channels, rows, columns); a model is built for images of one size.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe, whole_number
from headloom.models.predictor import Predictor

__all__ = ["ImageClassifier", "ImageShape"]


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
    Raises: InputError: fewer than two classes.
    """

    purpose = "classifies images (headloom evaluate, headloom trace --file)"

    def __init__(self, shape: ImageShape, classes: int, width: int) -> None:
        super().__init__()
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
