"""Notices the attention that runs in a model, so that none is missing from a trace without a word.

A module takes attention if the name of its class says so, or by what it computes: a softmax, called
or written out, whose result is multiplied with a matrix of values, softmax(scores) V, or a function
of torch that has attention in its name, one of `torch.ops.aten` too. Gates of experts, vocabularies
and samplers take a softmax as well, but multiply no values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident, local
from typing import Any, Literal, TypeVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.weak import WeakIdKeyDictionary

from headloom.mechanism.function import attend, attention
from headloom.mechanism.module_paths import named_modules
from headloom.tracing.hooks import Hook
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.headloom_models import reads_sequences
from headloom.tracing.sources.provenance import Provenance
from headloom.tracing.sources.transformers import is_transformers_model
from headloom.tracing.written_softmax import PRODUCTS, QUOTIENTS, WrittenSoftmax

__all__ = ["NOT_ASKED_FOR", "AttentionNotice", "noticing", "takes_attention", "untraced"]

#: Words in the names of classes that take attention, in small letters.
_WORDS = ("attention", "attn")
#: Why a layer is not in a trace of some layers.
NOT_ASKED_FOR = "it was not asked for"
_OWN = "it takes attention by itself, not by {}"
_OUTSIDE = "it ran outside of the model's forward"
#: What softmax(scores) V is made of: functions of torch by name, some of them without its checks.
_SOFTMAX = ("softmax", "_softmax", "_safe_softmax")

Result = TypeVar("Result")


def takes_attention(module: nn.Module) -> bool:
    """Whether the name of a module's class says that it takes attention."""
    name = type(module).__name__.lower()
    return any(word in name for word in _WORDS)


