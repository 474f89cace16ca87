"""Is what a model computes with headloom what it computes without it?

A trace is right where the model looked as it looks when nobody watches. So before it is traced a
model reads the beginning of its inputs untouched, with its own attention and nothing of headloom.
In a causal model the run that is traced has the same in its first rows, in every layer. Where it
has not, the model reads the beginning once more as it is traced, and after each attention layer
goes on with what the untouched run had there; so each layer is compared for the same inputs, small
differences do not add up, and the first layer that differs is the one at fault.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headloom.formats.files import JsonObject
from headloom.mechanism.graph import Keep
from headloom.mechanism.watching import watching
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.inputs import copied, explained, hidden_positions, prefix_of
from headloom.tracing.model_state import evaluation_mode, same_random_numbers, unchanged
from headloom.tracing.options import Verify, tokens_to_verify
from headloom.tracing.recording.comparison import (
    Comparison,
    PrefixComparison,
    Untouched,
    floating_parts,
    tolerance,
)
from headloom.tracing.recording.layer_call import RecordedCall
from headloom.tracing.recording.recorder import CallRecorder
from headloom.tracing.sources.dense_weights import run_dense
from headloom.tracing.sources.own_calls import ATTENTION_FUNCTIONS, calling_modules
from headloom.tracing.sources.source import Receivers, attention_layers, recorded
from headloom.tracing.sources.transformers import routed, routes

__all__ = [
    "UntouchedRun",
    "as_observed",
    "as_traced",
    "attention_modules",
    "run_untouched",
    "untouched_own",
    "untouched_transformer",
    "verify_own",
    "verify_prefix",
    "verify_transformer",
]


def verify_transformer(
    model: nn.Module,
    inputs: Inputs,
    keep: Keep,
    verify: Verify,
    generates: bool = False,
    part: nn.Module | None = None,
) -> JsonObject | None:
    """Hold a model of Transformers, as it is traced, against itself without headloom.

    generates: whether the inputs are a prompt, of an encoder-decoder the source alone.
    part: the part of the model that reads the inputs, as its encoder; None: all of it.

    Returns, raises: as `verify_run`.
    """
    if generates:
        inputs = _as_prompt(model, inputs)
    untouched = untouched_transformer(model, inputs, verify, part)
    if untouched is None:
        return None
    verify_prefix(untouched, as_traced(model, keep, part))
    return untouched.report()


def untouched_transformer(
    model: nn.Module, inputs: Inputs, verify: Verify, part: nn.Module | None = None
) -> UntouchedRun | None:
    """Let a model of Transformers, or a part of it, read its inputs untouched.

    Returns, raises: as `run_untouched`; InputError: the model cannot read them.
    """
    if tokens_to_verify(verify) == 0:
        # To look for modules takes longer than to read a short text.
        return None
    modules = attention_modules(model) if routes(model) else {}
    with explained(model, inputs):
        return run_untouched(model if part is None else part, inputs, verify, modules)


def as_traced(
    model: nn.Module, keep: Keep, part: nn.Module | None = None
) -> Callable[[Inputs, Comparison], None]:
    """What runs a model, or a part of it, as it is traced, for `verify_prefix`."""

    def traced(inputs: Inputs, comparison: Comparison) -> None:
        if routes(model):
            # Every layer, not only those that are wanted: each could be at fault.
            with routed(model, CallRecorder(comparison.edges, keep, None, lambda: False)):
                (model if part is None else part)(**inputs)
            return
        with warnings.catch_warnings():
            # It is said once, when the model is traced.
            warnings.simplefilter("ignore", UserWarning)
            run_dense(model, inputs, lambda call: None)

    return traced


def _as_prompt(model: nn.Module, inputs: Inputs) -> Arguments:
    """The arguments of the first pass of generation, as a pass of its own."""
    prompt = {**inputs, "use_cache": False}
    config: Any = model.config
    named = ("decoder_input_ids", "decoder_inputs_embeds")
    if getattr(config, "is_encoder_decoder", False) and not any(name in prompt for name in named):
        start = getattr(config, "decoder_start_token_id", None)
        start = getattr(config, "bos_token_id", None) if start is None else start
        batch = next(value for value in inputs.values() if isinstance(value, Tensor))
        prompt["decoder_input_ids"] = torch.full(
            (len(batch), 1), start or 0, device=batch.device, dtype=torch.int64
        )
    return prompt


def verify_own(model: nn.Module, inputs: Inputs, keep: Keep, verify: Verify) -> JsonObject | None:
    """Run a model of headloom's layers observed and unobserved, on the beginning of its inputs.

    Observed, a layer computes with `headloom.attend`, else with `headloom.attention`.

    Returns, raises: as `headloom.tracing.verification.verify_run`.
    """
    untouched = untouched_own(model, inputs, verify)
    if untouched is None:
        return None
    verify_prefix(untouched, as_observed(model, keep))
    return untouched.report()


def untouched_own(model: nn.Module, inputs: Inputs, verify: Verify) -> UntouchedRun | None:
    """Let a model of headloom's layers read its inputs unobserved; returns as `run_untouched`."""

    def cut(whole: Inputs, tokens: int | None) -> tuple[Arguments, int]:
        part = {
            name: value[:, :tokens] if isinstance(value, Tensor) and value.ndim == 2 else value
            for name, value in whole.items()
        }
        lengths = [v.shape[1] for v in part.values() if isinstance(v, Tensor) and v.ndim == 2]
        return part, max(lengths, default=0)

    with watching(model, None):
        return run_untouched(model, inputs, verify, attention_layers(model), cut)


