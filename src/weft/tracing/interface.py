"""The attention interface of Transformers: its models computing with `weft.attend` for a while.

Transformers looks up the attention function of a model by a name in its configuration, and the
function that makes its masks by the same name. `routed` registers both under a name of its own,
writes that name into the configurations of the model, and puts everything back afterwards.
"""

from __future__ import annotations

import importlib
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.mechanism.masks import Mask, as_mask, causal
from weft.tracing.terms import as_rule

__all__ = ["InterfaceCall", "is_transformers_model", "routed", "routes", "transformers"]


def transformers() -> Any:
    """The library.

    Raises: InputError: it is not installed.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise InputError(
            "trace: models of Hugging Face need Transformers, which is not installed. "
            'pip install "weft[hf]"'
        ) from None


def is_transformers_model(model: Any) -> bool:
    """Whether a model is one of Transformers. The library is not loaded for that."""
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


@dataclass(frozen=True, eq=False)
class InterfaceCall:
    """One attention call of a model of Transformers, in weft's words.

    module          the attention module
    path            its path in the model
    queries         (batch, heads, queries, depth)
    keys, values    (batch, kv_heads, keys, depth): not repeated
    mask            who may look at whom; None: everybody
    bias            added to the scores, (batch or 1, heads or 1, queries, keys), or None
    own_mask        the mask as the model gave it: bool, numbers to add, or None
    is_causal       whether the model says that no query looks ahead
    scale           the factor on the scores; None: 1 / sqrt(depth)
    softcap, sinks  as `weft.attend` takes them
    own_function    the attention function that the model uses when weft is away, or None
    options         what else the model gave
    """

    module: nn.Module
    path: str
    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Mask | None
    bias: Tensor | None
    own_mask: Tensor | None
    is_causal: bool
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    own_function: Callable[..., Any] | None
    options: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """The keywords of `weft.attend`."""
        return {
            "mask": self.mask,
            "bias": self.bias,
            "scale": self.scale,
            "softcap": self.softcap,
            "sinks": self.sinks,
        }


def _own_function(module: nn.Module, name: str | None) -> Callable[..., Any] | None:
    """The attention function of an implementation; the fused ones of GPUs: the eager one."""
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    registry = importlib.import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    if name == "sdpa" or eager is None:
        found: Callable[..., Any] | None = registry["sdpa"]
        return found
    return eager  # type: ignore[no-any-return]


def _mask_and_bias(own: Tensor, queries: int, keys: int) -> tuple[Mask | None, Tensor | None]:
    """A mask of Transformers as who may look at whom, and what is left to be added to scores.

    Such a mask is bool (True = may look), or numbers that are added: 0 where a query may look, the
    lowest number of the type or minus infinity where it may not. A mask that is a window, or a
    range of keys for each query, the same for the whole batch, becomes that rule, which costs no
    matrix.
    """
    allowed = own if own.dtype == torch.bool else own > torch.finfo(own.dtype).min / 2
    bias = None
    if own.dtype != torch.bool:
        rest = own.masked_fill(~allowed, 0)
        bias = rest if bool(rest.any()) else None
    return as_rule(as_mask(allowed), queries, keys, len(allowed)), bias


def _function(
    paths: dict[int, str],
    implementations: dict[int, str | None],
    receive: Callable[[InterfaceCall], Tensor],
) -> Callable[..., Any]:
    """The attention function to register."""
    # Layers share masks: each is read once. With the mask itself, so that its id stays its own.
    read: dict[int, tuple[Tensor, Mask | None, Tensor | None]] = {}

    def attention_forward(
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
        **options: Any,
    ) -> tuple[Tensor, None]:
        if is_causal is None:
            is_causal = bool(getattr(module, "is_causal", True))
        mask, bias = None, position_bias
        if attention_mask is not None:
            if id(attention_mask) not in read:
                sizes = query.shape[2], key.shape[2]
                read[id(attention_mask)] = attention_mask, *_mask_and_bias(attention_mask, *sizes)
            _, mask, added = read[id(attention_mask)]
            if added is not None:
                bias = added if bias is None else bias + added
        # Without a mask the flag decides, as for torch's fused attention. One query alone, the
        # last of a cache, may look at everything.
        if attention_mask is None and is_causal and query.shape[2] > 1:
            mask = causal()
        config = getattr(module, "config", None)
        output = receive(
            InterfaceCall(
                module=module,
                path=paths.get(id(module), type(module).__name__),
                queries=query,
                keys=key,
                values=value,
                mask=mask,
                bias=bias,
                own_mask=attention_mask,
                is_causal=is_causal,
                scale=None if scaling is None else float(scaling),
                softcap=softcap,
                sinks=s_aux,
                own_function=_own_function(module, implementations.get(id(config))),
                options=options,
            )
        )
        return output.transpose(1, 2).contiguous(), None

    return attention_forward


def _configurations(model: nn.Module) -> list[Any]:
    """Every configuration that the modules of a model use, once each."""
    modeling = importlib.import_module("transformers.modeling_utils")
    found: dict[int, Any] = {}
    refused: set[int] = set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        if isinstance(module, modeling.PreTrainedModel):
            can_set = getattr(module, "_can_set_attn_implementation", None)
            if can_set is not None and not can_set():
                refused.add(id(config))
    return [config for number, config in found.items() if number not in refused]


def routes(model: nn.Module) -> bool:
    """Whether any part of a model looks its attention function up in the interface."""
    return bool(_configurations(model))


@contextmanager
def routed(model: nn.Module, receive: Callable[[InterfaceCall], Tensor]) -> Iterator[None]:
    """Send every attention call of a model to `receive`, which gives the output back.

    Args:
        model: of Transformers.
        receive: from a call to its output, (batch, heads, queries, value_depth).

    Both functions and the name are there while the block runs, and gone afterwards however it
    ends; configurations say again what they said.
    """
    modeling = importlib.import_module("transformers.modeling_utils")
    masking = importlib.import_module("transformers.masking_utils")
    attention, masks = modeling.AttentionInterface, masking.AttentionMaskInterface
    name = f"weft-{uuid.uuid4().hex}"
    configurations = _configurations(model)
    before = [config._attn_implementation_internal for config in configurations]
    implementations = {id(config): own for config, own in zip(configurations, before, strict=True)}
    paths = {id(module): path for path, module in model.named_modules()}
    try:
        attention.register(name, _function(paths, implementations, receive))
        # Without a mask function of the same name, Transformers makes no masks at all and says
        # nothing. This one makes bool masks, and none where a flag says the same.
        masks.register(name, masking.sdpa_mask)
        for config in configurations:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, own in zip(configurations, before, strict=True):
            config._attn_implementation_internal = own
        for registry in (attention, masks):
            registry._global_mapping.pop(name, None)
