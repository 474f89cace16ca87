"""What a model computes with headloom, held against what it computes without it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headloom.errors import VerificationError
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.parts import in_float64
from headloom.tracing.recording.layer_call import RecordedCall

__all__ = [
    "REMEDY",
    "Comparison",
    "PrefixComparison",
    "Untouched",
    "floating_parts",
    "largest_difference",
    "tolerance",
    "warn_of_nan",
]

#: How an error of verification ends.
REMEDY = (
    "Such a trace would be wrong, so none is made; verify=False makes it all the same. Please "
    "report the model."
)


def tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same may differ, as a share of the largest number.

    Half of the digits of the type: 3.5e-4 in float32, 3 percent in float16, 9 in bfloat16. The
    order of sums changes the last digits, and exponentials of large scores a few more. A query
    that looks at one key too many, or at one too few, changes the first. Scores are taken in
    float32, so that float64 has no more digits.

    >>> round(tolerance(torch.float32), 6)
    0.000345
    """
    return math.sqrt(max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps))


def largest_difference(own: Tensor, other: Tensor) -> float:
    """The largest absolute difference of two tensors of one shape.

    Two infinities of one sign do not differ, nor do two cells that are not numbers (NaN); where
    only one of two is NaN or infinite, the difference is infinite.

    >>> nan = torch.tensor([1.0, math.nan])
    >>> largest_difference(nan, nan), largest_difference(nan, torch.ones(2))
    (0.0, inf)
    """
    if own.numel() == 0:
        return 0.0
    largest = float((own - other).abs().max())
    if math.isfinite(largest):
        return largest
    same = (own == other) | (own.isnan() & other.isnan())
    differences = torch.where(same, 0, own - other).abs().nan_to_num(torch.inf, torch.inf)
    return float(differences.max())


def warn_of_nan(what: str, own: Tensor, other: Tensor) -> int:
    """Warn where two tensors are not numbers (NaN) in the same cells: they agree on nothing.

    Returns: how many cells these are.
    """
    cells = int((own.isnan() & other.isnan()).sum())
    if cells:
        warnings.warn(
            f"trace: {what} is not a number (NaN) in {cells} of {own.numel()} cells, with "
            f"headloom and "
            "without: there the model cannot be verified.",
            stacklevel=2,
        )
    return cells


@dataclass(eq=False)
class Untouched:
    """What a model gave without headloom.

    layers: output and weights (None: none were returned) of each call of each attention module, by
    its path. output: every floating tensor of the model's output, by name. weights: names of those
    that seem to be weights, which headloom forms none of; those of each layer are compared anyway.
    """

    layers: dict[str, list[tuple[Tensor, Tensor | None]]] = field(default_factory=dict)
    output: dict[str, Tensor] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)


