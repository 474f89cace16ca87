"""Models of Transformers, as they are traced, held against themselves without weft."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.mechanism.graph import Keep
from weft.tracing.catcher import Catcher
from weft.tracing.comparison import Comparison
from weft.tracing.dense import run_dense
from weft.tracing.interface import routed, routes
from weft.tracing.prefix import Verify
from weft.tracing.reading import explained
from weft.tracing.untouched import (
    UntouchedRun,
    attention_modules,
    run_untouched,
    verify_prefix,
)

__all__ = ["as_traced", "untouched_transformer", "verify_transformer"]


def verify_transformer(
    model: nn.Module,
    given: Mapping[str, Any],
    keep: Keep,
    verify: Verify,
    generates: bool = False,
    part: nn.Module | None = None,
) -> dict[str, Any] | None:
    """Hold a model of Transformers, as it is traced, against itself without weft.

    generates: whether the inputs are a prompt, of an encoder-decoder the source alone.
    part: the part of the model that reads the inputs, as its encoder; None: all of it.

    Returns, raises: as `verify_run`.
    """
    if generates:
        given = _as_prompt(model, given)
    untouched = untouched_transformer(model, given, verify, part)
    if untouched is None:
        return None
    verify_prefix(untouched, as_traced(model, keep, part))
    return untouched.says()


def untouched_transformer(
    model: nn.Module, given: Mapping[str, Any], verify: Verify, part: nn.Module | None = None
) -> UntouchedRun | None:
    """Let a model of Transformers, or a part of it, read its inputs untouched.

    Returns, raises: as `run_untouched`; InputError: the model cannot read them.
    """
    modules = attention_modules(model) if routes(model) else {}
    with explained(model, given):
        return run_untouched(model if part is None else part, given, verify, modules)


def as_traced(
    model: nn.Module, keep: Keep, part: nn.Module | None = None
) -> Callable[[Mapping[str, Any], Comparison], None]:
    """What runs a model, or a part of it, as it is traced, for `verify_prefix`."""

    def traced(inputs: Mapping[str, Any], comparison: Comparison) -> None:
        if routes(model):
            # Every layer, not only those that are wanted: each could be at fault.
            with routed(model, Catcher(comparison.edges, keep, None, lambda: False)):
                (model if part is None else part)(**inputs)
            return
        with warnings.catch_warnings():
            # It is said once, when the model is traced.
            warnings.simplefilter("ignore", UserWarning)
            run_dense(model, inputs, lambda path, module, weights: None)

    return traced


def _as_prompt(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the first pass of generation, as a pass of its own."""
    prompt = {**given, "use_cache": False}
    config: Any = model.config
    named = ("decoder_input_ids", "decoder_inputs_embeds")
    if getattr(config, "is_encoder_decoder", False) and not any(name in prompt for name in named):
        start = getattr(config, "decoder_start_token_id", None)
        start = getattr(config, "bos_token_id", None) if start is None else start
        batch = next(value for value in given.values() if isinstance(value, Tensor))
        prompt["decoder_input_ids"] = torch.full(
            (len(batch), 1), start or 0, device=batch.device, dtype=torch.int64
        )
    return prompt
