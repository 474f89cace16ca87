"""Attention interface of Transformers: record its models through a custom attention function.

`routed` registers an attention function and a mask function under unique names, sets these in the
configurations of the model, and restores them afterwards. A model gets the kind of mask that it
would have had: eager attention always added numbers, and no flag; torch's fused attention a bool
mask, or none if the flag `is_causal` means the same.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError, installing
from headloom.mechanism.masks import causal
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ScoreMask, lowest_of, score_mask
from headloom.tracing.recording.sequences import layer_kind
from headloom.tracing.sources.source import Excuse, Modules, Receive, Source, excused, never


def transformers() -> ModuleType:
    """Import the library.

    Raises: InputError: not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError:
        need = "trace: models of Hugging Face need Transformers, which is not installed. "
        raise InputError(need + installing("hf")) from None


def is_transformers_model(model: object) -> bool:
    """Return whether a model is one of Transformers, without loading the library."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def without_peft(model: nn.Module) -> nn.Module:
    """Return the model of Transformers inside a PEFT model; any other model unchanged.

    Learned prompts and prefixes are inserted by PEFT's own module, so that module stays.
    """
    library = sys.modules.get("peft")
    if library is None or not isinstance(model, library.PeftModel):
        return model
    inner: nn.Module = model.get_base_model()
    prompts = model.active_peft_config.is_prompt_learning
    if prompts or not is_transformers_model(inner):
        return model  # type: ignore[no-any-return]
    return inner


class _Implementation(str):
    """Name of an attention implementation that also equals the name of the original one.

    Models compare the name, and branch for unknown ones. So this name equals the name of the
    implementation it replaces too, also as `generate_batch` calls it ("paged|eager"); lookups use
    its unique name. original: the configured name.

    >>> name = _Implementation("headloom-1")
    >>> name.stands_for = "eager"
    >>> name in ("eager", "sdpa"), name == "headloom-1", {"headloom-1": 2}[name]
    (True, True, 2)
    """

    stands_for: str | None = None
    original: str | None = None

    def __deepcopy__(self, memo: object) -> str | None:
        return self.original

    def __reduce__(self) -> tuple[object, ...]:
        # Copies and saved configurations have the original name.
        return (type(None), ()) if self.original is None else (str, (str(self.original),))

    def __eq__(self, other: object) -> bool:
        if self.stands_for is not None and str(other).removeprefix("paged|") == self.stands_for:
            return isinstance(other, str)
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _own_function(module: nn.Module, eager: bool, options: Inputs) -> Callable[..., Any]:
    """Return the attention function of a module; torch's instead of fused GPU kernels."""
    source = sys.modules[type(module).__module__]
    shared = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    if eager and _PAGED in options:
        return shared["paged|eager"]  # type: ignore[no-any-return]
    if eager:
        # A file may have several, for text and images: use the one in this module's forward.
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        names = [name for name in (code.co_names if code else ())
                 if name.endswith("eager_attention_forward")]  # fmt: skip
        function = getattr(source, names[-1] if names else "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    fused: Callable[..., Any] = getattr(source, "ALL_ATTENTION_FUNCTIONS", shared)["sdpa"]
    return fused


#: Argument of attention functions in `generate_batch`, a new object in each pass.
_PAGED = "read_index"

Aside = Callable[[], AbstractContextManager[object]]
Skips = Callable[[str], bool]


def _function(
    paths: dict[int, str], eager: bool, receive: Receive, excuse: Excuse, aside: Aside, skips: Skips
) -> Callable[..., object]:
    """Return the attention function to register in place of eager or fused attention."""
    # Layers share masks, or views of one; keeping the mask keeps its memory address unique.
    read: dict[object, tuple[Tensor | None, Tensor, ScoreMask]] = {}
    running: object = None  # pass of `generate_batch`
    # Cached for all steps of a generation.
    kinds: dict[tuple[int, bool], str] = {}

    def attention_forward(module: nn.Module, *args: Any, **options: Any) -> object:
        output = None
        if not skips(paths.get(id(module), "")):
            with excused(excuse):
                output = received(module, *args, **options)
        if output is None:
            with aside():
                return _own_function(module, eager, options)(module, *args, **options)
        return output.transpose(1, 2).contiguous(), None

    def received(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
        attention_mask: Tensor | None, **options: Any,
    ) -> Tensor | None:  # fmt: skip
        nonlocal running
        paged = options.get(_PAGED)
        if paged is None or attention_mask is None:
            call = read_call(module, query, key, value, attention_mask, **options)
            texts = [call]
        elif query.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        else:
            # Each pass writes its masks in the memory of the last one.
            if paged is not running:
                read.clear()
            running = paged
            options.pop("is_causal", None)  # False, as there is a mask
            rows, columns = (options[f"cu_seq_lens_{end}"].tolist() for end in "qk")
            texts = [
                read_call(
                    module, query[:, :, a:b], key[:, :, c:d], value[:, :, c:d],
                    attention_mask[:, :, a:b, c:d], **options,
                )
                for (a, b), (c, d) in zip(pairwise(rows), pairwise(columns), strict=True)
                if a < b
            ]  # fmt: skip
            call = texts[0].changed(
                queries=query, keys=key, values=value, mask=None, own_output=None,
                packed=tuple(texts),
            )  # fmt: skip
        try:
            return receive(call)
        finally:
            # Break the reference cycles, which would keep the whole cache of this step until the
            # next garbage collection.
            for text in texts:
                text.own_output = None

    def read_call(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
        dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
        position_bias: Tensor | None = None, softcap: float | None = None,
        s_aux: Tensor | None = None, sinks: Tensor | None = None, **options: Any,
    ) -> LayerCall:  # fmt: skip
        sizes = query.shape[2], key.shape[2]
        flag = is_causal
        if flag is None:
            flag = getattr(module, "is_causal", None)
        mask, bias, own_mask, ahead = None, position_bias, None, None
        if attention_mask is not None:
            # Eager attention adds a bool mask too, as 1 and 0, and hides nothing. For a cache of a
            # fixed size it uses the filled part.
            memory = attention_mask.untyped_storage().data_ptr(), attention_mask.storage_offset()
            where = memory, attention_mask.shape, attention_mask.stride(), sizes
            if where not in read:
                cells = attention_mask[..., : sizes[1]]
                if eager and cells.dtype == torch.bool:
                    cells = cells.float()
                lowest = lowest_of(cells.dtype)
                allowed = cells if lowest is None else cells > lowest
                kept = None if _PAGED in options else attention_mask
                read[where] = kept, allowed, score_mask(cells, *sizes, lowest)
            _, own_mask, score = read[where]
            mask, ahead = score.mask, score.ahead
            if score.bias is not None:
                bias = score.bias if bias is None else bias + score.bias
        elif not eager and (flag is None or flag) and sizes[0] > 1:
            # Fused attention is causal by the flag, and by default. A single query, the last of a
            # cache, sees every key; eager attention has no flag.
            mask, ahead = causal(), False
        if eager and _PAGED in options:
            softcap = None  # this function of Transformers ignores it
        if sinks is not None:
            # A sink for each query, (batch, heads, queries, 1), equals a sink of 0 beside scores
            # reduced by it.
            bias = -sinks if bias is None else bias - sinks
            s_aux = sinks.new_zeros(sinks.shape[1])
        path = paths.get(id(module), type(module).__name__)
        is_causal = bool(flag) or ahead is False
        known = id(module), is_causal
        if known not in kinds:
            kinds[known] = layer_kind(path, module, is_causal)
        call = LayerCall(
            path=path, kind=kinds[known], queries=query, keys=key, values=value,
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling), mask=mask,
            bias=bias, softcap=softcap, sinks=s_aux, positions="none" if bias is None else "bias",
            is_causal=is_causal,
        )  # fmt: skip
        call.own_output = partial(_own_output, module, eager, call, own_mask, sinks, options)
        return call

    return attention_forward


