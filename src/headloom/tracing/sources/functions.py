"""Record attention calls among the torch functions that a model calls, and detect others.

A `TorchFunctionMode` intercepts every function; attention functions are sent to the session
(`torch_functions.py`). A module that computes attention in another way is detected by the name of
its class, by a softmax multiplied with values, or by a function with attention in its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from headloom.mechanism.attention_layer import AttentionLayer
from headloom.mechanism.function import attend, attention
from headloom.mechanism.graph import AttentionGraph, Keep
from headloom.mechanism.watching import named_modules
from headloom.tracing.arguments import Inputs
from headloom.tracing.model_state import Hook
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.graphs import UNKNOWN, unknown_layers
from headloom.tracing.sources.headloom_models import headloom_function
from headloom.tracing.sources.provenance import Provenance, flat
from headloom.tracing.sources.source import (
    Excuse,
    Modules,
    Receive,
    Receivers,
    all_sources,
    never,
    takes_attention,
)
from headloom.tracing.sources.torch_functions import FunctionCall, flex, fused_attention, heads

#: Torch functions in softmax(scores) V, by name.
_SOFTMAX = ("softmax", "_softmax", "_safe_softmax")
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum")
_QUOTIENTS = ("__truediv__", "__itruediv__", "div", "div_", "true_divide")
#: Reason why a module is not in a trace.
_OWN = "it computes attention itself, not by a function or layer that can be recorded"
#: Recorders of attention functions.
_HANDLERS: dict[object, Callable[[FunctionCall], object]] = {
    functional.scaled_dot_product_attention: fused_attention,
    functional.multi_head_attention_forward: heads,
    attention: headloom_function,
    attend: headloom_function,
}


@contextmanager
def recorded(
    model: nn.Module, keep: Keep, compute: Receive,
    take: Callable[[LayerCall, AttentionGraph], None], excuse: Excuse = never,
) -> Iterator[Functions]:  # fmt: skip
    """Send every attention call of a model, from all sources, while the block runs.

    Args: keep: the edges of each query. compute, take, excuse: see `Receivers`.
    Yields: the mode that intercepts the torch functions of the model.
    """
    modules = dict(named_modules(model))
    functions = Functions(modules, keep, compute, take)
    receivers = Receivers(functions.compute, functions.take, excuse, functions.aside)
    with ExitStack() as stack:
        stack.callback(functions.stop)
        for source in all_sources():
            if source.layers(modules):
                stack.enter_context(source.calls(modules, keep, receivers))
        for path, layer in unknown_layers(modules).items():
            refuse = partial(functions.refuse, path or type(layer).__name__, UNKNOWN)
            stack.callback(layer.register_forward_hook(refuse).remove)
        functions.start()
        yield functions


class Functions(TorchFunctionMode):
    """Mode that intercepts the torch functions called by the modules of a model.

    named: classes of the modules that ran and have attention in their name, by their paths.
    computed: classes of those that computed softmax(scores) V, or called torch's attention.
    refused: reasons why calls cannot be recorded, by the paths of modules.
    """

    def __init__(
        self, modules: Modules, keep: Keep, compute: Receive,
        take: Callable[[LayerCall, AttentionGraph], None],
    ) -> None:  # fmt: skip
        super().__init__()
        self._modules, self._model = modules, modules[""]
        self._compute, self._take = compute, take
        self.keep = keep
        self.named: dict[str, str] = {}
        self.computed: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        #: Paths of layers that computed their own graphs.
        self.taken: set[str] = set()
        #: Whether a call of a torch function was recorded.
        self.called = False
        self.provenance = Provenance()
        #: Tensors from which queries and keys are computed, if the module around a call has them.
        self.around: tuple[Tensor, Tensor] | None = None
        #: Paths of headloom's own layers, which have observers.
        self._observed = {
            path or type(module).__name__
            for path, module in modules.items()
            if isinstance(module, AttentionLayer)
        }
        self._active, self._aside = False, 0
        self._hooks: dict[nn.Module, list[RemovableHandle]] = {}
        #: Buffers of the model, cached: finding them walks through all modules.
        self._buffers: list[Tensor] = []
        #: The intercepted thread, and its running modules, innermost last.
        self._thread = get_ident()
        self._running: list[tuple[str, str]] = []
        #: Results of softmax, also scaled or reshaped, with their module and number of keys.
        self._weights = WeakIdKeyDictionary()

    def compute(self, call: LayerCall) -> Tensor | None:
        """Send a call to the session, without intercepting headloom's own functions."""
        by_layer = self._active and call.tracks is None and self._thread == get_ident()
        if by_layer:
            lengths = call.queries.shape[2], call.keys.shape[2]
            call.tracks = self.provenance.call(call.path, call.queries, call.keys, lengths)
        with self._suspended():
            output = self._compute(call)
        if by_layer:
            self.provenance.called(output)
        return output

    def take(self, call: LayerCall, graph: AttentionGraph) -> None:
        """Send a call computed by its layer to the session."""
        self.taken.add(call.path)
        with self._suspended():
            self._take(call, graph)

    def refuse(self, path: str, reason: str, *_: object) -> None:
        """Note a call that cannot be recorded."""
        self.refused[path] = reason

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        """Leave the mode while the block runs, unless another mode is inside it."""
        mode: Any = self if self._active and self._is_innermost() else nullcontext()
        with self.aside():
            mode.__exit__(None, None, None)
            try:
                yield
            finally:
                mode.__enter__()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Ignore all functions while the block runs, such as the model's own attention."""
        here = self._thread == get_ident()
        self._aside += here
        try:
            yield
        finally:
            self._aside -= here

    def where(self) -> str | None:
        """Return the path of the innermost running module (of the model, its class), or None."""
        if not self._running or self._thread != get_ident():
            return None
        path, name = self._running[-1]
        return path or name

    def clear(self) -> None:
        """Clear the notes when a new text begins."""
        for notes in (self.named, self.computed, self.refused):
            notes.clear()

    def start(self) -> None:
        """Intercept functions from now on."""
        if self._active or self._thread != get_ident():
            return
        self._active = True
        for path, module in self._modules.items():
            if module not in self._hooks and not isinstance(module, nn.Softmax):
                self._hooks[module] = list(self._hooked(path, module))
        mode: Any = self
        mode.__enter__()

    def pause(self, but: Collection[nn.Module] = ()) -> None:
        """Intercept nothing until `start`, but keep the hooks of modules that may be running."""
        # A mode of the user that was entered after this one must be left before it.
        if self._active and self._thread == get_ident() and self._is_innermost():
            self.stop(but)

    def _is_innermost(self) -> bool:
        innermost: Callable[[], object] = _get_current_function_mode
        return innermost() is self

    def stop(self, but: Collection[nn.Module] = ()) -> None:
        """Leave the mode, and remove the hooks."""
        if self._active:
            mode: Any = self
            mode.__exit__(None, None, None)
        self._active = False
        for module in [module for module in self._hooks if module not in but]:
            for hook in self._hooks.pop(module):
                hook.remove()

    def _hooked(self, path: str, module: nn.Module) -> Iterator[RemovableHandle]:
        """Yield hooks that note when a module runs."""
        running = path, type(module).__name__
        has_attention = takes_attention(running[1])

        def begin(module: nn.Module, args: object, keywords: object) -> None:
            if self._thread != get_ident():
                return
            if not self._running and module is self._model:
                if self._active:
                    self._buffers = list(module.buffers())
                self.provenance.begin((args, keywords), self._buffers)
            self._running.append(running)
            if has_attention and not self._aside:
                self.named[path] = running[1]

        def end(*_: object) -> None:
            if self._thread == get_ident():
                while self._running and self._running.pop() is not running:
                    pass

        yield module.register_forward_pre_hook(Hook(begin), with_kwargs=True)
        yield module.register_forward_hook(Hook(end), always_call=True)

    def __torch_function__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function, or record it if it computes attention."""
        kwargs = kwargs or {}
        if self._aside:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        handler = flex if name == "flex_attention" else _HANDLERS.get(func)
        path = None if handler is None else self.where()
        if handler is None or path is None or path in self._observed:
            result = func(*args, **kwargs)
            if self._running and path not in self._observed:
                self._note(name, func, args, kwargs, result)
        else:
            self.called = True
            result = handler(FunctionCall(self, path, func, args, kwargs))
        self.provenance.follow(name, (*args, *kwargs.values()), result)
        self.provenance.called(result)
        return result

    def _note(
        self, name: str, func: object, args: Sequence[object], kwargs: Inputs, result: object
    ) -> None:
        """Note whether an unrecorded function is a part of softmax(scores) V."""
        module = self._running[-1]
        if "attention" in name or func is attention or func is attend:
            self.computed[module[0]] = module[1]
        elif name in _SOFTMAX and isinstance(result, Tensor) and result.ndim > 1:
            axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            keys = result.shape[axis] if isinstance(axis, int) else result.shape[-1]
            self._weights[result] = module, keys
        elif self._weights:
            tensors = [part for part in flat(args) if isinstance(part, Tensor)]
            for place, tensor in enumerate(tensors):
                if tensor in self._weights:
                    others = tensors[:place] + tensors[place + 1 :]
                    self._follow(name, tensor, self._weights[tensor], others, result)

    def _follow(
        self, name: str, weights: Tensor, known: tuple[tuple[str, str], int], others: list[Tensor],
        result: object,
    ) -> None:  # fmt: skip
        """Follow weights until they are multiplied with computed values (not parameters)."""
        module, keys = known
        if name in _PRODUCTS:
            values = [
                other
                for other in others
                if other.ndim > 1 and keys in other.shape and not isinstance(other, nn.Parameter)
            ]
            if keys in weights.shape and values:
                self.computed[module[0]] = module[1]
        elif name in _QUOTIENTS and any(other.numel() > 1 for other in others):
            return  # gates and mixtures of streams are normalized again; weights are not
        elif isinstance(result, Tensor) and result.is_floating_point():
            # Slicing removes sinks; dropout and masks keep the number of cells.
            is_cut = name == "__getitem__" and result.ndim > 1
            if is_cut or result.numel() == weights.numel():
                self._weights[result] = module, result.shape[-1] if is_cut else keys

    def nothing_recorded(self) -> str:
        """Return the reason why nothing was recorded, and the remedy."""
        name = type(self._model).__name__
        if self.refused:
            path, reason = next(iter(self.refused.items()))
            return f"{name}: the attention of {path} cannot be recorded: {reason}."
        if self.computed:
            path, kind = next(iter(self.computed.items()))
            return (
                f"{name}: {path or 'it'} ({kind}) computes its softmax by hand, which cannot be "
                "traced. Let it call torch's scaled_dot_product_attention, or headloom.attention; "
                "many libraries have an option for that (flash, fused, sdpa). If you have its "
                "weights, use headloom.from_weights."
            )
        named = ", ".join(f"{path or 'it'} ({kind})" for path, kind in [*self.named.items()][:3])
        ran = f"; its {named} ran, and called none of them" if named else ""
        return (
            f"{name} called no attention function: torch's scaled_dot_product_attention, "
            f"nn.MultiheadAttention, flex_attention, or headloom.attention{ran}."
        )

    def not_traced(
        self, paths: Collection[str], refused: Mapping[str, str], left_out: Collection[str], *,
        outside: Collection[str] = (), returned: bool = False,
    ) -> list[dict[str, str]]:  # fmt: skip
        """Return the attention modules that ran but are in no trace, and warn of them.

        A module with attention in its name is part of a recorded module around it or inside it; of
        several unrecorded ones inside each other, the innermost is returned.

        Args:
            paths: of the modules whose calls were recorded.
            refused: reasons why recorded calls were not kept, by the paths of modules.
            left_out: paths of modules that were not requested; without a warning.
            outside: paths of modules that ran outside the model's calls; without a warning.
            returned: whether weights come from the outputs of modules, which may pass on the
                weights of inner modules.

        Returns: for each its "name" (path), its "class" and the "reason".
        """
        refused = {**refused, **self.refused}
        known = [*paths, *outside, *refused]
        whole = known if returned else [*self.taken, *refused]
        missing = [
            path
            for path in self.computed
            if not any(_is_inside(path, other) for other in whole)
            and not (returned and any(_is_inside(other, path) for other in whole))
        ]
        others = (*known, *self.computed)
        named = [
            path
            for path in self.named
            if not any(_is_inside(path, other) or _is_inside(other, path) for other in others)
        ]
        missing += [
            path
            for path in named
            if not any(other != path and _is_inside(other, path) for other in named)
        ]
        reasons = dict.fromkeys(missing, _OWN) | refused
        if reasons:
            shown = ", ".join(f"{path or 'the model itself'} ({self._class(path)})"
                              for path in list(reasons)[:3])  # fmt: skip
            more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            warnings.warn(
                f"{type(self._model).__name__}: attention ran and cannot be traced: {shown}{more}"
                f": {'; '.join(dict.fromkeys(reasons.values()))}. See the trace's not_traced.",
                stacklevel=4,
            )
        entries = [*reasons.items()]
        entries += [(path, "it ran outside the model's forward") for path in outside]
        entries += [(path, "it was not requested") for path in left_out]
        return [
            {"name": path, "class": self._class(path), "reason": reason} for path, reason in entries
        ]

    def _class(self, path: str) -> str:
        return type(self._modules[path]).__name__ if path in self._modules else path


def _is_inside(path: str, outer: str) -> bool:
    """Return whether a module is another one, or inside it, by their paths."""
    return not outer or path == outer or path.startswith(f"{outer}.")
