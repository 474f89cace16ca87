"""A model traced on a text or an image, into a folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from headloom.api.model import Inputs, Model, Progress, TraceChoices, check_text
from headloom.api.notices import tell_unknown
from headloom.api.opening import open_model
from headloom.errors import DataError
from headloom.formats.files import NOT_WRITABLE, JsonMapping, disk_errors
from headloom.formats.images import open_image
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import not_a_trace
from headloom.formats.verification import ON_ANOTHER_TEXT

__all__ = ["VerifiedOnce", "check_output", "trace_model"]


class VerifiedOnce:
    """Verifies a model that traces many texts once, on the first of them.

    Which text that is depends on the traces that are there already. Their bytes do not: each trace
    says the same of it.
    """

    def __init__(self, model: Model, options: TraceChoices) -> None:
        self._model, self._options, self._done = model, options, options.verify is False

    def check(self, inputs: Inputs) -> JsonMapping | None:
        """Verify the model on inputs, unless it is verified.

        Returns: what a trace says of it. Raises: VerificationError.
        """
        if self._options.verify is False:
            return None
        if not self._done:
            self._model.verify(inputs, self._options)
            self._done = True
        return ON_ANOTHER_TEXT


def trace_model(
    name: str,
    text: str | None,
    output: Path,
    options: TraceChoices,
    *,
    image: Path | None = None,
    progress: Progress | None = None,
) -> TraceData:
    """Trace a run or a model of Hugging Face on a text, an image or both, into a folder.

    Args:
        name: a run's folder; a folder or a name of a model of Hugging Face.
        text: what it reads; None: nothing but the image.
        output: the trace folder to write.
        options: see TraceChoices.
        image: a picture that it sees.
        progress: see `headloom.api.model.Progress`.
    """
    check_output(output, options.overwrite)
    if text is not None:
        check_text(text)
    picture = None if image is None else open_image(image)
    model = open_model(name, predicting=options.generate is not None, reads_text=picture is None)
    if picture is None:
        text = text or ""
        inputs = model.inputs(text, options)
        trace = model.trace(inputs, output, options, progress=progress)
        tell_unknown("the text", model.unknown_parts(text + (options.target or "")))
        return trace
    model, inputs = model.image_inputs(picture, text)
    return model.trace(
        inputs, output, options, description={"image": str(image)}, progress=progress
    )


def check_output(output: Path, overwrite: bool) -> None:
    """Raise a DataError where a trace cannot be written, before the model runs."""
    with disk_errors(output, NOT_WRITABLE):
        parent = Path(os.path.realpath(output)).parent
        tempfile.TemporaryFile(dir=parent).close()
    if output.exists():
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give --overwrite.")
