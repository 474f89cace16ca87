"""Export of a trained model as ONNX files, and its check by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headloom.api.huggingface_model import exported_tokenizer
from headloom.api.page_graphs import quiet_export
from headloom.errors import InputError, installing, optional_package
from headloom.formats.files import JsonObject, write_json
from headloom.mechanism.masks import causal, padding
from headloom.models.classifier import Classifier, pooled
from headloom.models.embeddings import Embedding
from headloom.models.images import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.training.data import classes_of
from headloom.training.inference import TrainedRun
from headloom.training.tasks.images import mean_deviation
from headloom.training.tasks.labels import longest_text
from headloom.training.text import SPECIALS, Vocabulary

#: Variable sizes, and their values during export: 1 would become a constant.
_EXAMPLES = {"batch": 2, "positions": 5, "targets": 3}
#: Compared batches: sequences, and their tokens.
COMPARED = ((1, 1), (2, 5), (4, 96))


class _Graph(NamedTuple):
    """Module to export: its input shapes, with names for variable sizes, and its output."""

    module: nn.Module
    inputs: dict[str, tuple[int | str, ...]]
    output: str


def write_onnx(run: TrainedRun, folder: Path) -> list[str]:
    """Write graphs, config.json and, of texts, tokenizer.json to a folder; return the graphs."""
    with optional_package("export", installing("onnx")):
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    longest = _longest(run)
    for module in run.model.modules():
        if isinstance(module, Embedding) and longest is not None:
            module(torch.zeros(1, longest, dtype=torch.long))  # its table of positions grows
    graphs = _graphs(run)
    for name, graph in graphs.items():
        _write(graph, folder / f"{name}.onnx", longest)
    write_json(folder / "config.json", _configuration(run))
    if run.data.vocabulary is not None:
        tokenizer = exported_tokenizer(run)
        tokenizer.enable_padding(pad_id=Vocabulary.pad, pad_token=SPECIALS[Vocabulary.pad])
        if isinstance(run.model, Classifier):
            tokenizer.enable_truncation(longest_text(run.data))
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
    return [f"{name}.onnx" for name in graphs]


@torch.no_grad()
def _write(graph: _Graph, path: Path, longest: int | None) -> None:
    """Write a module as a file of operation set 18; weights above 1.5 GB go to a second file."""
    free = {
        name: torch.export.Dim(name, max=None if name == "batch" else longest) for name in _EXAMPLES
    }
    inputs, shapes = {}, {}
    for name, sizes in graph.inputs.items():
        shape = [_EXAMPLES[size] if isinstance(size, str) else size for size in sizes]
        kind = (
            torch.long
            if name.endswith(("input_ids", "attention_mask", "tokens"))
            else torch.float32
        )
        inputs[name] = torch.ones(shape, dtype=kind)
        shapes[name] = {n: free[size] for n, size in enumerate(sizes) if isinstance(size, str)}
    with quiet_export():
        program = torch.onnx.export(
            graph.module.eval(), kwargs=inputs, output_names=[graph.output],
            input_names=["input_ids" if name == "tokens" else name for name in inputs],
            dynamic_shapes=shapes, opset_version=18, dynamo=True, optimize=False, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(path)


class _Part(nn.Module):
    """Base of exported modules, which wrap a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class _Encoder(_Part):
    """Encoder of a translator."""

    model: Transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model.encode(input_ids, padding(attention_mask.bool()))


class _Decoder(_Part):
    """Decoder of a translator: next-token logits from target tokens and encoder outputs."""

    model: Transformer

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, encoder_attention_mask: Tensor
    ) -> Tensor:
        batch, hidden, real = (
            tensor.shape for tensor in (input_ids, encoder_hidden_states, encoder_attention_mask)
        )
        for size, same in ((hidden[0], batch[0]), (real[0], batch[0]), (real[1], hidden[1])):
            torch._check(size == same)  # type: ignore[no-untyped-call]
        model, mask = self.model, padding(encoder_attention_mask.bool())
        outputs = model.target_embedding(input_ids)
        for block in model.decoder:
            outputs = block(outputs, causal(), encoder_hidden_states, mask)
        return model.logits(model.decoder_norm(outputs))


class _Texts(_Part):
    """Class scores of texts."""

    model: Classifier

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        model, real = self.model, attention_mask.bool()
        outputs = model.embedding(input_ids)
        for block in model.encoder:
            outputs = block(outputs, padding(real))
        return model.logits(pooled(model.encoder_norm(outputs), real, model.pooling))


class _Images(_Part):
    """Class scores of images with values 0 to 1, normalised inside."""

    pixel_mean: Tensor
    pixel_deviation: Tensor

    def __init__(self, model: ImageClassifier, mean: Tensor, deviation: Tensor) -> None:
        super().__init__(model)
        self.register_buffer("pixel_mean", mean)
        self.register_buffer("pixel_deviation", deviation)

    def forward(self, pixel_values: Tensor) -> Tensor:
        scores: Tensor = self.model((pixel_values - self.pixel_mean) / self.pixel_deviation)
        return scores