@torch.no_grad()
def _own_output(
    module: nn.Module, eager: bool, call: LayerCall, own_mask: Tensor | None, sinks: Tensor | None,
    options: Arguments, rows: Tensor,
) -> Tensor:  # fmt: skip
    """Return the output of a model's own attention function for some rows of a call.

    It uses the model's own mask, if there is one, not the rule read from it; and its sinks of each
    query.
    """
    queries = call.queries[:, :, rows]
    allowed, bias = call.mask_of(rows), call.bias_of(rows)
    if own_mask is not None:
        allowed = own_mask if own_mask.shape[2] == 1 else own_mask[:, :, rows]
    added = None
    if allowed is not None or bias is not None:
        added = queries.new_zeros(1, 1, queries.shape[2], call.keys.shape[2])
        if bias is not None:
            added = added + bias.to(queries.dtype)
        if allowed is not None:
            added = added.masked_fill(~allowed, torch.finfo(queries.dtype).min)
    options = {name: value for name, value in options.items() if name != "output_attentions"}
    of_rows = None if sinks is None else sinks[:, :, rows]
    if of_rows is not None and added is not None:
        added = added + of_rows  # the bias of the call was reduced by them
    of_heads = call.sinks if sinks is None else None
    for name, value in (("softcap", call.softcap), ("s_aux", of_heads), ("sinks", of_rows)):
        if value is not None:
            options[name] = value
            eager = True  # torch's fused attention does not support these; FlexAttention does
    output: Tensor = _own_function(module, eager, options)(
        module, queries, call.keys, call.values, added, dropout=0.0, scaling=call.scale,
        is_causal=False, **options,
    )[0]  # fmt: skip
    return output.transpose(1, 2)


