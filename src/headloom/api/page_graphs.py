"""ONNX graphs of a model for a page: its output, and queries, keys and values of all attention.

The input ``gates``, (layers, heads), multiplies the output of each head before W_O: 1, or 0 for a
head that is switched off. The graph of a language model also reads and returns keys and values.
"""

from __future__ import annotations

import inspect
import logging
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from headloom.errors import InputError
from headloom.mechanism.attention_layer import AttentionLayer, HeadOutputs
from headloom.mechanism.backends.compiled import is_exporting
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.masks import causal
from headloom.mechanism.positions import DistanceBias, Relative, Shaw
from headloom.mechanism.watching import editing, layers_of, named_modules
from headloom.models.blocks import stacked
from headloom.models.classifier import Classifier, pooled
from headloom.models.images import ImageClassifier
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.tracing.arguments import CACHES
from headloom.tracing.sources.transformers import is_transformers_model, transformers

if TYPE_CHECKING:
    import onnx_ir

#: Tokens of the input that is exported, of the source and in the cache: 1 would become a constant.
_TOKENS, _SOURCE, _CACHED = 5, 4, 3
#: Kinds of layers of Transformers whose masks a page knows.
_LAYERS = {"full_attention", "sliding_attention"}
#: Name of the output of an encoder.
_HIDDEN = "last_hidden_state"
#: Keys and values of a layer, (1, kv_heads, positions, depth) each.
_Past = Sequence[tuple[Tensor, Tensor]]
_Run = Callable[[dict[str, Tensor], _Past], Tensor]


@dataclass(eq=False)
class Attended:
    """One attention call of a graph; queries and keys as scored.

    path: of the layer. bias: added to the scores, (heads, queries, keys). causal, window: the keys
    that a query sees: none after it, and its own and the window - 1 before. For the rest see
    LayerCall.
    """

    path: str
    queries: Tensor
    keys: Tensor
    values: Tensor
    scale: float
    causal: bool
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    bias: Tensor | None = None


