"""attention() and attend(): check the inputs, and run the first backend that supports the call.

A backend named by the caller computes the call or raises an error; there is no silent fallback.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, Never, TypedDict, Unpack, get_args, overload

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from headloom.errors import BackendError, InputError, no_keyword
from headloom.mechanism import neighbours
from headloom.mechanism.backends import native, native_request, torch_ops, triton
from headloom.mechanism.call import AttentionCall, as_tensors, checked_call
from headloom.mechanism.graph import All, AttentionGraph, KeepLike, Top, as_keep
from headloom.mechanism.masks import MaskLike, read_mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import Output, in_words

Backend = Literal["native", "triton", "torch"]
#: The output, and a graph, dense weights or None.
Result = tuple[Output, AttentionGraph | Tensor | None]


class Row(NamedTuple):
    """Row of the table of backends.

    why_not: why it does not serve a call, None if it does; second argument: the named backend.
    run: computes a call that it serves; raises a BackendError if a compiler fails.
    """

    name: Backend
    serves: str
    why_not: Callable[[AttentionCall, Backend | None], str | None]
    run: Callable[[AttentionCall], Result]


def _why_not_triton(call: AttentionCall, named: Backend | None) -> str | None:
    if isinstance(call.keep, All):
        return "it never forms the dense weights, which keep=All() needs"
    if named is None and (call.keep is None or not call.queries.is_cuda):
        return "torch's fused attention computes the output alone; it serves GPUs"
    return triton.why_not_served(call)


#: The first row that serves a call computes it; a named backend restricts the rows to its own.
BACKENDS = (
    Row("native", "graphs, along their edges", neighbours.why_not_served, neighbours.attend),
    Row(
        "native",
        "dot products in float32 and bfloat16 on the CPU",
        lambda call, _: native_request.why_not_served(call),
        native.attend,
    ),
    Row("triton", "dot products and their graph on GPUs", _why_not_triton, triton.attend),
    Row("torch", "every call", lambda call, _: None, torch_ops.attend),
)


def run(operation: str, call: AttentionCall, named: Backend | None) -> Result:
    """Compute a call by the first backend that serves it; raise a BackendError if none does."""
    if named is not None and (not isinstance(named, str) or named not in get_args(Backend)):
        raise InputError(
            f'{operation}: backend={in_words(named)}; expected "native", "triton", "torch" or None.'
        )
    reason: str | None = None
    for row in BACKENDS:
        if named is not None and named != row.name:
            continue
        reason = row.why_not(call, named)
        if reason is not None:
            continue
        try:
            return row.run(call)
        except BackendError as error:  # a compiler failed on this kind of call
            reason = str(error)
            if named is None:
                warnings.warn(
                    f"{operation}: {reason}. Plain torch serves it, much slower.",
                    RuntimeWarning,
                    stacklevel=4,
                )
    raise BackendError(
        f'{operation}: backend="{named}" does not serve this call: {reason}. Use backend="torch", '
        "or None to choose one that does."
    )


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: MaskLike = None,
    is_causal: bool = False,
    score: Score | None = None,
    relative: Relative | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    backend: Backend | None = None,
    **_unknown: Never,
) -> Tensor:
    """Return the attention output.

        attention(Q, K, V) = softmax(Q K^T / sqrt(depth)) V

    Args:
        queries: (batch, heads, queries, depth); the batch may be left out everywhere.
        keys: (batch, kv_heads, keys, depth); kv_heads divides heads.
        values: (batch, kv_heads, keys, value_depth).
        mask: "causal", a `Mask`, or a bool tensor, True = the query sees the key.
        is_causal: whether to hide keys after the query, as ``mask="causal"``; combined with mask by
            intersection.
        score: score function; `ScaledDot()` if None.
        relative: relative positions: `Shaw`, `ALiBi` or `Buckets`.
        bias: added to the scaled scores; broadcastable to (batch, heads, queries, keys).
        scale: factor on the scores; None: the default of the score, 1 / sqrt(depth) for
            `ScaledDot`.
        softcap: c: scores become c tanh(score / c), before bias and mask.
        sinks: (heads,): an extra logit for each head that takes mass and has no value.
        dropout: probability that a weight is set to 0 (the others are scaled up).
        backend: "torch", "native" (CPU), "triton" (CUDA), or None for the fastest that can compute
            the call.

    Returns: (batch, heads, queries, value_depth); 0 for a query without visible keys.
        Differentiable any number of times, in forward mode too, and under torch.func. In a compiled
        program (torch.compile) it is one operator, without graph breaks, and differentiable once;
        an exported program has torch's operations and does not need headloom. A key or value
        that is NaN or infinite may make every query's row NaN, even if a mask hides it: a weight
        of 0 times NaN is NaN, as in torch.

    Raises:
        ShapeError: the shapes do not fit together.
        InputError: an argument that cannot be used.
        BackendError: the named backend cannot compute this call.
    Source: Vaswani et al. 2017, equation 1.

    >>> import torch
    >>> queries = keys = torch.eye(2)[None]                    # one head, two positions, depth 2
    >>> values = torch.tensor([[[1.0], [0.0]]])
    >>> attention(queries, keys, values)                       # 1 / (1 + exp(-1 / sqrt(2)))
    tensor([[[0.6698],
             [0.3302]]])
    >>> attention(queries, keys, values, is_causal=True)
    tensor([[[1.0000],
             [0.3302]]])
    """
    inputs = queries, keys, values
    if _unknown:
        raise no_keyword("attention", next(iter(_unknown)), _KEYWORDS, _ELSEWHERE)
    if is_causal:
        mask = read_mask(mask, is_causal)
    if has_torch_function(inputs):
        # As in torch's functions, so that a mode, such as one that traces a model, sees the call.
        return handle_torch_function(
            attention, inputs, *inputs, mask=mask, score=score, relative=relative, bias=bias,
            scale=scale, softcap=softcap, sinks=sinks, dropout=dropout, backend=backend,
        )  # fmt: skip
    inputs = as_tensors("attention", *inputs)
    call = checked_call(
        "attention", *inputs, mask=mask, score=score, relative=relative, bias=bias, scale=scale,
        softcap=softcap, sinks=sinks, dropout=dropout,
    )  # fmt: skip
    output, _ = run("attention", call, backend)
    return output if inputs[0].ndim == 4 else output[0]


#: Keywords of `attention`, and their names in other libraries.
_KEYWORDS = (
    "mask", "is_causal", "score", "relative", "bias", "scale", "softcap", "sinks", "dropout",
    "backend",
)  # fmt: skip
_ELSEWHERE = {
    **dict.fromkeys(
        ("return_weights", "need_weights", "return_attention", "output_attentions"),
        'headloom.attend(..., keep="all"), which returns the output and the weights',
    ),
    "attn_mask": "mask= (of bool, True = the query sees the key) or bias= (of numbers)",
    "key_padding_mask": "mask=headloom.padding(~key_padding_mask)",
    "dropout_p": "dropout=",
    "enable_gqa": "no argument: the shapes give the groups of heads",
}


class _Options(TypedDict, total=False):
    """Keywords of attend() except `keep`, for the overloads below."""

    mask: MaskLike
    is_causal: bool
    score: Score | None
    relative: Relative | None
    bias: Tensor | None
    scale: float | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    backend: Backend | None
    received: bool | LastQueries


@overload
def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    keep: Top | int = ...,
    **options: Unpack[_Options],
) -> tuple[Tensor, AttentionGraph]: ...
@overload
def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    keep: All | Literal["all"],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, keep: KeepLike, **options: Unpack[_Options]
) -> tuple[Tensor, AttentionGraph | Tensor]: ...
def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: MaskLike = None,
    is_causal: bool = False,
    score: Score | None = None,
    relative: Relative | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    keep: KeepLike = 32,
    received: bool | LastQueries = False,
    backend: Backend | None = None,
    **_unknown: Never,
) -> tuple[Tensor, AttentionGraph | Tensor]:
    """Return the attention output, and its strongest edges or all weights.

    It takes the arguments of `attention` (tensors, or arrays of NumPy, JAX or MLX), and two more:

    keep: number of strongest edges that the graph keeps for each query, or ``Top(n)``; "all" or
        ``All()`` for the dense weights. Weights are those before dropout.
    received: True: the graph has `received` and `received_most`, the exact sum and maximum of all
        weights on each key, (heads, keys), from the same pass; ``LastQueries(n)``: also
        `received_last`, the sum over the last n queries of the tensor, padding included. All but
        `received_most` are differentiable.

    Returns: the output, and
        with a number: an `AttentionGraph`, in memory linear in the length;
        with "all": the weights, (batch, heads, queries, keys); rows sum to 1 less the sink's mass,
        or to 0 if every key is hidden.

    >>> import torch
    >>> tokens = torch.eye(3)[None]
    >>> output, graph = attend(tokens, tokens, tokens, keep=2)
    >>> graph.keys[0].tolist()
    [[0, 1], [1, 0], [2, 0]]
    >>> graph
    AttentionGraph(shape=(1, 3, 3), k=2, edges=6)
    >>> _, graph = attend(tokens, tokens, tokens, is_causal=True, received=True)
    >>> graph.received[0].sum()                        # three queries with a mass of 1 each
    tensor(3.)
    """
    inputs = queries, keys, values
    if _unknown:
        raise no_keyword(
            "attend", next(iter(_unknown)), [*_KEYWORDS, "keep", "received"], _ELSEWHERE
        )
    if is_causal:
        mask = read_mask(mask, is_causal)
    keep = as_keep("attend", keep)
    if has_torch_function(inputs):
        function: Callable[..., tuple[Tensor, AttentionGraph | Tensor]] = attend
        return handle_torch_function(
            function, inputs, *inputs, mask=mask, score=score, relative=relative, bias=bias,
            scale=scale, softcap=softcap, sinks=sinks, dropout=dropout, keep=keep,
            received=received, backend=backend,
        )  # fmt: skip
    inputs = as_tensors("attend", *inputs)
    last = None if received is False else last_queries(received, "attend")
    if last is not None and isinstance(keep, All):
        raise InputError(
            "attend: keep=All() gives the dense weights and no graph; received= needs "
            "keep=Top(k). The column sums of the weights are weights.sum(-2)."
        )
    call = checked_call(
        "attend", *inputs, mask=mask, score=score, relative=relative, bias=bias, scale=scale,
        softcap=softcap, sinks=sinks, dropout=dropout, keep=keep, received=last,
    )  # fmt: skip
    output, kept = run("attend", call, backend)
    assert kept is not None  # by keep
    return (output, kept) if inputs[0].ndim == 4 else (output[0], kept[0])
