"""`watch`: trace every call of a model in a block of code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from headloom.errors import HeadloomError, InputError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import AttentionGraph, KeepLike, as_keep
from headloom.mechanism.received import LastQueries
from headloom.mechanism.watching import layers_of
from headloom.tracing.arguments import Arguments, Inputs, Tokenizer, cache_among, positions_in
from headloom.tracing.huggingface import TransformersReader, reader_of
from headloom.tracing.model_state import Hook, describe, uncompiled
from headloom.tracing.options import TraceOptions, Verify
from headloom.tracing.readers import Reader
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.session import Session
from headloom.tracing.recording.texts import Requests, Text
from headloom.tracing.sources.functions import Functions, recorded
from headloom.tracing.sources.source import excused
from headloom.tracing.sources.transformers import routes

_TWO_THREADS = (
    "two threads called it at once, and only the call that began first is in a trace; watch one "
    "thread at a time."
)


class Watched:
    """Traces of a watched model's calls: see `headloom.watch`.

    Args:
        reader: reads the model. options: of each trace.
        about: the description of the model in its traces.
        generation: set by `headloom.trace`: the arguments of the prompt and the options of
            `generate`; the model then continues with what headloom computes, and whatever cannot
            be traced is an error. None: a watch.
    """

    def __init__(
        self, reader: Reader, options: TraceOptions, about: JsonMapping,
        generation: Inputs | None = None,
    ) -> None:  # fmt: skip
        self._reader, self._options, self._about = reader, options, about
        self._generation = generation
        #: Traces of all texts so far, in order; a batch adds one for each input.
        self.traces: list[TraceData] = []
        #: Result of the verification before the run; None: not verified.
        self.verification: JsonMapping | None = None
        #: Called with the kind of work and the number of passes done.
        self.progress: Callable[[str, int], None] = lambda what, number: None
        self._session: Session | None = None
        self._text: Text | None = None
        self._requests: Requests | None = None
        self._arguments: Arguments = {}
        self._functions: Functions | None = None
        self._parts: list[nn.Module] = []
        #: The module that runs now (the model, its base or its encoder), and its thread.
        self._running: nn.Module | None = None
        self._thread = get_ident()
        self._passes = 0
        #: Whether the last text could not be traced; its continuation cannot either.
        self._lost = False
        #: Paths of layers that ran outside the model's own forward.
        self._outside: dict[str, None] = {}
        #: Reasons why a part of the run is in no trace.
        self._failures: dict[str, None] = {}

    @property
    def trace(self) -> TraceData:
        """Only trace.

        Raises: InputError: there is none, or there are several.
        """
        if len(self.traces) == 1:
            return self.traces[0]
        if self.traces:
            raise InputError(
                f"watch: there are {len(self.traces)} traces; expected one. `traces` holds all."
            )
        raise InputError(
            "watch: there is no trace; expected one. The model was not called in the block, or its "
            "attention could not be traced: see the warning."
        )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model while the block runs, then make its traces."""
        model: Any = self._reader.model
        self._parts = [model]
        if isinstance(self._reader, TransformersReader):
            self._parts.append(getattr(model, "base_model", model))
            if self._reader.is_pair:
                self._parts.append(model.get_encoder())
        with ExitStack() as stack:
            self._functions = stack.enter_context(
                recorded(model, self._options.keep, self._receive, self._take, self._excuse)
            )
            for part in dict.fromkeys(self._parts):
                before = part.register_forward_pre_hook(Hook(self._before), with_kwargs=True)
                after = part.register_forward_hook(Hook(self._after), always_call=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            yield
            self._finish()
        self._warn()

    # Calls

    def _receive(self, call: LayerCall) -> Tensor | None:
        recorder = self._requests if call.packed else self._session
        if self._is_inside(call) and recorder is not None:
            with excused(self._excuse):
                return recorder(call)
        return None

    def _take(self, call: LayerCall, graph: AttentionGraph) -> None:
        if self._is_inside(call) and self._session is not None:
            with excused(self._excuse):
                self._session.take(call, graph)

    def _is_inside(self, call: LayerCall) -> bool:
        """Return whether a call is inside the model's forward and thread; note it otherwise."""
        inside = self._running is not None and self._thread == get_ident()
        # In a backward pass, activation checkpointing runs a part of the model again.
        if self._running is None and torch._C._current_graph_task_id() == -1:
            self._outside[call.path] = None
        return inside

    def _excuse(self, error: Exception) -> bool:
        """Return whether to ignore an error, so that the model goes on untraced."""
        # In a backward pass, activation checkpointing ends a recomputation by an error.
        if self._generation is not None or torch._C._current_graph_task_id() != -1:
            return False
        ours = isinstance(error, HeadloomError)
        reason = str(error) if ours else f"{type(error).__name__}: {error}"
        self._failures[reason.removeprefix("trace: ")] = None
        self._lost, self._session = True, None
        return True

    # Passes

    def _before(self, module: nn.Module, args: tuple[object, ...], keywords: Inputs) -> None:
        """Begin a call of the model, its base or its encoder."""
        if self._running is not None:
            if self._thread != get_ident():
                self._failures[_TWO_THREADS] = None
            return
        self._running, self._thread = module, get_ident()
        with excused(self._excuse):
            self._begin(module, self._reader.called(args, keywords))

    def _begin(self, module: nn.Module, arguments: Arguments) -> None:
        if not isinstance(self._reader, TransformersReader):
            self._finish()
            self._lost = False
            self._session, self._arguments = Session(self._options, computes=False), arguments
            return
        cache, text = cache_among(arguments), self._text
        if "read_index" in arguments:
            if self._requests is None or self._requests.cache is not cache:
                self._finish()
                self._requests = Requests(cache, self._new_text)
            self._requests.new_pass(arguments)
            return
        whole = module in self._parts[:2]
        before = positions_in(cache) if whole else 0
        if before and self._lost:
            return
        # An encoder that has just run belongs to the decoder that reads its outputs.
        reads = text is not None and not text.decoded and "encoder_outputs" in arguments
        if self._session is None or text is None or not whole or not (before or reads):
            text = self._start(before)
        elif before > (text.length or before):
            raise InputError(
                f"its cache holds {before} positions, its text has {text.length}: it was copied or "
                "filled elsewhere. Trace the text that was generated."
            )
        if before:  # a thinned cache has fewer positions than its text
            before = text.length or before
        assert self._session is not None and self._functions is not None
        self._session.new_pass(before)
        text.new_pass(arguments, before, whole)
        passes = self._session.passes
        assert passes is not None
        # Hooks slow a step of one token: only the first step keeps them, unless attention came by a
        # function of torch instead of the interface.
        if len(passes.begins) <= 2:
            self._functions.start()
        elif not self._functions.called:
            self._functions.pause(self._parts)

    def _start(self, before: int) -> Text:
        """Begin a text."""
        self._finish()
        self._lost = False
        if before:
            raise InputError(
                "its cache was filled before the block began; call the model in the block from the "
                "first token on."
            )
        if self._generation is not None and self._passes:
            raise InputError(
                f"trace: {type(self._reader.model).__name__} generates without a cache: it reads "
                "the whole text again for every token, so that no token has a single row. Let it "
                "generate, and trace the text that it wrote."
            )
        self._session, self._text = self._new_text()
        return self._text

    def _new_text(self) -> tuple[Session, Text]:
        """Return a new text, and the session that records it."""
        session = Session(self._options, computes=self._generation is not None, joins=True)
        options = self._generation or {}
        defaults = getattr(self._reader.model, "generation_config", None)
        end, padding = (
            options.get(f"{name}_token_id", getattr(defaults, f"{name}_token_id", None))
            for name in ("eos", "pad")
        )
        assert isinstance(self._reader, TransformersReader)
        return session, Text(self._reader.is_pair, options, (end, padding))

    def _after(self, module: nn.Module, args: object, output: object) -> None:
        """End a call of the model, its base or its encoder."""
        if self._running is not module or self._thread != get_ident():
            return
        self._running = None
        if output is None and (self._session or self._requests) is not None:
            fail = self._excuse if self._requests is None else self._requests.fail
            fail(InputError("a call of it raised an error, so its text has no trace."))
        if module in self._parts[:2]:
            self.progress("of the text that is written", self._passes)
            self._passes += 1
        if not isinstance(self._reader, TransformersReader):
            self._finish()

    # Traces

    def _finish(self) -> None:
        """Make the traces of the last text, or of the last requests, if there are any."""
        session, text, requests = self._session, self._text, self._requests
        self._session = self._text = self._requests = None
        if session is not None:
            with excused(self._excuse), session:
                self._make(session, text, self._about)
        assert self._functions is not None
        for request in () if requests is None else requests.finished():
            with excused(self._excuse), request.session, self._functions.aside():
                request.check()
                self._make(request.session, request.text, {**self._about, "request": request.name})

    def _make(self, session: Session, text: Text | None, about: JsonMapping) -> None:
        functions, tokenizer = self._functions, self._options.tokenizer
        assert functions is not None
        if not session.paths:
            raise InputError(f"trace: {self._reader.nothing(functions)}")
        if text is None or not isinstance(self._reader, TransformersReader):
            names = self._reader.names(self._arguments, tokenizer, session.calls)
            assert names is not None
            session.begin(*names, about)
        else:
            names = self._reader.names(text.inputs(), tokenizer, None, text.prompt)
            session.begin(*names, about)
            session.make_joined()
        not_traced = functions.not_traced(
            session.paths, session.refused(), session.left_out, outside=self._outside
        )
        functions.clear()
        self.traces += session.end(not_traced, self.verification)

    def _warn(self) -> None:
        """Warn of layers that ran outside the model's calls, and of failures."""
        name, layers = type(self._reader.model).__name__, list(self._outside)
        if layers:
            what, remedy = "watch", "Call the model itself, or watch the part that is called."
            last = f" ... {layers[-1]}" if len(layers) > 1 else ""
            if self._generation is not None:
                what, remedy = "trace", "Without generate=, one pass traces them too."
            elif not isinstance(self._reader, TransformersReader):
                remedy = self._reader.around or remedy
            warnings.warn(
                f"{what}: {len(layers)} attention layer{'s' * (len(layers) > 1)} ran outside "
                f"{name}.forward, in no trace: {layers[0]}{last}. {remedy}",
                stacklevel=4,
            )
        if self._failures:
            warnings.warn(
                f"watch: {name} ran on, but a part of its attention is in no trace: "
                f"{' '.join(self._failures)}",
                stacklevel=4,
            )


@contextmanager
def watch(
    model: nn.Module,
    *,
    tokenizer: Tokenizer = None,
    keep: KeepLike = 32,
    queries_keys: bool = True,
    layers: Sequence[int | str] | None = None,
    description: JsonMapping | None = None,
    verify: Verify = None,
    received: bool | LastQueries = False,
) -> Iterator[Watched]:
    """Trace every call of a model in a block of code.

        with headloom.watch(model, tokenizer=tokenizer) as watched:
            model.generate(**inputs, max_new_tokens=20)
        watched.trace

    Every call of the model makes a trace; calls that continue with a cache add their rows to the
    trace before them, so that a generation is one trace: the rows of the prompt, and a row for each
    token that the model read. (It does not read the last token that it writes.) Each request of
    ``generate_batch`` is a trace, with its id in ``trace.model["request"]``. The model uses its own
    attention and is left unchanged; a warning names what cannot be traced. Rows of the passes 1, 2,
    4, 8 ... are compared with that attention. A beam search cannot be traced.

    Args:
        model: in evaluation mode: any torch module, as for `headloom.trace`; a model of
            Transformers must use its attention interface.
        tokenizer: see `headloom.trace`, as for keep, queries_keys, layers and received.
        keep: the edges kept of each query.
        queries_keys: whether to keep the queries and keys of each layer.
        layers: numbers or paths of the layers; None: all.
        description: of the model in the traces; None: its name, class and size.
        verify: False: rows that differ from the model's own attention are no error.
        received: whether to keep what each key receives.

    Yields: a `Watched`; each text's trace is in `traces` when the next text begins or the block
    ends.

    Raises: InputError: the model cannot be watched.
    """
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise InputError(
            f"watch: the model is in a {type(model).__name__}, which runs copies that cannot be "
            "watched. Watch and call the model itself, model.module."
        )
    reader = reader_of(model, "watch")
    inner = reader.model
    if isinstance(reader, TransformersReader) and not layers_of(inner) and not routes(inner):
        raise InputError(
            f"watch: {type(inner).__name__} does not use the attention interface of Transformers. "
            "Use headloom.trace."
        )
    if description is not None and not isinstance(description, Mapping):
        raise InputError(
            f"watch: description is {type(description).__name__}; expected a dict, or None."
        )
    edges = as_keep("watch", keep)
    options = TraceOptions(tokenizer, edges, queries_keys, layers, verify=verify, received=received)
    if inner.training:
        raise InputError(
            "watch: the model is in training mode, in which dropout makes it random. Call "
            "model.eval() first."
        )
    fast = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
    if torch.backends.mha.get_fastpath_enabled() and any(
        isinstance(module, fast) for module in inner.modules()
    ):
        raise InputError(
            f"watch: {type(inner).__name__} has torch layers with a fast path, which calls no "
            "attention function, rounds differently and leaves padding empty. Call "
            "torch.backends.mha.set_fastpath_enabled(False) first: the model then computes the "
            "same in the block as outside."
        )
    watched = Watched(reader, options, description or describe(inner))
    with uncompiled(), watched.watching():
        yield watched
