"""Backward pass of a model that visits each attention layer, with activation checkpointing.

The activations of all layers of a long text do not fit into memory. So the blocks of a model keep
only their inputs, and each is computed again in the backward pass (Chen et al. 2016); a layer's
queries, keys and values are then available together with dy/do, are passed on, and freed.
Parameters get no gradients, and nothing is computed below the first layer's outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headloom.analysis.effects.interventions import reaching
from headloom.errors import InputError
from headloom.tracing.model_state import evaluation_mode, release_memory
from headloom.tracing.recording.layer_call import LayerCall

#: Called with a call, its output, and dy/do, both (batch, heads, queries, value_depth).
Receive = Callable[[LayerCall, Tensor, Tensor], None]
#: Tensors of a call that grow with the text.
_TENSORS = ("queries", "keys", "values", "bias")


def backward(
    model: nn.Module, measure: Callable[[Sequence[LayerCall]], Tensor], receive: Receive, *,
    operation: str,
) -> None:  # fmt: skip
    """Run a model for one number, y; then visit its layers, the last one first.

    The model runs in evaluation mode, without a cache, and is left unchanged.

    Args:
        model: as for `headloom.analysis.effects.interventions.reaching`.
        measure: runs it, once or several times, and returns y; its argument is the list to which
            calls are added in the order of the runs, with queries and keys on the meta device.
        receive: see Receive. Layers that do not affect y are not visited.
        operation: name for errors.

    Raises: InputError: no attention could be visited, or none affects y.
    """
    calls: list[LayerCall] = []
    #: Outputs without a gradient history, where the backward pass ends.
    leaves: list[Tensor] = []
    forward = True

    def edit(call: LayerCall, output: Tensor) -> Tensor:
        is_leaf = not output.requires_grad
        if is_leaf:
            output = output.detach().requires_grad_()
        tensors = {name: x for name in _TENSORS if (x := getattr(call, name)) is not None}
        sizes = {name: x.detach().to("meta") for name, x in tensors.items()}
        without = call.changed(own_output=None, **sizes)
        if forward:
            calls.append(without)
            leaves.extend([output] * is_leaf)
        saved = (x.detach() for x in tensors.values())
        marked: Tensor = _Mark.apply(output, receive, without, tuple(tensors), *saved)  # type: ignore[no-untyped-call]
        return marked

    with (
        evaluation_mode(model), _frozen(model), _recomputing(model), torch.enable_grad(),
        reaching(model, edit, operation=operation),
    ):  # fmt: skip
        score = measure(calls)
        forward = False
        if not calls:
            raise InputError(
                f"{operation}: {type(model).__name__} ran without an attention call that can be "
                "traced. docs/tracing.md lists models that can be traced."
            )
        if not isinstance(score, Tensor) or not score.requires_grad:
            raise InputError(
                f"{operation}: the target depends on no attention layer, or is not a tensor with a "
                "gradient."
            )
        # Autograd visits the last operation first, and so the layers in this order.
        torch.autograd.grad(score, leaves, allow_unused=True)


class _Mark(torch.autograd.Function):
    """Identity on the outputs of a layer that calls `receive` in the backward pass.

    Tensors saved within a block are recomputed by activation checkpointing, like all others.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, receive: Receive, call: LayerCall, names: object, *saved: Tensor
    ) -> Tensor:
        ctx.receive, ctx.call, ctx.names = receive, call, names
        ctx.save_for_backward(output, *saved)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        release_memory()
        output, *saved = ctx.saved_tensors
        call = ctx.call.changed(**dict(zip(ctx.names, saved, strict=True)))
        ctx.receive(call, output.detach(), gradient.detach())
        return gradient, None, None, None, *(None for _ in saved)


@contextmanager
def _recomputing(model: nn.Module) -> Iterator[None]:
    """Apply activation checkpointing to the blocks of a model."""

    def recomputed(forward: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(forward)
        def run(*args: object, **options: object) -> object:
            whole = functools.partial(forward, **options)
            output: object = checkpoint(whole, *args, use_reentrant=False, preserve_rng_state=False)
            release_memory()
            return output

        return run

    with ExitStack() as stack:
        for block in _blocks(model):
            state = vars(block)
            if "forward" in state:
                stack.callback(state.__setitem__, "forward", state["forward"])
            else:
                stack.callback(state.pop, "forward")
            state["forward"] = recomputed(block.forward)
        yield


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model: members of its module lists that contain attention."""
    blocks: dict[int, nn.Module] = {}
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and id(module) not in inside:
            inside.update(id(part) for part in module.modules())
            for block in module:
                if any("Attention" in type(part).__name__ for part in block.modules()):
                    blocks[id(block)] = block
    return list(blocks.values())


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Disable gradients of parameters, and caches, which a recomputed block would fill twice."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    configs = {
        id(config): config
        for part in model.modules()
        if (config := getattr(part, "config", None)) is not None
        and getattr(config, "use_cache", False) is True
    }
    try:
        model.requires_grad_(False)
        for config in configs.values():
            config.use_cache = False
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
        for config in configs.values():
            config.use_cache = True
