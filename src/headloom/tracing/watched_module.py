"""How any module of torch is watched: each of its calls is a trace, or one for each input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import nn

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.verification import ON_ANOTHER_TEXT
from headloom.mechanism.graph import AttentionGraph
from headloom.tracing.arguments import Arguments
from headloom.tracing.hooks import Hook
from headloom.tracing.modules import (
    ModuleRun,
    around_of,
    as_recorded,
    attention_calls,
    named_arguments,
    nothing_seen,
    untouched_module,
)
from headloom.tracing.noticing import AttentionNotice
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.sources.source import excused
from headloom.tracing.sources.torch_functions import AttentionCalls
from headloom.tracing.verification import verify_prefix
from headloom.tracing.watched import Watched

__all__ = ["WatchedModule"]


class WatchedModule(Watched):
    """What a module of torch did: see `headloom.watch`."""

    def __init__(self, model: nn.Module, options: TraceOptions) -> None:
        super().__init__(model, options)
        self._run: ModuleRun | None = None
        self._home = get_ident()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the module while the block runs."""
        model = self._model
        fast = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
        if torch.backends.mha.get_fastpath_enabled() and any(
            isinstance(module, fast) for module in model.modules()
        ):
            raise InputError(
                f"watch: {type(model).__name__} has layers of torch with a fast path, which calls "
                "no attention function, rounds otherwise and leaves padding empty. Call "
                "torch.backends.mha.set_fastpath_enabled(False) first: the model then computes the "
                "same in the block as outside."
            )
        with ExitStack() as stack:
            notice, calls = stack.enter_context(
                attention_calls(model, self._options.keep, self._compute, self._take)
            )

            def begin(module: nn.Module, args: tuple[Any, ...], keywords: Arguments) -> None:
                self._enter(lambda: self._begin(notice, calls, args, keywords))

            before = model.register_forward_pre_hook(Hook(begin), with_kwargs=True)
            stack.callback(before.remove)
            after = model.register_forward_hook(Hook(lambda *_: self._finish(notice, calls)))
            stack.callback(after.remove)
            stopped = model.register_forward_hook(Hook(lambda *_: self._stop()), always_call=True)
            stack.callback(stopped.remove)
            yield
        self._warn(around_of(model))

    def _compute(self, call: LayerCall) -> None:
        if self._run is not None:
            with excused(self._excuse):
                self._run.recorder(call)
        else:
            self._unrecorded(call)

    def _take(self, call: LayerCall, graph: AttentionGraph) -> None:
        if self._run is not None and self._thread == get_ident():
            with excused(self._excuse):
                self._run.recorder.take(call, graph)
        else:
            self._unrecorded(call)

    def _drop(self) -> None:
        self._run = None

    def _begin(
        self, notice: AttentionNotice, calls: AttentionCalls, args: Any, keywords: Arguments
    ) -> None:
        """The module is called."""
        arguments, named = named_arguments(self._model, args, keywords)
        if self._verify is not False:
            calls.paused = True
            try:
                check = notice.unnoticed(self._check)
                self._verification = self._verified(lambda: check(arguments, named))
            finally:
                calls.paused, self._verify = False, False
        notice.clear()
        calls.refused.clear()
        asked = self._options
        self._run = ModuleRun(
            self._model, arguments, asked.keep, asked.layers, received=asked.received,
            strict=asked.verify is not False,
        )  # fmt: skip
        self._run.recorder.computes = False

    def _check(self, arguments: Arguments, named: bool) -> JsonMapping | None:
        """Verify the module on the first inputs that it is given."""
        if not named:
            return {"unverified": "its inputs have no names"}
        untouched = untouched_module(self._model, arguments, self._verify)
        if untouched is None:
            return None
        verify_prefix(untouched, as_recorded(self._model, self._options.keep))
        return untouched.report()

    def _finish(self, notice: AttentionNotice, calls: AttentionCalls) -> None:
        """Make traces of a call that has ended."""
        if self._verifying or self._run is None or self._thread != get_ident():
            return
        run, self._run = self._run, None
        if not run.recorder.paths:
            reason = nothing_seen(self._model, notice, calls)
            if self._thread != self._home:
                reason = (
                    f"{type(self._model).__name__} was called in another thread, whose functions "
                    "of torch are not seen. Enter the watch in the thread that calls the model."
                )
            self._unread[reason] = None
            return
        with excused(self._excuse):
            run.recorder.check()
            self.traces += run.traces(
                notice,
                calls.refused,
                self._options.tokenizer,
                self._options.queries_keys,
                self._verification,
            )
        if self._verification is not None:
            self._verification = ON_ANOTHER_TEXT

    def _stop(self) -> None:
        """A call ends, perhaps by an error: then it gives no trace."""
        if self._leave():
            self._run, self._thread = None, 0