class PageGraph(nn.Module):
    """Graph of a page.

    name: of the graph. inputs: an example of each, by name. output: its name. cached: whether it
    reads and returns keys and values. calls: of its attention layers on the example, in order.
    """

    def __init__(
        self, name: str, model: nn.Module, run: _Run, inputs: dict[str, Tensor],
        output: str = "logits", cached: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.name, self.model, self.run = name, model.eval(), run
        self.inputs, self.output, self.cached = inputs, output, cached
        self.calls: list[Attended] = []
        with torch.no_grad():
            self(inputs, [], [], None)

    def forward(
        self, inputs: dict[str, Tensor], past_keys: list[Tensor], past_values: list[Tensor],
        gates: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the output, then queries, keys and values of each layer, and biases."""
        calls: list[Attended] = []
        with _attending(self.model, calls, gates):
            output = self.run(inputs, list(zip(past_keys, past_values, strict=True)))
        self.calls = self.calls or calls
        biases = [call.bias for call in calls if call.bias is not None]
        columns = [(call.queries, call.keys, call.values) for call in calls]
        return output, *(part for column in zip(*columns, strict=True) for part in column), *biases

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Names of all inputs and of all outputs."""
        layers = range(len(self.calls))
        past = [f"past_{part}.{n}" for part in ("keys", "values") for n in layers if self.cached]
        biased = [n for n in layers if self.calls[n].bias is not None]
        outputs = [f"{part}.{n}" for part in ("queries", "keys", "values") for n in layers]
        return [*self.inputs, *past, "gates"], [
            self.output,
            *outputs,
            *(f"bias.{n}" for n in biased),
        ]

    @torch.no_grad()
    def to_onnx(self) -> onnx_ir.Model:
        """Export the graph, of operation set 18."""
        free = torch.export.Dim.DYNAMIC
        past = [
            [part[:, :, :_CACHED].clone() for part in parts if self.cached]
            for parts in zip(*((call.keys, call.values) for call in self.calls), strict=True)
        ]
        gates = torch.ones(len(self.calls), max(call.queries.shape[1] for call in self.calls))
        sizes = {
            name: {} if name == "pixel_values" else {1: free} for name in self.inputs
        }  # fmt: skip
        names = self.names
        with quiet_export():
            program = torch.onnx.export(
                self, (self.inputs, *past, gates), input_names=names[0], output_names=names[1],
                dynamic_shapes=(sizes, *([{2: free}] * len(part) for part in past), {}),
                opset_version=18, dynamo=True, optimize=False, verbose=False,
            )  # fmt: skip
        assert program is not None
        return program.model


@contextmanager
def quiet_export() -> Iterator[None]:
    """Silence the warnings of torch's exporter: deprecations, and operators of other packages."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


@contextmanager
def _attending(model: nn.Module, calls: list[Attended], gates: Tensor | None) -> Iterator[None]:
    """Note each attention call of a model, and multiply the outputs of its heads by their gates."""

    def gated(call: Attended, output: Tensor) -> Tensor:
        calls.append(call)
        if gates is None:
            return output
        return output * gates[len(calls) - 1, : output.shape[1], None, None]

    if is_transformers_model(model):
        with _transformers(model, gated):
            yield
        return
    paths = {id(layer): path for path, layer in layers_of(model)}

    def edit(layer: AttentionLayer, heads: HeadOutputs) -> Tensor:
        path = paths[id(layer)]
        _check_mask(path, heads)
        call = Attended(
            path, heads.queries, heads.keys, heads.values, heads.scale, heads.mask is not None,
            softcap=heads.softcap, sinks=heads.sinks,
            bias=_bias(heads.relative, heads.queries, heads.keys, heads.scale),
        )  # fmt: skip
        return gated(call, heads.output)

    with editing(model, edit):
        yield


def _check_mask(path: str, heads: HeadOutputs) -> None:
    """Raise an InputError for a mask that is not causal."""
    if heads.mask is None or is_exporting():
        return
    queries, keys = heads.queries.shape[2], heads.keys.shape[2]
    cells = [mask.cells(range(queries), keys, heads.keys.device)
             for mask in (heads.mask, causal(keys - queries))]  # fmt: skip
    if not torch.equal(cells[0].expand_as(cells[1]), cells[1]):
        raise InputError(f"a page with a model has causal masks only; {path} has another one.")


def _bias(relative: Relative | None, queries: Tensor, keys: Tensor, scale: float) -> Tensor | None:
    """Return what relative positions add to the scores, (heads, queries, keys)."""
    if relative is None:
        return None
    rows, columns = torch.arange(queries.shape[2])[:, None], torch.arange(keys.shape[2])
    distance = columns - rows - (keys.shape[2] - queries.shape[2])
    if isinstance(relative, Shaw):
        index = distance.clamp(-relative.clip, relative.clip) + relative.clip
        products = queries @ relative.key_table.transpose(-2, -1)
        return scale * products.gather(-1, index.expand(*queries.shape[:2], -1, -1))[0]
    assert isinstance(relative, DistanceBias), relative
    return relative.bias_of(distance).expand(queries.shape[1], -1, -1)


def _is_causal(module: nn.Module, flag: bool | None) -> bool:
    """Return whether a layer of Transformers is causal: by the flag of the call, or its own."""
    return bool(getattr(module, "is_causal", False) if flag is None else flag)


@contextmanager
def _transformers(
    model: nn.Module, gated: Callable[[Attended, Tensor], Tensor]
) -> Iterator[None]:  # fmt: skip
    """Compute the attention of a model of Transformers in plain operations."""
    paths = {id(module): path for path, module in named_modules(model)}

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None,
        scaling: float | None = None, is_causal: bool | None = None,
        sliding_window: int | None = None, softcap: float | None = None,
        s_aux: Tensor | None = None, position_bias: Tensor | None = None, **options: object,
    ) -> tuple[Tensor, None]:  # fmt: skip
        path = paths[id(module)]
        if position_bias is not None:
            raise InputError(f"a page with a model has no T5; {path} adds biases to its scores.")
        if sliding_window is not None and not _is_causal(module, is_causal):
            raise InputError(
                f"a page with a model has windows of past tokens only; {path} sees later ones too."
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        later = _is_causal(module, is_causal)
        groups = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(groups, 1) for part in (key, value))
        scores = query @ keys.transpose(-2, -1) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        ahead = torch.arange(key.shape[2]) - torch.arange(query.shape[2])[:, None]
        ahead = ahead - (key.shape[2] - query.shape[2])
        if later:
            scores = scores.masked_fill(ahead > 0, -torch.inf)
            if sliding_window is not None:
                scores = scores.masked_fill(ahead <= -sliding_window, -torch.inf)
        if s_aux is not None:
            sink = s_aux[None, :, None, None].expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, sink), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        call = Attended(path, query, key, value, scale, later, sliding_window, softcap, s_aux)
        return gated(call, weights @ values).transpose(1, 2).contiguous(), None

    library: Any = transformers()
    name = f"headloom-page-{uuid.uuid4().hex}"
    before = model.config._attn_implementation  # type: ignore[union-attr]
    registries = (library.AttentionInterface, library.AttentionMaskInterface)
    library.AttentionInterface.register(name, attend)
    library.AttentionMaskInterface.register(name, lambda *arguments, **options: None)
    try:
        cast(Any, model).set_attn_implementation(name)
        yield
    finally:
        cast(Any, model).set_attn_implementation(before)
        for registry in registries:
            registry._global_mapping.pop(name, None)


class _Joined(KeyValueCache):
    """Cache that is not written in place."""

    def append(self, keys: Tensor, values: Tensor, *, kept: bool = False) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        return torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)


def page_graphs(
    model: nn.Module, normalise: Callable[[Tensor], Tensor] | None = None
) -> list[PageGraph]:
    """Return the graphs of a model: encoder and decoder of a translator, one of any other.

    normalise: of pixels with values 0 to 1, for an image classifier.

    Raises: InputError: a model whose attention a page cannot show.
    """
    ids = {"input_ids": torch.ones(1, _TOKENS, dtype=torch.long)}
    if isinstance(model, Transformer):

        def decode(inputs: dict[str, Tensor], past: _Past) -> Tensor:
            vectors, source = (
                model.target_embedding(inputs["input_ids"]),
                inputs["encoder_hidden_states"],
            )
            outputs = stacked(model.decoder, model.decoder_norm, vectors, causal(), source, None)
            return model.logits(outputs)

        run: _Run = lambda x, past: model.encode(x["input_ids"], None)  # noqa: E731
        source = torch.zeros(1, _SOURCE, model.architecture.width)
        return [
            PageGraph("encoder", model, run, ids, _HIDDEN),
            PageGraph("decoder", model, decode, {**ids, "encoder_hidden_states": source}),
        ]
    if isinstance(model, LanguageModel):

        def step(inputs: dict[str, Tensor], past: _Past) -> Tensor:
            state = model.start()
            for cache, (keys, values) in zip(state.caches, past, strict=bool(past)):
                cache.target = _Joined()
                cache.target.keys, cache.target.values = keys, values
                state.position = keys.shape[2]
            return model.step(inputs["input_ids"], state)[:, -1:]

        return [PageGraph("model", model, step, ids, cached=True)]
    if isinstance(model, Classifier):

        def classify(inputs: dict[str, Tensor], past: _Past) -> Tensor:
            vectors, real = model.embedding(inputs["input_ids"]), inputs["input_ids"] >= 0
            outputs = stacked(model.encoder, model.encoder_norm, vectors, None)
            return model.logits(pooled(outputs, real, model.pooling))

        return [PageGraph("model", model, classify, ids)]
    if isinstance(model, ImageClassifier):
        assert normalise is not None
        shape = model.shape
        pixels = {"pixel_values": torch.zeros(1, shape.channels, shape.rows, shape.columns)}
        run = lambda x, past: cast(Tensor, model(normalise(x["pixel_values"])))  # noqa: E731
        return [PageGraph("model", model, run, pixels)]
    if is_transformers_model(model):
        return [_of_transformers(model, ids)]
    raise InputError(
        f"a page with a model: {type(model).__name__} is not supported. Give a run of a "
        "translator, a language model or a classifier; or a BERT, GPT-2 or Llama of Transformers."
    )


def _of_transformers(model: Any, ids: dict[str, Tensor]) -> PageGraph:
    """Return the graph of a model of Transformers: see `page_graphs`."""
    if (
        model.config.is_encoder_decoder
        or "input_ids" not in inspect.signature(model.forward).parameters
    ):
        raise InputError(
            f"a page with a model: a {model.config.model_type} is not supported. Give one that "
            "reads one text, as BERT, GPT-2 or Llama."
        )
    unknown = {*(getattr(model.config, "layer_types", None) or ())} - _LAYERS
    if unknown:
        raise InputError(
            f"a page with a model: layers of the kind {min(unknown)} are not supported, only "
            f"{' and '.join(sorted(_LAYERS))}."
        )
    if not model.can_generate():
        scores = "ForSequenceClassification" in type(model).__name__
        network = model if scores else model.base_model
        output = "logits" if scores else _HIDDEN
        return PageGraph(
            "model", network, lambda x, past: cast(Tensor, network(**x)[0]), ids, output
        )
    parameters = inspect.signature(model.forward).parameters
    last = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
    keyword = next(name for name in CACHES if name in parameters)

    def step(inputs: dict[str, Tensor], past: _Past) -> Tensor:
        cache = transformers().DynamicCache([*past] or None)
        tokens = inputs["input_ids"].shape[1]
        places = torch.arange(tokens)[None] + (past[0][0].shape[2] if past else 0)
        logits: Tensor = model(
            **inputs, **{keyword: cache}, use_cache=True, position_ids=places, **last
        ).logits
        return logits[:, -1:]

    return PageGraph("model", model, step, ids, cached=True)