def as_observed(model: nn.Module, keep: Keep) -> Callable[[Inputs, Comparison], None]:
    """What runs a model of layers that some source knows as it is traced, for `verify_prefix`."""

    def traced(part: Inputs, comparison: Comparison) -> None:
        recorder = CallRecorder(comparison.edges, keep, None, lambda: False)
        with recorded(model, keep, Receivers(recorder, recorder.take)):
            model(**part)

    return traced


Compared = TypeVar("Compared", bound=Comparison)


class UntouchedRun:
    """A model that has read the beginning of its inputs untouched.

    inputs: what it read. whole: whether that is all of them.
    """

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        inputs: Arguments,
        tokens: int,
        whole: bool,
        untouched: Untouched,
    ) -> None:
        self.model, self.inputs, self.whole = model, inputs, whole
        self._modules, self._tokens, self._untouched = modules, tokens, untouched
        self._comparison = self._new_comparison(Comparison)

    def _new_comparison(self, kind: type[Compared]) -> Compared:
        where = f"{self._tokens} tokens" if self._tokens else "the whole input"
        return kind(self._untouched, hidden_positions(self.inputs), where)

    @contextmanager
    def compared(self) -> Iterator[Comparison]:
        """Compare a run of the model over the same inputs, in the block, with headloom.

        Raises: VerificationError: something differs by more than rounding explains.
        """
        self._comparison = self._new_comparison(Comparison)
        with self._hooked(self._comparison):
            yield self._comparison

    @contextmanager
    def verifying(self, traced: Callable[[Inputs, Comparison], object]) -> Iterator[None]:
        """Verify the run over the whole inputs that is traced in the block.

        Where the untouched run read a part of them, the first rows are compared; if they differ,
        as in a model whose queries look ahead, the model reads that part once more.

        traced: what runs the model as it is traced, for `verify_prefix`.

        Raises: VerificationError: something differs by more than rounding explains.
        """
        if self.whole:
            with self.compared():
                yield
            return
        self._comparison = prefix = self._new_comparison(PrefixComparison)
        with self._hooked(prefix):
            yield
        if not prefix.agrees:
            verify_prefix(self, traced)

    @contextmanager
    def _hooked(self, comparison: Comparison) -> Iterator[None]:
        """Hand what the model gives in the block, layer by layer, to a comparison."""
        paths = {id(module): path for path, module in self._modules.items()}

        def compare(module: nn.Module, args: Any, output: Any) -> None:
            first = _first(output)
            own = None if first is None else comparison.layer(paths[id(module)], first)
            if first is not None and own is not None:
                # The same tensor: where it comes from stays known.
                first.data = own

        outputs: list[Any] = []
        with ExitStack() as stack:
            for module in self._modules.values():
                stack.callback(module.register_forward_hook(compare).remove)
            hook = self.model.register_forward_hook(lambda *call: outputs.append(call[2]))
            stack.callback(hook.remove)
            yield
        comparison.output(dict(floating_parts(outputs[-1])))

    def comparing(self, receive: Callable[[RecordedCall], None]) -> Callable[[RecordedCall], None]:
        """What receives the calls of the run that is verified: their edges are compared too."""

        def both(call: RecordedCall) -> None:
            self._comparison.edges(call)
            receive(call)

        return both

    def report(self) -> JsonObject:
        """What a trace says of how it was verified.

        Returns: "tokens" (positions of the text that were read; 0 where there is none), "whole"
        (whether these are all), "layers" (calls of attention layers compared one by one),
        "difference" (the largest of an output), "weights" (the largest of a weight; None where the
        model's own attention returns none), and "nan" (cells of outputs that are no numbers), where
        there are some.
        """
        found: JsonObject = {
            "tokens": self._tokens,
            "whole": self.whole,
            "layers": self._comparison.layers,
            "difference": self._comparison.difference,
            "weights": self._comparison.weights,
        }
        return found | ({"nan": self._comparison.nan} if self._comparison.nan else {})


