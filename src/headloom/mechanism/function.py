"""attention() and attend(): check the inputs, and run them by the first backend that serves them.

A backend named by the caller serves the call or raises; nothing falls back in silence.
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
from headloom.mechanism.call import AttentionCall, check_tensors, checked_call
from headloom.mechanism.graph import All, AttentionGraph, KeepLike, Top, as_keep
from headloom.mechanism.masks import MaskLike, read_mask
from headloom.mechanism.positions import Relative
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import Output, in_words

Backend = Literal["native", "triton", "torch"]
#: The output, and what the call keeps: a graph, dense weights, or nothing.
Result = tuple[Output, AttentionGraph | Tensor | None]


class Row(NamedTuple):
    """One way to compute a call.

    why_not: why it does not serve a call, given the backend that was named, if one was.
    run: computes a call that it serves. It may raise a BackendError where a compiler fails.
    """

    name: Backend
    serves: str
    why_not: Callable[[AttentionCall, Backend | None], str | None]
    run: Callable[[AttentionCall], Result]


def _why_not_triton(call: AttentionCall, named: Backend | None) -> str | None:
    if isinstance(call.keep, All):
        return "it never forms the dense weights that keep=All() asks for"
    if named is None and (call.keep is None or not call.queries.is_cuda):
        return "torch's fused attention gives the output alone; it serves GPUs"
    return triton.why_not_served(call)


#: The first row that serves a call computes it; a named backend's rows alone, where one is named.
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
    """Compute a call by the first backend that serves it; a BackendError where none does."""
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
        except BackendError as error:  # of a compiler, which met this kind of call first
            reason = str(error)
            if named is None:
                warnings.warn(
                    f"{operation}: {reason}. Plain torch serves it, much slower.",
                    RuntimeWarning,
                    stacklevel=4,
                )
    raise BackendError(
        f'{operation}: backend="{named}" does not serve this call: {reason}. Use backend="torch", '
        "or None for whichever serves it."
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
    **unknown: Never,
) -> Tensor:
    """The attention output.

        attention(Q, K, V) = softmax(Q K^T / sqrt(depth)) V

    Args:
        queries: (batch, heads, queries, depth); the batch may be left out everywhere.
        keys: (batch, kv_heads, keys, depth); kv_heads divides heads.
        values: (batch, kv_heads, keys, value_depth).
        mask: who may look at whom: "causal", a `Mask`, or a bool tensor, True = may look.
        is_causal: whether no query looks at a key after it, as ``mask="causal"``; with a mask,
            both hide.
        score: how queries and keys match; `ScaledDot()` if None.
        relative: relative positions: `Shaw`, `ALiBi` or `Buckets`.
        bias: added to the scaled scores; broadcastable to (batch, heads, queries, keys).
        scale: factor on the scores; if None the score's own, 1 / sqrt(depth) for `ScaledDot`.
        softcap: c: scores become c tanh(score / c), before bias and mask.
        sinks: (heads,): one extra logit a head that takes mass and gives no value.
        dropout: probability that a weight is set to 0 (the others grow to match).
        backend: "torch", "native" (CPU), "triton" (CUDA), or None for the best that serves the
            call.

    Returns: (batch, heads, queries, value_depth); 0 for a query that may look at no key.
        Differentiable as often as asked, forward too, and under torch.func. In a program that
        torch.compile makes it is an operator, without graph breaks, and differentiable once; an
        exported program has torch's operations, and needs no headloom. A key or a value that
        is NaN or infinite may make NaN of every query's row, also where a mask hides it: a weight
        of 0 times NaN is NaN, as in torch.

    Raises:
        ShapeError: the shapes do not fit together.
        InputError: an argument that cannot be used.
        BackendError: the backend named does not serve this call.
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
    given = queries, keys, values
    if unknown:
        raise no_keyword("attention", next(iter(unknown)), _KEYWORDS, _ELSEWHERE)
    if is_causal:
        mask = read_mask(mask, is_causal)
    if has_torch_function(given):
        # As torch's own functions do it: a mode, such as one that watches a model, sees the call.
        return handle_torch_function(
            attention, given, *given, mask=mask, score=score, relative=relative, bias=bias,
            scale=scale, softcap=softcap, sinks=sinks, dropout=dropout, backend=backend,
        )  # fmt: skip
    check_tensors("attention", *given)
    call = checked_call(
        "attention", *given, mask=mask, score=score, relative=relative, bias=bias, scale=scale,
        softcap=softcap, sinks=sinks, dropout=dropout,
    )  # fmt: skip
    output, _ = run("attention", call, backend)
    return output if queries.ndim == 4 else output[0]


