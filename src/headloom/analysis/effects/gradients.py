"""Running a model backward from a number, and meeting each attention layer on the way.

What all layers of a long text compute does not fit into memory at once. So the blocks of a model
keep their inputs alone, and each is computed again when the gradient gets there (Chen et al. 2016);
a layer's queries, keys and values are then there together with dy/do, are handed over, and freed.
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

#: Gets a call, what its heads gave, and dy/do, both (batch, heads, queries, value_depth).
Receive = Callable[[LayerCall, Tensor, Tensor], None]
#: The tensors of a call that grow with the text.
_TENSORS = ("queries", "keys", "values", "bias")


def backward(
    model: nn.Module,
    measure: Callable[[Sequence[LayerCall]], Tensor],
    receive: Receive,
    *,
    operation: str,
) -> None:
    """Run a model for one number, y; then meet its layers, the last one first.

    The model runs as in evaluation, without a cache, and is left as it was.

    Args:
        model: as for `headloom.analysis.effects.interventions.reaching`.
        measure: runs it, once or several times, and gives y; gets the list that calls are added to
            in the order of the runs, with queries and keys on no device.
        receive: see Receive. Layers that y does not depend on are not met.
        operation: who asks, for errors.

    Raises: InputError: no attention could be reached, or y depends on none.
    """
    calls: list[LayerCall] = []
    #: Outputs that depend on nothing that has a gradient: where going backward ends.
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
        own = (x.detach() for x in tensors.values())
        marked: Tensor = _Mark.apply(output, receive, without, tuple(tensors), *own)  # type: ignore[no-untyped-call]
        return marked

    with (
        evaluation_mode(model), _frozen(model), _recomputing(model), torch.enable_grad(),
        reaching(model, edit, operation=operation),
    ):  # fmt: skip
        score = measure(calls)
        forward = False
        if not calls:
            raise InputError(
                f"{operation}: {type(model).__name__} ran without a call of attention that could "
                "be reached. docs/tracing.md lists models that can be traced."
            )
        if not isinstance(score, Tensor) or not score.requires_grad:
            raise InputError(
                f"{operation}: the number that was asked for depends on no attention layer, or is "
                "no tensor with a gradient."
            )
        # Autograd takes what ran last first, so that layers are met in this order.
        torch.autograd.grad(score, leaves, allow_unused=True)


class _Mark(torch.autograd.Function):
    """The outputs of a layer as they are; on the way back, the layer is met.

    What is saved here within a block is saved, as all else of it, by its inputs alone: to ask for
    it computes the block again.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, receive: Receive, call: LayerCall, names: object, *own: Tensor
    ) -> Tensor:
        ctx.receive, ctx.call, ctx.names = receive, call, names
        ctx.save_for_backward(output, *own)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        release_memory()
        output, *own = ctx.saved_tensors
        call = ctx.call.changed(**dict(zip(ctx.names, own, strict=True)))
        ctx.receive(call, output.detach(), gradient.detach())
        return gradient, None, None, None, *(None for _ in own)


@contextmanager
def _recomputing(model: nn.Module) -> Iterator[None]:
    """Let the blocks of a model keep their inputs alone, and be computed again on the way back."""

    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **options: Any) -> Any:
            whole = functools.partial(forward, **options)
            output = checkpoint(whole, *args, use_reentrant=False, preserve_rng_state=False)
            release_memory()
            return output

        return run

    with ExitStack() as stack:
        for block in _blocks(model):
            own = vars(block)
            if "forward" in own:
                stack.callback(own.__setitem__, "forward", own["forward"])
            else:
                stack.callback(own.pop, "forward")
            own["forward"] = recomputed(block.forward)
        yield


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that a model is a stack of: members of its lists that hold attention."""
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
    """No gradients of parameters, nor a cache of keys, which a block would fill a second time."""
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