def run_untouched(
    model: nn.Module,
    inputs: Inputs,
    verify: Verify,
    modules: Mapping[str, nn.Module],
    cut: Callable[[Inputs, int | None], tuple[Arguments, int]] = prefix_of,
) -> UntouchedRun | None:
    """Let a model read the beginning of its inputs with its own attention.

    Args:
        model: left as it was, as are the random numbers to come.
        inputs: its arguments, by name.
        verify: how much of them; see `Verify`.
        modules: the attention modules whose outputs are kept one by one, by their paths.
        cut: the inputs cut to so many tokens, and how many are left.

    Returns: None: nothing is to be verified.
    """
    tokens = tokens_to_verify(verify)
    if tokens == 0:
        return None
    if any(hasattr(module, "set_attention_type") for module in model.modules()):
        # Such a model computes short texts in another way, as BigBird does.
        tokens = None
    whole, length = cut(inputs, None)
    part, tokens = cut(inputs, tokens)
    paths = {id(module): path for path, module in modules.items()}
    with unchanged(model), evaluation_mode(model), torch.no_grad():
        try:
            untouched = _run_untouched(model, part, paths)
        except Exception:
            if part.keys() == whole.keys() and all(part[name] is whole[name] for name in part):
                raise
            # A model may read texts of some lengths only.
            part, tokens = whole, length
            untouched = _run_untouched(model, part, paths)
    return UntouchedRun(model, modules, part, tokens, tokens == length, untouched)


def verify_prefix(untouched: UntouchedRun, traced: Callable[[Inputs, Comparison], object]) -> None:
    """Run a model once more on what it has read untouched, as it will be traced, and compare.

    Raises: VerificationError: something differs by more than rounding explains.
    """
    model = untouched.model
    with (
        unchanged(model), evaluation_mode(model), torch.no_grad(), same_random_numbers(),
        untouched.compared() as comparison,
    ):  # fmt: skip
        traced(copied(untouched.inputs), comparison)


def _run_untouched(model: nn.Module, inputs: Inputs, paths: Mapping[int, str]) -> Untouched:
    """Run a model with its own attention, and keep what its attention modules give."""
    untouched = Untouched()

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        first = _first(output)
        if first is not None:
            calls = untouched.layers.setdefault(paths[id(module)], [])
            calls.append((first.clone(), _weights(module, output)))

    with ExitStack() as stack:
        for module in model.modules():
            if id(module) in paths:
                stack.callback(module.register_forward_hook(keep).remove)
        stack.enter_context(same_random_numbers())
        output = model(**copied(inputs))
    untouched.output = {name: tensor.clone() for name, tensor in floating_parts(output)}
    untouched.weights = {name for name, part in untouched.output.items() if _are_weights(part)}
    return untouched


def _first(output: Any) -> Tensor | None:
    """What an attention module gives: itself, or the first of several things."""
    first = output[0] if isinstance(output, list | tuple) and output else output
    return first if isinstance(first, Tensor) and first.is_floating_point() else None


def _weights(module: nn.Module, output: Any) -> Tensor | None:
    """The weights that eager attention returns beside its output; None: it returns none."""
    config = getattr(module, "config", None)
    fused = getattr(config, "_attn_implementation_internal", None) not in (None, "eager")
    if fused or not isinstance(output, list | tuple):
        return None
    # T5's position bias has the same shape, and where it is one number may be a share too.
    parts = [part for part in output[1:] if _are_weights(part)]
    nearest = min(
        parts, key=lambda part: float((part.float().sum(-1) - 1).abs().max()), default=None
    )
    return None if nearest is None else nearest.clone()


def _are_weights(part: Any) -> bool:
    """Whether a tensor holds rows of shares."""
    if not isinstance(part, Tensor) or part.ndim != 4 or not part.is_floating_point():
        return False
    sums = part.float().sum(-1)
    most = 1 + tolerance(part.dtype)
    return bool(part.numel() and (part >= 0).all() and (sums <= most).all() and sums.any())


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model of Transformers that call the attention interface, or torch's own."""
    return calling_modules(model, ("ALL_ATTENTION_FUNCTIONS", *ATTENTION_FUNCTIONS))