class Comparison:
    """A run with headloom, held against the run without.

    Args:
        untouched: the run without.
        hidden: masks of the inputs' padding, (batch, length), True = padding: there a query may
            look nowhere, which implementations answer differently.
        where: what was read, for errors, as "64 tokens".
    """

    def __init__(self, untouched: Untouched, hidden: list[Tensor], where: str) -> None:
        self._untouched, self._hidden, self._where = untouched, hidden, where
        self._calls: dict[str, int] = {}
        #: The largest difference of an output, and of a weight, where weights were compared.
        self.difference = 0.0
        self.weights: float | None = None
        #: How many calls of attention layers were compared.
        self.layers = 0
        #: Cells of outputs that are not numbers (NaN), of which nothing can be said.
        self.nan = 0
        #: Layers with a row that may look at no key.
        self._blind: set[str] = set()
        #: The largest tolerance of a layer: its attention may be in half precision (autocast), and
        #: what the model gives in float32 all the same.
        self._coarsest = 0.0

    def layer(self, path: str, output: Tensor) -> Tensor | None:
        """Compare the next call of an attention module; returns what the model goes on with.

        Raises: VerificationError: it differs.
        """
        own = self._expected(path)
        self._calls[path] = self._calls.get(path, 0) + 1
        if own is None:
            return None
        if path in self._blind:
            _check_blind_rows(path, own[0], output)
        self._compare(f"layer {path}", own[0], output)
        self.layers += 1
        return own[0]

    def edges(self, call: RecordedCall) -> None:
        """Compare the weights of a layer's edges with those that its own attention returned.

        Raises: VerificationError: they differ.
        """
        if bool((call.graph.count == 0).any()):
            self._blind.add(call.path)
        if call.queries is not None:
            self._coarsest = max(self._coarsest, tolerance(call.queries.dtype))
        own = self._expected(call.path)
        weights = None if own is None else own[1]
        if weights is None or not self._fits(weights, call.graph):
            return
        queries, length = weights.shape[2:]
        keys, kept = call.graph.keys[:, :, :queries], call.graph.weights[:, :, :queries]
        # A key that the untouched run did not have must have no weight.
        known = (keys >= 0) & (keys < length)
        weights_of_keys = weights.float() * _left_by_sinks(weights, call)
        again = weights_of_keys.gather(-1, keys.clamp(0, length - 1).long())
        largest = largest_difference(torch.where(known, again, 0), torch.where(keys >= 0, kept, 0))
        if largest > max(tolerance(weights.dtype), self._coarsest):
            raise VerificationError(
                f"trace: the weights of layer {call.path} differ by {largest:.1e} from those of "
                f"the model's own attention ({self._where}). {REMEDY}"
            )
        self.weights = max(self.weights or 0.0, largest)

    def output(self, parts: Mapping[str, Tensor]) -> None:
        """Compare what the model gives in the end.

        Raises: VerificationError: it differs, or layers ran more or less often than without
        headloom.
        """
        for path, calls in self._untouched.layers.items():
            ran = self._calls.get(path, 0)
            if ran != len(calls):
                raise VerificationError(
                    f"trace: layer {path} runs {ran} times with headloom and {len(calls)} without. "
                    f"{REMEDY}"
                )
        for name, tensor in self._untouched.output.items():
            if name not in parts and name in self._untouched.weights:
                continue
            if name not in parts:
                raise VerificationError(
                    f"trace: with headloom the model does not give {name}. {REMEDY}"
                )
            self._compare(f"{name} of the model's output", tensor, parts[name])

    def _expected(self, path: str) -> tuple[Tensor, Tensor | None] | None:
        calls = self._untouched.layers.get(path, [])
        place = self._calls.get(path, 0)
        return calls[place] if place < len(calls) else None

    def _fits(self, weights: Tensor, graph: AttentionGraph) -> bool:
        """Whether weights, (batch, heads, queries, keys), are those of a graph's queries."""
        return tuple(weights.shape) == tuple(graph.shape)

    def _compare(self, what: str, own: Tensor, other: Tensor) -> None:
        if own.shape != other.shape:
            raise VerificationError(
                f"trace: {what} has the shape {tuple(other.shape)} with headloom and "
                f"{tuple(own.shape)} without. {REMEDY}"
            )
        for hidden in self._hidden:
            if own.ndim > 2 and own.shape[:2] == hidden.shape:
                own, other = (tensor[~hidden.to(tensor.device)] for tensor in (own, other))
        share = max(tolerance(own.dtype), self._coarsest)
        own, other = in_float64(own), in_float64(other)
        self.nan += warn_of_nan(what, own, other)
        largest = largest_difference(own, other)
        alone = int((other.isnan() & own.isfinite()).sum())
        if alone:
            raise VerificationError(
                f"trace: {what} is not a number (NaN) in {alone} of {own.numel()} cells with "
                f"headloom, "
                f"and is one without ({self._where}). torch's attention on the CPU gives 0 for "
                "some scores that are no numbers, and headloom gives NaN: look for NaN in the "
                "weights "
                "and inputs of the model, and report the model if there is none. verify=False "
                "traces it all the same."
            )
        finite = torch.where(own.isfinite(), own, 0)
        allowed = share * largest_difference(finite, torch.zeros_like(finite))
        if largest > allowed:
            raise VerificationError(
                f"trace: {what} is not what it is without headloom: it differs by {largest:.1e}, "
                f"where "
                f"rounding explains {allowed:.1e} ({self._where}). {REMEDY}"
            )
        self.difference = max(self.difference, largest)


