"""One attention call: what every backend receives and gives, and the checks at its door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.graph import TENSORS, AttentionGraph, Keep, Top
from headloom.mechanism.mask import Mask
from headloom.mechanism.masks import MaskLike, read_mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.scores import ScaledDot, Score
from headloom.mechanism.shapes import (
    TYPES,
    Keys,
    Queries,
    Scores,
    Values,
    describe,
    finite_number,
    in_words,
    real_tensor,
)

#: Tensors by their names; those of a graph have a batch dimension.
Results = dict[str, Tensor]
#: Results that have a row for each query, and those of keys.
PER_ROW = ("output", *TENSORS[:-3])
NAMES = ("output", *TENSORS)
#: Those without a gradient.
CONSTANT = ("keys", "count", "received_most")
#: The score of a call that names none: it has no parameters to check.
_SCALED_DOT = ScaledDot()
#: The largest number of float32, in which half precision is computed too.
_LARGEST = torch.finfo(torch.float32).max
_STRIDED = torch.strided
#: What the errors call the tensors of a call.
_NAMES = ("queries", "keys", "values")


@dataclass(eq=False, slots=True)
class AttentionCall:
    """The arguments of one attention call, with a batch dimension and every default filled in.

    Never changed; not frozen, since a frozen class takes three times as long to make.

    The scores of a call are

        softcap(scale * (score(q, k) + relative key scores)) + relative bias + bias

    with minus infinity where the mask hides a key. A cap comes before the biases, so that a bias
    of minus infinity hides a key for good.
    """

    queries: Queries
    keys: Keys
    values: Values
    score: Score
    scale: float
    mask: Mask | None = None
    relative: Relative | None = None
    bias: Scores | None = None  # each dimension whole or 1
    softcap: float | None = None
    sinks: Tensor | None = None  # (heads,)
    dropout: float = 0.0
    #: What is kept beside the output; None: nothing.
    keep: Keep | None = None
    #: None: nobody asks what keys receive; else of how many last queries by themselves, 0 for none.
    received: int | None = None

    @property
    def heads(self) -> int:
        """Heads of the queries."""
        return self.queries.shape[1]

    @property
    def places(self) -> int:
        """Places for a row's edges in the graph; -1: no graph is kept."""
        return self.keep.places(self.keys.shape[2]) if isinstance(self.keep, Top) else -1

    @property
    def symmetric(self) -> bool:
        """Whether score(i, j) = score(j, i): one sequence looks at itself by a symmetric score."""
        return (
            self.queries is self.keys
            and self.score.symmetric
            and self.relative is None
            and self.bias is None
        )


def graph_of(call: AttentionCall, results: Results) -> AttentionGraph:
    """The graph of a call with these results."""
    fields: dict[str, Any] = {name: results.get(name) for name in TENSORS}
    fields["length"], fields["symmetric"] = call.keys.shape[2], call.symmetric
    if torch.compiler.is_compiling():  # which before torch 2.11 is all that the compiler reads
        return AttentionGraph(**fields)
    # Not by its __init__: of a frozen class that sets the fields one by one, in 3 microseconds.
    graph = AttentionGraph.__new__(AttentionGraph)
    vars(graph).update(fields)
    return graph


def check_tensors(operation: str, queries: object, keys: object, values: object) -> None:
    """Raise an InputError where queries, keys or values are no tensor."""
    if isinstance(queries, Tensor) and isinstance(keys, Tensor) and isinstance(values, Tensor):
        return
    for name, tensor in zip(_NAMES, (queries, keys, values), strict=True):
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{operation}: {name} are {type(tensor).__name__}; expected a tensor, as from "
                "torch.as_tensor."
            )


def checked_call(
    operation: str,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: MaskLike = None,
    score: Score | None = None,
    relative: Relative | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    keep: Keep | None = None,
    received: int | None = None,
) -> AttentionCall:
    """The call with a batch dimension and its defaults filled in, or an error that says why not."""
    if not (score is None and relative is None and bias is None and sinks is None):
        if score is not None and not isinstance(score, Score):
            raise InputError(
                f"{operation}: score={in_words(score)}; expected a score such as headloom.Dot()."
            )
        if relative is not None and not isinstance(relative, Relative):
            raise InputError(
                f"{operation}: relative={in_words(relative)}; expected headloom.Shaw, "
                "headloom.ALiBi or headloom.Buckets."
            )
        for name, tensor in (("the bias", bias), ("the tensor of sinks", sinks)):
            if tensor is not None and real_tensor(operation, name, tensor).device != queries.device:
                raise InputError(
                    f"{operation}: {name} is on {tensor.device}, the queries on {queries.device}. "
                    "Move all to one device."
                )
    if scale is not None or softcap is not None or type(dropout) is not float or dropout != 0:
        _check_numbers(operation, scale, softcap, dropout, queries.dtype)
    if queries.ndim == 3 == keys.ndim == values.ndim:
        same = queries is keys
        queries, values = queries[None], values[None]
        keys = queries if same else keys[None]
    _check_inputs(operation, queries, keys, values, score is None or score.same_depth)
    (batch, heads, rows, depth), length = queries.shape, keys.shape[2]
    if score is None:
        score = _SCALED_DOT
    else:
        score.check(queries, keys)
    rule = None if mask is None else read_mask(mask)
    if rule is not None:
        rule.check(batch, heads, rows, length)
    if relative is not None:
        relative.check(heads, depth, values.shape[3])
    if bias is not None:
        bias = _fitting_bias(operation, bias, (batch, heads, rows, length))
    if sinks is not None and sinks.shape != (heads,):
        raise ShapeError(
            f"{operation}: the sinks are {describe(sinks)}; expected one logit a head, ({heads},)."
        )
    if softcap is not None and queries.dtype != torch.float64:
        # Beyond these a cap is infinite or 0 in float32. Scores under the one are 0 to a softmax,
        # the other bends none.
        softcap = None if softcap > 1e30 else max(softcap, 1e-30)
    scale = score.default_scale(depth) if scale is None else float(scale)
    return AttentionCall(
        queries, keys, values, score, scale, rule, relative, bias, softcap, sinks, dropout, keep,
        received,
    )  # fmt: skip


