"""A training run of weft that sees images, as a model that commands ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from weft.errors import InputError
from weft.formats.images import image_array
from weft.jobs.model import Inputs, Measure, Prediction, TraceChoices
from weft.jobs.run_model import RunModel
from weft.training.tasks.images import normalised, shape_of
from weft.training.validation import mean_loss

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageRunModel"]


@dataclass(frozen=True, eq=False)
class ImageRunModel(RunModel):
    """A run whose model sees images, and reads no text."""

    @property
    def tokenizer(self) -> None:
        """See Model: places of an image have names of their own."""
        return None

    def _no_text(self, option: str) -> NoReturn:
        raise InputError(
            f"{option}: {self.run.folder.path} is a run that sees images and reads no text. Give "
            "it an --image."
        )

    def unknown_parts(self, text: str) -> Sequence[str]:
        """See Model."""
        self._no_text("--text")

    def inputs(self, text: str, options: TraceChoices) -> Inputs:
        """Raises an InputError: it reads no text."""
        self._no_text("--text")

    def pairs(self, sources: Sequence[str], targets: Sequence[str]) -> NoReturn:
        """Raises an InputError: it reads no text."""
        self._no_text("--source-file")

    def image_inputs(self, picture: Image, text: str | None) -> tuple[RunModel, Inputs]:
        """See Model. The picture is made grey where the run's images are, and scaled to their size
        where the run scales its own.

        Raises: InputError: a text beside it, or a picture of another size.
        """
        if text is not None:
            self._no_text("--text")
        shape = shape_of(self.run.data)
        picture = picture.convert("L" if shape.channels == 1 else "RGB")
        task = self.run.config.task
        if getattr(task, "size", None) is not None:
            picture = picture.resize((shape.columns, shape.rows))
        if (picture.height, picture.width) != (shape.rows, shape.columns):
            raise InputError(
                f"--image: the picture has {picture.height} x {picture.width} pixels; this run "
                f"sees {shape.rows} x {shape.columns}. Scale it to that size."
            )
        return self, {"images": normalised(image_array(picture)[None], self.run.data)}

    def windows(self, text: str, window: int, overlap: int | None) -> list[dict[str, Any]]:
        """Raises an InputError: it reads no text."""
        self._no_text("--window")

    def loss(self, text: str | None, target: str | None, tokens: int) -> Measure:
        """See Model. A token of an image is a pixel."""
        if text is not None or target is not None:
            self._no_text("--text" if text is not None else "--target")
        batches = self.validation(tokens)
        # -100: see Task.ignored; every image has a class.
        return Measure("loss", lambda: mean_loss(self.run.model, batches, -100))

    def logit_of(
        self, word: str, against: str | None, text: str | None, target: str | None
    ) -> Measure:
        """Raises an InputError: it reads no text."""
        self._no_text("--text" if text is not None else "--logit")

    def prediction(self, text: str, target: str | None, position: int | None) -> Prediction:
        """Raises an InputError: it reads no text."""
        self._no_text("--text")