def _check_blind_rows(path: str, own: Tensor, other: Tensor) -> None:
    """Raise a VerificationError where the model alone gives no numbers in rows without a key.

    Eager attention divides by the sum of the row's exponentials, which is 0 where all its scores
    are minus infinity; fused attention and headloom give 0.
    """
    if own.shape != other.shape or own.ndim < 2:
        return
    alone = (own.isnan() & other.isfinite()).flatten(2).any(-1)
    if not bool(alone.any()):
        return
    row = int(alone.nonzero()[0, 1])
    raise VerificationError(
        f"trace: row {row} of layer {path} may look at no key: all its scores are minus infinity, "
        "and the model's eager attention gives no numbers (NaN) for it, where headloom gives 0. "
        "Hide "
        "keys by torch.finfo(dtype).min, let each row look at one key, or load the model with "
        'attn_implementation="sdpa"; verify=False traces it with 0 there.'
    )


def _left_by_sinks(weights: Tensor, call: RecordedCall) -> Tensor | float:
    """By how much a model still scales the weights that it returned, of each row.

    Where its outputs are scaled by what sinks leave, as Granite's are, the weights that it returns
    are those before, whose rows sum to 1.
    """
    sums = weights.float().sum(-1)
    if call.sinks is None or bool(((sums - 1).abs() > tolerance(weights.dtype)).any()):
        return 1.0
    lse = call.graph.lse[:, :, : weights.shape[2]]
    return -torch.expm1(call.sinks.float()[:, None] - lse)[..., None]


class PrefixComparison(Comparison):
    """A run with headloom over a whole text, held by its first rows against one over its beginning.

    In a causal model the rows of the first positions are the same whatever follows. In another
    they are not, which is no fault: `agrees` then becomes False, and the rest is not compared.
    """

    def __init__(self, untouched: Untouched, hidden: list[Tensor], where: str) -> None:
        super().__init__(untouched, hidden, where)
        #: Whether all that was compared is the same.
        self.agrees = True

    def layer(self, path: str, output: Tensor) -> None:
        """Compare the first rows of the next call; the model goes on with its own."""
        with self._until_it_differs() as agrees:
            if agrees:
                super().layer(path, output)

    def edges(self, call: RecordedCall) -> None:
        """Compare the weights of the first rows."""
        with self._until_it_differs() as agrees:
            if agrees:
                super().edges(call)

    def output(self, parts: Mapping[str, Tensor]) -> None:
        """Compare the first rows of what the model gives in the end."""
        with self._until_it_differs() as agrees:
            if agrees:
                super().output(parts)

    @contextmanager
    def _until_it_differs(self) -> Iterator[bool]:
        try:
            yield self.agrees
        except VerificationError:
            self.agrees = False

    def _fits(self, weights: Tensor, graph: AttentionGraph) -> bool:
        return tuple(weights.shape[:2]) == tuple(graph.shape[:2])

    def _compare(self, what: str, own: Tensor, other: Tensor) -> None:
        if own.ndim == other.ndim > 1:
            other = other[:, : own.shape[1]]
        super()._compare(what, own, other)


def floating_parts(output: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every floating tensor of what a model gave, with its name.

    >>> [name for name, _ in floating_parts({"logits": torch.ones(1), "more": (torch.ones(2),)})]
    ['logits', 'more.0']
    """
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name or "output", output
        return
    if isinstance(output, Mapping):
        parts: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, list | tuple):
        parts = list(enumerate(output))
    else:
        return
    for key, part in parts:
        # Caches are state, and hold what attention layers were compared for.
        if key != "past_key_values":
            yield from floating_parts(part, f"{name}.{key}" if name else str(key))
