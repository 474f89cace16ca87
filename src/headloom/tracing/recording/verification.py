"""Check that tracing leaves the output of a model unchanged.

First the model reads a prefix of its inputs untraced. In a causal model, the first rows of the
traced run must equal that output. If they differ, the model reads the prefix again, traced, and
these outputs are compared. A sample of the rows of every layer shows errors that outputs hide, such
as a mask that is lost later on: see `deviation`.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headloom.errors import VerificationError
from headloom.formats.files import JsonObject
from headloom.mechanism.attention_layer import AttentionLayer
from headloom.mechanism.function import attend
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.parts import in_float64
from headloom.tracing.arguments import Arguments, Inputs
from headloom.tracing.model_state import evaluation_mode, random_state_restored, unchanged
from headloom.tracing.options import Verify, tokens_to_verify
from headloom.tracing.recording.layer_call import LayerCall

_REMEDY = (
    "Such a trace would be wrong, so none is made (verify=False makes it anyway). Please report "
    "the model."
)
#: Rows of a layer to compare.
SAMPLE = 4


def tolerance(dtype: torch.dtype) -> float:
    """Return the allowed difference of two computations, as a share of the largest number.

    Half of the digits of the type: 3.5e-4 in float32, 3 percent in float16, 9 percent in bfloat16.
    Scores are computed in float32, so that float64 has no more digits.

    >>> round(tolerance(torch.float32), 6)
    0.000345
    """
    return math.sqrt(max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps))


def _difference(first: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference; infinite if only one of two is NaN or infinite.

    >>> nan = torch.tensor([1.0, math.nan])
    >>> _difference(nan, nan), _difference(nan, torch.ones(2))
    (0.0, inf)
    """
    if first.numel() == 0:
        return 0.0
    same = (first == other) | (first.isnan() & other.isnan())
    return float((first - other).abs().nan_to_num(torch.inf, torch.inf).masked_fill(same, 0).max())


def _largest(values: Tensor) -> float:
    """Return the largest magnitude of the finite numbers."""
    return float(values.nan_to_num(0, 0, 0).abs().max()) if values.numel() else 0.0


@torch.no_grad()
def deviation(
    call: LayerCall, output: Tensor | None, graph: AttentionGraph, *, strict: bool
) -> float | None:
    """Return the deviation of a call from the model's own attention, on rows spread over queries.

    The full weights of these rows are computed again from queries and keys. The deviation is the
    largest difference of the model's own output from the output of these weights and from `output`,
    and of these weights from the weights of the kept edges.

    Args:
        call: the recorded one.
        graph: with the kept edges.
        output: (batch, heads, queries, value_depth), from headloom; None: from the layer itself.
        strict: whether a difference beyond rounding is an error: beyond the `tolerance` of the
            largest value for outputs, of 1 for weights.

    Returns: None: nothing to compare, as no row sees a key, or all scores are NaN.
    Raises: VerificationError: `strict`, and the call differs.
    """
    queries = call.queries.shape[2]
    if not queries:
        return None
    places = {round(i * (queries - 1) / (SAMPLE - 1)) for i in range(SAMPLE)}
    rows = torch.tensor(sorted(places), device=call.queries.device)
    again, weights = _computed_again(call, rows)
    count, keys, kept = (part[:, :, rows] for part in (graph.count, graph.keys, graph.weights))
    # Implementations differ for queries that see no key, and for NaN scores.
    unknown = weights.isnan().any(-1) & (count > 0)
    compared = ((count > 0) & ~unknown)[..., None]
    if bool(unknown.any()):
        warnings.warn(
            f"trace: the scores of layer {call.path} are not numbers (NaN) in {int(unknown.sum())} "
            f"of {unknown.numel()} rows compared with its own attention; these cannot be verified.",
            stacklevel=2,
        )
    if not bool(compared.any()):
        return None
    kept_edges = (keys >= 0) & compared
    edges = _difference(
        torch.where(kept_edges, weights.gather(-1, keys.clamp(min=0).long()), 0),
        torch.where(kept_edges, kept, 0),
    )
    outputs, size = 0.0, 0.0
    if output is not None and call.own_output is not None:
        model_output = torch.where(compared, call.own_output(rows).float(), 0)
        for other in (again, output[:, :, rows].float()):
            outputs = max(outputs, _difference(model_output, torch.where(compared, other, 0)))
        size = _largest(model_output)
    share = max(tolerance(part.dtype) for part in (call.queries, call.values))
    # An output is at most as large as the largest value; finding that reads all values.
    far = outputs > share * size and outputs > share * _largest(call.values)
    if strict and (far or edges > share):
        what = f"weights of layer {call.path} differ by {edges:.1e}"
        if edges <= share:
            what = f"output of layer {call.path} differs by {outputs:.1e}"
        raise VerificationError(
            f"trace: the {what} from the model's own attention, on {len(rows)} of its rows. "
            f"{_REMEDY}"
        )
    return max(outputs, edges)


