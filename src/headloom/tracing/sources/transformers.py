"""The attention interface of Transformers: its models computing with `headloom.attend` for a while.

`routed` registers an attention function and a function that makes its masks under its own names,
writes these into the configurations of the model, and puts everything back. A model gets the kind
of mask that it would have got: eager attention numbers, always, and no flag; torch's fused
attention a bool mask, or none where the flag `is_causal` says the same.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import InputError, installing
from headloom.mechanism.masks import causal
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Arguments
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import ScoreMask, lowest_of, score_mask
from headloom.tracing.recording.sequences import layer_kind
from headloom.tracing.sources.source import (
    Excuse,
    Modules,
    Receive,
    Source,
    excused,
    never,
)


def transformers() -> Any:
    """The library.

    Raises: InputError: it is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError:
        need = "trace: models of Hugging Face need Transformers, which is not installed. "
        raise InputError(need + installing("hf")) from None


def is_transformers_model(model: object) -> bool:
    """Whether a model is one of Transformers. The library is not loaded for that."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def without_peft(model: nn.Module) -> nn.Module:
    """The model of Transformers that PEFT put its adapters into; any other model as it is.

    Prompts and prefixes that are learned are put before the text by PEFT's own module, which stays.
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
    """The name of an implementation that computes as another one does, `own`.

    Models ask for the name, and take another way for one they do not know. So this one equals the
    name of the implementation it stands for too; under its own name it is looked up.

    >>> name = _Implementation("headloom-1")
    >>> name.stands_for = "eager"
    >>> name in ("eager", "sdpa"), name == "headloom-1", {"headloom-1": 2}[name]
    (True, True, 2)
    """

    stands_for: str | None = None
    own: str | None = None

    def __deepcopy__(self, memo: object) -> str | None:
        return self.own

    def __reduce__(self) -> tuple[object, ...]:
        # What is copied or saved while headloom computes says what it said before.
        return (type(None), ()) if self.own is None else (str, (str(self.own),))

    def __eq__(self, other: object) -> bool:
        if self.stands_for is not None and str(other) == self.stands_for:
            return isinstance(other, str)
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _own_function(module: nn.Module, eager: bool) -> Callable[..., Any]:
    """The attention function that a module uses; for the fused ones of GPUs torch's."""
    source = sys.modules[type(module).__module__]
    if eager:
        # A file may have several, as for text and images: that of this module's forward.
        names = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        own = [name for name in (names.co_names if names else ())
               if name.endswith("eager_attention_forward")]  # fmt: skip
        function = getattr(source, own[-1] if own else "eager_attention_forward", None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    shared = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    fused: Callable[..., Any] = getattr(source, "ALL_ATTENTION_FUNCTIONS", shared)["sdpa"]
    return fused


Aside = Callable[[], AbstractContextManager[object]]


def _function(
    paths: dict[int, str], eager: bool, receive: Receive, excuse: Excuse, aside: Aside
) -> Callable[..., object]:
    """The attention function to register in place of eager attention, or of the fused one."""
    # Layers share masks, whole or a view; the mask itself keeps its place in memory its own.
    read: dict[object, tuple[Tensor, Tensor, ScoreMask]] = {}
    # A step of a generation asks the same of every layer again.
    kinds: dict[tuple[int, bool], str] = {}

    def attention_forward(module: nn.Module, *args: Any, **options: Any) -> object:
        output = None
        with excused(excuse):
            output = received(module, *args, **options)
        if output is None:
            with aside():
                return _own_function(module, eager)(module, *args, **options)
        return output.transpose(1, 2).contiguous(), None

    def received(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        sinks: Tensor | None = None,
        **options: object,
    ) -> Tensor | None:
        sizes = query.shape[2], key.shape[2]
        flag = is_causal
        if flag is None:
            flag = getattr(module, "is_causal", None)
        mask, bias, own_mask, ahead = None, position_bias, None, None
        if attention_mask is not None:
            # Eager attention adds a bool mask too, as 1 and 0, and hides nothing. Of a cache of a
            # fixed size it takes the part that is filled.
            memory = attention_mask.untyped_storage().data_ptr(), attention_mask.storage_offset()
            where = memory, attention_mask.shape, attention_mask.stride(), sizes
            if where not in read:
                cells = attention_mask[..., : sizes[1]]
                if eager and cells.dtype == torch.bool:
                    cells = cells.float()
                lowest = lowest_of(cells.dtype)
                allowed = cells if lowest is None else cells > lowest
                read[where] = attention_mask, allowed, score_mask(cells, *sizes, lowest)
            _, own_mask, seen = read[where]
            mask, ahead = seen.mask, seen.ahead
            if seen.bias is not None:
                bias = seen.bias if bias is None else bias + seen.bias
        elif not eager and (flag is None or flag) and sizes[0] > 1:
            # So torch's fused attention reads the flag, and where there is none. A query alone,
            # the last of a cache, may look at everything; eager attention knows no flag.
            mask, ahead = causal(), False
        if sinks is not None:
            # One for each query, (batch, heads, queries, 1): as a sink of 0 beside scores that are
            # less by it.
            bias = -sinks if bias is None else bias - sinks
            s_aux = sinks.new_zeros(sinks.shape[1])
        path = paths.get(id(module), type(module).__name__)
        is_causal = bool(flag) or ahead is False
        known = id(module), is_causal
        if known not in kinds:
            kinds[known] = layer_kind(path, module, is_causal)
        call = LayerCall(
            path=path,
            kind=kinds[known],
            queries=query,
            keys=key,
            values=value,
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            mask=mask,
            bias=bias,
            softcap=softcap,
            sinks=s_aux,
            positions="none" if bias is None else "bias",
            is_causal=is_causal,
        )
        call.own_output = partial(_own_output, module, eager, call, own_mask, sinks, options)
        try:
            return receive(call)
        finally:
            # What holds itself holds the keys and values of its step too, the whole cache, until
            # Python looks for such rings.
            call.own_output = None

    return attention_forward


@torch.no_grad()
def _own_output(
    module: nn.Module,
    eager: bool,
    call: LayerCall,
    own_mask: Tensor | None,
    sinks: Tensor | None,
    options: Arguments,
    rows: Tensor,
) -> Tensor:
    """The output of a model's own attention function for some rows of a call.

    By the mask that the model itself made, where it made one, not by the rule read from it; and by
    its sinks, where each query has one.
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
        added = added + of_rows  # the bias of the call is less by them
    of_heads = call.sinks if sinks is None else None
    for name, value in (("softcap", call.softcap), ("s_aux", of_heads), ("sinks", of_rows)):
        if value is not None:
            options[name] = value
            eager = True  # torch's fused attention knows none of them; FlexAttention does
    output: Tensor = _own_function(module, eager)(
        module, queries, call.keys, call.values, added, dropout=0.0, scaling=call.scale,
        is_causal=False, **options,
    )[0]  # fmt: skip
    return output.transpose(1, 2)


def _configurations(model: nn.Module) -> list[Any]:
    """Every configuration that the modules of a model use, once each."""
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
    """Whether any part of a model looks its attention function up in the interface."""
    return bool(_configurations(model))


class NothingRecordedError(InputError):
    """No attention of a model that ran could be recorded."""


@contextmanager
def routed(
    model: nn.Module,
    receive: Receive,
    excuse: Excuse = never,
    aside: Aside = nullcontext,
) -> Iterator[None]:
    """Send every attention call of a model to `receive`, which gives the output back.

    Args:
        model: of Transformers.
        receive: from a call to its output, (batch, heads, queries, value_depth); None: the model's
            own attention computes it.
        excuse: whether the model's own attention goes on where a call could not be read.
        aside: a block in which the model's own attention is not looked at.

    Afterwards, however the block ends, configurations say again what they said.

    Raises: InputError: the attention of the model is computed by headloom already.
    """
    modeling = importlib.import_module("transformers.modeling_utils")
    masking = importlib.import_module("transformers.masking_utils")
    attention, masks = modeling.AttentionInterface, masking.AttentionMaskInterface
    configurations = _configurations(model)
    if any(isinstance(c._attn_implementation_internal, _Implementation) for c in configurations):
        raise InputError(
            f"headloom computes the attention of this {type(model).__name__}, or of a model that "
            "shares its configuration, already: for a trace, a watch or an experiment around this "
            "one, or in another thread. End that first."
        )
    before = [config._attn_implementation_internal for config in configurations]
    paths = {id(module): path for path, module in named_modules(model)}
    unique = f"headloom-{uuid.uuid4().hex}"
    names = {eager: f"{unique}-{'eager' if eager else 'fused'}" for eager in (True, False)}

    try:
        for eager, name in names.items():
            attention.register(name, _function(paths, eager, receive, excuse, aside))
            # Without a mask function of the same name, Transformers makes no masks at all and
            # says nothing.
            masks.register(name, masking.eager_mask if eager else masking.sdpa_mask)
        for config, own in zip(configurations, before, strict=True):
            named = _Implementation(names[own in (None, "eager")])
            named.own = own
            # Where GPT-2 scales its scores in another order it does so beside the interface.
            if own in ("eager", "sdpa") and not getattr(config, "reorder_and_upcast_attn", False):
                named.stands_for = own
            config._attn_implementation_internal = named
        yield
    finally:
        for config, own in zip(configurations, before, strict=True):
            config._attn_implementation_internal = own
        for registry in (attention, masks):
            for name in names.values():
                registry._global_mapping.pop(name, None)


def _layers(modules: Modules) -> Modules:
    """The model itself, where it uses the interface."""
    model = modules[""]
    return {"": model} if is_transformers_model(model) and routes(model) else {}


SOURCE = Source(
    _layers, lambda modules, keep, to: routed(modules[""], to.compute, to.excuse, to.aside)
)