def _graphs(run: TrainedRun) -> dict[str, _Graph]:
    model, texts = run.model, ("batch", "positions")
    if isinstance(model, Transformer):
        hidden = (*texts, model.architecture.width)
        source = {"input_ids": texts, "attention_mask": texts}
        read = {
            "input_ids": ("batch", "targets"), "encoder_hidden_states": hidden,
            "encoder_attention_mask": texts,
        }  # fmt: skip
        return {
            "encoder": _Graph(_Encoder(model), {**source}, "last_hidden_state"),
            "decoder": _Graph(_Decoder(model), {**read}, "logits"),
        }
    if isinstance(model, LanguageModel):
        return {"model": _Graph(model, {"tokens": texts}, "logits")}
    if isinstance(model, Classifier):
        both = {"input_ids": texts, "attention_mask": texts}
        return {"model": _Graph(_Texts(model), {**both}, "logits")}
    if isinstance(model, ImageClassifier):
        sizes = ("batch", model.shape.channels, model.shape.rows, model.shape.columns)
        module = _Images(model, *mean_deviation(run.data))
        return {"model": _Graph(module, {"pixel_values": sizes}, "logits")}
    raise InputError(
        f"export: task.kind {run.config.task.kind!r}: a graph attention network has no ONNX "
        "export, since it reads the whole training graph. Models of texts and images have one."
    )


def _configuration(run: TrainedRun) -> JsonObject:
    """Return the configuration of the graphs, with the names of Transformers."""
    model, labels = run.model, {}
    if isinstance(model, ImageClassifier | Classifier):
        labels = {"id2label": {str(n): name for n, name in enumerate(classes_of(run.data))}}
    if isinstance(model, ImageClassifier):
        size = [model.shape.rows, model.shape.columns]
        sizes = {"num_channels": model.shape.channels, "image_size": size}
        return {"task": "image-classification", **sizes, **labels}
    words = run.vocabulary
    task = "text-classification" if isinstance(model, Classifier) else "text-generation"
    return {
        "task": "translation" if isinstance(model, Transformer) else task,
        **({"decoder_start_token_id": words.start} if run.translates else {}),
        "vocab_size": len(words), "pad_token_id": words.pad, "bos_token_id": words.start,
        "eos_token_id": words.end, "max_position_embeddings": _longest(run), **labels,
    }  # fmt: skip


def _longest(run: TrainedRun) -> int | None:
    """Return the positions of the graphs' tables; None: the graphs need none."""
    architecture = getattr(run.model, "architecture", None)
    tables = ("learned", "sinusoidal")
    if architecture is None or architecture.positions not in tables:
        return None
    longest: int = architecture.max_length
    return longest


@torch.no_grad()
def logits_of_onnx(run: TrainedRun, folder: Path) -> tuple[Tensor, Tensor]:
    """Compute logits by the run and ONNX Runtime, for random inputs of several sizes."""
    model, ours, theirs = run.model, [], []
    random = torch.Generator().manual_seed(1)
    for batch, length in COMPARED:
        length = min(length, _longest(run) or length)
        if isinstance(model, ImageClassifier):
            shape = model.shape
            images = torch.rand(batch, shape.channels, shape.rows, shape.columns, generator=random)
            mean, deviation = mean_deviation(run.data)
            ours.append(model((images - mean) / deviation))
            theirs.append(_run(folder / "model.onnx", pixel_values=images))
            continue
        words = len(run.vocabulary)
        first = min(len(SPECIALS), words - 1)
        ids, target = torch.randint(first, words, (2, batch, length), generator=random)
        if isinstance(model, LanguageModel):
            ours.append(model(ids))
            theirs.append(_run(folder / "model.onnx", input_ids=ids))
            continue
        for row in range(1, batch):
            ids[row, max(1, length * (batch - row) // batch) :] = Vocabulary.pad
        real = (ids != Vocabulary.pad).long()
        if isinstance(model, Transformer):
            hidden = _run(folder / "encoder.onnx", input_ids=ids, attention_mask=real)
            encoded = {"encoder_hidden_states": hidden, "encoder_attention_mask": real}
            ours.append(model(ids, target))
            theirs.append(_run(folder / "decoder.onnx", input_ids=target, **encoded))
        else:
            ours.append(model(ids))
            theirs.append(_run(folder / "model.onnx", input_ids=ids, attention_mask=real))
    return torch.cat([part.flatten() for part in ours]), torch.cat([x.flatten() for x in theirs])


def _run(path: Path, **inputs: Tensor) -> Tensor:
    """Run a graph by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return torch.from_numpy(output)
