"""The first pass of a generation, held against what the model gives without headloom.

The pass reads the whole prompt, as it is traced. In a causal model its first rows are those of a
pass over the beginning alone: so the model reads that untouched, and need not read it once more as
it is traced; see `headloom.tracing.verification`.
"""

from __future__ import annotations

from contextlib import ExitStack

from torch import nn

from headloom.formats.files import JsonObject
from headloom.mechanism.graph import Keep
from headloom.tracing.arguments import Inputs
from headloom.tracing.inputs import prefix_of
from headloom.tracing.noticing import AttentionNotice
from headloom.tracing.options import Verify, tokens_to_verify
from headloom.tracing.recording.comparison import Comparison
from headloom.tracing.sources.transformers import put_back, routes
from headloom.tracing.verification import (
    UntouchedRun,
    as_traced,
    untouched_transformer,
    verify_prefix,
)
from headloom.tracing.watched_text import WatchedText

__all__ = ["FirstPass"]


class FirstPass:
    """Compares the first rows of the first pass, layer by layer, and of its last hidden states.

    Where they differ, as in a model whose queries look ahead, the model reads the beginning once
    more as it is traced.

    Args:
        model: of Transformers, with a head for language.
        untouched: what its base gave on the beginning of the prompt.
        keep: edges of each query.
    """

    def __init__(self, model: nn.Module, untouched: UntouchedRun, keep: Keep) -> None:
        self._model, self._untouched, self._keep = model, untouched, keep
        self._stack = ExitStack()
        self._notice: AttentionNotice | None = None
        self._compared = False

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs, keep: Keep, verify: Verify) -> FirstPass | None:
        """What compares the first pass of a generation; None: its rows cannot tell.

        They tell where a decoder's base reads a prompt that is longer than what is verified.
        """
        base = getattr(model, "base_model", model)
        tokens = tokens_to_verify(verify)
        plain = inputs.keys() <= {"input_ids", "attention_mask", "use_cache"}
        pair = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        if not tokens or not plain or pair or base is model or not routes(model):
            return None
        if prefix_of(inputs, tokens)[1] == prefix_of(inputs, None)[1]:
            return None
        untouched = untouched_transformer(model, {**inputs, "use_cache": False}, verify, base)
        if untouched is None or untouched.whole:
            return None
        return cls(model, untouched, keep)

    def begin(self, module: nn.Module, text: WatchedText, notice: AttentionNotice) -> None:
        """The first pass begins, as a call of a module: the model, or its base alone."""
        self._notice, self._compared = notice, module is self._model
        if self._compared:
            self._stack.enter_context(self._untouched.verifying(self._again))
            text.recorder.receive = self._untouched.comparing(text.passes)
            self._stack.callback(setattr, text.recorder, "receive", text.passes)

    def end(self) -> JsonObject:
        """The first pass is done; what a trace says of how it was verified.

        Raises: VerificationError: something differs by more than rounding explains.
        """
        self._stack.close()
        if not self._compared:
            verify_prefix(self._untouched, self._again)
        return self._untouched.report()

    def leave(self) -> None:
        """The first pass has failed: leave the model as it was, and compare nothing."""
        self._stack.__exit__(RuntimeError, RuntimeError("the first pass has failed"), None)

    def _again(self, inputs: Inputs, comparison: Comparison) -> None:
        """Let the model read the beginning as it is traced."""
        assert self._notice is not None
        traced = as_traced(self._model, self._keep, self._untouched.model)
        with put_back(self._model):
            self._notice.unnoticed(traced)(inputs, comparison)
