"""A trained model as ONNX files, and what ONNX Runtime computes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from headloom.api.huggingface_model import exported_tokenizer
from headloom.errors import InputError, installing, optional_package
from headloom.formats.files import JsonObject, write_json
from headloom.models.blocks import DecoderBlock
from headloom.models.classifier import Classifier
from headloom.models.convolutional import ConvolutionalClassifier
from headloom.models.image_classifier import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.plain import Decoder, Encoder, Images, TextClassifier, Writer
from headloom.models.transformer import Transformer
from headloom.models.vision_transformer import VisionTransformer
from headloom.training.data import classes_of
from headloom.training.inference import TrainedRun
from headloom.training.tasks.images import mean_deviation
from headloom.training.tasks.labels import longest_text
from headloom.training.text import SPECIALS, Vocabulary

__all__ = ["logits_of_onnx", "write_onnx"]

#: The size of an input: numbers, and names of what is free.
Sizes = tuple[int | str, ...]
Inputs = dict[str, Sizes | dict[str, Sizes]]
#: Sizes with which a graph is drawn; a 1 would be taken for fixed.
_EXAMPLES = {"batch": 2, "new": 3, "past": 4, "positions": 5}
#: Bytes of weights up to which they lie in the graph's file.
LARGEST = 2**30

#: Batches that are compared: how many sequences, their tokens, and tokens before those that are
#: read one at a time.
COMPARED = ((1, 1, 1), (2, 5, 2), (3, 17, 16), (4, 96, 90))


class _Graph(NamedTuple):
    """A module to be written: its inputs with their sizes by name, and the names of its outputs.

    A list of inputs is a dict. Sizes that are free are names.
    """

    module: nn.Module
    inputs: Inputs
    outputs: list[str]


def write_onnx(run: TrainedRun, folder: Path) -> list[str]:
    """Fill a folder with a run's model: graphs, config.json and, of texts, tokenizer.json.

    Returns: the names of the graphs' files.
    Raises: InputError: the model has no graph, or a package is missing.
    """
    with optional_package("export", installing("onnx")):
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    graphs = _graphs(run)
    with torch.no_grad():
        for name, graph in graphs.items():
            _write(graph, folder / f"{name}.onnx")
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


def _write(graph: _Graph, path: Path) -> None:
    """Write a module as a file of the operation set 18; large weights lie beside it."""
    examples: dict[str, object] = {}
    shapes: dict[str, object] = {}
    names: list[str] = []
    for name, entry in graph.inputs.items():
        if isinstance(entry, dict):
            examples[name] = [_example(each, sizes) for each, sizes in entry.items()]
            shapes[name] = [_free(sizes) for sizes in entry.values()]
            names += entry
        else:
            examples[name], shapes[name] = _example(name, entry), _free(entry)
            names.append(name)
    size = sum(tensor.nbytes for tensor in graph.module.state_dict().values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph.module.eval(), kwargs=examples, input_names=names, output_names=graph.outputs,
            dynamic_shapes=shapes, opset_version=18, dynamo=True, optimize=False, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(path, external_data=size > LARGEST)


def _example(name: str, sizes: Sizes) -> Tensor:
    shape = [_EXAMPLES.get(size, 7) if isinstance(size, str) else size for size in sizes]
    if name.endswith(("input_ids", "attention_mask")):
        return torch.ones(shape, dtype=torch.long)
    return torch.zeros(shape)


def _free(sizes: Sizes) -> dict[int, object]:
    """The free dimensions; one that is a sum of others follows from these."""
    return {
        place: torch.export.Dim(size) if size in _EXAMPLES else torch.export.Dim.DYNAMIC
        for place, size in enumerate(sizes)
        if isinstance(size, str)
    }


def _graphs(run: TrainedRun) -> dict[str, _Graph]:
    model = run.model
    texts: Inputs = {
        "input_ids": ("batch", "positions"), "attention_mask": ("batch", "positions"),
    }  # fmt: skip

    def caches(blocks: nn.ModuleList, part: str, length: str) -> dict[str, Sizes]:
        sizes: dict[str, Sizes] = {}
        for number, block in enumerate(blocks):
            layer = cast(DecoderBlock, block).self_attention
            for kind in ("key", "value"):
                sizes[f"past_key_values.{number}{part}.{kind}"] = (
                    "batch", layer.kv_heads, length, layer.depth,
                )  # fmt: skip
        return sizes

    read: Inputs
    if isinstance(model, Transformer):
        longest = model.architecture.max_length
        own = caches(model.decoder, ".decoder", "past")
        source = caches(model.decoder, ".encoder", "positions")
        read = {
            "input_ids": ("batch", "new"), "encoder_attention_mask": ("batch", "positions"),
            "past": own, "source": source,
        }  # fmt: skip
        return {
            "encoder": _Graph(Encoder(model, longest), texts, list(source)),
            "decoder": _Graph(Decoder(model, longest), read, _written(own)),
        }
    if isinstance(model, LanguageModel):
        own = caches(model.decoder, "", "past")
        read = {"input_ids": ("batch", "new"), "attention_mask": ("batch", "all"), "past": own}
        return {"model": _Graph(Writer(model, model.architecture.max_length), read, _written(own))}
    if isinstance(model, Classifier):
        module = TextClassifier(model, model.architecture.max_length)
        return {"model": _Graph(module, texts, ["logits"])}
    if isinstance(model, (VisionTransformer, ConvolutionalClassifier)):
        sizes = ("batch", model.shape.channels, model.shape.rows, model.shape.columns)
        images = Images(model, *mean_deviation(run.data))
        return {"model": _Graph(images, {"pixel_values": sizes}, ["logits"])}
    raise InputError(
        f"export: task.kind {run.config.task.kind!r}: a graph attention network has no ONNX file: "
        "it reads a graph whole, at its training. Models of texts and of images have one."
    )


def _written(past: Iterable[str]) -> list[str]:
    return ["logits", *(name.replace("past_key_values", "present") for name in past)]


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
            pairs += _texts(run, folder, source, target, lengths, min(first, length))
    ours, theirs = (
        torch.cat([part.flatten() for part in side]) for side in zip(*pairs, strict=True)
    )
    return ours, theirs


#: Numbers of the run, and as many of ONNX Runtime.
Pairs = Iterator[tuple[Tensor, Tensor]]


def _images(run: TrainedRun, folder: Path, batch: int, random: torch.Generator) -> Pairs:
    assert isinstance(run.model, ImageClassifier)
    shape = run.model.shape
    images = torch.rand(batch, shape.channels, shape.rows, shape.columns, generator=random)
    mean, deviation = mean_deviation(run.data)
    theirs = _Session(folder / "model.onnx")(pixel_values=images)["logits"]
    yield run.model((images - mean) / deviation), theirs


def _texts(
    run: TrainedRun, folder: Path, ids: Tensor, target: Tensor, lengths: Sequence[int], first: int
) -> Pairs:
    """What a run and its graphs say of texts that are filled up, read whole and token by token."""
    real = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    padded = ids.masked_fill(real == 0, Vocabulary.pad)
    if isinstance(run.model, Transformer):
        encoder, decoder = (_Session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
        seen = encoder(input_ids=padded, attention_mask=real) | {"encoder_attention_mask": real}
        for read in (target.shape[1], first):
            yield run.model(padded, target), _read(decoder, target, read, lambda end: seen)
        return
    session = _Session(folder / "model.onnx")
    if isinstance(run.model, Classifier):
        yield run.model(padded), session(input_ids=padded, attention_mask=real)["logits"]
        return
    # Filled up on the left, each row gives what it gives alone.
    real = real.flip(1)
    for read in (ids.shape[1], first):
        theirs = _read(session, ids, read, lambda end: {"attention_mask": real[:, :end]})
        for row, length in enumerate(lengths):
            yield run.model(ids[row : row + 1, -length:])[0], theirs[row, -length:]


def _read(
    session: _Session, ids: Tensor, first: int, beside: Callable[[int], dict[str, Tensor]]
) -> Tensor:
    """Logits after each token: of the first ones together, of each other one after its past.

    beside: what else the session reads, from the number of tokens it has then seen.
    """
    past = session.empty_past(len(ids))
    logits = []
    for start, end in [(0, first), *((end - 1, end) for end in range(first + 1, ids.shape[1] + 1))]:
        found = session(**beside(end), **past, input_ids=ids[:, start:end])
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
        arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in inputs.items()}
        outputs = self._session.run(self._outputs, arrays)
        return dict(zip(self._outputs, map(torch.from_numpy, outputs), strict=True))

    def empty_past(self, batch: int) -> dict[str, Tensor]:
        """Keys and values of no token yet, by the names of the inputs that take them."""
        return {
            name: torch.empty(batch, sizes[1], 0, sizes[3])
            for name, sizes in self._inputs.items()
            if len(sizes) == 4 and sizes[2] == "past"
        }
