"""Running a model backward from a prediction, and meeting each attention layer on the way.

Of a long text, what all layers compute does not fit into memory at once. So the blocks of a model
keep their inputs alone, and each is computed again when the gradient gets there (Chen et al. 2016);
a layer's queries, keys and values are then there together with dy/do, are handed over, and let go.
Parameters get no gradients, and nothing is computed below the first layer's outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headloom.analysis.effects.head_outputs import Reached, reaching
from headloom.errors import InputError
from headloom.tracing.model_state import evaluation_mode, give_back

__all__ = ["Layer", "backward"]


@dataclass(frozen=True)
class Layer:
    """An attention layer that a model ran: as a trace names it, and (queries, keys)."""

    name: str
    kind: str
    shape: tuple[int, int]


def backward(
    model: nn.Module,
    measure: Callable[[Sequence[Layer]], Tensor],
    receive: Callable[[int, Reached, Tensor], None],
    *,
    operation: str,
    scoring: bool = False,
) -> None:
    """Run a model for one number, y; then meet its layers, the last one first.

    The model runs as in evaluation, without a cache, and is left as it was.

    Args:
        model: as for `headloom.analysis.effects.head_outputs.reaching`.
        measure: runs it, once or several times, and gives y; gets the list that its layers are
            added to in the order of the runs.
        receive: gets the number of each layer, from 0 in the order of the runs, what its heads gave
            and, with `scoring`, how its scores were made, and dy/do, (batch, heads, queries,
            value_depth). Layers that y does not depend on are not met.
        operation: who asks, for errors.

    Raises: InputError: no attention could be reached, or y depends on none.
    """
    meeting = _Meeting(receive)
    with (
        evaluation_mode(model),
        _frozen(model),
        _without_cache(model),
        meeting.recomputing(model),
        torch.enable_grad(),
        reaching(model, meeting.edit, operation=operation, scoring=scoring),
    ):
        score = measure(meeting.layers)
        if not meeting.layers:
            raise InputError(
                f"{operation}: {type(model).__name__} ran without a call of attention that could "
                "be reached. docs/tracing.md lists models that can be traced."
            )
        if not isinstance(score, Tensor) or not score.requires_grad:
            raise InputError(
                f"{operation}: the number that was asked for depends on no attention layer, or is "
                "no tensor with a gradient."
            )
        torch.autograd.grad(score, meeting.leaves, allow_unused=True)
    meeting.finish()


class _Meeting:
    """Keeps the calls of a run apart, and hands them over in order, the last one first."""

    def __init__(self, receive: Callable[[int, Reached, Tensor], None]) -> None:
        self.layers: list[Layer] = []
        #: Outputs that depend on nothing that has a gradient: where going backward ends.
        self.leaves: list[Tensor] = []
        self._receive = receive
        self._held: dict[int, Reached] = {}
        #: Met, but not yet handed over, since a later layer is not.
        self._waiting: dict[int, tuple[Reached, Tensor]] = {}
        self._next: int | None = None
        #: Within a block that runs for the first time, the numbers of its calls; again, these.
        self._first: list[int] | None = None
        self._again: Iterator[int] | None = None

    def edit(self, reached: Reached) -> Tensor:
        """Receive one call, of a first run or of one that is computed again."""
        output = reached.heads.output
        leaf = not output.requires_grad
        if leaf:
            output = output.detach().requires_grad_()
        detached = replace(
            reached,
            heads=replace(
                reached.heads,
                output=output.detach(),
                queries=reached.heads.queries.detach(),
                keys=reached.heads.keys.detach(),
                values=reached.heads.values.detach(),
            ),
        )
        if self._again is not None:
            number = next(self._again)
            self._held[number] = detached
            return self._marked(output, number)
        number = len(self.layers)
        queries, keys = reached.heads.queries.shape[2], reached.heads.keys.shape[2]
        self.layers.append(Layer(reached.path, reached.kind, (queries, keys)))
        if self._first is None:
            self._held[number] = detached
        else:
            self._first.append(number)
        if leaf:
            self.leaves.append(output)
        return self._marked(output, number)

    def _marked(self, output: Tensor, number: int) -> Tensor:
        marked: Tensor = _Mark.apply(output, self, number)  # type: ignore[no-untyped-call]
        return marked

    def meet(self, number: int, gradient: Tensor) -> None:
        """The gradient has come to the outputs of a layer."""
        self._waiting[number] = self._held.pop(number), gradient.detach()
        if self._next is None:
            self._next = len(self.layers) - 1
        while self._next in self._waiting:
            self._receive(self._next, *self._waiting.pop(self._next))
            self._next -= 1

    def finish(self) -> None:
        """Hand over those that waited for layers that no gradient came to."""
        for number in sorted(self._waiting, reverse=True):
            self._receive(number, *self._waiting.pop(number))

    @contextmanager
    def recomputing(self, model: nn.Module) -> Iterator[None]:
        """Let blocks keep their inputs alone, and be computed again on the way back."""
        with ExitStack() as stack:
            for block in _blocks(model):
                own = vars(block).get("forward")
                if own is None:
                    stack.callback(vars(block).pop, "forward")
                else:
                    stack.callback(vars(block).__setitem__, "forward", own)
                vars(block)["forward"] = self._recomputed(block.forward)
            yield

    def _recomputed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **options: Any) -> Any:
            if self._first is not None or self._again is not None:
                return forward(*args, **options)
            numbers: list[int] = []

            def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return self._running(numbers), self._running_again(numbers)

            return checkpoint(
                functools.partial(forward, **options),
                *args,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=contexts,
            )

        return run

    @contextmanager
    def _running(self, numbers: list[int]) -> Iterator[None]:
        self._first = numbers
        try:
            yield
        finally:
            self._first = None
            give_back()

    @contextmanager
    def _running_again(self, numbers: list[int]) -> Iterator[None]:
        give_back()
        self._again = iter(numbers)
        try:
            yield
        finally:
            self._again = None


class _Mark(torch.autograd.Function):
    """The outputs of a layer as they are; on the way back, the layer is met."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, meeting: _Meeting, number: int) -> Tensor:
        ctx.meeting, ctx.number = meeting, number
        ctx.save_for_backward(output.new_empty(0))
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # Whatever is saved of a block is computed again once it is asked for: now, at the latest.
        _ = ctx.saved_tensors
        ctx.meeting.meet(ctx.number, gradient)
        return gradient, None, None


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that a model is a stack of: members of its lists that hold attention."""
    found: dict[int, nn.Module] = {}
    inside: set[int] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or id(module) in inside:
            continue
        for block in module:
            if any("Attention" in type(part).__name__ for part in block.modules()):
                found[id(block)] = block
        inside.update(id(part) for part in module.modules())
    return list(found.values())


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """No gradients of parameters, nor what they would need to be kept."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, was in before:
            parameter.requires_grad_(was)


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """No cache of keys, unless a call asks for one: a block would fill it again on the way back."""
    configs = {
        id(config): config for m in model.modules() if (config := getattr(m, "config", None))
    }
    using = [config for config in configs.values() if getattr(config, "use_cache", False) is True]
    try:
        for config in using:
            config.use_cache = False
        yield
    finally:
        for config in using:
            config.use_cache = True
