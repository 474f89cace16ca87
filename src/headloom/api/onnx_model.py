"""A trained model as ONNX files, and what ONNX Runtime computes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headloom.api.exported_tokenizer import exported_tokenizer
from headloom.errors import InputError, installing, optional_package
from headloom.formats.files import JsonObject, write_json
from headloom.models.classifier import Classifier
from headloom.models.convolutional import ConvolutionalClassifier
from headloom.models.image_classifier import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.onnx.graph import OnnxGraph
from headloom.models.onnx.images import image_classifier
from headloom.models.onnx.texts import classifier, language_model, translator
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer
from headloom.training.data import classes_of
from headloom.training.inference import TrainedRun
from headloom.training.tasks.images import mean_deviation
from headloom.training.tasks.labels import longest_text
from headloom.training.text import SPECIALS, Vocabulary

__all__ = ["logits_of_onnx", "write_onnx"]

#: Batches that are compared: how many sequences, their tokens, and tokens before those that are
#: read one at a time.
COMPARED = ((1, 1, 1), (2, 5, 2), (3, 17, 16), (4, 96, 90))


def write_onnx(run: TrainedRun, folder: Path) -> list[str]:
    """Fill a folder with a run's model: graphs, config.json and, of texts, tokenizer.json.

    Returns: the names of the graphs' files.
    Raises: InputError: the model has no graph, or a package is missing.
    """
    with optional_package("export", installing("onnx")):
        import onnxruntime  # noqa: F401
    with torch.no_grad():
        graphs = _graphs(run)
        for name, graph in graphs.items():
            graph.save(folder / f"{name}.onnx")
    write_json(folder / "config.json", _configuration(run))
    if run.data.vocabulary is not None:
        tokenizer = exported_tokenizer(run)
        before = "left" if isinstance(run.model, LanguageModel) else "right"
        pad = Vocabulary.pad
        tokenizer.enable_padding(direction=before, pad_id=pad, pad_token=SPECIALS[pad])
        if isinstance(run.model, Classifier):
            tokenizer.enable_truncation(longest_text(run.data))
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    return [f"{name}.onnx" for name in graphs]


def _graphs(run: TrainedRun) -> dict[str, OnnxGraph]:
    model = run.model
    if isinstance(model, Transformer):
        return translator(model)
    if isinstance(model, LanguageModel):
        return language_model(model)
    if isinstance(model, Classifier):
        return classifier(model)
    if isinstance(model, (VisionTransformer, ConvolutionalClassifier)):
        return image_classifier(model, *mean_deviation(run.data))
    raise InputError(
        f"export: task.kind {run.config.task.kind!r}: a graph attention network has no ONNX file: "
        "it reads a graph whole, at its training. Models of texts and of images have one."
    )


def _configuration(run: TrainedRun) -> JsonObject:
    """What a program must know beside the graphs, by the names that Transformers has for it."""
    model = run.model
    if isinstance(model, ImageClassifier):
        return {
            "task": "image-classification",
            "num_channels": model.shape.channels,
            "image_size": [model.shape.rows, model.shape.columns],
            "id2label": _labels(run),
        }
    vocabulary = run.vocabulary
    settings: JsonObject = {
        "vocab_size": len(vocabulary),
        "pad_token_id": vocabulary.pad,
        "bos_token_id": vocabulary.start,
        "eos_token_id": vocabulary.end,
        "max_position_embeddings": _longest(run),
    }
    if isinstance(model, Transformer):
        return {"task": "translation", "decoder_start_token_id": vocabulary.start, **settings}
    if isinstance(model, Classifier):
        return {"task": "text-classification", "id2label": _labels(run), **settings}
    return {"task": "text-generation", **settings}


def _labels(run: TrainedRun) -> JsonObject:
    return {str(number): name for number, name in enumerate(classes_of(run.data))}


def _longest(run: TrainedRun) -> int | None:
    """How many positions the graphs have tables for; None: they need none."""
    architecture = getattr(run.model, "architecture", None)
    tables = ("learned", "sinusoidal", "rotary")
    return (
        architecture.max_length
        if architecture is not None and architecture.positions in tables
        else None
    )


def logits_of_onnx(run: TrainedRun, folder: Path) -> tuple[Tensor, Tensor]:
    """What the run and the written graphs predict for random inputs of several sizes.

    Padded batches, whole prefixes, and tokens that are read one at a time after a past.

    Returns: all numbers of the run, and those of ONNX Runtime, each in one row.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    random = torch.Generator().manual_seed(1)
    for batch, length, first in COMPARED:
        length = min(length, _longest(run) or length)
        with torch.no_grad():
            if isinstance(run.model, ImageClassifier):
                pairs += _images(run, folder, batch, random)
                continue
            source, target = torch.randint(
                min(len(SPECIALS), len(run.vocabulary) - 1),
                len(run.vocabulary),
                (2, batch, length),
                generator=random,
            )
            lengths = [max(1, length * (batch - row) // batch) for row in range(batch)]
            pairs += _comparison(run)(run, folder, source, target, lengths, min(first, length))
    ours, theirs = (
        torch.cat([part.flatten() for part in side]) for side in zip(*pairs, strict=True)
    )
    return ours, theirs


#: Numbers of the run, and as many of ONNX Runtime.
Pairs = Iterator[tuple[Tensor, Tensor]]


def _comparison(
    run: TrainedRun,
) -> Callable[[TrainedRun, Path, Tensor, Tensor, Sequence[int], int], Pairs]:
    """What compares batches of a run that reads texts."""
    if isinstance(run.model, Transformer):
        return _translations
    return _classes if isinstance(run.model, Classifier) else _continuations


def _images(run: TrainedRun, folder: Path, batch: int, random: torch.Generator) -> Pairs:
    model = run.model
    if not isinstance(model, ImageClassifier):
        raise TypeError("a run of images has a classifier of these")
    shape = model.shape
    images = torch.rand(batch, shape.channels, shape.rows, shape.columns, generator=random)
    mean, deviation = mean_deviation(run.data)
    theirs = _Session(folder / "model.onnx")(pixel_values=images)["logits"]
    yield model((images - mean) / deviation), theirs


def _classes(
    run: TrainedRun, folder: Path, ids: Tensor, _: Tensor, lengths: Sequence[int], first: int
) -> Pairs:
    real = _real(ids, lengths)
    theirs = _Session(folder / "model.onnx")(input_ids=ids, attention_mask=real)["logits"]
    yield run.model(ids.masked_fill(real == 0, Vocabulary.pad)), theirs


def _translations(
    run: TrainedRun,
    folder: Path,
    source: Tensor,
    target: Tensor,
    lengths: Sequence[int],
    first: int,
) -> Pairs:
    real = _real(source, lengths)
    source = source.masked_fill(real == 0, Vocabulary.pad)
    expected = run.model(source, target)
    encoder, decoder = (_Session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    given = encoder(input_ids=source, attention_mask=real) | {"encoder_attention_mask": real}
    for read in (target.shape[1], first):
        yield expected, _read(decoder, target, read, lambda end: given)


def _continuations(
    run: TrainedRun, folder: Path, ids: Tensor, _: Tensor, lengths: Sequence[int], first: int
) -> Pairs:
    session = _Session(folder / "model.onnx")
    expected = run.model(ids)
    real = torch.ones_like(ids)
    for read in (ids.shape[1], first):
        yield expected, _read(session, ids, read, lambda end: {"attention_mask": real[:, :end]})
    # Filled up on the left, each row gives what it gives alone.
    real = _real(ids, lengths).flip(1)
    read_first = _read(session, ids, first, lambda end: {"attention_mask": real[:, :end]})
    for row, length in enumerate(lengths):
        yield run.model(ids[row : row + 1, -length:])[0], read_first[row, -length:]


def _real(ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """1 at the first tokens of each row, as many as its length, 0 at padding; as ids."""
    return (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()


def _read(session: _Session, ids: Tensor, first: int, given: Any) -> Tensor:
    """Logits after each token: of the first ones together, of each other one after its past.

    Args: given: what else the session reads, from the number of tokens it has then seen.
    """
    past = session.empty_past(len(ids))
    logits = []
    for start, end in [(0, first), *((end - 1, end) for end in range(first + 1, ids.shape[1] + 1))]:
        found = session(**given(end), **past, input_ids=ids[:, start:end])
        logits.append(found["logits"])
        past = dict(zip(past, list(found.values())[1:], strict=True))
    return torch.cat(logits, 1)


class _Session:
    """A graph that ONNX Runtime has opened: tensors by name to tensors by name."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._outputs = [each.name for each in self._session.get_outputs()]

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        given = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in inputs.items()}
        found = self._session.run(self._outputs, given)
        return {
            name: torch.from_numpy(array) for name, array in zip(self._outputs, found, strict=True)
        }

    def empty_past(self, batch: int) -> dict[str, Tensor]:
        """Keys and values of no token yet, by the names of the inputs that take them."""
        return {
            name: torch.empty(batch, sizes[1], 0, sizes[3])
            for name, sizes in self._inputs.items()
            if len(sizes) == 4 and sizes[2] == "past"
        }
