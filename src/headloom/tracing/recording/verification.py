"""Whether a model computes with headloom what it computes without it.

Before it is traced a model reads the beginning of its inputs untouched. In a causal model the run
that is traced gives the same in its first rows; where it does not, the model reads the beginning
once more as it is traced, and that is compared. What outputs do not show, a mask that is lost later
on, a sample of the rows of every layer does: see `deviation`.
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
from headloom.tracing.model_state import evaluation_mode, same_random_numbers, unchanged
from headloom.tracing.options import Verify, tokens_to_verify
from headloom.tracing.recording.layer_call import LayerCall

_REMEDY = (
    "Such a trace would be wrong, so none is made; verify=False makes it all the same. Please "
    "report the model."
)
#: How many rows of a layer are compared.
SAMPLE = 4


def tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same may differ, as a share of the largest number.

    Half of the digits of the type: 3.5e-4 in float32, 3 percent in float16, 9 in bfloat16. Scores
    are taken in float32, so that float64 has no more digits.

    >>> round(tolerance(torch.float32), 6)
    0.000345
    """
    return math.sqrt(max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps))


def _difference(own: Tensor, other: Tensor) -> float:
    """The largest absolute difference; infinite where one of two alone is NaN or infinite.

    >>> nan = torch.tensor([1.0, math.nan])
    >>> _difference(nan, nan), _difference(nan, torch.ones(2))
    (0.0, inf)
    """
    if own.numel() == 0:
        return 0.0
    same = (own == other) | (own.isnan() & other.isnan())
    return float((own - other).abs().nan_to_num(torch.inf, torch.inf).masked_fill(same, 0).max())


def _largest(values: Tensor) -> float:
    """The largest magnitude of the numbers that are finite."""
    return float(values.nan_to_num(0, 0, 0).abs().max()) if values.numel() else 0.0


@torch.no_grad()
def deviation(
    call: LayerCall, output: Tensor | None, graph: AttentionGraph, *, strict: bool
) -> float | None:
    """How far a recorded call is from the model's own attention, on rows spread over its queries.

    The weights of these rows are computed once more, whole, from queries and keys. The deviation is
    the largest difference of the model's own output from the output recomputed from these weights
    and from `output`, and of these weights from those of the kept edges.

    Args:
        output: (batch, heads, queries, value_depth), from headloom; None: from the layer itself.
        strict: whether more than rounding explains is an error: the `tolerance` of the largest
            value for outputs, of 1 for weights.

    Returns: None where nothing can be compared: no row may look anywhere, or all scores are NaN.
    Raises: VerificationError: `strict`, and the call differs.
    """
    queries = call.queries.shape[2]
    if not queries:
        return None
    places = {round(i * (queries - 1) / (SAMPLE - 1)) for i in range(SAMPLE)}
    rows = torch.tensor(sorted(places), device=call.queries.device)
    again, weights = _computed_again(call, rows)
    count, keys, kept = (part[:, :, rows] for part in (graph.count, graph.keys, graph.weights))
    # Where a query may look nowhere, and of scores that are NaN, implementations differ.
    unknown = weights.isnan().any(-1) & (count > 0)
    compared = ((count > 0) & ~unknown)[..., None]
    if bool(unknown.any()):
        warnings.warn(
            f"trace: the scores of layer {call.path} are not numbers (NaN) in {int(unknown.sum())} "
            f"of {unknown.numel()} rows that are held against its own attention: there it cannot "
            "be verified.",
            stacklevel=2,
        )
    if not bool(compared.any()):
        return None
    there = (keys >= 0) & compared
    edges = _difference(
        torch.where(there, weights.gather(-1, keys.clamp(min=0).long()), 0),
        torch.where(there, kept, 0),
    )
    outputs, size = 0.0, 0.0
    if output is not None and call.own_output is not None:
        own = torch.where(compared, call.own_output(rows).float(), 0)
        for other in (again, output[:, :, rows].float()):
            outputs = max(outputs, _difference(own, torch.where(compared, other, 0)))
        size = _largest(own)
    share = max(tolerance(part.dtype) for part in (call.queries, call.values))
    # An output is no larger than the largest value, which costs reading them all.
    far = outputs > share * size and outputs > share * _largest(call.values)
    if strict and (far or edges > share):
        what = f"weights of layer {call.path} differ by {edges:.1e}"
        if edges <= share:
            what = f"output of layer {call.path} differs by {outputs:.1e}"
        raise VerificationError(
            f"trace: the {what} from what the model's own attention gives, on {len(rows)} of its "
            f"rows. {_REMEDY}"
        )
    return max(outputs, edges)