class _Running(local):
    """The modules that run in a thread, innermost last: path and class."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, str]] = []


class AttentionNotice(TorchFunctionMode):
    """Watches the functions of torch that the modules of a model call.

    named: classes of the modules whose names say attention and that ran, by their paths.
    computed: likewise of those that computed softmax(scores) V, or called torch's attention.

    Args:
        model: whose modules.
        told: whether another mode tells what is called, by `note`; the notice is then none itself.
    """

    def __init__(self, model: nn.Module, told: bool = False) -> None:
        super().__init__()
        self._model, self._told = model, told
        #: Whether it looks at what runs.
        self.looks = False
        #: The hooks of each module.
        self._hooks: dict[nn.Module, list[Any]] = {}
        self.named: dict[str, str] = {}
        self.computed: dict[str, str] = {}
        #: The thread whose functions are seen.
        self._thread = get_ident()
        self._of_thread = _Running()
        #: How many calls of headloom's own are under way.
        self._aside = 0
        #: Results of softmax, also scaled or reshaped: their module, and how many keys they have.
        self._weights: Any = WeakIdKeyDictionary()
        self._written = WrittenSoftmax()
        #: What tensors were computed from; whoever tells what is called follows that himself.
        self.provenance = Provenance()

    def where(self) -> str | None:
        """The path of the module that runs, the innermost; None: none does.

        The model itself, whose path is empty, is called by its class.
        """
        if not self._of_thread.modules:
            return None
        path, name = self._of_thread.modules[-1]
        return path or name

    @property
    def took_attention(self) -> bool:
        """Whether a module was noticed that takes attention."""
        return bool(self.named or self.computed)

    def clear(self) -> None:
        """Forget what ran, when a new text begins."""
        self.named.clear()
        self.computed.clear()

    def unnoticed(self, receive: Callable[..., Result]) -> Callable[..., Result]:
        """The same function, in which nothing is noticed: what headloom computes is headloom's.

        Where no mode of somebody else was entered after this one, this one is left meanwhile: each
        function of torch passes through it.
        """
        innermost: Callable[[], object] = _get_current_function_mode

        def called(*args: Any, **kwargs: Any) -> Result:
            mode: Any = self if self.looks and not self._told and innermost() is self else None
            call = args[0] if mode is not None and args else None
            if isinstance(call, LayerCall):
                lengths = call.queries.shape[2], call.keys.shape[2]
                call.tracks = self.provenance.call(call.path, call.queries, call.keys, lengths)
            self._aside += 1
            if mode is not None:
                mode.__exit__(None, None, None)
            try:
                result = receive(*args, **kwargs)
                if mode is not None:
                    self.provenance.called(result)
                return result
            finally:
                if mode is not None:
                    mode.__enter__()
                self._aside -= 1

        return called

    def look(self) -> None:
        """Look at what runs from now on."""
        if self.looks or self._thread != get_ident():
            return
        self.looks = True
        for path, module in named_modules(self._model):
            if module not in self._hooks:
                self._hooks[module] = list(self._hooked(path, module))
        if not self._told:
            mode: Any = self
            mode.__enter__()

    def look_away(self, but: Collection[nn.Module] = ()) -> None:
        """Look at nothing until `look`: a step of one token feels every hook, and the mode.

        but: modules that may be running, whose hooks stay.
        """
        if not self.looks or self._thread != get_ident():
            return
        innermost: Callable[[], object] = _get_current_function_mode
        # Somebody's own mode that was entered after this one must be left before it.
        if self._told or innermost() is self:
            self._stop(but)

    def end(self) -> None:
        """Look at nothing any more."""
        self._stop(())

    def _stop(self, but: Collection[nn.Module]) -> None:
        if self.looks and not self._told:
            mode: Any = self
            mode.__exit__(None, None, None)
        self.looks = False
        for module in [module for module in self._hooks if module not in but]:
            for hook in self._hooks.pop(module):
                hook.remove()

    def _hooked(self, path: str, module: nn.Module) -> Iterator[Any]:
        """Hooks that tell when a module runs; a softmax is part of the module around it."""
        if isinstance(module, nn.Softmax):
            return
        running, name = (path, type(module).__name__), type(module).__name__
        says_so = takes_attention(module)

        def begin(module: nn.Module, args: object, keywords: object) -> None:
            own = self._thread == get_ident() and not self._of_thread.modules
            if own and module is self._model:
                self.provenance.begin((args, keywords), module.buffers())
            self._of_thread.modules.append(running)
            if says_so and not self._aside:
                self.named[path] = name

        def end(*_: object) -> None:
            while self._of_thread.modules and self._of_thread.modules.pop() is not running:
                pass

        yield module.register_forward_pre_hook(Hook(begin), with_kwargs=True)
        yield module.register_forward_hook(Hook(end), always_call=True)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch, and look at what it was."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._aside:
            name = getattr(func, "__name__", "")
            self.provenance.pass_on(name, (*args, *kwargs.values()), result)
        self.note(func, args, kwargs, result)
        return result

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Look at a function of torch that was called, and at what it gave."""
        if self._of_thread.modules and not self._aside:
            name = getattr(func, "__name__", "")
            if "attention" in name or func is attention or func is attend:
                self._compute(self._of_thread.modules[-1])
            elif name in _SOFTMAX and isinstance(result, Tensor) and result.ndim > 1:
                axis = kwargs.get("dim", args[1] if len(args) > 1 else -1)
                keys = result.shape[axis] if isinstance(axis, int) else result.shape[-1]
                self._weights[result] = self._of_thread.modules[-1], keys
            elif self._weights or self._written.concerns(name):
                self._follow(name, args, kwargs, result)

    def _compute(self, module: tuple[str, str]) -> None:
        self.computed[module[0]] = module[1]

    def _follow(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Follow weights to where they are multiplied with values."""
        flat = [
            part for each in args for part in (each if isinstance(each, list | tuple) else (each,))
        ]
        tensors = [part for part in flat if isinstance(part, Tensor)]
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        written = self._written.note(name, tensors, axis, result, self._of_thread.modules[-1])
        if written is not None:
            module, keys = written
            if keys is None:
                self._compute(module)
            else:
                self._weights[result] = module, keys
            return
        for place, tensor in enumerate(tensors):
            known = self._weights.get(tensor)
            if known is None:
                continue
            module, keys = known
            if name in PRODUCTS:
                others = tensors[:place] + tensors[place + 1 :]
                if keys in tensor.shape and any(_are_values(other, keys) for other in others):
                    self._compute(module)
            elif name in QUOTIENTS and any(other.numel() > 1 for other in tensors[1:]):
                # Gates and mixtures of streams are normalised anew; weights are not.
                continue
            elif isinstance(result, Tensor) and result.is_floating_point():
                # Sinks are cut off, dropout and masks keep the number of cells.
                cut = name == "__getitem__" and result.ndim > 1
                if cut or result.numel() == tensor.numel():
                    self._weights[result] = module, result.shape[-1] if cut else keys


def _are_values(tensor: Tensor, keys: int) -> bool:
    """Whether a tensor may hold a value for each key: computed, not learned."""
    return tensor.ndim > 1 and keys in tensor.shape and not isinstance(tensor, nn.Parameter)


@contextmanager
def noticing(model: nn.Module, *, told: bool = False) -> Iterator[AttentionNotice]:
    """Notice the attention that runs in a model; what was noticed grows while it runs.

    told: see `AttentionNotice`.
    """
    notice = AttentionNotice(model, told)
    notice.look()
    try:
        yield notice
    finally:
        notice.end()


def untraced(
    model: nn.Module,
    notice: AttentionNotice,
    recorded: Collection[str],
    refused: Mapping[str, str],
    recorded_as: Literal["called", "computed", "returned"] = "called",
    left_out: Collection[str] = (),
    outside: Collection[str] = (),
) -> list[dict[str, str]]:
    """The attention modules that ran and are in no trace, with a warning that names them.

    Of modules whose names say attention, one around another that was recorded, or inside of one, is
    part of it, and of several around one another the innermost is named. A module that computes
    its own attention is named wherever it stands, unless the weights it returned were recorded.

    Args:
        model: what ran.
        notice: from `noticing`.
        recorded: paths of the modules whose calls were recorded.
        refused: why a call was recorded and not kept, by the paths of modules.
        recorded_as: what was recorded: calls that headloom computed; what modules computed by
            themselves; or weights that modules returned, which may be those of others inside.
        left_out: paths of those that were not asked for: named, but not in a warning.
        outside: paths of those that ran, but not in a call of the model: likewise.

    Returns: for each its "name" (path), its "class" and the "reason".
    """
    is_part = {"called": _never, "computed": _is_inside, "returned": _are_related}[recorded_as]
    computed = {
        path: kind
        for path, kind in notice.computed.items()
        if not any(is_part(path, known) for known in (*recorded, *outside))
    }
    named = {
        path: kind
        for path, kind in notice.named.items()
        if not any(_are_related(path, known) for known in (*recorded, *outside, *notice.computed))
    }
    usual = _usual(model)
    entries = [
        {"name": path, "class": kind, "reason": _OWN.format(usual)}
        for path, kind in (*computed.items(), *named.items())
        if path in computed or not any(other != path and _is_inside(other, path) for other in named)
    ]
    classes = {path: type(module).__name__ for path, module in named_modules(model)}
    entries += [
        {"name": path, "class": classes.get(path, path), "reason": reason}
        for path, reason in refused.items()
    ]
    if entries:
        shown = ", ".join(
            f"{entry['name'] or 'the model itself'} ({entry['class']})" for entry in entries[:3]
        )
        more = f" and {len(entries) - 3} more" if len(entries) > 3 else ""
        reasons = "; ".join(dict.fromkeys(entry["reason"] for entry in entries))
        count = f"{len(entries)} attention modules" if len(entries) > 1 else "an attention module"
        warnings.warn(
            f"{type(model).__name__}: {count} ran and cannot be traced: {shown}{more}: {reasons}. "
            "The trace names them in not_traced.",
            stacklevel=4,
        )
    return entries + [
        {"name": path, "class": classes.get(path, path), "reason": reason}
        for paths, reason in ((dict.fromkeys(outside), _OUTSIDE), (left_out, NOT_ASKED_FOR))
        for path in paths
    ]


def _usual(model: nn.Module) -> str:
    """What a module would have to compute with, to be traced."""
    if is_transformers_model(model):
        return "the interface of Transformers"
    return (
        "a layer of headloom"
        if reads_sequences(model)
        else "an attention function of torch or headloom"
    )


def _never(path: str, other: str) -> bool:
    return False


def _are_related(path: str, other: str) -> bool:
    """Whether a module is another, stands in it, or around it."""
    return _is_inside(path, other) or _is_inside(other, path)


def _is_inside(path: str, outer: str) -> bool:
    """Whether the path of a module is another's, or lies in it."""
    return not outer or path == outer or path.startswith(f"{outer}.")
