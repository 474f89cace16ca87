"""A long text in windows: a trace of each, in one folder, resumable.

    FOLDER/000000.weft ...     the trace of each window

A trace is there whole or not at all, and says which request it answers, so what is there is done.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.cli.terminal import tell_unknown
from weft.cli.tracing import (
    Opened,
    Options,
    Verified,
    check_output,
    open_model,
    trace_opened,
)
from weft.errors import DataError, InputError
from weft.formats.files import reason_of
from weft.formats.folders import own_folder
from weft.formats.trace_folder import not_a_trace
from weft.formats.trace_reader import open_folder
from weft.models.language_model import LanguageModel
from weft.tracing.description import weights_digest
from weft.tracing.pretrained import split_windows
from weft.training.inference import TrainedRun
from weft.version import __version__

__all__ = ["WindowTraces", "trace_windows"]


@dataclass(frozen=True)
class WindowTraces:
    """The folders of the traces in the order of the text; how many of them were there already."""

    paths: list[Path]
    there: int


def trace_windows(
    model: str,
    text: str,
    output: Path,
    options: Options,
    *,
    window: int,
    overlap: int | None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WindowTraces:
    """Split a text into overlapping windows and trace each that has no trace yet.

    Args:
        model: a run of a language model; a folder or a name of a model of Hugging Face.
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
    opened = open_model(model, options)
    parts = _parts(opened, model, text, window, overlap)
    said = [
        {"number": number, "of": len(parts), "tokens": window, "request": request}
        for number, request in enumerate(_requests(opened, parts, options))
    ]
    with own_folder(output, "traces windows there") as folder:
        paths = [folder / f"{number:06d}.weft" for number in range(len(parts))]
        beyond = _windows_beyond(folder, len(paths))
        for path in beyond:
            check_output(path, options.overwrite)
        missing = [
            number
            for number, path in enumerate(paths)
            if not _is_there(path, said[number], options.overwrite)
        ]
        there = len(paths) - len(missing)
        progress(there, len(paths))
        verified = Verified(opened, options)
        for done, number in enumerate(missing, there + 1):
            trace_opened(
                opened,
                "",
                paths[number],
                options,
                inputs=parts[number],
                description={"window": said[number]},
                verification=verified.check("", parts[number]),
            )
            progress(done, len(paths))
        for path in beyond:
            _remove(path)
    if opened.run is not None:
        tell_unknown(opened.run, "the text", text)
    return WindowTraces(paths, there)


def _parts(
    opened: Opened, model: str, text: str, window: int, overlap: int | None
) -> list[dict[str, Any]]:
    """The windows, as the model reads each."""
    if opened.run is None:
        assert opened.network is not None
        return split_windows(opened.network, opened.tokenizer, text, window, overlap)
    if not isinstance(opened.run.model, LanguageModel):
        raise InputError(
            f"--window: {model} is a run that translates: it writes a target for the whole source. "
            "Give its texts a line each, as --corpus."
        )
    return _split_ids(opened.run, text, window, overlap)


def _split_ids(
    run: TrainedRun, text: str, window: int, overlap: int | None
) -> list[dict[str, Tensor]]:
    """A text in windows, as a language model of weft reads each."""
    architecture = run.config.model.architecture()
    if architecture.positions == "learned" and window > architecture.max_length:
        raise InputError(
            f"--window {window}: this run reads {architecture.max_length} at most. Give --window "
            f"{architecture.max_length} or less."
        )
    shared = window // 4 if overlap is None else overlap
    if shared >= window:
        raise InputError(
            f"--window {window}: with {shared} of overlap there is no room for new tokens. Give a "
            "larger --window or a smaller --overlap."
        )
    ids, offsets = run.vocabulary.encode_with_offsets(text)
    if not ids:
        raise InputError("the text is empty; give at least one character.")
    starts = range(0, max(len(ids) - shared, 1), window - shared)
    return [
        {
            "tokens": torch.tensor([ids[start : start + window]]),
            "offset_mapping": torch.tensor([offsets[start : start + window]]),
        }
        for start in starts
    ]


def _requests(opened: Opened, parts: list[dict[str, Any]], options: Options) -> list[str]:
    """SHA-256 for each window of what its trace depends on: weft, weights, options, tokens."""
    network = opened.network if opened.run is None else opened.run.model
    assert network is not None
    asked = {
        name: value
        for name, value in asdict(options).items()
        if name not in ("overwrite", "verify")
    }
    same = [__version__, weights_digest(network), asked, len(parts)]
    found = []
    for part in parts:
        tensors = {name: tensor.tolist() for name, tensor in part.items()}
        found.append(hashlib.sha256(json.dumps([same, tensors]).encode()).hexdigest())
    return found


def _is_there(path: Path, said: dict[str, Any], overwrite: bool) -> bool:
    """Whether the whole trace of a window is at a path; False: it is to be written.

    Raises: DataError: what is there must stay.
    """
    if not path.exists():
        return False
    problem = not_a_trace(path)
    if problem:
        raise DataError(f"{path} is not overwritten: {problem}. Choose another folder.")
    try:
        there = open_folder(path)[1]["model"].get("window")
    except DataError:
        if overwrite:
            return False
        raise
    if there != said and not overwrite:
        raise DataError(
            f"{path} exists already, of another text, model or option. Give the command that wrote "
            "it, and it goes on; or choose another folder, or give --overwrite."
        )
    return bool(there == said)


def _windows_beyond(folder: Path, count: int) -> list[Path]:
    """Traces of windows in a folder whose numbers are not below `count`, in order."""
    found = []
    for path in sorted(folder.glob("*.weft")):
        number = path.stem
        if len(number) >= 6 and number.isascii() and number.isdigit() and int(number) >= count:
            found.append(path)
    return found


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise DataError(
            f"{path} is a window of an earlier text and cannot be removed: {reason_of(error)}. "
            "Remove it."
        ) from error