def _check_numbers(
    operation: str, scale: float | None, softcap: float | None, dropout: float, dtype: torch.dtype
) -> None:
    """Raise an InputError where one is no finite number, or not in its range."""
    size = 0.0 if scale is None else abs(finite_number(operation, "scale", scale))
    if size > _LARGEST and dtype != torch.float64:
        raise InputError(
            f"{operation}: scale={scale}; expected a number that float32 holds, {_LARGEST:.2g} at "
            "most. Give float64 tensors for a larger one."
        )
    if softcap is not None and finite_number(operation, "softcap", softcap) <= 0:
        raise InputError(f"{operation}: softcap={softcap}; expected a number above 0, or None.")
    finite_number(operation, "dropout", dropout, 0, 1)


def _check_inputs(
    operation: str, queries: Queries, keys: Keys, values: Values, same_depth: bool
) -> None:
    """Raise an error unless queries, keys and values can enter one attention call."""
    # (Of what is right nothing more is asked: a call of a few microseconds feels it.)
    dtype = queries.dtype
    if not (
        queries.layout is keys.layout is values.layout is _STRIDED
        and queries.ndim == keys.ndim == values.ndim == 4
        and dtype in TYPES
        and dtype is keys.dtype is values.dtype
    ):
        _refuse_kinds(operation, queries, keys, values)
    batch, heads, _, depth = queries.shape
    key_batch, kv_heads, length, key_depth = keys.shape
    value_batch, value_heads, value_length, _ = values.shape
    on_cpu = queries.is_cpu and keys.is_cpu and values.is_cpu
    if not (on_cpu or queries.device == keys.device == values.device):
        raise InputError(
            f"{operation}: queries are on {queries.device}, keys on {keys.device}, values on "
            f"{values.device}. Move all three to one device."
        )
    wrong = None
    if not (batch == key_batch == value_batch):
        wrong = f"batches of {batch}, {key_batch} and {value_batch}", "Give all the same batch."
    elif kv_heads != value_heads:
        wrong = f"keys have {kv_heads} heads, values {value_heads}", "Both share their heads."
    elif kv_heads == 0 or heads % kv_heads:
        wrong = f"{heads} heads of queries over {kv_heads} of keys", "The second must divide them."
    elif length != value_length:
        wrong = f"{length} keys, {value_length} values", "Each key has one value."
    elif same_depth and depth != key_depth:
        wrong = f"queries have depth {depth}, keys {key_depth}", "Project both to one depth."
    if wrong is not None:
        shapes = f"{describe(queries)}, {describe(keys)} and {describe(values)}"
        raise ShapeError(f"{operation}: {wrong[0]}, from {shapes}. {wrong[1]}")


def _refuse_kinds(operation: str, *tensors: Tensor) -> None:
    """Raise the error that names the first tensor of no kind that is taken, or all three types."""
    for name, tensor in zip(_NAMES, tensors, strict=True):
        real_tensor(operation, f"the tensor of {name}", tensor)
        if tensor.ndim != 4:
            raise ShapeError(
                f"{operation}: {name} have {tensor.ndim} dimensions, from {describe(tensor)}; "
                "expected (batch, heads, positions, depth), or the same without the batch."
            )
    queries, keys, values = (tensor.dtype for tensor in tensors)
    raise InputError(
        f"{operation}: queries are {queries}, keys {keys}, values {values}; expected one type for "
        "all: float32, float64, bfloat16 or float16. Convert them, as in queries.float()."
    )


def _fitting_bias(operation: str, bias: Tensor, expected: tuple[int, int, int, int]) -> Tensor:
    """A bias with four dimensions, each that of the scores or 1."""
    if bias.dtype == torch.bool:
        raise InputError(f"{operation}: the bias is bool. Give it as mask=.")
    sizes = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    if bias.ndim > 4 or any(
        size not in (1, want) for size, want in zip(sizes, expected, strict=True)
    ):
        raise ShapeError(
            f"{operation}: the bias is {describe(bias)}, which does not broadcast to (batch, "
            f"heads, queries, keys) = {expected}."
        )
    return bias.reshape(sizes)