def _computed_again(call: LayerCall, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the full weights of some rows, from queries and keys, by torch."""
    keys, values, relative = call.keys.float(), call.values.float(), call.relative
    # Relative positions count from the first query, so they need one row at a time.
    parts = [rows] if relative is None else list(rows[:, None])
    again = [
        attend(
            call.queries[:, :, part].float(), keys, values, mask=call.mask_of(part),
            bias=call.bias_of(part), relative=relative and relative.moved(int(part)),
            score=call.score, scale=call.scale, softcap=call.softcap, sinks=call.sinks, keep=All(),
            backend="torch",
        )
        for part in parts
    ]  # fmt: skip
    return torch.cat([o for o, _ in again], 2), torch.cat([w for _, w in again], 2)


def _floating_parts(output: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every floating-point tensor of a model's output with its name, except caches.

    >>> [name for name, _ in _floating_parts({"logits": torch.ones(1), "more": (torch.ones(2),)})]
    ['logits', 'more.0']
    """
    if isinstance(output, Tensor) and output.is_floating_point():
        yield name or "output", output
    if isinstance(output, list | tuple):
        output = dict(enumerate(output))
    for key, part in output.items() if isinstance(output, Mapping) else ():
        if key not in ("past_key_values", "cache"):
            yield from _floating_parts(part, f"{name}.{key}" if name else str(key))


def _are_weights(part: Tensor) -> bool:
    """Return whether a tensor holds rows of attention weights."""
    if part.ndim != 4 or not part.numel():
        return False
    sums = part.float().sum(-1)
    return bool((part >= 0).all() and (sums <= 1 + tolerance(part.dtype)).all() and sums.any())


#: Cuts inputs to a number of tokens (None: whole); returns them with the number left.
Cut = Callable[[Inputs, int | None], tuple[Arguments, int]]
#: Runs the model traced; returns its output, and the coarsest tolerance of a layer, whose attention
#: may be in half precision (autocast).
Again = Callable[[Arguments], tuple[object, float]]


@dataclass(frozen=True, eq=False)
class UntracedRun:
    """Output of an untraced model on a prefix of its inputs.

    inputs: the prefix. tokens: their number; 0: no text. whole: whether the prefix is the whole
    input. output: every floating-point tensor, by name.
    """

    model: nn.Module
    inputs: Arguments
    tokens: int
    whole: bool
    output: dict[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, inputs: Inputs, verify: Verify, cut: Cut) -> UntracedRun | None:
        """Run a model on a prefix of its inputs; None: verification is off.

        The model and the random states are left unchanged.
        """
        tokens = tokens_to_verify(verify)
        if tokens == 0:
            return None
        if any(hasattr(module, "set_attention_type") for module in model.modules()):
            tokens = None  # such a model, as BigBird, computes short texts differently
        whole, length = cut(inputs, None)
        part, count = cut(inputs, tokens)
        with (
            unchanged(model), evaluation_mode(model), torch.no_grad(), random_state_restored(),
        ):  # fmt: skip
            for module in model.modules():
                if isinstance(module, AttentionLayer):
                    module.observer = None
            before = torch.backends.mha.get_fastpath_enabled()
            # Torch's fast paths treat padding differently, and are off in a traced run.
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                output = model(**_copied(part))
            except Exception:
                if count == length:
                    raise
                part, count = whole, length  # a model may read texts of some lengths only
                output = model(**_copied(part))
            finally:
                torch.backends.mha.set_fastpath_enabled(before)
        kept = {name: tensor.clone() for name, tensor in _floating_parts(output)}
        return cls(model, part, count, count == length, kept)

    def verified(self, output: object, coarsest: float, again: Again) -> JsonObject:
        """Return the result of the verification: see `headloom.formats.verification`.

        Args:
            output: of the traced run on the whole inputs.
            coarsest: the coarsest tolerance of a layer in that run.
            again: runs the model traced on the prefix, if the first rows differ.

        Raises: VerificationError: outputs differ by more than rounding explains.
        """
        parts = dict(_floating_parts(output))
        if self.whole:
            return self._report(parts, coarsest)
        for name, alone in self.output.items():
            if name in parts and parts[name].ndim == alone.ndim > 1:
                parts[name] = parts[name][:, : alone.shape[1]]
        try:
            return self._report(parts, coarsest)
        except VerificationError:
            # The model is not causal, or something is wrong.
            return self.verified_again(again)

    def verified_again(self, again: Again) -> JsonObject:
        """Return the result of `verified` for a traced run on the prefix only."""
        model = self.model
        with unchanged(model), evaluation_mode(model), torch.no_grad(), random_state_restored():
            output, coarsest = again(_copied(self.inputs))
        return self._report(dict(_floating_parts(output)), coarsest)

    def _report(self, parts: dict[str, Tensor], coarsest: float) -> JsonObject:
        """Compare the outputs with and without tracing, by name."""
        difference, nan = 0.0, 0
        # Implementations differ for padding, where a query may see no key.
        masks = [
            value != 0
            for name, value in self.inputs.items()
            if name.endswith("attention_mask") and isinstance(value, Tensor) and value.ndim == 2
        ]
        for name, alone in self.output.items():
            what, dtype = f"{name} of the model's output", alone.dtype
            traced = parts.get(name)
            if traced is None and _are_weights(alone):  # a traced run returns no weights
                continue
            if traced is None or alone.shape != traced.shape:
                shape = "missing" if traced is None else f"of the shape {tuple(traced.shape)}"
                raise VerificationError(
                    f"trace: {what} is {shape} with headloom and of the shape "
                    f"{tuple(alone.shape)} without. {_REMEDY}"
                )
            for shown in masks:
                if alone.ndim > 2 and alone.shape[:2] == shown.shape:
                    alone, traced = alone[shown.to(alone.device)], traced[shown.to(alone.device)]
            alone, traced = in_float64(alone), in_float64(traced)
            cells = int((alone.isnan() & traced.isnan()).sum())
            if cells:
                warnings.warn(
                    f"trace: {what} is not a number (NaN) in {cells} of {alone.numel()} cells, "
                    "with headloom and without; these cannot be verified.",
                    stacklevel=2,
                )
            allowed = max(tolerance(dtype), coarsest) * _largest(alone)
            largest = _difference(alone, traced)
            if largest > allowed:
                where = f"{self.tokens} tokens" if self.tokens else "the whole input"
                raise VerificationError(
                    f"trace: {what} differs by {largest:.1e} from the output without headloom; "
                    f"rounding explains {allowed:.1e} ({where}). {_REMEDY}"
                )
            difference, nan = max(difference, largest), nan + cells
        report = {"tokens": self.tokens, "whole": self.whole, "difference": difference}
        return report | ({"nan": nan} if nan else {})


def _copied(inputs: Inputs) -> Arguments:
    """Return the inputs with copied tensors and caches, for a run that may change them."""
    copies: dict[int, Tensor] = {}  # a tensor in two arguments is copied once

    def copied_once(value: object) -> object:
        if isinstance(value, Tensor):
            if id(value) not in copies:
                copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
            return copies[id(value)]
        return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value

    return {name: copied_once(value) for name, value in inputs.items()}
