"""Pieces of a page in which a model runs: its card, graphs, weights, tokenizer and snapshots.

Weights of 8 bits are whole numbers from -127 to 127, up to 128 with one float32 scale; the page
makes float32 of them, so that arithmetic is the same. The exported graphs run once in ONNX Runtime
with the weights as stored, and the page tells how far they are from headloom's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from headloom.api.huggingface_model import exported_tokenizer
from headloom.api.model import Model
from headloom.api.page_graphs import Attended, PageGraph, page_graphs
from headloom.api.pretrained_model import PretrainedModel
from headloom.api.run_model import RunModel
from headloom.errors import InputError, VerificationError, installing, optional_package
from headloom.formats.files import JsonObject
from headloom.formats.history import History
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData
from headloom.models.classifier import Classifier
from headloom.models.embeddings import Embedding
from headloom.models.images import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.studio.collection import Example
from headloom.studio.pack import packed
from headloom.studio.page import collect, export_live_page
from headloom.studio.training import run_history
from headloom.tracing.huggingface import token_limit
from headloom.tracing.names import token_names
from headloom.training.data import classes_of
from headloom.training.tasks.images import mean_deviation
from headloom.training.text import PretrainedVocabulary

Bits = Literal[8, 32]
#: Models of more parameters are stored in 8 bits by default.
_LARGE = 10_000_000
#: Tensors of fewer numbers stay in 32 bits, and of fewer in their graph.
_SMALL, _TINY = 4096, 256
#: Numbers of 8 bits with one scale, at most.
_GROUP = 128
#: Bytes of a part of the weights.
_PART = 2**24
#: Largest difference of weights that are not rounded.
TOLERANCE = 1e-4
#: Examples of a page: held-out texts of a run, and their tokens at most; sentences of other models.
_EXAMPLES, _EXAMPLE = 3, 64
_SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "Alice gave Bob the book, and Bob gave Alice the pen.",
    "Die Übersetzung steht auf Seite 17; 東京 liegt in Japan (日本).",
    "The tide came in before noon, and by one the road to the island was gone. Two cyclists who "
    "had read the wrong table waited on the rocks until evening; the keeper of the lighthouse lent "
    "them blankets, tea and a pack of cards with 51 cards in it.",
)
#: Snapshots of a page at most: the random matrices, and the last ones.
_SNAPSHOTS = 11


@dataclass(eq=False)
class Stored:
    """Weights of all graphs as a page stores them.

    table: of the tensors, in order: see the card. floats: their numbers and scales; whole: those
    of 8 bits.
    """

    bits: Bits
    table: list[JsonObject] = field(default_factory=list)
    floats: list[np.ndarray] = field(default_factory=list)
    whole: list[np.ndarray] = field(default_factory=list)

    def add(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """Store a tensor; return the numbers that the page will have."""
        small = self.bits == 32 or numbers.ndim < 2 or numbers.size < _SMALL
        columns = next(n for n in range(_GROUP, 0, -1) if numbers.shape[-1] % n == 0)
        bits, rows = (32, 1) if small else (8, numbers.size // columns)
        self.table.append({"name": name, "count": numbers.size, "rows": rows, "bits": bits})
        if small:
            self.floats.append(numbers.ravel())
            return numbers
        flat = numbers.reshape(rows, -1)
        scale = np.maximum(np.abs(flat).max(1, keepdims=True), 1e-30) / np.float32(127)
        whole = np.rint(flat / scale).astype(np.int8)
        self.floats.append(scale.ravel().astype(np.float32))
        self.whole.append(whole.ravel())
        rounded: np.ndarray = (whole * scale.astype(np.float32)).reshape(numbers.shape)
        return rounded

    def pieces(self, path: str) -> Iterator[tuple[str, list[object]]]:
        """Yield the numbers below a path: `floats`, and `bytes` in parts."""
        yield f"{path}/floats", packed(np.concatenate(self.floats).astype("<f4").tobytes())
        whole = np.concatenate(self.whole).tobytes() if self.whole else b""
        for number, start in enumerate(range(0, len(whole), _PART)):
            yield f"{path}/bytes/{number}", packed(whole[start : start + _PART], width=1)


@dataclass(eq=False)
class _Exported:
    """Graph in ONNX without its weights; places of these: index in the table, and offset."""

    graph: PageGraph
    content: bytes
    places: list[tuple[int, int]]
    weights: bytes

    def rounded(self, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the outputs by ONNX Runtime, with the weights as stored."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.add_external_initializers_from_files_in_memory(
            ["weights"], [self.weights], [len(self.weights)]
        )
        session = onnxruntime.InferenceSession(
            self.content, options, providers=["CPUExecutionProvider"]
        )
        calls = self.graph.calls
        feed = {name: tensor.numpy() for name, tensor in inputs.items()}
        for number, call in enumerate(calls if self.graph.cached else ()):
            for part, like in (("keys", call.keys), ("values", call.values)):
                feed[f"past_{part}.{number}"] = np.zeros((1, like.shape[1], 0, like.shape[3]), "f4")
        heads = max(call.queries.shape[1] for call in calls)
        feed["gates"] = np.ones((len(calls), heads), np.float32)
        names = self.graph.names[1]
        return dict(zip(names, session.run(names, feed), strict=True))

    @torch.no_grad()
    def whole(self, inputs: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """Return the outputs by torch, with the model's own weights."""
        outputs = self.graph(inputs, [], [], None)
        return {name: part.numpy() for name, part in zip(self.graph.names[1], outputs, strict=True)}

    def weights_of(self, outputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the weights of every layer."""
        return [
            _weights(call, *(outputs.get(f"{part}.{n}") for part in ("queries", "keys", "bias")))
            for n, call in enumerate(self.graph.calls)
        ]


def _weights(
    call: Attended, queries: Any, keys: Any, bias: np.ndarray | None
) -> np.ndarray:  # fmt: skip
    """Return the weights of a call, (heads, queries, keys), in float64."""
    keys = np.repeat(keys[0].astype(float), queries.shape[1] // keys.shape[1], 0)
    scores = call.scale * queries[0].astype(float) @ keys.transpose(0, 2, 1)
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if bias is not None:
        scores = scores + bias
    if call.causal:
        ahead = np.arange(scores.shape[2]) - np.arange(scores.shape[1])[:, None]
        scores = np.where((ahead > 0) | (ahead <= -(call.window or 2**53)), -np.inf, scores)
    if call.sinks is not None:
        sinks = call.sinks.detach().numpy().astype(float)[:, None, None]
        scores = np.concatenate((scores, np.broadcast_to(sinks, (*scores.shape[:2], 1))), 2)
    weights: np.ndarray = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights if call.sinks is None else weights[..., :-1]


def write_live_page(x: object, path: Path, bits: Bits | None = None) -> Path:
    """Write a page in which a run, or a model of Transformers, runs: see `headloom.export`.

    Returns: the file, or the folder of a page above 30 MB.
    """
    from headloom.api.opening import load

    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"export: html is {path}; expected a name that ends in .html.")
    if bits not in (None, 8, 32):
        raise InputError(f"export: bits is {bits}; expected 8 or 32, or nothing for the default.")
    model = load(cast(Any, str(x) if isinstance(x, Path) else x))
    if isinstance(model, RunModel):
        model = RunModel(model._run, beam=1)  # as the page translates
    about = _About(model)
    given = about.examples()
    traces = []
    for one in given:
        inputs: Any = about.normalise(cast(Tensor, one))[None] if about.normalise else one
        trace = model.trace(inputs, keep="all", verify=False)
        assert isinstance(trace, TraceData)  # of one text
        traces.append(trace)
    history = None
    if isinstance(model, RunModel) and model._run.folder.history.is_dir():
        history = run_history(model._run.folder)
    names = [one if isinstance(one, str) else f"image {n + 1}" for n, one in enumerate(given)]
    collection = collect(traces[:_EXAMPLES], about.name, names=names[:_EXAMPLES], history=history)
    return export_live_page(
        path, collection, page_pieces(model, list(zip(given, traces, strict=True)), bits)
    )


def page_pieces(
    model: Model, traces: Sequence[tuple[object, TraceData]], bits: Bits | None = None
) -> dict[str, list[object]]:
    """Return the pieces of a page in which a model runs, beside those of its traces.

    Args:
        model: a run, or a model of Transformers that reads one text.
        traces: inputs (texts, or images) with their traces with every edge; outputs and weights of
            the page are compared with these.
        bits: of the weights; None: 32 up to 10 million parameters, else 8.

    Raises: InputError: a model that a page cannot run, or a missing package. VerificationError:
    weights that are not rounded differ from headloom's by more than 1e-4.
    """
    with optional_package("export", installing("onnx")):
        import onnx_ir  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    about = _About(model)
    count = sum(parameter.numel() for parameter in about.module.parameters())
    stored = Stored(bits or (8 if count > _LARGE else 32))
    graphs = page_graphs(about.module, about.normalise)
    exported = _exported(graphs, stored)
    difference = _difference(about, exported, traces)
    if stored.bits == 32 and not difference["weights"] <= TOLERANCE:
        raise VerificationError(
            f"export: weights of the page differ from headloom's by {difference['weights']:.2g}. "
            "Nothing was written; report it."
        )
    past = about.snapshots(stored.table)
    text, trace = traces[0]
    description = Example("", trace, text if isinstance(text, str) else "").description()
    card = {
        "kind": about.kind, "name": about.name, "parameters": count, "bits": stored.bits,
        "difference": difference, **about.facts, "sequences": list(trace.sequences),
        "description": description, "layers": _layers(graphs, trace), "tensors": stored.table,
        "graphs": {
            part.graph.name: {"tensors": part.places, "bytes": len(part.weights)}
            for part in exported
        },
        "snapshots": None,
    }  # fmt: skip
    pieces = dict(stored.pieces("model"))
    for part in exported:
        pieces[f"model/graphs/{part.graph.name}"] = packed(part.content, width=1)
    if past:
        tensors = [name for name, _ in past[0][1]]
        places = {row["name"]: number for number, row in enumerate(stored.table)}
        card["snapshots"] = {
            "steps": [step for step, _ in past], "tensors": [places[name] for name in tensors]
        }  # fmt: skip
        for number, (_, matrices) in enumerate(past):
            snapshot = Stored(8)
            for name, matrix in matrices:
                snapshot.add(name, matrix)
            card["snapshots"]["table"] = snapshot.table  # the same of every step
            pieces |= snapshot.pieces(f"model/snapshots/{number}")
    return {"model": ["", card], "model/names": ["", about.names], **pieces}


def _exported(graphs: Sequence[PageGraph], stored: Stored) -> list[_Exported]:
    """Export graphs; weights that several share are stored once."""
    import onnx_ir

    known: dict[bytes, int] = {}
    kept: list[np.ndarray] = []
    found = []
    for graph in graphs:
        exported = graph.to_onnx()
        places: list[tuple[int, int]] = []
        parts: list[bytes] = []
        offset = 0
        for name, value in exported.graph.initializers.items():
            numbers = None if value.const_value is None else value.const_value.numpy()
            if numbers is None or numbers.dtype != np.float32 or numbers.size < _TINY:
                continue
            digest = hashlib.sha256(str(numbers.shape).encode() + numbers.tobytes()).digest()
            if digest not in known:
                known[digest] = len(kept)
                kept.append(stored.add(name.removeprefix("model."), numbers))
            places.append((known[digest], offset))
            parts.append(kept[known[digest]].astype("<f4").tobytes())
            value.const_value = onnx_ir.ExternalTensor(
                "weights", offset, numbers.nbytes, onnx_ir.DataType.FLOAT,
                shape=onnx_ir.Shape(numbers.shape), name=name,
            )  # fmt: skip
            offset += numbers.nbytes
        content = onnx_ir.serde.serialize_model(exported).SerializeToString()
        found.append(_Exported(graph, content, places, b"".join(parts)))
    return found


def _difference(
    about: _About, exported: Sequence[_Exported], traces: Sequence[tuple[object, TraceData]]
) -> JsonObject:
    """Return the largest differences of weights and outputs from headloom's.

    Raises: VerificationError: also those of the model's own weights, which are not rounded, differ.
    """
    weights = own = output = 0.0
    for given, trace in traces:
        inputs = about.inputs(given)
        hidden: list[dict[str, Tensor]] = [{}, {}]
        for part in exported:
            ids = inputs[part.graph.name]
            rounded, whole = part.rounded(ids | hidden[0]), part.whole(ids | hidden[1])
            if part.graph.name == "encoder":
                hidden = [
                    {"encoder_hidden_states": torch.from_numpy(one[part.graph.output])}
                    for one in (rounded, whole)
                ]
            name = part.graph.output
            output = max(output, float(np.abs(rounded[name] - whole[name]).max()))
            for call, one, other in zip(
                part.graph.calls, part.weights_of(rounded), part.weights_of(whole), strict=True
            ):
                matrix = trace.layer(_name_in(trace, call)).matrix
                assert matrix is not None  # a trace has queries and keys
                dense = matrix.to_dense().numpy()
                weights = max(weights, float(np.abs(dense - one).max()))
                own = max(own, float(np.abs(dense - other).max()))
    if not own <= TOLERANCE:
        raise VerificationError(
            f"export: weights of the page's graphs differ from headloom's by {own:.2g}. Nothing "
            "was written; report it."
        )
    return {"weights": weights, "output": output, "texts": len(traces)}


def _name_in(trace: TraceData, call: Attended) -> str:
    """Return the name of a call's layer in a trace, which may lack the first part of its path."""
    return next(layer.name for layer in trace.layers if f".{call.path}".endswith(f".{layer.name}"))


def _layers(graphs: Sequence[PageGraph], trace: TraceData) -> list[JsonObject]:
    """Return the rules of every layer, in the order of a trace."""
    calls = {_name_in(trace, call): (graph.name, number, call)
             for graph in graphs for number, call in enumerate(graph.calls)}  # fmt: skip
    layers: list[JsonObject] = []
    for layer in trace.layers:
        name, number, call = calls[layer.name]
        sinks = None if call.sinks is None else call.sinks.detach().float().tolist()
        layers.append({
            "name": layer.name, "kind": layer.kind, "heads": call.queries.shape[1],
            "kvHeads": call.keys.shape[1], "scale": call.scale, "causal": call.causal,
            "window": call.window, "softcap": call.softcap, "sinks": sinks,
            "bias": call.bias is not None, "graph": name, "number": number,
        })  # fmt: skip
    return layers


class _About:
    """Facts of a model that its page needs.

    module: the network. kind, facts: see the card. names: of all tokens. normalise: of pixels.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.module: nn.Module = model.module
        self.normalise: Callable[[Tensor], Tensor] | None = None
        self.names: list[str] | None = None
        self.kind = "encoder"
        self.facts: JsonObject = dict.fromkeys(
            ("longest", "start", "end", "tokenizer", "labels", "image"), None
        )
        self.facts |= {"never": [], "special": []}
        if isinstance(model, RunModel):
            self.name = model.path.name
            self._of_run(model)
        elif isinstance(model, PretrainedModel):
            self.name = Path(model.name).name if model.name.startswith("/") else model.name
            self._of_transformers(model)
        else:
            raise InputError(
                f"a page with a model: {model.name} is neither a run nor a model of Transformers. "
                "Give one of these."
            )

    def _of_run(self, model: RunModel) -> None:
        run = model._run
        module = self.module = run.model
        architecture = getattr(module, "architecture", None)
        if architecture is not None and architecture.positions in ("learned", "sinusoidal"):
            longest = self.facts["longest"] = architecture.max_length
            for part in module.modules():
                if isinstance(part, Embedding):
                    part(torch.zeros(1, longest, dtype=torch.long))  # its table grows
        if isinstance(module, ImageClassifier):
            self.kind, shape = "image", module.shape
            mean, deviation = mean_deviation(run.data)
            self.normalise = lambda pixels: (pixels - mean) / deviation
            self.facts["image"] = {
                "channels": shape.channels, "rows": shape.rows, "columns": shape.columns,
            }  # fmt: skip
        elif run.data.vocabulary is not None:
            words = run.vocabulary
            self.facts["tokenizer"] = json.loads(exported_tokenizer(run).to_str())
            special = [number for number in range(len(words)) if words.is_special(number)]
            if not isinstance(words, PretrainedVocabulary):
                self.facts["tokenizer"]["added_tokens"] = []  # "<end>" in a text is five letters
            self.facts |= {"start": words.start, "end": words.end, "special": special}
            self.names = [shown(token_names([number], words))[0] for number in range(len(words))]
            self.kind = "translator" if run.translates else "language"
            if isinstance(module, LanguageModel):
                self.facts["start"] = None
                self.facts["never"] = special
        if isinstance(module, Classifier | ImageClassifier):
            self.kind = "classifier" if isinstance(module, Classifier) else "image"
            self.facts["labels"] = list(classes_of(run.data))

    def _of_transformers(self, model: PretrainedModel) -> None:
        words: Any = model._words
        if not getattr(words, "is_fast", False):
            raise InputError(
                f"a page with a model: the tokenizer of {model.name} has no tokenizer.json."
            )
        config: Any = self.module.config
        self.facts["longest"] = token_limit(self.module)
        self.facts["tokenizer"] = json.loads(words.backend_tokenizer.to_str())
        self.names = [shown(token_names([number], words))[0] for number in range(len(words))]
        if cast(Any, self.module).can_generate():
            self.kind = "language"
            end = getattr(config, "eos_token_id", None)
            self.facts["end"] = end[0] if isinstance(end, list) else end
        elif "ForSequenceClassification" in type(self.module).__name__:
            self.kind = "classifier"
            self.facts["labels"] = [config.id2label[n] for n in range(config.num_labels)]

    def examples(self) -> list[Any]:
        """Return three texts or images: held-out ones of a run."""
        if not isinstance(self.model, RunModel):
            return list(_SENTENCES)
        run = self.model._run
        held_out = next(iter(run.task("valid").validation(_EXAMPLE)[0].inputs.values()))
        if self.kind == "image":
            mean, deviation = mean_deviation(run.data)
            return list(held_out[:_EXAMPLES] * deviation + mean)
        special = run.vocabulary.is_special
        kept = [[n for n in row.tolist()[:_EXAMPLE] if not special(n)] for row in held_out]
        return [run.vocabulary.decode(ids) for ids in kept[:_EXAMPLES]]

    def inputs(self, given: object) -> dict[str, dict[str, Tensor]]:
        """Return the inputs of each graph, without the encoder's output."""
        if isinstance(given, Tensor):
            return {"model": {"pixel_values": given[None]}}
        assert isinstance(given, str)
        if isinstance(self.model, RunModel):
            rows = list(self.model._ids(given, None).values())
        else:
            words: Any = self.model.tokenizer
            rows = [torch.tensor([words(given)["input_ids"]])]
        graphs = ("encoder", "decoder") if self.kind == "translator" else ("model",)
        return {graph: {"input_ids": row} for graph, row in zip(graphs, rows, strict=True)}

    def snapshots(
        self, table: Sequence[JsonObject]
    ) -> list[tuple[int, list[tuple[str, np.ndarray]]]]:
        """Return W_Q, W_K, W_V and W_O at some steps of the training of a run."""
        if not isinstance(self.model, RunModel) or not self.model._run.folder.history.is_dir():
            return []
        history = History(self.model._run.folder.history)
        steps = sorted({history.steps[0], *history.steps[1 - _SNAPSHOTS :]})
        names = {str(row["name"]) for row in table}
        found = []
        for step in steps:
            matrices = []
            for layer in history[step].layers:
                for part, matrix in layer.matrices.items():
                    name = f"{layer.name}.w_{part[2].lower()}.weight"
                    if name not in names:
                        continue
                    heads = (2, 0, 1) if part == "W_O" else (0, 2, 1)
                    rows = matrix.shape[2] if part == "W_O" else matrix.shape[0] * matrix.shape[2]
                    matrices.append((name, matrix.permute(heads).reshape(rows, -1).numpy()))
            if matrices:
                found.append((step, matrices))
        return found
