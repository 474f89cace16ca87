"""`Watched`: what a model did while it was watched; and how headloom's own models are."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from headloom.errors import HeadloomError, InputError, VerificationError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.formats.verification import ON_ANOTHER_TEXT
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.watching import watching as observing
from headloom.tracing.arguments import Arguments
from headloom.tracing.description import describe
from headloom.tracing.hooks import Hook, StandIn
from headloom.tracing.model_state import without_hooks
from headloom.tracing.noticing import AttentionNotice, noticing, untraced
from headloom.tracing.options import TraceOptions, Verify
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.passes import Passes
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.sources.headloom_models import (
    LayerObserver,
    as_inputs,
    longest_of,
    named_sequences,
    sequences_of,
)
from headloom.tracing.sources.source import excused
from headloom.tracing.verification import verify_own

__all__ = ["TWO_THREADS", "Watched", "WatchedHeadloomModel"]


#: What is said where only one of two calls can be recorded.
TWO_THREADS = (
    "two threads called it at once, and only the call that began first is in a trace; watch one at "
    "a time."
)


class Watched:
    """What a watched model did: see `headloom.watch`."""

    def __init__(self, model: nn.Module, options: TraceOptions) -> None:
        self._model, self._options = model, options
        #: False from when the model is verified, or where that is not wanted.
        self._verify: Verify = options.verify
        self._verifying = False
        self._verification: JsonMapping | None = None
        #: Paths of layers that ran outside of the model's own forward.
        self._outside: list[str] = []
        #: Why something that the model did is in no trace.
        self._unread: dict[str, None] = {}
        #: The thread of each call of the model that is under way, and of that which is recorded.
        self._calling: list[int] = []
        self._thread = 0
        #: Threads whose generation began while another was recorded: none of its passes is.
        self._aside: set[int] = set()
        #: Held while a call begins, and is verified.
        self._lock = RLock()
        #: Whether the last text could not be traced: what goes on with it neither.
        self._lost = False
        #: The traces of all texts so far, in order; those of a batch one after the other.
        self.traces: list[TraceData] = []

    def _unrecorded(self, call: LayerCall) -> None:
        """Note a call outside of the model's own forward."""
        # Where gradients are computed a checkpoint of activations runs a part of the model again.
        if get_ident() not in self._calling and torch._C._current_graph_task_id() == -1:
            self._outside.append(call.path)

    def _excuse(self, error: Exception) -> bool:
        """Whether the model goes on, as without headloom, though something of it cannot be
        traced.
        """
        # While gradients are computed, checkpoints of activations end their runs by an error.
        if torch._C._current_graph_task_id() != -1:
            return False
        reason = (
            str(error) if isinstance(error, HeadloomError) else f"{type(error).__name__}: {error}"
        )
        self._unread[reason.removeprefix("trace: ")] = None
        self._lost = True
        self._drop()
        return True

    def _drop(self) -> None:
        """Record no more of the text that is read."""

    def _enter(self, begin: Callable[[], None]) -> None:
        """A call of the model begins; one in another thread waits while this one is verified."""
        with self._lock:
            if self._verifying:
                return
            self._calling.append(get_ident())
            if self._thread not in (0, get_ident()) or get_ident() in self._aside:
                self._unread[TWO_THREADS] = None
                return
            self._thread = get_ident()
            with excused(self._excuse):
                begin()

    def _leave(self) -> bool:
        """A call of the model ends; whether it is the one that is recorded."""
        if self._verifying:
            return False
        if get_ident() in self._calling:
            self._calling.remove(get_ident())
        return self._thread == get_ident()

    def _verified(self, verify: Callable[[], JsonMapping | None]) -> JsonMapping | None:
        """What a trace says of how the model was verified, before its call begins.

        The model then runs without the hooks of others, which are to be called as often as without
        headloom; one that cannot is left unverified.

        Raises: VerificationError: something differs by more than rounding explains.
        """
        if any(thread != get_ident() for thread in self._calling):
            return {"unverified": "another thread was calling the model"}
        self._verifying = True
        try:
            with without_hooks(self._model):
                return verify()
        except VerificationError:
            raise
        except Exception as error:
            return {"unverified": f"a run of its own, without hooks and cache, failed: {error}"}
        finally:
            self._verifying = False

    def _warn(self, remedy: str | None = None, operation: str = "watch") -> None:
        """Warn of what is in no trace: layers outside of the model's calls, and what failed."""
        name, layers = type(self._model).__name__, list(dict.fromkeys(self._outside))
        if layers:
            count = len(layers)
            warnings.warn(
                f"{operation}: {count} attention layer{'s' * (count > 1)} ran outside of "
                f"{name}.forward and {'are' if count > 1 else 'is'} in no trace: {layers[0]}"
                f"{' ... ' + layers[-1] if count > 1 else ''}. "
                + (remedy or "Call the model itself, or watch the part that is called."),
                stacklevel=4,
            )
        if self._unread:
            warnings.warn(
                f"watch: {name} went on as without headloom, and not all of it is in a trace: "
                f"{' '.join(self._unread)}",
                stacklevel=4,
            )

    @property
    def trace(self) -> TraceData:
        """The only trace.

        Raises: InputError: there is none, or there are several.
        """
        if len(self.traces) != 1:
            if not self.traces:
                raise InputError(
                    "watch: there is no trace; expected one. The model was not called in the "
                    "block, or a warning says why its attention was not seen."
                )
            raise InputError(
                f"watch: there are {len(self.traces)} traces; expected one. All of them are in "
                "`traces`."
            )
        return self.traces[0]


