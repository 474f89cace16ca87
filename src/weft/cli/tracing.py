"""A run's model seen at work: its traces, and its history as the page shows it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import DataError, InputError
from weft.formats.trace import Trace
from weft.formats.trace_folder import not_a_trace
from weft.mechanism.graph import Top
from weft.models.language_model import LanguageModel
from weft.tracing.capture import trace
from weft.tracing.description import describe
from weft.tracing.huggingface import trace_huggingface
from weft.tracing.pretrained import (
    image_inputs,
    load_pretrained,
    open_image,
    split_windows,
    text_inputs,
)
from weft.training.inference import TrainedRun, open_run
from weft.training.tasks.pairs import translate

__all__ = [
    "Opened",
    "Options",
    "export_trace",
    "open_model",
    "trace_model",
    "trace_opened",
    "trace_text",
    "trace_windows",
]


def _ids(tokens: Sequence[int]) -> Tensor:
    return torch.tensor([list(tokens)])


@dataclass(frozen=True)
class Options:
    """How a text is traced.

    target: what an encoder-decoder writes; None: a run's own translation.
    generate: tokens that the model is to write; None: it only reads.
    keep: edges kept of each query.
    layers: numbers and paths with a comma between them; None: all.
    dtype: "float32", "bfloat16" or "float16", of queries and keys; None: as they are.
    queries_keys: whether to keep queries and keys.
    overwrite: replace a trace that is there, and nothing else.
    """

    target: str | None = None
    generate: int | None = None
    keep: int = 32
    layers: str | None = None
    dtype: str | None = None
    queries_keys: bool = True
    overwrite: bool = False

    @property
    def wanted(self) -> list[int | str] | None:
        """The layers, as numbers and paths."""
        if self.layers is None:
            return None
        names = _layer_names(self.layers)
        if not names:
            raise InputError("--layers names no layer. Give some, as 0,3, or leave it out for all.")
        return names

    @property
    def stored(self) -> torch.dtype | None:
        """The number type of queries and keys on disk."""
        return None if self.dtype is None else getattr(torch, self.dtype)


@dataclass(frozen=True, eq=False)
class Opened:
    """A model ready to be traced: a run, or a model of Hugging Face with what reads its inputs."""

    run: TrainedRun | None
    network: nn.Module | None = None
    tokenizer: Any = None


def open_model(model: str, options: Options, *, image: bool = False) -> Opened:
    """Open a run or a model of Hugging Face.

    image: whether it is to see a picture.
    """
    if (Path(model) / "run.json").is_file():
        if image:
            raise InputError(f"--image: {model} is a run of weft, which reads text.")
        return Opened(open_run(Path(model)))
    if image and options.generate is not None:
        raise InputError("--image and --generate do not go together yet: trace one of them.")
    found = load_pretrained(model, predicting=options.generate is not None, text=not image)
    return Opened(None, *found)


def trace_opened(
    opened: Opened,
    text: str,
    output: Path,
    options: Options,
    *,
    inputs: Any = None,
    description: Mapping[str, Any] | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Trace:
    """Trace a text into a folder.

    inputs: what a model of Hugging Face reads instead of the text.
    description: what the trace says besides of the model.
    progress: told the path and the number of each layer that is done, of how many.
    """
    if inputs is None and not text:
        raise InputError("the text is empty; give at least one character.")
    if opened.run is not None:
        caught = trace_text(opened.run, text, options)
        caught.save(output, dtype=options.stored, overwrite=options.overwrite)
        return caught
    assert opened.network is not None
    if inputs is None:
        inputs = text_inputs(
            opened.network, opened.tokenizer, text, options.target, options.generate is not None
        )
    found = trace_huggingface(
        opened.network,
        inputs,
        tokenizer=opened.tokenizer,
        keep=Top(options.keep),
        layers=options.wanted,
        queries_keys=options.queries_keys,
        save=output,
        dtype=options.stored,
        overwrite=options.overwrite,
        generate=options.generate,
        description={**describe(opened.network), **(description or {})},
        progress=progress,
    )
    assert isinstance(found, Trace)
    return found


def trace_model(
    model: str,
    text: str | None,
    output: Path,
    options: Options,
    *,
    image: Path | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> Trace:
    """Trace a run or a model of Hugging Face on a text, an image or both, into a folder.

    Args:
        model: a run's folder; a folder or a name of a model of Hugging Face.
        text: what it reads; None: nothing but the image.
        output: the trace folder to write.
        options: how.
        image: a picture that it sees.
        progress: see `trace_opened`.
    """
    _check_output(output, options.overwrite)
    if text is not None and not text:
        raise InputError("the text is empty; give at least one character.")
    if image is None:
        opened = open_model(model, options)
        return trace_opened(opened, text or "", output, options, progress=progress)
    picture = open_image(image)
    opened = open_model(model, options, image=True)
    assert opened.network is not None
    inputs, tokenizer = image_inputs(model, opened.network, picture, text)
    opened = Opened(None, opened.network, tokenizer)
    said = {"image": str(image)}
    return trace_opened(
        opened, "", output, options, inputs=inputs, description=said, progress=progress
    )


def _check_output(output: Path, overwrite: bool) -> None:
    """Before the model runs, not after."""
    if output.exists():
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give --overwrite.")
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")


def trace_windows(
    model: str,
    text: str,
    output: Path,
    options: Options,
    *,
    window: int,
    overlap: int | None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Path]:
    """Split a text into overlapping windows and trace each; returns the traces' folders.

    Args:
        window: tokens that the model reads at once, special ones included.
        overlap: tokens that two windows share; None: a quarter of them.
        progress: told how many windows of how many are done.

    Windows of an earlier text that the folder holds beyond these are removed with overwriting,
    once the new ones are there.

    Raises: InputError: a run, or a window that does not fit; DataError: the folder is a trace or a
    corpus, holds windows that must stay, or cannot be written.
    """
    if (output / "corpus.json").exists() or (output.is_dir() and not_a_trace(output) is None):
        raise DataError(
            f"{output} is a trace or a corpus; windows need a folder of their own. Choose another."
        )
    opened = open_model(model, options)
    if opened.run is not None:
        raise InputError("--window is for models of Hugging Face; a run of weft reads texts whole.")
    assert opened.network is not None
    parts = split_windows(opened.network, opened.tokenizer, text, window, overlap)
    paths = [output / f"{number:06d}.weft" for number in range(len(parts))]
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"cannot write {output}: {reason}. Choose another folder.") from error
    beyond = _windows_beyond(output, len(paths))
    for path in [*paths, *beyond]:
        _check_output(path, options.overwrite)
    for number, (path, part) in enumerate(zip(paths, parts, strict=True)):
        said = {"window": {"number": number, "of": len(parts), "tokens": window}}
        trace_opened(opened, "", path, options, inputs=part, description=said)
        progress(number + 1, len(parts))
    for path in beyond:
        try:
            shutil.rmtree(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DataError(
                f"{path} is a window of an earlier text and cannot be removed: {reason}. Remove it."
            ) from error
    return paths


def _windows_beyond(folder: Path, count: int) -> list[Path]:
    """Traces of windows in a folder whose numbers are not below `count`, in order."""
    found = []
    for path in sorted(folder.glob("*.weft")):
        number = path.stem
        if len(number) >= 6 and number.isascii() and number.isdigit() and int(number) >= count:
            found.append(path)
    return found


def _layer_names(layers: str) -> list[int | str]:
    """The layers of an option such as "0,3,*cross*", as numbers and paths."""
    names = [name.strip() for name in layers.split(",") if name.strip()]
    return [int(name) if name.isascii() and name.isdigit() else name for name in names]


def trace_text(run: TrainedRun, text: str, options: Options | None = None, beam: int = 5) -> Trace:
    """Trace a run's model on a text.

    Args:
        run: a trained run.
        text: what it reads.
        options: how. Its target is the translation whose attention is wanted; None: the one the
            model writes. Not for language models.
        beam: of the model's own translation.
    """
    options = options or Options()
    target = options.target
    words = run.vocabulary
    ids = words.encode(text)
    if not ids:
        raise InputError("the text is empty; give at least one character.")
    inputs: dict[str, Tensor]
    if isinstance(run.model, LanguageModel):
        if target is not None:
            raise InputError("--target: this run is a language model, which has no target.")
        inputs = {"tokens": _ids(ids)}
    else:
        if options.generate is not None:
            raise InputError("--generate: this run translates; its translation is traced anyway.")
        if target is None:
            (target,) = translate(run.model, words, [text], beam=beam)
        inputs = {
            "source": _ids([*ids, words.end]),
            "target": _ids([words.start, *words.encode(target)]),
        }
    caught = trace(
        run.model,
        inputs,
        tokenizer=words,
        keep=Top(options.keep),
        layers=options.wanted,
        queries_keys=options.queries_keys,
        generate=options.generate,
    )
    assert isinstance(caught, Trace)
    return caught


def _check_outputs(outputs: dict[str, Path | None]) -> None:
    """Every output has a file name, and one of its own."""
    seen: dict[str, str] = {}
    for option, output in outputs.items():
        if output is None:
            continue
        if not output.name:
            raise InputError(f"{option}: the file name is empty or a folder. Give one.")
        place = os.path.realpath(output)
        if place in seen:
            raise InputError(f"{seen[place]} and {option} name one file, {output}. Give two names.")
        seen[place] = option


def export_trace(
    path: Path,
    *,
    html: Path | None,
    picture: Path | None,
    parquet: Path | None,
    graphml: Path | None,
    layer: int,
    head: int,
) -> list[Path]:
    """Write a trace in the formats asked for; returns the files written.

    Raises: InputError: an output without a name, one file for two outputs, no such layer or head.
    """
    _check_outputs(
        {"--html": html, "--picture": picture, "--parquet": parquet, "--graphml": graphml}
    )
    opened = Trace.open(path)
    if graphml is not None:
        # Before anything is written.
        for option, number, count in (
            ("--layer", layer, len(opened.layers)),
            ("--head", head, opened.layers[layer].heads if layer < len(opened.layers) else 0),
        ):
            if not 0 <= number < count:
                raise InputError(f"{option} {number}: the trace has 0 to {count - 1}.")
    written = []
    if html is not None:
        from weft.studio.page import export_page

        export_page(html, [opened], title=path.stem)
        written.append(html)
    if picture is not None:
        from weft.pictures import heads, save_picture

        save_picture(heads(opened), picture)
        written.append(picture)
    if parquet is not None:
        from weft.tracing import exchange

        exchange.write_trace_parquet(opened, parquet)
        written.append(parquet)
    if graphml is not None:
        from weft.tracing import exchange

        exchange.write_graphml(opened.layers[layer], head, graphml)
        written.append(graphml)
    return written
