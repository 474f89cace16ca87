"""`watch`: trace whatever a model does in a block of code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import get_ident
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import writing_trace
from headloom.formats.verification import ON_ANOTHER_TEXT
from headloom.mechanism.backends.compiled import beside_a_thread
from headloom.mechanism.graph import Keep, Top
from headloom.mechanism.received import LastQueries
from headloom.mechanism.watching import layers_of
from headloom.tracing.arguments import CACHES, Arguments, Inputs, cache_among, positions_in
from headloom.tracing.description import describe
from headloom.tracing.first_pass import FirstPass
from headloom.tracing.hooks import Hook, StandIn
from headloom.tracing.inputs import batch_of
from headloom.tracing.model_state import as_written, recording_alone, unwrapped
from headloom.tracing.modules import check_visible
from headloom.tracing.noticing import AttentionNotice, noticing, untraced
from headloom.tracing.options import TraceOptions, Verify, check_keep, checked_layers
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.layers import LayerMaker
from headloom.tracing.recording.sequences import Sequences
from headloom.tracing.sources.headloom_models import reads_sequences
from headloom.tracing.sources.source import excused
from headloom.tracing.sources.transformers import (
    check_recorded,
    is_transformers_model,
    put_back,
    routed,
    routes,
    transformers,
    without_peft,
)
from headloom.tracing.verification import verify_transformer
from headloom.tracing.watched import TWO_THREADS, Watched, WatchedHeadloomModel
from headloom.tracing.watched_module import WatchedModule
from headloom.tracing.watched_text import WatchedText

__all__ = ["WatchedTransformer", "watch", "watching"]

#: How the names of the arguments begin that hold images.
_OF_IMAGES = ("pixel_", "image_", "batch_num_images")


class WatchedTransformer(Watched):
    """What a model of Transformers did."""

    def __init__(
        self,
        model: nn.Module,
        options: TraceOptions,
        description: JsonMapping | None,
        offsets: list[list[int]] | None = None,
    ) -> None:
        super().__init__(model, options)
        #: Whether a layer that differs from the model's own attention is an error.
        self._strict = options.verify is not False
        self._offsets = offsets
        self._description = dict(description or describe(model))
        self._current: WatchedText | None = None
        #: The model, its base or its encoder, while it runs; and whether it generates.
        self._inside: nn.Module | None = None
        self._generates = False
        self._passes = 0
        self._one_text, self._texts = False, 0
        #: What verifies the first pass, until it is done.
        self._first: FirstPass | None = None
        #: Attention that has run since the last text began.
        self.notice = AttentionNotice(model)
        #: Whether it looks at passes that are verified alone.
        self._resting = False
        #: The model, its base and its encoder: what passes are calls of.
        self.parts: list[nn.Module] = []
        self._caches: list[Any] = []
        #: The one that the last pass went on with.
        self._cache: Any = None
        #: What `generate` was given of images, while it runs.
        self._images: Arguments = {}
        self._asked: tuple[int | None, Tensor | None] = None, None
        #: What ends a text of `generate`, and what fills it up, while it runs.
        self._ends: tuple[Any, int | None] | None = None
        #: Told what the model does, and how many passes are done.
        self.progress: Callable[[str, int], None] = lambda what, number: None

    def expect_one_text(self, verified: JsonMapping | FirstPass | None) -> None:
        """All that the model does is one text, verified before or in its first pass."""
        self._one_text, self._verify = True, False
        self._first = verified if isinstance(verified, FirstPass) else None
        self._verification = None if isinstance(verified, FirstPass) else verified

    def _receive(self, call: LayerCall) -> Tensor | None:
        if self._inside is None:
            self._unrecorded(call)
        elif self._current is not None and self._thread == get_ident():
            with excused(self._excuse):
                return self._current.recorder(call)
        return None

    def _excuse(self, error: Exception) -> bool:
        # What headloom itself runs, for a trace, breaks.
        return not self._one_text and super()._excuse(error)

    def _drop(self) -> None:
        self._current = None

    def _start(self) -> WatchedText:
        self._finish()
        if self._one_text and self._texts:
            raise InputError(
                f"trace: {type(self._model).__name__} reads its whole text anew for every token "
                "that it writes, without a cache, so that no token has a row of its own. Let it "
                "generate, and trace the text that it wrote."
            )
        self._texts += 1
        options = self._options
        self._current = WatchedText(
            options.keep, options.layers, self._strict,
            options.queries_keys or options.received_last is not None, options.save,
        )  # fmt: skip
        self._current.recorder.computes = self._one_text
        self._current.images = self._images
        self._current.asked, self._current.asked_mask = self._asked
        self._current.ends = self._ends
        return self._current

    def _finish(self) -> None:
        """Make traces of the last text."""
        text, self._current = self._current, None
        if text is not None and text.passes.passes:
            with excused(self._excuse):
                self._make(text)

    def _make(self, text: WatchedText) -> None:
        check_recorded(self._model, text.recorder.paths, self.notice.took_attention)
        text.recorder.check()
        beams = text.beams
        inputs = text.inputs(self._model, beams)
        samples = batch_of(inputs)
        sequences = Sequences(
            self._model, inputs, self._options.tokenizer, self._offsets, text.prompt
        )
        options = self._options
        maker = LayerMaker(sequences, samples, options.queries_keys, options.received_last)
        recorder = text.recorder
        with ExitStack() as stack:
            if options.save is not None:
                # One layer is made while a thread writes the one before.
                stack.enter_context(beside_a_thread())
                maker.writer = stack.enter_context(
                    writing_trace(
                        options.save, {}, self._description, dtype=options.dtype,
                        overwrite=options.overwrite,
                    )
                )  # fmt: skip
                maker.writer.verification = self._verification
            for call in text.passes.joined(beams):
                maker(call)
            maker.finish(
                untraced(
                    self._model, self.notice, recorder.paths, maker.refused,
                    left_out=recorder.left_out, outside=self._outside,
                )
            )  # fmt: skip
        self.notice.clear()
        if options.save is None:
            self.traces.extend(maker.traces(self._description, self._verification))
        else:
            self.traces.append(TraceData.open(options.save))
        if self._verification is not None and not self._one_text:
            self._verification = ON_ANOTHER_TEXT if self._verify is False else None

    def _check(self, arguments: Inputs, before: int, part: nn.Module) -> None:
        """Verify the model on the first text that it reads, and its encoder on what that reads."""
        encodes = not self._is_model(part)
        if self._verify is False:
            return
        if before:
            self._verification = {"unverified": "it began with a cache that was filled before"}
            return
        # The run that is verified fills no cache of the model's, nor has a mask made for one.
        inputs = {
            name: value
            for name, value in arguments.items()
            if name not in CACHES and not _is_of_a_cache(name, value, arguments)
        }
        mask = self._asked[1]
        if "attention_mask" not in inputs and mask is not None:
            ids = inputs.get("input_ids")
            if isinstance(ids, Tensor) and ids.shape == mask.shape:
                inputs["attention_mask"] = mask.to(ids.device)

        def verify() -> JsonMapping | None:
            with put_back(self._model):
                return self.notice.unnoticed(verify_transformer)(
                    self._model, inputs if encodes else {**inputs, "use_cache": False},
                    self._options.keep, self._verify, part=part,
                )  # fmt: skip

        report, known = self._verified(verify), self._verification
        if not encodes:
            self._verify = False
        if known and report and "unverified" not in {**known, **report}:
            # Of the encoder, before.
            report = dict(report)
            report["layers"] += known["layers"]
            for name in ("difference", "weights"):
                report[name] = max((n for n in (report[name], known[name]) if n is not None),
                                  default=None)  # fmt: skip
        self._verification = report

    # Hooks

    def _is_model(self, module: nn.Module) -> bool:
        """Whether a module is the model, or its base: not its encoder alone."""
        return module is self._model or module is getattr(self._model, "base_model", None)

    def before(self, module: nn.Module, args: tuple[Any, ...], keywords: Arguments) -> None:
        """The model, its base or its encoder is called."""
        self._enter(lambda: self._begin(module, args, keywords))

    def _begin(self, module: nn.Module, args: tuple[Any, ...], keywords: Arguments) -> None:
        if self._inside is not None:
            return
        self._inside = module
        arguments = dict(keywords)
        if args and isinstance(args[0], Tensor):
            arguments.setdefault(getattr(self._model, "main_input_name", "input_ids"), args[0])
        cache = cache_among(arguments)
        if cache is not None and not hasattr(cache, "get_seq_length"):
            self._finish()
            raise InputError(
                f"its cache, a {type(cache).__name__}, does not say how many positions it holds; "
                "generate without it, as by model.generate."
            )
        whole = self._is_model(module)
        before = positions_in(cache) if whole else 0
        if self._lost and before and cache is self._cache:
            return
        self._lost = False
        text = self._current
        # An encoder that has just run belongs to the decoder that reads what it gave.
        reads = text is not None and not text.decoded and "encoder_outputs" in arguments
        goes_on = before and (cache is self._cache or text is None or text.goes_on_from(before))
        if text is None or not whole or not (goes_on or reads):
            text = self._start()
        self._check(arguments, before, module)
        text.new_pass(arguments, before, model=whole)
        if text.passes.are_verified():
            self.notice.look()
        else:
            self._resting = True
            self.notice.look_away(self.parts)
        self._watch_cache(cache)
        if self._first is not None:
            self._first.begin(module, text, self.notice)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """A call of one of them ends."""
        if self._leave() and module is self._inside:
            self._inside = None
            self._thread = get_ident() if self._generates else 0
            with excused(self._excuse):
                self._end(module, output)

    def _end(self, module: nn.Module, output: Any) -> None:
        first = self._first
        if output is None and not self._one_text and self._current is not None:
            self._excuse(InputError("a call of it ended by an error, and its text has no trace."))
        if first is not None and output is not None:
            self._first, self._verifying = None, True
            self._verification = first.end()
            self._verifying = False
        if self._resting:
            self.notice.look_away(self.parts)
        if self._is_model(module):
            made = cache_among(output) if isinstance(output, Mapping) else None
            if made is not None:
                # By the model, which was given none: it may be reordered before the next pass.
                self._watch_cache(made)
            self.progress("of the text that is written", self._passes)
            self._passes += 1

    def _watch_cache(self, cache: Any) -> None:
        """Be told when a cache is reordered or cropped between two passes.

        As by beam search, and where candidates of a smaller model are not accepted.
        """
        self._cache = cache
        if cache is None or any(cache is other for other in self._caches):
            return

        def reorder_cache(own: Any, beam_idx: Tensor) -> Any:
            self._change(own, lambda text: text.passes.reorder(beam_idx))
            return type(own).reorder_cache(own, beam_idx)

        def batch_select_indices(own: Any, indices: Tensor) -> Any:
            self._change(own, lambda text: text.passes.reorder(indices))
            return type(own).batch_select_indices(own, indices)

        def crop(own: Any, *args: Any, **keywords: Any) -> Any:
            result = type(own).crop(own, *args, **keywords)
            self._change(own, lambda text: text.crop(positions_in(own), self._pair))
            return result

        for function in (reorder_cache, batch_select_indices, crop):
            if hasattr(type(cache), function.__name__):
                # A method of this cache: that of a copy is one of the copy.
                vars(cache)[function.__name__] = MethodType(function, cache)
        self._caches.append(cache)

    def _change(self, cache: Any, change: Callable[[WatchedText], None]) -> None:
        """Let the text follow a change of its cache."""
        if self._current is not None and cache is self._cache:
            with excused(self._excuse):
                change(self._current)

    def warn(self) -> None:
        """Warn of what is in no trace."""
        if self._one_text:
            self._warn("Without generate=, one pass traces them too.", "trace")
        else:
            self._warn()

    def leave(self) -> None:
        """Leave the caches, and a model that has failed, as they were."""
        if self._first is not None:
            self._first.leave()
        for cache in self._caches:
            for name in ("reorder_cache", "batch_select_indices", "crop"):
                vars(cache).pop(name, None)
        self._caches.clear()
        self._cache = None

    @property
    def _pair(self) -> bool:
        """Whether the model reads a source and writes a target."""
        return bool(getattr(self._model.config, "is_encoder_decoder", False))

    @property
    def _generates_plainly(self) -> bool:
        """Whether the model's `generate` is the library's, not one of its own, as Whisper's is."""
        own = type(self._model).generate  # type: ignore[attr-defined]
        return bool(own is transformers().GenerationMixin.generate)

    def _asked_of(
        self, args: tuple[Any, ...], keywords: Inputs
    ) -> tuple[int | None, Tensor | None]:
        """How many tokens `generate` goes on from, and their mask; None: not known, or none."""
        if self._pair:
            given = "decoder_input_ids" in keywords or not self._generates_plainly
            return None if given else 1, None
        ids = keywords.get("input_ids", keywords.get("inputs", args[0] if args else None))
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
            return None, None
        mask = keywords.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.shape != ids.shape:
            return ids.shape[1], None
        return ids.shape[1], mask.detach().cpu()

    def generating(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """The model's `generate`, which tells which beams it returns."""

        def watched(*args: Any, **keywords: Any) -> Any:
            with self._lock:
                others = self._thread not in (0, get_ident())
                if not others:
                    self._thread, self._generates = get_ident(), True
            if others:
                self._unread[TWO_THREADS] = None
                self._aside.add(get_ident())
                try:
                    return generate(*args, **keywords)
                finally:
                    self._aside.discard(get_ident())
            self._images = {
                name: value
                for name, value in keywords.items()
                if name.startswith(_OF_IMAGES) and isinstance(value, Tensor)
            }
            self._asked = self._asked_of(args, keywords)
            self.notice.look()
            try:
                return run(*args, **keywords)
            finally:
                self._images, self._asked, self._ends = {}, (None, None), None
                self._thread, self._generates = 0, False
                if self._resting:
                    self.notice.look_away(self.parts)

        def run(*args: Any, **keywords: Any) -> Any:
            config = keywords.get("generation_config") or self._model.generation_config

            def option(name: str) -> Any:
                value = keywords.get(name)
                return getattr(config, name, None) if value is None else value

            self._ends = option("eos_token_id"), option("pad_token_id")
            if option("assistant_early_exit") or option("assistant_model") is self._model:
                raise InputError(
                    f"watch: this {type(self._model).__name__} is to draft candidates for itself, "
                    "and nothing says which of its passes are drafts. Generate without "
                    "assistant_early_exit, or with another model as assistant_model."
                )
            if (option("num_beams") or 1) == 1:
                return generate(*args, **keywords)
            plain = not option("return_dict_in_generate")
            if plain and not (self._one_text or self._generates_plainly):
                # What this one returns would be something else.
                return generate(*args, **keywords)
            result = generate(*args, **{**keywords, "return_dict_in_generate": True})
            indices = getattr(result, "beam_indices", None)
            if self._current is not None and indices is not None:
                self._current.returned = indices
            return result.sequences if plain and hasattr(result, "sequences") else result

        return watched


def _is_of_a_cache(name: str, value: Any, arguments: Inputs) -> bool:
    """Whether an argument is a mask of all places of a cache, of which few are filled."""
    if not name.endswith("attention_mask"):
        return False
    if isinstance(value, dict):  # of layers with and without a window
        return True
    ids = arguments.get(name.replace("attention_mask", "input_ids"))
    if not isinstance(value, Tensor) or not isinstance(ids, Tensor):
        return False
    return value.ndim == 4 and value.shape[-1] != ids.shape[-1]


@contextmanager
def watch(
    model: nn.Module,
    *,
    tokenizer: Any = None,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    queries_keys: bool = True,
    layers: Sequence[int | str] | None = None,
    description: JsonMapping | None = None,
    verify: Verify = None,
    received: bool | LastQueries = False,
) -> Iterator[Watched]:
    """Trace whatever a model does in a block of code.

        with headloom.watch(model, tokenizer=tokenizer) as watched:
            model.generate(**inputs, max_new_tokens=20)
        watched.trace

    Every call of the model is a trace; calls that go on with a cache add their rows to the trace
    before them, so that generation is one trace: the rows of the prompt, and a row for each token
    that the model read. (The last token that it writes it does not read.) The passes 1, 2,
    4, 8 ... are verified. The model goes on with its own attention, and is left as it was; what
    cannot be traced is named in a warning. Of a beam search, every sequence that `generate` returns
    is a trace; of a cache that is reordered without it, every row of the last pass.

    Args:
        model: in evaluation mode: any module of torch, as for `headloom.trace`; of Transformers,
        one
            that uses its attention interface.
        tokenizer, keep, queries_keys, layers, received: as for `headloom.trace`.
        description: what the traces say of the model; None: its name, class and size.
        verify: how much of the first text the model reads without headloom too: see
        `headloom.trace`.

    Yields: a `Watched`; its `traces` are there for each text when the next begins, or the block
    ends.

    Raises: InputError: the model cannot be watched.
    """
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise InputError(
            f"watch: the model is in a {type(model).__name__}, which runs copies of it past the "
            "watch. Watch and call the model itself, model.module."
        )
    model = without_peft(unwrapped(model, "watch"))
    own = bool(layers_of(model))
    if is_transformers_model(model) and not own and not routes(model):
        raise InputError(
            f"watch: {type(model).__name__} is a model of Transformers that does not use its "
            "attention interface. headloom.trace takes others."
        )
    check_visible(model, "watch")
    layers = checked_layers(layers, "watch")
    check_keep(keep, "watch")
    if description is not None and not isinstance(description, Mapping):
        raise InputError(
            f"watch: description is {type(description).__name__}; expected a dict, or None."
        )
    options = TraceOptions(tokenizer, keep, queries_keys, layers, verify=verify, received=received)
    if model.training:
        raise InputError(
            "watch: the model is in training mode, in which its layers may act at random. Call "
            "model.eval() first."
        )
    with recording_alone(model, "watch"), as_written():
        if not is_transformers_model(model):
            kind = WatchedHeadloomModel if reads_sequences(model) else WatchedModule
            seen = kind(model, options)
            with seen.watching():
                yield seen
            return
        watched = WatchedTransformer(model, options, description)
        with watching(model, watched):
            yield watched


@contextmanager
def watching(model: nn.Module, watched: WatchedTransformer) -> Iterator[None]:
    """Send what a model of Transformers does to who watches; afterwards the traces are there."""
    with ExitStack() as stack:
        watched.notice = stack.enter_context(noticing(model))
        unnoticed = watched.notice.unnoticed
        stack.enter_context(routed(model, unnoticed(watched._receive), watched._excuse, unnoticed))
        parts = [model, getattr(model, "base_model", model)]
        if getattr(model.config, "is_encoder_decoder", False):
            parts.append(model.get_encoder())  # type: ignore[operator]
        watched.parts = list(dict.fromkeys(parts))
        for part in watched.parts:
            before = part.register_forward_pre_hook(Hook(watched.before), with_kwargs=True)
            stack.callback(before.remove)
            stack.callback(part.register_forward_hook(Hook(watched.after), always_call=True).remove)
        stack.callback(watched.leave)
        if hasattr(model, "generate"):
            stack.callback(vars(model).pop, "generate", None)
            generate: Any = watched.generating(model.generate)  # type: ignore[arg-type]
            vars(model)["generate"] = StandIn(model, "generate", generate)
        yield
        watched._finish()
    watched.warn()
