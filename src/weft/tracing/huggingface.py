"""Tracing unmodified models of Hugging Face, through the attention interface of Transformers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.trace import Held, Trace, TraceLayer
from weft.formats.trace_folder import TraceWriter, writing_trace
from weft.mechanism.function import attend, attention
from weft.mechanism.graph import All, AttentionGraph, Keep, Top
from weft.mechanism.masks import causal
from weft.tracing.graphs import cut, proven_mask
from weft.tracing.interface import InterfaceCall, routed
from weft.tracing.interface import transformers as library
from weft.tracing.sequences import InputSequence, Sequences, layer_kind
from weft.tracing.verification import deviation

__all__ = ["trace_huggingface"]


def trace_huggingface(
    model: nn.Module,
    inputs: Mapping[str, Any] | Tensor | str,
    *,
    tokenizer: Any = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    layers: Sequence[int | str] | None = None,
    save: Path | str | None = None,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
    description: Mapping[str, Any] | None = None,
) -> Trace | list[Trace]:
    """Run a model of Transformers once and catch the attention graph of every layer.

    Takes what `weft.tracing.capture.trace` takes, and:

    Args:
        description: what the trace says of its model; None: its name, class and size.

    Layers go by the path of their attention module, in the order of the run. Each is verified on
    a sample of its rows: see `weft.tracing.verification.deviation`.
    """
    given, offsets = _as_inputs(model, inputs, tokenizer)
    _check(model, given)
    samples = next(len(value) for value in given.values() if isinstance(value, Tensor))
    if save is not None and samples > 1:
        raise InputError(
            f"trace: a batch of {samples} inputs cannot be saved as one trace. Trace one after "
            "the other, or leave save= out and save each trace."
        )
    says = dict(description or _describe(model))
    catcher = _Catcher(
        Sequences(model, given, tokenizer, offsets), samples, keep, queries_keys, layers
    )
    training = [(module, module.training) for module in model.modules()]
    with ExitStack() as stack:
        if save is not None:
            catcher.writer = stack.enter_context(
                writing_trace(save, {}, says, dtype=dtype, overwrite=overwrite)
            )
        try:
            nn.Module.eval(model)
            with torch.no_grad(), routed(model, catcher):
                model(**given)
        finally:
            for module, before in training:
                module.training = before
        catcher.check(model)
    if save is not None:
        return Trace.open(save)
    traces = [
        Trace(
            {name: of.names for name, of in catcher.named[sample].items()},
            tuple(catcher.caught[sample]),
            says,
            {name: of.known for name, of in catcher.named[sample].items() if of.known},
        )
        for sample in range(samples)
    ]
    return traces[0] if samples == 1 else traces


class _Catcher:
    """Receives the attention calls of a run: computes each, and keeps or writes its graph."""

    def __init__(
        self,
        sequences: Sequences,
        samples: int,
        keep: Keep,
        queries_keys: bool,
        layers: Sequence[int | str] | None,
    ) -> None:
        self._sequences, self._samples, self._keep = sequences, samples, keep
        self._queries_keys, self._wanted = queries_keys, layers
        self.writer: TraceWriter | None = None
        self.caught: list[list[TraceLayer]] = [[] for _ in range(samples)]
        self.named: list[dict[str, InputSequence]] = [{} for _ in range(samples)]
        self._paths: list[str] = []
        self._counts: dict[str, int] = {}
        self._used: set[int | str] = set()

    def __call__(self, call: InterfaceCall) -> Tensor:
        """The output of one attention call, (batch, heads, queries, value_depth)."""
        number = len(self._paths)
        self._paths.append(call.path)
        kind = layer_kind(call.path, call.module, call.is_causal)
        index = self._counts.get(kind, 0)
        self._counts[kind] = index + 1
        if not self._is_wanted(number, call.path):
            return attention(call.queries, call.keys, call.values, **call.arguments())
        keep = Top(call.keys.shape[2]) if isinstance(self._keep, All) else self._keep
        # Half precision is for the model; scores and their sums are taken in float32.
        tensors = (call.queries.float(), call.keys.float(), call.values.float())
        output, graph = attend(*tensors, keep=keep, **call.arguments())
        found: Tensor = output.to(call.values.dtype)
        self._keep_layer(call, kind, index, graph, deviation(call, found, graph))
        return found

    def _is_wanted(self, number: int, path: str) -> bool:
        if self._wanted is None:
            return True
        matches = [
            wanted
            for wanted in self._wanted
            if (wanted == number if isinstance(wanted, int) else fnmatchcase(path, wanted))
        ]
        self._used.update(matches)
        return bool(matches)

    def _keep_layer(
        self, call: InterfaceCall, kind: str, index: int, graph: AttentionGraph, off: float | None
    ) -> None:
        _, _, queries, keys = graph.shape
        ends = self._sequences.ends(call.path, kind, queries, keys)
        for sample in range(self._samples):
            rows, columns = (
                self._sequence(name, length, sample)
                for name, length in zip(ends, (queries, keys), strict=True)
            )
            # One graph serves every input where the model computes it once for all.
            one = graph[min(sample, len(graph) - 1)]
            part = cut(one, rows.span, columns.span).cpu()
            verified = off
            if off is not None:
                verified = max(off, _mass_lost(one, part, rows.span))
            tensors = None
            if self._queries_keys:
                tensors = (
                    call.queries[sample, :, rows.span].cpu().clone(),
                    call.keys[sample, :, columns.span].cpu().clone(),
                )
            depth = call.queries.shape[-1]
            layer = TraceLayer(
                name=call.path,
                kind=kind,
                index=index,
                shape=(part.shape[0], part.shape[1], part.shape[2]),
                queries_from=ends[0],
                keys_from=ends[1],
                query_tokens=rows.names,
                key_tokens=columns.names,
                scale=depth**-0.5 if call.scale is None else call.scale,
                positions="none" if call.bias is None else "bias",
                mask=_rule(call, part),
                softcap=call.softcap,
                deviation=verified,
                data=Held(part, tensors),
            )
            if self.writer is None:
                self.caught[sample].append(layer)
            else:
                self._write(self.writer, layer, dict(zip(ends, (rows, columns), strict=True)))

    def _sequence(self, name: str, length: int, sample: int) -> InputSequence:
        named = self.named[sample]
        if name not in named:
            named[name] = self._sequences.of(name, length, sample)
        return named[name]

    @staticmethod
    def _write(
        writer: TraceWriter, layer: TraceLayer, sequences: Mapping[str, InputSequence]
    ) -> None:
        for name, sequence in sequences.items():
            writer.add_sequence(name, sequence.names)
            if sequence.known:
                writer.describe(name, sequence.known)
        writer.append(
            layer.name,
            layer.kind,
            layer.index,
            layer.data.graph(),
            queries_from=layer.queries_from,
            keys_from=layer.keys_from,
            scale=layer.scale,
            positions=layer.positions,
            mask=layer.mask,
            softcap=layer.softcap,
            deviation=layer.deviation,
            queries_keys=layer.data.queries_keys(),
        )

    def check(self, model: nn.Module) -> None:
        """Raise where nothing came, or not every layer that was asked for."""
        if not self._paths:
            raise InputError(
                f"trace: {type(model).__name__} does not use the attention interface of "
                f"Transformers {library().__version__}, so none of its layers can be traced. "
                "Models that do are listed in docs/tracing.md."
            )
        missing = [wanted for wanted in self._wanted or () if wanted not in self._used]
        if missing:
            raise InputError(
                f"trace: no layer {', '.join(map(repr, missing))}; the model has layers 0 to "
                f"{len(self._paths) - 1}: {self._paths[0]} ... {self._paths[-1]}."
            )
        if self._wanted is not None and not self._wanted:
            raise InputError("trace: layers=[] asks for no layer; None traces every one.")


def _rule(call: InterfaceCall, graph: AttentionGraph) -> str | None:
    """The rule of the mask: known where the model gave no other mask, else proven by the graph."""
    if call.own_mask is None and (call.mask is None or call.mask == causal()):
        return "all" if call.mask is None else "causal"
    return proven_mask(graph)


def _mass_lost(whole: AttentionGraph, part: AttentionGraph, rows: slice) -> float:
    """The mass that a row had on padding, at most."""
    lost = part.rest - whole.rest[:, rows].cpu()
    return float(lost.max()) if lost.numel() else 0.0


def _as_inputs(
    model: nn.Module, inputs: Mapping[str, Any] | Tensor | str, tokenizer: Any
) -> tuple[dict[str, Any], list[list[int]] | None]:
    """The arguments of the model, with a batch dimension; and where tokens are in a text."""
    offsets = None
    if isinstance(inputs, str):
        if tokenizer is None:
            raise InputError(
                "trace: the input is a text, and there is no tokenizer. Give tokenizer=, or ids."
            )
        fast = bool(getattr(tokenizer, "is_fast", False))
        # Not verbose: a text that is too long is refused below, in one line.
        encoded = dict(
            tokenizer(inputs, return_tensors="pt", return_offsets_mapping=fast, verbose=False)
        )
        if fast:
            offsets = [list(pair) for pair in encoded.pop("offset_mapping")[0].tolist()]
        inputs = encoded
    if isinstance(inputs, Tensor):
        name = getattr(model, "main_input_name", "input_ids")
        inputs = {name: inputs}
    if not isinstance(inputs, Mapping):
        raise InputError(
            f"trace: the inputs are {type(inputs).__name__}; expected a text, a tensor of token "
            "ids, or a dict with a tensor for each argument of the model."
        )
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    given: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            value = value.to(device)
            if value.ndim == 1 and not value.is_floating_point():
                value = value[None]
        given[str(name)] = value
    takes = inspect.signature(model.forward).parameters
    if "token_type_ids" not in takes:
        given.pop("token_type_ids", None)
    if "use_cache" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        given.setdefault("use_cache", False)
    return given, offsets


def _check(model: nn.Module, given: Mapping[str, Any]) -> None:
    """Raise an InputError for inputs that the model cannot read."""
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(
            "trace: the inputs hold no tensor; expected input_ids, pixel_values, input_features."
        )
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False) and not any(
        name in given for name in ("decoder_input_ids", "decoder_inputs_embeds")
    ):
        raise InputError(
            f"trace: {type(model).__name__} reads a source and writes a target. Give "
            "decoder_input_ids too: the target's tokens, as in {'input_ids': ..., "
            "'decoder_input_ids': ...}."
        )
    for name in ("input_ids", "decoder_input_ids"):
        ids = tensors.get(name)
        if ids is None:
            continue
        if ids.ndim != 2 or not ids.shape[1]:
            raise InputError(
                f"trace: {name} has the shape {tuple(ids.shape)}; expected (batch, length) with "
                "at least one token."
            )
        limit = _limit(model)
        if limit is not None and ids.shape[1] > limit:
            raise InputError(
                f"trace: {ids.shape[1]} tokens in {name}; {type(model).__name__} reads {limit} at "
                "most. Shorten the text, or split it."
            )


def _limit(model: nn.Module) -> int | None:
    """How many tokens a model can read; None: no limit is known."""
    config: Any = model.config
    config = getattr(config, "text_config", None) or config
    limit: int | None = getattr(config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        learned = name.rpartition(".")[2] in ("position_embeddings", "embed_positions", "wpe")
        if learned and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            # As in RoBERTa: positions are counted from the one after padding.
            limit = min(limit or module.num_embeddings, module.num_embeddings) - (
                module.padding_idx + 1
            )
            break
    return limit if isinstance(limit, int) and limit > 0 else None


def _describe(model: nn.Module) -> dict[str, Any]:
    """What a trace says of its model."""
    kind, config = type(model), model.config
    return {
        "name": getattr(config, "name_or_path", "") or kind.__name__,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "type": getattr(config, "model_type", None),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "transformers": library().__version__,
    }
