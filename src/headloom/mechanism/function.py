"""attention() and attend(): check the inputs, choose a backend, run.

A backend named by the caller serves the call or raises; nothing falls back in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack, overload

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from headloom.errors import BackendError, InputError
from headloom.mechanism.backends import native, torch_ops, triton
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.checked import check_tensors, checked_call
from headloom.mechanism.graph import All, AttentionGraph, Keep, Top
from headloom.mechanism.masks import Mask
from headloom.mechanism.neighbourhood import routing
from headloom.mechanism.positions import Relative
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.scores import Score
from headloom.mechanism.shapes import in_words

__all__ = ["Backend", "attend", "attention"]

Backend = Literal["native", "triton", "torch"]


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    score: Score | None = None,
    relative: Relative | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    backend: Backend | None = None,
) -> Tensor:
    """The attention output.

        attention(Q, K, V) = softmax(Q K^T / sqrt(depth)) V

    Args:
        queries: (batch, heads, queries, depth); the batch may be left out everywhere.
        keys: (batch, kv_heads, keys, depth); kv_heads divides heads.
        values: (batch, kv_heads, keys, value_depth).
        mask: who may look at whom: a `Mask`, or a bool tensor, True = may look.
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
    >>> import headloom
    >>> queries = keys = torch.eye(2)[None]                    # one head, two positions, depth 2
    >>> values = torch.tensor([[[1.0], [0.0]]])
    >>> attention(queries, keys, values)                       # 1 / (1 + exp(-1 / sqrt(2)))
    tensor([[[0.6698],
             [0.3302]]])
    >>> attention(queries, keys, values, mask=headloom.causal())
    tensor([[[1.0000],
             [0.3302]]])
    """
    given = queries, keys, values
    if has_torch_function(given):
        # As torch's own functions do it: a mode, such as one that watches a model, sees the call.
        options: dict[str, Any] = {"mask": mask, "score": score, "relative": relative, "bias": bias}
        options |= {"scale": scale, "softcap": softcap, "sinks": sinks, "dropout": dropout}
        through: Tensor = _through_modes(attention, given, backend=backend, **options)
        return through
    check_tensors("attention", queries, keys, values)
    _check_backend("attention", backend)
    batched = queries.ndim == 4
    call = checked_call(
        "attention",
        queries,
        keys,
        values,
        mask,
        score,
        relative,
        bias,
        scale,
        softcap,
        sinks,
        dropout,
    )
    if backend in (None, "native") and routing.serves(call):
        output = routing.attention(call, backend)
        return output if batched else output[0]
    if backend == "triton":
        output, _ = _by_triton("attention", call, Top(0))
        return output if batched else output[0]
    served = _served_natively("attention", call, backend)
    output = native.attention(call) if served else torch_ops.attention(call)
    return output if batched else output[0]


def _through_modes(function: Callable[..., Any], given: tuple[Tensor, ...], **options: Any) -> Any:
    """Call a function of headloom as torch calls its own where somebody watches or overrides
    them.
    """
    return handle_torch_function(function, given, *given, **options)


class _Options(TypedDict, total=False):
    """The keywords of attend() but `keep`, for the overloads below."""

    mask: Mask | Tensor | None
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
    queries: Tensor, keys: Tensor, values: Tensor, *, keep: Top = ..., **options: Unpack[_Options]
) -> tuple[Tensor, AttentionGraph]: ...
@overload
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, keep: All, **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    queries: Tensor, keys: Tensor, values: Tensor, *, keep: Keep, **options: Unpack[_Options]
) -> tuple[Tensor, AttentionGraph | Tensor]: ...
def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    score: Score | None = None,
    relative: Relative | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    keep: Keep = Top(32),  # noqa: B008 - frozen
    received: bool | LastQueries = False,
    backend: Backend | None = None,
) -> tuple[Tensor, AttentionGraph | Tensor]:
    """The attention output, and who attended to whom.

    Takes what `attention` takes, and:

    Args:
        keep: ``Top(k)`` for the graph of each query's k strongest edges, ``All()`` for the dense
            weights. Weights are those before dropout.
        received: True: the graph's `received` and `received_most` say of each key the sum and the
            largest of all weights on it, (heads, keys), exactly, from the same pass;
            ``LastQueries(n)``: its `received_last` too, the sum over the last n queries (of the
            tensor: padding counts). Differentiable as the rest, but for the largest.

    Returns: the output, and
        with ``Top``: an `AttentionGraph`, in memory linear in the length;
        with ``All``: the weights, (batch, heads, queries, keys); rows sum to 1, or to 0 where
        every key is hidden, less what sinks take.

    >>> import torch
    >>> import headloom
    >>> tokens = torch.eye(3)[None]
    >>> output, graph = attend(tokens, tokens, tokens, keep=headloom.Top(2))
    >>> graph.keys[0].tolist()
    [[0, 1], [1, 0], [2, 0]]
    >>> graph
    AttentionGraph(shape=(1, 3, 3), k=2, edges=6)
    >>> _, graph = attend(tokens, tokens, tokens, mask=headloom.causal(), received=True)
    >>> graph.received[0].sum()                        # each of three queries gives a mass of 1
    tensor(3.)
    """
    given = queries, keys, values
    if has_torch_function(given):
        options: dict[str, Any] = {"mask": mask, "score": score, "relative": relative, "bias": bias}
        options |= {"scale": scale, "softcap": softcap, "sinks": sinks, "dropout": dropout}
        both: tuple[Tensor, AttentionGraph | Tensor] = _through_modes(
            attend, given, keep=keep, received=received, backend=backend, **options
        )
        return both
    check_tensors("attend", queries, keys, values)
    _check_backend("attend", backend)
    batched = queries.ndim == 4
    call = checked_call(
        "attend",
        queries,
        keys,
        values,
        mask,
        score,
        relative,
        bias,
        scale,
        softcap,
        sinks,
        dropout,
        None if received is False else last_queries(received, "attend"),
    )
    if backend in (None, "native") and isinstance(keep, Top) and routing.serves(call):
        output, graph = routing.attend(call, keep, backend)
        return (output, graph) if batched else (output[0], graph[0])
    if isinstance(keep, Top) and (backend == "triton" or (backend is None and queries.is_cuda)):
        output, graph = _by_triton("attend", call, keep, named=backend is not None)
        return (output, graph) if batched else (output[0], graph[0])
    served = _served_natively("attend", call, backend, keep)
    if isinstance(keep, All):
        if call.received is not None:
            raise InputError(
                "attend: keep=All() gives the dense weights and no graph; received= is for "
                "keep=Top(k). Their column sums are weights.sum(-2)."
            )
        output, weights = torch_ops.attend_all(call)
        return (output, weights) if batched else (output[0], weights[0])
    if isinstance(keep, Top):
        output, graph = (native if served else torch_ops).attend(call, keep)
        return (output, graph) if batched else (output[0], graph[0])
    raise InputError(f"attend: keep={in_words(keep)}; expected headloom.Top(k) or headloom.All().")


def _by_triton(
    operation: str, call: AttentionCall, keep: Top, *, named: bool = True
) -> tuple[Tensor, AttentionGraph]:
    """Output and graph by the GPU's kernels; by torch where they do not serve, unless named."""
    reason = triton.why_not_served(call, keep)
    if reason is None:
        try:
            return triton.attend(call, keep)
        except BackendError as error:  # of a compiler, which met this kind of call first
            reason = str(error)
            if not named:
                warnings.warn(
                    f"{operation}: {reason}. Plain torch serves it, much slower.",
                    RuntimeWarning, stacklevel=3,
                )  # fmt: skip
    if named:
        raise BackendError(
            f'{operation}: backend="triton" does not serve this call: {reason}. Use '
            'backend="torch", or None for whichever serves it.'
        )
    return torch_ops.attend(call, keep)


def _check_backend(operation: str, backend: object) -> None:
    """Raise an InputError where a backend is none."""
    if backend is not None and (
        not isinstance(backend, str) or backend not in ("torch", "native", "triton")
    ):
        raise InputError(
            f'{operation}: backend={in_words(backend)}; expected "native", "triton", "torch" or '
            "None."
        )


def _served_natively(
    operation: str, call: AttentionCall, backend: Backend | None, keep: Keep | None = None
) -> bool:
    """Whether the native kernels run a call; an error where they are asked for and cannot."""
    if backend == "triton" and isinstance(keep, All):
        raise BackendError(
            f'{operation}: backend="triton" never forms the dense weights that keep=All() asks '
            'for. Use backend="torch".'
        )
    if backend in ("torch", "triton"):
        return False
    reason = native.why_not_served(call)
    if isinstance(keep, All):
        reason = "keep=All() asks for the dense weights, which the kernels never form"
    if backend == "native" and reason is not None:
        raise BackendError(
            f'{operation}: backend="native" does not serve this call: {reason}. Use '
            'backend="torch", or None for whichever serves it.'
        )
    return reason is None
