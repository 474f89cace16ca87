"""A long text in windows: a trace of each, in one folder, resumable.

    FOLDER/000000.loom ...     the trace of each window

A trace is there whole or not at all, and says which request it answers, so what is there is done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headloom.api.model import Model, TraceChoices
from headloom.api.notices import tell_unknown
from headloom.api.opening import open_model
from headloom.api.tracing import VerifiedOnce, check_output
from headloom.errors import DataError
from headloom.formats.files import JsonObject, reason_of
from headloom.formats.folders import own_folder
from headloom.formats.trace_reader import open_folder
from headloom.formats.trace_writer import not_a_trace
from headloom.tracing.description import weights_digest
from headloom.version import __version__

__all__ = ["WindowTraces", "trace_windows"]


@dataclass(frozen=True)
class WindowTraces:
    """The folders of the traces in the order of the text; how many of them were there already."""

    paths: list[Path]
    there: int


def trace_windows(
    name: str,
    text: str,
    output: Path,
    options: TraceChoices,
    *,
    window: int,
    overlap: int | None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WindowTraces:
    """Split a text into overlapping windows and trace each that has no trace yet.

    Args:
        name: a run of a language model; a folder or a name of a model of Hugging Face.
        text: to be split.
        output: the folder for the traces; one that an earlier call left is gone on with.
        options: as for one text. With overwriting, windows of another text, model or option are
            replaced, and those beyond the last one are removed once the new ones are there.
        window: tokens that the model reads at once, special ones included.
        overlap: tokens that two windows share; None: a quarter of them.
        progress: told how many windows of how many are done.

    Raises: InputError: a translator, or a window that does not fit; DataError: the folder is a
    trace or a corpus, holds windows that must stay, or cannot be written.
    """
    if (output / "corpus.json").exists() or (output.is_dir() and not_a_trace(output) is None):
        raise DataError(
            f"{output} is a trace or a corpus; windows need a folder of their own. Choose another."
        )
    model = open_model(name, predicting=options.generate is not None)
    parts = model.windows(text, window, overlap)
    descriptions = [
        {"number": number, "of": len(parts), "tokens": window, "request": request}
        for number, request in enumerate(_requests(model, parts, options))
    ]
    with own_folder(output, "traces windows there") as folder:
        paths = [folder / f"{number:06d}.loom" for number in range(len(parts))]
        beyond = _windows_beyond(folder, len(paths))
        for path in beyond:
            check_output(path, options.overwrite)
        missing = [
            number
            for number, path in enumerate(paths)
            if not _is_there(path, descriptions[number], options.overwrite)
        ]
        there = len(paths) - len(missing)
        progress(there, len(paths))
        verified = VerifiedOnce(model, options)
        for done, number in enumerate(missing, there + 1):
            model.trace(
                parts[number],
                paths[number],
                options,
                description={"window": descriptions[number]},
                verification=verified.check(parts[number]),
            )
            progress(done, len(paths))
        for path in beyond:
            _remove(path)
    tell_unknown("the text", model.unknown_parts(text))
    return WindowTraces(paths, there)


def _requests(model: Model, parts: list[dict[str, Any]], options: TraceChoices) -> list[str]:
    """SHA-256 for each window of what its trace depends on: headloom, weights, options, tokens."""
    same = [__version__, weights_digest(model.network), options.decisive, len(parts)]
    digests = []
    for part in parts:
        tensors = {name: tensor.tolist() for name, tensor in part.items()}
        digests.append(hashlib.sha256(json.dumps([same, tensors]).encode()).hexdigest())
    return digests


def _is_there(path: Path, description: JsonObject, overwrite: bool) -> bool:
    """Whether the whole trace of a window is at a path; False: it is to be written.

    Raises: DataError: what is there must stay.
    """
    if not path.exists():
        return False
    problem = not_a_trace(path)
    if problem:
        raise DataError(f"{path} is not overwritten: {problem}. Choose another folder.")
    try:
        stored = open_folder(path)[1]["model"].get("window")
    except DataError:
        if overwrite:
            return False
        raise
    if stored != description and not overwrite:
        raise DataError(
            f"{path} exists already, of another text, model or option. Give the command that wrote "
            "it, and it goes on; or choose another folder, or give --overwrite."
        )
    return bool(stored == description)


def _windows_beyond(folder: Path, count: int) -> list[Path]:
    """Traces of windows in a folder whose numbers are not below `count`, in order."""
    return [
        path
        for path in sorted(folder.glob("*.loom"))
        if len(path.stem) >= 6
        and path.stem.isascii()
        and path.stem.isdigit()
        and int(path.stem) >= count
    ]


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise DataError(
            f"{path} is a window of an earlier text and cannot be removed: {reason_of(error)}. "
            "Remove it."
        ) from error
