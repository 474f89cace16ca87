"""Arguments and results of one attention call, and the checks of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

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
#: Results with a row for each query; all results.
PER_ROW = ("output", *TENSORS[:-3])
NAMES = ("output", *TENSORS)
#: Results without a gradient.
CONSTANT = ("keys", "count", "received_most")
#: Default score: it has no parameters to check.
_SCALED_DOT = ScaledDot()
#: The largest number of float32; half precision is computed in float32 too.
_LARGEST = torch.finfo(torch.float32).max
_STRIDED = torch.strided
#: Names of the tensors in error messages.
_NAMES = ("queries", "keys", "values")


@dataclass(eq=False, slots=True)
class AttentionCall:
    """Arguments of one attention call, with a batch dimension and every default filled in.

    Not changed after construction; not frozen, since a frozen class takes three times as long to
    construct.

    The scores of a call are

        softcap(scale * (score(q, k) + relative key scores)) + relative bias + bias

    with minus infinity for masked keys. The softcap comes before the biases, so that a bias of
    minus infinity masks a key.
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
    #: What is kept besides the output; None: nothing.
    keep: Keep | None = None
    #: Number of last queries for `received_last`, 0 for none; None: no sums over columns.
    received: int | None = None

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.queries.shape[1]

    @property
    def places(self) -> int:
        """Slots for the edges of a row in the graph; -1: no graph is kept."""
        return self.keep.places(self.keys.shape[2]) if isinstance(self.keep, Top) else -1

    @property
    def symmetric(self) -> bool:
        """Whether score(i, j) = score(j, i): self-attention with a symmetric score."""
        return (
            self.queries is self.keys
            and self.score.symmetric
            and self.relative is None
            and self.bias is None
        )


def graph_of(call: AttentionCall, results: Results) -> AttentionGraph:
    """Return the graph of a call with these results."""
    fields: dict[str, Any] = {name: results.get(name) for name in TENSORS}
    fields["length"], fields["symmetric"] = call.keys.shape[2], call.symmetric
    if torch.compiler.is_compiling():  # before torch 2.11 the compiler reads only this
        return AttentionGraph(**fields)
    # Without __init__, which in a frozen class takes 3 microseconds to set the fields one by one.
    graph = AttentionGraph.__new__(AttentionGraph)
    vars(graph).update(fields)
    return graph


def as_tensors(
    operation: str, queries: object, keys: object, values: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values as tensors; an array with `__dlpack__` shares its memory.

    Raises: InputError: something else.
    """
    if isinstance(queries, Tensor) and isinstance(keys, Tensor) and isinstance(values, Tensor):
        return queries, keys, values
    tensors = []
    for name, array in zip(_NAMES, (queries, keys, values), strict=True):
        if not isinstance(array, Tensor) and not hasattr(array, "__dlpack__"):
            raise InputError(
                f"{operation}: {name} are {type(array).__name__}; expected a tensor, as from "
                "torch.as_tensor, or an array with __dlpack__."
            )
        tensors.append(array if isinstance(array, Tensor) else from_dlpack(array))
    return tensors[0], tensors[1], tensors[2]


def checked_call(
    operation: str, queries: Tensor, keys: Tensor, values: Tensor, *, mask: MaskLike = None,
    score: Score | None = None, relative: Relative | None = None, bias: Tensor | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Tensor | None = None,
    dropout: float = 0.0, keep: Keep | None = None, received: int | None = None,
) -> AttentionCall:  # fmt: skip
    """Check the arguments; return the call with a batch dimension and its defaults filled in."""
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
        # Outside this range a softcap is 0 or infinite in float32. Below it all scores are equal to
        # a softmax; above it no score changes.
        softcap = None if softcap > 1e30 else max(softcap, 1e-30)
    scale = score.default_scale(depth) if scale is None else float(scale)
    return AttentionCall(
        queries, keys, values, score, scale, rule, relative, bias, softcap, sinks, dropout, keep,
        received,
    )  # fmt: skip


def _check_numbers(
    operation: str, scale: float | None, softcap: float | None, dropout: float, dtype: torch.dtype
) -> None:
    """Raise an InputError if a number is not finite or out of its range."""
    size = 0.0 if scale is None else abs(finite_number(operation, "scale", scale))
    if size > _LARGEST and dtype != torch.float64:
        raise InputError(
            f"{operation}: scale={scale}; expected a number that fits float32, {_LARGEST:.2g} at "
            "most. For a larger one, use float64 tensors."
        )
    if softcap is not None and finite_number(operation, "softcap", softcap) <= 0:
        raise InputError(f"{operation}: softcap={softcap}; expected a number above 0, or None.")
    finite_number(operation, "dropout", dropout, 0, 1)


def _check_inputs(
    operation: str, queries: Queries, keys: Keys, values: Values, same_depth: bool
) -> None:
    """Raise an error unless queries, keys and values can enter one attention call."""
    # (Valid tensors need no further checks, which would slow calls of a few microseconds.)
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
        wrong = f"keys have {kv_heads} heads, values {value_heads}", "Give both the same number."
    elif kv_heads == 0 or heads % kv_heads:
        wrong = f"{heads} query heads, {kv_heads} key heads", "The second must divide the first."
    elif length != value_length:
        wrong = f"{length} keys, {value_length} values", "Each key needs one value."
    elif same_depth and depth != key_depth:
        wrong = f"queries have depth {depth}, keys {key_depth}", "Project both to one depth."
    if wrong is not None:
        shapes = f"{describe(queries)}, {describe(keys)} and {describe(values)}"
        raise ShapeError(f"{operation}: {wrong[0]}, from {shapes}. {wrong[1]}")


def _refuse_kinds(operation: str, *tensors: Tensor) -> None:
    """Raise the error for the first tensor of an unsupported kind, or for the three dtypes."""
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
    """Return the bias with four dimensions, each the size of the scores or 1."""
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
