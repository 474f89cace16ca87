"""A run's model seen at work: its traces, and its history as the page shows it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.cli.terminal import tell_unknown
from weft.errors import DataError, InputError
from weft.formats.trace import TraceData
from weft.formats.trace_folder import not_a_trace
from weft.formats.verification import ON_ANOTHER_TEXT
from weft.mechanism.graph import Top
from weft.models.language_model import LanguageModel
from weft.tracing.capture import trace
from weft.tracing.description import describe
from weft.tracing.huggingface import trace_huggingface, verify_inputs
from weft.tracing.own_verification import verify_own
from weft.tracing.prefix import Verify
from weft.tracing.pretrained import (
    image_inputs,
    load_pretrained,
    open_image,
    text_inputs,
)
from weft.training.inference import TrainedRun, open_run
from weft.training.tasks.pairs import translate

__all__ = [
    "Opened",
    "Options",
    "Verified",
    "check_output",
    "export_trace",
    "open_model",
    "text_of_run",
    "trace_model",
    "trace_opened",
    "trace_run",
    "trace_text",
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
    verify: how much of the text is read without weft too: see `weft.trace`.
    """

    target: str | None = None
    generate: int | None = None
    keep: int = 32
    layers: str | None = None
    dtype: str | None = None
    queries_keys: bool = True
    overwrite: bool = False
    verify: Verify = None

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
            raise InputError(
                f"--image: {model} is a run of weft, which reads text. Give it a --text, or choose "
                "an image model of Hugging Face."
            )
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
    verification: Mapping[str, Any] | None = None,
) -> TraceData:
    """Trace a text into a folder.

    inputs: what the model reads instead of the text: tensors by name, and an "offset_mapping"
        where the trace is to have the offsets of its tokens.
    description: what the trace says besides of the model.
    progress: told the path and the number of each layer that is done, of how many.
    verification: what the trace says of it; None: the model is verified on this text.
    """
    if inputs is None and not text:
        raise InputError("the text is empty; give at least one character.")
    if opened.run is not None:
        if inputs is None:
            inputs = text_of_run(opened.run, text, options)
        caught = trace_run(opened.run, inputs, options, verification)
        caught = replace(caught, model={**caught.model, **(description or {})})
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
        verify=options.verify,
        verification=verification,
        description={**describe(opened.network), **(description or {})},
        progress=progress,
    )
    assert isinstance(found, TraceData)
    return found


class Verified:
    """A model that traces many texts is verified once, on the first of them.

    Which text that is depends on what is there already, the bytes of the traces do not: each says
    the same of it.
    """

    def __init__(self, opened: Opened, options: Options) -> None:
        self._opened, self._options, self._done = opened, options, options.verify is False

    def check(self, text: str, inputs: Any = None) -> Mapping[str, Any] | None:
        """Verify the model on a text, or what it reads instead, unless it is verified.

        Returns: what a trace says of it. Raises: VerificationError.
        """
        options = self._options
        if options.verify is False:
            return None
        if not self._done:
            opened, generates = self._opened, options.generate is not None
            if opened.run is not None:
                inputs = text_of_run(opened.run, text, options) if inputs is None else inputs
                ids = {name: of for name, of in inputs.items() if name != "offset_mapping"}
                verify_own(opened.run.model, ids, Top(options.keep), options.verify)
            else:
                network = opened.network
                assert network is not None
                if inputs is None:
                    inputs = text_inputs(network, opened.tokenizer, text, options.target, generates)
                verify_inputs(
                    network, inputs, opened.tokenizer, Top(options.keep), options.verify, generates
                )
            self._done = True
        return ON_ANOTHER_TEXT


def trace_model(
    model: str,
    text: str | None,
    output: Path,
    options: Options,
    *,
    image: Path | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> TraceData:
    """Trace a run or a model of Hugging Face on a text, an image or both, into a folder.

    Args:
        model: a run's folder; a folder or a name of a model of Hugging Face.
        text: what it reads; None: nothing but the image.
        output: the trace folder to write.
        options: how.
        image: a picture that it sees.
        progress: see `trace_opened`.
    """
    check_output(output, options.overwrite)
    if text is not None and not text:
        raise InputError("the text is empty; give at least one character.")
    if image is None:
        opened = open_model(model, options)
        caught = trace_opened(opened, text or "", output, options, progress=progress)
        if opened.run is not None:
            tell_unknown(opened.run, "the text", (text or "") + (options.target or ""))
        return caught
    picture = open_image(image)
    opened = open_model(model, options, image=True)
    assert opened.network is not None
    inputs, tokenizer = image_inputs(model, opened.network, picture, text)
    opened = Opened(None, opened.network, tokenizer)
    said = {"image": str(image)}
    return trace_opened(
        opened, "", output, options, inputs=inputs, description=said, progress=progress
    )


def check_output(output: Path, overwrite: bool) -> None:
    """Before the model runs, not after."""
    if output.exists():
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give --overwrite.")


def _layer_names(layers: str) -> list[int | str]:
    """The layers of an option such as "0,3,*cross*", as numbers and paths."""
    names = [name.strip() for name in layers.split(",") if name.strip()]
    return [int(name) if name.isascii() and name.isdigit() else name for name in names]


def trace_text(
    run: TrainedRun, text: str, options: Options | None = None, beam: int = 5
) -> TraceData:
    """Trace a run's model on a text.

    Args:
        run: a trained run.
        text: what it reads.
        options: how. Its target is the translation whose attention is wanted; None: the one the
            model writes. Not for language models.
        beam: of the model's own translation.
    """
    options = options or Options()
    return trace_run(run, text_of_run(run, text, options, beam), options)


def text_of_run(run: TrainedRun, text: str, options: Options, beam: int = 5) -> dict[str, Tensor]:
    """What a run's model reads for a text: its token ids; of a translator, and the target's."""
    target = options.target
    words = run.vocabulary
    ids = words.encode(text)
    if not ids:
        raise InputError("the text is empty; give at least one character.")
    if isinstance(run.model, LanguageModel):
        if target is not None:
            raise InputError("--target: this run is a language model, which has no target.")
        return {"tokens": _ids(ids)}
    if options.generate is not None:
        raise InputError("--generate: this run translates; its translation is traced anyway.")
    if target is None:
        (target,) = translate(run.model, words, [text], beam=beam)
    return {
        "source": _ids([*ids, words.end]),
        "target": _ids([words.start, *words.encode(target)]),
    }


def trace_run(
    run: TrainedRun,
    inputs: Mapping[str, Tensor],
    options: Options,
    verification: Mapping[str, Any] | None = None,
) -> TraceData:
    """Trace a run's model on token ids; see `trace_opened` for the inputs."""
    offsets = inputs.get("offset_mapping")
    caught = trace(
        run.model,
        {name: ids for name, ids in inputs.items() if name != "offset_mapping"},
        tokenizer=run.vocabulary,
        keep=Top(options.keep),
        layers=options.wanted,
        queries_keys=options.queries_keys,
        generate=options.generate,
        verify=options.verify if verification is None else False,
    )
    assert isinstance(caught, TraceData)
    if verification is not None:
        caught = replace(caught, verification=verification)
    if offsets is None:
        return caught
    return replace(caught, positions={"tokens": {"offsets": offsets[0].tolist()}})


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
    opened = TraceData.open(path)
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
        from weft.formats import exchange

        exchange.write_trace_parquet(opened, parquet)
        written.append(parquet)
    if graphml is not None:
        from weft.formats import exchange

        exchange.write_graphml(opened.layers[layer], head, graphml)
        written.append(graphml)
    return written