def _computed_again(call: LayerCall, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Output and whole weights of some rows of a call, from its queries and keys, by torch."""
    keys, values, relative = call.keys.float(), call.values.float(), call.relative
    # Positions count from the first query: then row by row.
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
    """Every floating tensor of what a model gave, with its name, but for those of caches.

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
    """Whether a tensor holds rows of shares."""
    if part.ndim != 4 or not part.numel():
        return False
    sums = part.float().sum(-1)
    return bool((part >= 0).all() and (sums <= 1 + tolerance(part.dtype)).all() and sums.any())


#: From inputs to them cut to so many tokens (None: whole), and how many are left.
Cut = Callable[[Inputs, int | None], tuple[Arguments, int]]
#: Runs the model as it is traced; gives its output, and the coarsest tolerance of a layer, whose
#: attention may be in half precision (autocast).
Again = Callable[[Arguments], tuple[object, float]]


@dataclass(frozen=True, eq=False)
class Untouched:
    """What a model gave, untouched, on the beginning of its inputs.

    inputs: what it read. tokens: how many of a text these are; 0 where there is none. whole:
    whether that is all. output: every floating tensor that it gave, by name.
    """

    model: nn.Module
    inputs: Arguments
    tokens: int
    whole: bool
    output: dict[str, Tensor]

    @classmethod
    def read(cls, model: nn.Module, inputs: Inputs, verify: Verify, cut: Cut) -> Untouched | None:
        """Let a model read the beginning of its inputs; None: nothing is to be verified.

        The model is left as it was, as are the random numbers to come.
        """
        tokens = tokens_to_verify(verify)
        if tokens == 0:
            return None
        if any(hasattr(module, "set_attention_type") for module in model.modules()):
            tokens = None  # such a model computes short texts in another way, as BigBird does
        whole, length = cut(inputs, None)
        part, count = cut(inputs, tokens)
        with (
            unchanged(model), evaluation_mode(model), torch.no_grad(), same_random_numbers(),
        ):  # fmt: skip
            for module in model.modules():
                if isinstance(module, AttentionLayer):
                    module.observer = None
            before = torch.backends.mha.get_fastpath_enabled()
            # Torch's fast paths answer padding in another way, and no watched module takes them.
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
        """What a trace says of how it was verified: see `headloom.formats.verification`.

        Args:
            output: what the model gave on all of its inputs, as it was traced.
            coarsest: the coarsest tolerance of a layer in that run.
            again: runs the model as it is traced on the beginning, where first rows differ.

        Raises: VerificationError: something differs by more than rounding explains.
        """
        parts = dict(_floating_parts(output))
        if self.whole:
            return self._report(parts, coarsest)
        for name, own in self.output.items():
            if name in parts and parts[name].ndim == own.ndim > 1:
                parts[name] = parts[name][:, : own.shape[1]]
        try:
            return self._report(parts, coarsest)
        except VerificationError:
            # Queries look ahead, or something is wrong.
            return self.verified_again(again)

    def verified_again(self, again: Again) -> JsonObject:
        """As `verified`, of a run on the beginning alone."""
        model = self.model
        with unchanged(model), evaluation_mode(model), torch.no_grad(), same_random_numbers():
            output, coarsest = again(_copied(self.inputs))
        return self._report(dict(_floating_parts(output)), coarsest)

    def _report(self, parts: dict[str, Tensor], coarsest: float) -> JsonObject:
        """Hold what the model gives with headloom, by name, against what it gives without."""
        difference, nan = 0.0, 0
        # In padding a query may look nowhere, which implementations answer differently.
        masks = [
            value != 0
            for name, value in self.inputs.items()
            if name.endswith("attention_mask") and isinstance(value, Tensor) and value.ndim == 2
        ]
        for name, alone in self.output.items():
            what, dtype = f"{name} of the model's output", alone.dtype
            beside = parts.get(name)
            if beside is None and _are_weights(alone):  # headloom forms none
                continue
            if beside is None or alone.shape != beside.shape:
                shape = "missing" if beside is None else f"of the shape {tuple(beside.shape)}"
                raise VerificationError(
                    f"trace: {what} is {shape} with headloom and of the shape "
                    f"{tuple(alone.shape)} without. {_REMEDY}"
                )
            for shown in masks:
                if alone.ndim > 2 and alone.shape[:2] == shown.shape:
                    alone, beside = alone[shown.to(alone.device)], beside[shown.to(alone.device)]
            alone, beside = in_float64(alone), in_float64(beside)
            cells = int((alone.isnan() & beside.isnan()).sum())
            if cells:
                warnings.warn(
                    f"trace: {what} is not a number (NaN) in {cells} of {alone.numel()} cells, "
                    "with headloom and without: there the model cannot be verified.",
                    stacklevel=2,
                )
            allowed = max(tolerance(dtype), coarsest) * _largest(alone)
            largest = _difference(alone, beside)
            if largest > allowed:
                where = f"{self.tokens} tokens" if self.tokens else "the whole input"
                raise VerificationError(
                    f"trace: {what} is not what it is without headloom: it differs by "
                    f"{largest:.1e}, where rounding explains {allowed:.1e} ({where}). {_REMEDY}"
                )
            difference, nan = max(difference, largest), nan + cells
        report = {"tokens": self.tokens, "whole": self.whole, "difference": difference}
        return report | ({"nan": nan} if nan else {})


def _copied(inputs: Inputs) -> Arguments:
    """The inputs for one run, which may change them: tensors and caches are copies."""
    copies: dict[int, Tensor] = {}  # one that stands for two arguments still does

    def copied_once(value: object) -> object:
        if isinstance(value, Tensor):
            if id(value) not in copies:
                copies[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
            return copies[id(value)]
        return copy.deepcopy(value) if hasattr(value, "get_seq_length") else value

    return {name: copied_once(value) for name, value in inputs.items()}
