"""A run's model seen at work: its traces, and its history as the page shows it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import DataError, InputError
from weft.formats.history import History, LayerSnapshot
from weft.formats.trace import Held, Trace, TraceLayer
from weft.formats.trace_folder import not_a_trace
from weft.mechanism.graph import Top
from weft.models.language_model import LanguageModel
from weft.tracing.capture import trace
from weft.tracing.pretrained import load_pretrained, text_inputs
from weft.training.inference import TrainedRun, open_run
from weft.training.tasks.pairs import translate

__all__ = ["export_trace", "history_for_page", "probe_trace", "trace_model", "trace_text"]


#: Which sequences a translator's layers take their queries and keys from.
_SEQUENCES = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def _ids(tokens: Sequence[int]) -> Tensor:
    return torch.tensor([list(tokens)])


def trace_model(
    model: str,
    text: str,
    output: Path,
    *,
    target: str | None = None,
    keep: int = 32,
    layers: str | None = None,
    dtype: str | None = None,
    queries_keys: bool = True,
    overwrite: bool = False,
) -> Trace:
    """Trace a run or a model of Hugging Face on a text, into a folder.

    Args:
        model: a run's folder; a folder or a name of a model of Hugging Face.
        text: what it reads.
        output: the trace folder to write.
        target: what an encoder-decoder writes; None: a run's own translation.
        keep: edges kept of each query.
        layers: numbers and paths with a comma between them; None: all.
        dtype: "float32", "bfloat16" or "float16", of queries and keys; None: as they are.
        queries_keys: whether to keep queries and keys.
        overwrite: replace a trace that is there, and nothing else.
    """
    if output.exists():
        # Before the model runs, not after.
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give --overwrite.")
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")
    if not text:
        raise InputError("the text is empty; give at least one character.")
    wanted = None if layers is None else _layer_names(layers)
    stored: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
    if (Path(model) / "run.json").is_file():
        caught = trace_text(
            open_run(Path(model)),
            text,
            target=target,
            keep=keep,
            layers=wanted,
            queries_keys=queries_keys,
        )
        caught.save(output, dtype=stored, overwrite=overwrite)
        return caught
    network, tokenizer = load_pretrained(model)
    found = trace(
        network,
        text_inputs(network, tokenizer, text, target),
        tokenizer=tokenizer,
        keep=Top(keep),
        layers=wanted,
        queries_keys=queries_keys,
        save=output,
        dtype=stored,
        overwrite=overwrite,
    )
    assert isinstance(found, Trace)
    return found


def _layer_names(layers: str) -> list[int | str]:
    """The layers of an option such as "0,3,*cross*", as numbers and paths."""
    names = [name.strip() for name in layers.split(",") if name.strip()]
    return [int(name) if name.isascii() and name.isdigit() else name for name in names]


def trace_text(
    run: TrainedRun,
    text: str,
    *,
    target: str | None = None,
    keep: int = 32,
    layers: list[int | str] | None = None,
    queries_keys: bool = True,
    beam: int = 5,
) -> Trace:
    """Trace a run's model on a text.

    Args:
        run: a trained run.
        text: what it reads.
        target: the translation whose attention is wanted; None: the one the model writes. Not for
            language models.
        keep: edges kept of each query.
        layers: which layers, by number or path; None: all.
        queries_keys: whether to keep queries and keys.
        beam: of the model's own translation.
    """
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
        keep=Top(keep),
        layers=layers,
        queries_keys=queries_keys,
    )
    assert isinstance(caught, Trace)
    return caught


def probe_trace(run: TrainedRun) -> Trace:
    """The last snapshot of a run's history as a trace: its probe, read by the learned matrices."""
    history = History(run.folder.history)
    snapshot = history[history.steps[-1]]
    counts: Counter[str] = Counter()
    layers = []
    sequences: dict[str, list[str]] = {}
    for layer in snapshot.layers:
        queries_from, keys_from = _SEQUENCES[layer.kind] if run.translates else ("tokens", "tokens")
        sequences[keys_from], sequences[queries_from] = layer.key_tokens, layer.query_tokens
        heads, queries, keys = layer.graph.shape
        layers.append(
            TraceLayer(
                name=layer.name,
                kind=layer.kind,
                index=counts[layer.kind],
                shape=(heads, queries, keys),
                queries_from=queries_from,
                keys_from=keys_from,
                query_tokens=layer.query_tokens,
                key_tokens=layer.key_tokens,
                scale=1 / math.sqrt(layer.matrices["W_Q"].shape[-1]),
                data=Held(layer.graph, None),
            )
        )
        counts[layer.kind] += 1
    return Trace(sequences, tuple(layers))


def history_for_page(run: TrainedRun) -> list[dict[str, Any]]:
    """A run's snapshots as `weft.studio.page.export_page` takes them."""

    def of_layer(layer: LayerSnapshot) -> dict[str, Any]:
        queries, keys = layer.matrices["W_Q"], layer.matrices["W_K"]
        product = queries @ keys.transpose(1, 2)
        return {
            "weights": layer.graph.dense(),
            "product": product,
            "norm": torch.linalg.matrix_norm(product),
            "effective_rank": layer.measures["effective_rank"],
            "symmetry": layer.measures["symmetry"],
        }

    return [
        {
            "step": snapshot.step,
            "loss": snapshot.loss,
            "layers": {layer.name: of_layer(layer) for layer in snapshot.layers},
        }
        for snapshot in History(run.folder.history)
    ]


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