@dataclass(eq=False)
class _Text:
    """The passes of a model over one batch of texts, and the ids of each pass by their names."""

    recorder: CallRecorder
    passes: Passes
    ids: list[Mapping[str, Tensor]]


class WatchedHeadloomModel(Watched):
    """What a model made of headloom's attention layers did."""

    def __init__(self, model: nn.Module, options: TraceOptions) -> None:
        super().__init__(model, options)
        self._observer = LayerObserver(model, Top(0), self._receive)
        self._text: _Text | None = None
        self._running = False
        self._notice: AttentionNotice | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model while the block runs; afterwards the traces are there."""
        model = self._model
        with ExitStack() as stack:
            if not hasattr(model, "outputs"):  # somebody's own, which may attend in other ways too
                self._notice = stack.enter_context(noticing(model))
            stack.enter_context(observing(model, self._observer))
            before = model.register_forward_pre_hook(Hook(self._before), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(model.register_forward_hook(Hook(lambda *_: self._after())).remove)
            stopped = model.register_forward_hook(Hook(lambda *_: self._stop()), always_call=True)
            stack.callback(stopped.remove)
            step, start = getattr(model, "step", None), getattr(model, "start", None)
            # A language model; a translator's steps look at a source too.
            if step is not None and start and not inspect.signature(start).parameters:
                stack.callback(vars(model).pop, "step", None)
                vars(model)["step"] = StandIn(model, "step", self._stepping(step))
            yield
            self._finish()
        self._warn()

    def _receive(self, call: LayerCall, graph: AttentionGraph) -> None:
        if not self._running:
            self._unrecorded(call)
        elif self._text is not None and self._thread == get_ident():
            with excused(self._excuse):
                self._text.recorder.take(call, graph)

    def _before(self, module: nn.Module, args: tuple[Any, ...], keywords: Arguments) -> None:
        def begin() -> None:
            bound = inspect.signature(self._model.forward).bind(*args, **keywords)
            self._begin(sequences_of(as_inputs(self._model, bound.arguments)), 0)

        self._enter(begin)

    def _drop(self) -> None:
        self._text = None

    def _after(self) -> None:
        if not self._verifying and self._thread == get_ident():
            self._finish()

    def _stop(self) -> None:
        """A call of the model ends, perhaps by an error: then it gives no trace."""
        if self._leave():
            self._running, self._text, self._thread = False, None, 0

    def _stepping(self, step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The model's `step`, watched."""
        name = next(iter(inspect.signature(self._model.forward).parameters))

        def watched(tokens: Tensor, state: Any) -> Tensor:
            self._enter(lambda: self._begin({name: tokens}, state.position))
            try:
                return step(tokens, state)
            finally:
                if self._leave():
                    self._running, self._thread = False, 0

        return watched

    def _begin(self, ids: Mapping[str, Tensor], position: int) -> None:
        """The model begins a pass, after so many positions of its text."""
        self._running = True
        if self._lost and position:
            return
        self._lost = False
        if self._text is None or not position:
            self._finish()
            self._check(ids)
            passes = Passes()
            options = self._options
            recorder = CallRecorder(
                passes, options.keep, options.layers, passes.are_verified,
                options.verify is not False, new_keys=passes.new_keys,
            )  # fmt: skip
            self._text = _Text(recorder, passes, [])
        longest = position + longest_of(ids)
        self._observer.keep = self._text.recorder.places(longest)
        self._text.recorder.new_pass()
        self._text.passes.new_pass(position)
        self._text.ids.append({name: part.detach().cpu() for name, part in ids.items()})

    def _check(self, ids: Mapping[str, Tensor]) -> None:
        """Verify the model on the first text that it reads."""
        if self._verify is not False:
            self._verification = self._verified(
                lambda: verify_own(self._model, ids, self._options.keep, self._verify)
            )
            self._verify = False

    def _finish(self) -> None:
        """Make traces of the last text, if there was one."""
        text, self._text = self._text, None
        if text is not None:
            with excused(self._excuse):
                self._make(text)

    def _make(self, text: _Text) -> None:
        text.recorder.check()
        first = text.ids[0]
        ids = {name: torch.cat([part[name] for part in text.ids], 1) for name in first}
        prompt = next(iter(first.values())).shape[1] if len(text.ids) > 1 else None
        sequences = named_sequences(self._model, ids, self._options.tokenizer, prompt)
        samples, asked = len(next(iter(ids.values()))), self._options
        made = LayerMaker(sequences, samples, asked.queries_keys, asked.received_last)
        for call in text.passes.joined():
            made(call)
        if self._notice is not None:
            paths, left_out = text.recorder.paths, text.recorder.left_out
            made.finish(
                untraced(
                    self._model, self._notice, paths, made.refused, "computed", left_out=left_out
                )
            )
            self._notice.clear()
        self.traces += made.traces(describe(self._model), self._verification)
        if self._verification is not None:
            self._verification = ON_ANOTHER_TEXT