#: Keywords of `attention`, and what other libraries call them.
_KEYWORDS = (
    "mask", "is_causal", "score", "relative", "bias", "scale", "softcap", "sinks", "dropout",
    "backend",
)  # fmt: skip
_ELSEWHERE = {
    **dict.fromkeys(
        ("return_weights", "need_weights", "return_attention", "output_attentions"),
        'headloom.attend(..., keep="all"), which returns the output and the weights',
    ),
    "attn_mask": "mask= (of bool, True = may look) or bias= (of numbers)",
    "key_padding_mask": "mask=headloom.padding(~key_padding_mask)",
    "dropout_p": "dropout=",
    "enable_gqa": "it without: heads are found from the shapes",
}


class _Options(TypedDict, total=False):
    """The keywords of attend() but `keep`, for the overloads below."""

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
    **unknown: Never,
) -> tuple[Tensor, AttentionGraph | Tensor]:
    """The attention output, and who attended to whom.

    Takes what `attention` takes, and:

    Args:
        keep: how many edges of each query the graph has, its strongest, ``Top(32)`` for short; or
            "all", ``All()``, for the dense weights. Weights are those before dropout.
        received: True: the graph's `received` and `received_most` say of each key the sum and the
            largest of all weights on it, (heads, keys), exactly, from the same pass;
            ``LastQueries(n)``: its `received_last` too, the sum over the last n queries (of the
            tensor: padding counts). Differentiable as the rest, but for the largest.

    Returns: the output, and
        with a number: an `AttentionGraph`, in memory linear in the length;
        with "all": the weights, (batch, heads, queries, keys); rows sum to 1, or to 0 where
        every key is hidden, less what sinks take.

    >>> import torch
    >>> tokens = torch.eye(3)[None]
    >>> output, graph = attend(tokens, tokens, tokens, keep=2)
    >>> graph.keys[0].tolist()
    [[0, 1], [1, 0], [2, 0]]
    >>> graph
    AttentionGraph(shape=(1, 3, 3), k=2, edges=6)
    >>> _, graph = attend(tokens, tokens, tokens, is_causal=True, received=True)
    >>> graph.received[0].sum()                        # each of three queries gives a mass of 1
    tensor(3.)
    """
    given = queries, keys, values
    if unknown:
        raise no_keyword(
            "attend", next(iter(unknown)), [*_KEYWORDS, "keep", "received"], _ELSEWHERE
        )
    if is_causal:
        mask = read_mask(mask, is_causal)
    keep = as_keep("attend", keep)
    if has_torch_function(given):
        whole: Callable[..., tuple[Tensor, AttentionGraph | Tensor]] = attend
        return handle_torch_function(
            whole, given, *given, mask=mask, score=score, relative=relative, bias=bias,
            scale=scale, softcap=softcap, sinks=sinks, dropout=dropout, keep=keep,
            received=received, backend=backend,
        )  # fmt: skip
    check_tensors("attend", *given)
    last = None if received is False else last_queries(received, "attend")
    if last is not None and isinstance(keep, All):
        raise InputError(
            "attend: keep=All() gives the dense weights and no graph; received= is for "
            "keep=Top(k). Their column sums are weights.sum(-2)."
        )
    call = checked_call(
        "attend", *given, mask=mask, score=score, relative=relative, bias=bias, scale=scale,
        softcap=softcap, sinks=sinks, dropout=dropout, keep=keep, received=last,
    )  # fmt: skip
    output, kept = run("attend", call, backend)
    assert kept is not None  # by keep
    return (output, kept) if queries.ndim == 4 else (output[0], kept[0])
