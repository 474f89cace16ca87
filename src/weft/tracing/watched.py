"""`Watched`: what a model did while it was watched; and how weft's own models are."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import InputError
from weft.formats.trace import TraceData
from weft.formats.verification import ON_ANOTHER_TEXT
from weft.mechanism.graph import All, Keep, Top
from weft.mechanism.watching import Recorder
from weft.mechanism.watching import watching as observing
from weft.tracing.growing import joined_calls
from weft.tracing.own import as_inputs, sequences_of, traces_of
from weft.tracing.own_verification import verify_own
from weft.tracing.prefix import Verify

__all__ = ["Watched", "WatchedOwn", "warn_of_layers_outside"]


def warn_of_layers_outside(model: nn.Module, paths: Sequence[str]) -> None:
    """Warn where layers ran, but not in a call of the model: they are in no trace."""
    layers = list(dict.fromkeys(paths))
    if layers:
        name, count = type(model).__name__, len(layers)
        warnings.warn(
            f"watch: {count} attention layer{'s' * (count > 1)} ran outside of {name}.forward and "
            f"{'are' if count > 1 else 'is'} in no trace: {layers[0]}"
            f"{' ... ' + layers[-1] if count > 1 else ''}. Call the model itself, or watch the "
            "part that is called.",
            stacklevel=4,
        )


class Watched:
    """What a watched model did: see `weft.watch`."""

    def __init__(self) -> None:
        #: The traces of all texts so far, in order; those of a batch one after the other.
        self.traces: list[TraceData] = []

    @property
    def trace(self) -> TraceData:
        """The only trace.

        Raises: InputError: there is none, or there are several.
        """
        if len(self.traces) != 1:
            found = "nothing was run" if not self.traces else f"there are {len(self.traces)} traces"
            raise InputError(f"watch: {found}; expected one. All of them are in `traces`.")
        return self.traces[0]


class WatchedOwn(Watched):
    """What a model made of weft's attention layers did."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        keep: Keep,
        queries_keys: bool,
        layers: Sequence[int | str] | None,
        verify: Verify = None,
    ) -> None:
        super().__init__()
        self._verify: Verify = verify
        self._verifying = False
        self._verification: Mapping[str, Any] | None = None
        self._model, self._keep = model, keep
        self._options: dict[str, Any] = {
            "tokenizer": tokenizer, "queries_keys": queries_keys, "layers": layers
        }  # fmt: skip
        self._recorder = Recorder(model, Top(0))
        #: Paths of layers that ran outside of the model's own forward.
        self._outside: list[str] = []
        #: Ids of the text that is read step by step.
        self._steps: list[Tensor] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the model while the block runs; afterwards the traces are there."""
        with ExitStack() as stack:
            stack.enter_context(observing(self._model, self._recorder))
            for hook in (
                self._model.register_forward_pre_hook(self._before, with_kwargs=True),
                self._model.register_forward_hook(self._after, with_kwargs=True),
            ):
                stack.callback(hook.remove)
            step = getattr(self._model, "step", None)
            start = getattr(self._model, "start", None)
            # A language model; a translator's steps look at a source too.
            if step is not None and start and not inspect.signature(start).parameters:
                stack.callback(vars(self._model).pop, "step", None)
                vars(self._model)["step"] = self._stepping(step)
            yield
            self._finish()
        warn_of_layers_outside(self._model, self._outside)

    def _arguments(self, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Tensor]:
        bound = inspect.signature(self._model.forward).bind(*args, **given)
        return sequences_of(as_inputs(self._model, bound.arguments))

    def _keep_of(self, length: int) -> Top:
        return Top(length) if isinstance(self._keep, All) else self._keep

    def _before(self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if self._verifying:
            return
        self._finish()
        self._check(self._arguments(args, given))
        longest = max(ids.shape[1] for ids in self._arguments(args, given).values())
        self._recorder.keep = self._keep_of(longest)

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any], output: Any
    ) -> None:
        if self._verifying:
            return
        sequences = self._arguments(args, given)
        calls, self._recorder.calls = self._recorder.calls, []
        self._add(calls, sequences)

    def _check(self, sequences: Mapping[str, Tensor]) -> None:
        """Verify the model on the first text that it reads."""
        if self._verify is False:
            return
        self._verifying = True
        try:
            self._verification = verify_own(
                self._model, sequences, self._recorder.keep, self._verify
            )
        finally:
            self._verifying = False
        self._verify = False

    def _add(
        self, calls: Sequence[Any], sequences: Mapping[str, Tensor], prompt: int | None = None
    ) -> None:
        self.traces += traces_of(
            self._model,
            calls,
            sequences,
            prompt=prompt,
            verification=self._verification,
            **self._options,
        )
        if self._verification is not None:
            self._verification = ON_ANOTHER_TEXT

    def _stepping(self, step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The model's `step`, noting what it reads."""

        def watched(tokens: Tensor, state: Any) -> Tensor:
            if not state.position:
                self._finish()
                self._check({next(iter(inspect.signature(self._model.forward).parameters)): tokens})
            self._recorder.keep = self._keep_of(state.position + tokens.shape[1])
            self._steps.append(tokens.detach().cpu())
            return step(tokens, state)

        return watched

    def _finish(self) -> None:
        """Make traces of the text that was read step by step, if there was one."""
        steps, self._steps = self._steps, []
        calls, self._recorder.calls = self._recorder.calls, []
        if not steps:
            self._outside += [path for path, _, _ in calls]
            return
        self._add(
            joined_calls(calls),
            {"tokens": torch.cat(steps, 1)},
            prompt=steps[0].shape[1] if len(steps) > 1 else None,
        )