def _configurations(model: nn.Module) -> list[Any]:
    """Return every configuration used by the modules of a model, once each."""
    modeling = importlib.import_module("transformers.modeling_utils")
    configurations: dict[int, Any] = {}
    refused: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        configurations[id(config)] = config
        if isinstance(module, modeling.PreTrainedModel):
            can_set = getattr(module, "_can_set_attn_implementation", None)
            if can_set is not None and not can_set():
                refused.add(id(config))
    return [config for number, config in configurations.items() if number not in refused]


def routes(model: nn.Module) -> bool:
    """Return whether any part of a model uses the attention interface."""
    return bool(_configurations(model))


class NothingRecordedError(InputError):
    """Error for a model without any recorded attention."""


@contextmanager
def routed(
    model: nn.Module, receive: Receive, excuse: Excuse = never, aside: Aside = nullcontext,
    skips: Skips = lambda path: False,
) -> Iterator[None]:  # fmt: skip
    """Send every attention call of a model to `receive`, which returns the output.

    Args:
        model: of Transformers.
        receive: computes the output of a call, (batch, heads, queries, value_depth); None: the
            model's own attention computes it.
        excuse: whether the model's own attention runs if a call could not be read.
        aside: a block in which the model's own attention is not intercepted.
        skips: whether to leave out the next call of a layer, by its path.

    The original settings are restored, however the block ends.

    Raises: InputError: headloom records the attention of the model already.
    """
    modeling = importlib.import_module("transformers.modeling_utils")
    masking = importlib.import_module("transformers.masking_utils")
    attention, masks = modeling.AttentionInterface, masking.AttentionMaskInterface
    configurations = _configurations(model)
    if any(isinstance(c._attn_implementation_internal, _Implementation) for c in configurations):
        raise InputError(
            f"headloom already records this {type(model).__name__}, or a model that shares its "
            "configuration, in a trace, a watch or an experiment around this one, or in another "
            "thread. End that first."
        )
    before = [config._attn_implementation_internal for config in configurations]
    paths = {id(module): path for path, module in named_modules(model)}
    unique = f"headloom-{uuid.uuid4().hex}"
    names = {eager: f"{unique}-{'eager' if eager else 'fused'}" for eager in (True, False)}

    try:
        for eager, name in names.items():
            attention.register(name, _function(paths, eager, receive, excuse, aside, skips))
            # Without a mask function of the same name, Transformers silently makes no masks.
            masks.register(name, masking.eager_mask if eager else masking.sdpa_mask)
        for config, original in zip(configurations, before, strict=True):
            named = _Implementation(names[original in (None, "eager")])
            named.original = original
            # GPT-2 with this option computes its attention outside the interface.
            reordered = getattr(config, "reorder_and_upcast_attn", False)
            if original in ("eager", "sdpa") and not reordered:
                named.stands_for = original
            config._attn_implementation_internal = named
        yield
    finally:
        for config, original in zip(configurations, before, strict=True):
            config._attn_implementation_internal = original
        for registry in (attention, masks):
            for name in names.values():
                registry._global_mapping.pop(name, None)


def _layers(modules: Modules) -> Modules:
    """Return the model itself, if it uses the interface."""
    model = modules[""]
    return {"": model} if is_transformers_model(model) and routes(model) else {}


SOURCE = Source(
    _layers, lambda modules, keep, to: routed(modules[""], to.compute, to.excuse, to.aside)
)
