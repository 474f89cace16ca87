"""Graph attention on the complete graph, in n log n steps instead of n^2, and exact.

The score of version 1, ``LeakyReLU(a_i + b_j)``, splits the keys of each query in two ranges of
the sorted terms b: those above -a_i, where ``exp(score) = exp(a_i) exp(b_j)``, and the others,
where ``exp(score) = exp(s a_i) exp(s b_j)`` with the slope s. Each range gives a factor of the
query times a sum over keys from one end of the sorted ones; these sums are formed once for all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.mechanism.backends.native_request import why_wrapped
from weft.mechanism.call import AttentionCall
from weft.mechanism.scores import GraphAttention, node_terms
from weft.mechanism.shapes import describe, repeat_kv_heads

__all__ = ["complete_graph_attention", "score_served", "served_attention"]

#: Keys from which sorting pays.
LEAST_KEYS = 256


def complete_graph_attention(
    query_terms: Tensor, key_terms: Tensor, values: Tensor, slope: float = 0.2
) -> Tensor:
    """Graph attention, version 1, where every query looks at every key.

        output_i = sum_j softmax_j(LeakyReLU(a_i + b_j)) v_j

    Sorting takes n log n steps, all else n; memory is that of the values. Differentiable as often
    as asked. The same as the dense formula for terms of any size: everything is divided by
    ``exp`` of the largest score of its row, which is that of the largest b.

    Args:
        query_terms: a, (..., queries); ``a_1 . W h_i`` of `weft.GraphAttention`.
        key_terms: b, (..., keys).
        values: (..., keys, depth).
        slope: of the LeakyReLU below 0, from 0 to 1.

    Returns: (..., queries, depth); 0 where there are no keys.
    Raises: ShapeError: the shapes do not fit. InputError: another slope.
    Source: the score of Velickovic et al. 2018, equation 3.

    >>> a, b = torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0])
    >>> complete_graph_attention(a, b, torch.eye(2))     # row 1: scores -0.2 and 1
    tensor([[0.1192, 0.8808],
            [0.2315, 0.7685]])
    """
    if key_terms.shape != values.shape[:-1] or query_terms.shape[:-1] != key_terms.shape[:-1]:
        raise ShapeError(
            f"complete_graph_attention: query terms {describe(query_terms)}, key terms "
            f"{describe(key_terms)}, values {describe(values)}; expected (..., queries), (..., "
            "keys) and (..., keys, depth)."
        )
    if not 0 <= slope <= 1:
        raise InputError(f"complete_graph_attention: slope={slope}; expected 0 to 1.")
    if not key_terms.shape[-1]:
        return values.new_zeros(*query_terms.shape, values.shape[-1])
    terms, order = torch.sort(key_terms, dim=-1)
    sorted_values = torch.take_along_dim(values, order[..., None], -2)
    # The row sums are the weighted sums of values of 1.
    counted = torch.cat((sorted_values, torch.ones_like(sorted_values[..., :1])), -1)
    most = terms[..., -1:]
    below = _sums_before((slope * (terms - most)).exp()[..., None] * counted)
    above = _sums_before(((terms - most).exp()[..., None] * counted).flip(-2)).flip(-2)
    with torch.no_grad():
        split = torch.searchsorted(terms.contiguous(), -query_terms.contiguous(), right=True)
    largest = query_terms + most
    score = torch.nn.functional.leaky_relu(largest, slope)
    factor_above = (largest - score).exp()
    factor_below = (slope * largest - score).exp()
    total = factor_above[..., None] * torch.take_along_dim(above, split[..., None], -2)
    total = total + factor_below[..., None] * torch.take_along_dim(below, split[..., None], -2)
    return total[..., :-1] / total[..., -1:]


def _sums_before(rows: Tensor) -> Tensor:
    """The sums of the first 0, 1, ..., n rows: (..., n + 1, columns)."""
    return torch.nn.functional.pad(rows.cumsum(-2), (0, 0, 1, 0))


def score_served(call: AttentionCall) -> GraphAttention | None:
    """The score of a call of graph attention on the complete graph, if sorting pays for it."""
    score = call.score
    if type(score) is not GraphAttention:
        return None
    rules = (call.mask, call.relative, call.bias, call.softcap, call.sinks)
    if (
        0 <= score.slope <= 1
        and call.scale == 1
        and not call.dropout
        and call.keys.shape[2] >= LEAST_KEYS
        and all(rule is None for rule in rules)
        and why_wrapped((call.queries, call.keys, call.values)) is None
    ):
        return score
    return None


def served_attention(call: AttentionCall, score: GraphAttention) -> Tensor:
    """The output of a call that is served, (batch, heads, queries, value_depth)."""
    dtype = call.values.dtype
    queries, keys, values = (
        tensor.float() if dtype in (torch.float16, torch.bfloat16) else tensor
        for tensor in (
            call.queries,
            repeat_kv_heads(call.keys, call.heads),
            repeat_kv_heads(call.values, call.heads),
        )
    )
    query_terms = node_terms("the query vector", queries, score.query_vector.to(queries))
    key_terms = node_terms("the key vector", keys, score.key_vector.to(keys))
    return complete_graph_attention(query_terms, key_terms, values, score.slope).to(dtype)
