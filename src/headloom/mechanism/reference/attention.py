"""Attention as the papers write it: dense, one function for each formula.

Six steps make the attention output: project, score, scale, mask, softmax, weigh. Each is a
function here, and `self_attention` runs all six. Multi-head attention follows, then attention on
graphs and in images. (`scores` has the other scores of the literature; `call` a whole call with
mask, softcap, bias and sinks.)

Tensors are (positions, depth) unless a docstring says otherwise: without batch and head
dimensions, as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def project(inputs: Tensor, matrix: Tensor) -> Tensor:
    """Step 1: project the inputs linearly to queries, keys or values.

        Q = X W_Q

    inputs: (positions, width); matrix: (width, depth). Returns: (positions, depth).
    Source: Vaswani et al. 2017, section 3.2.2.

    >>> project(torch.tensor([[1., 2.]]), torch.tensor([[1., 0., 1.], [0., 1., 1.]]))
    tensor([[1., 2., 3.]])
    """
    return inputs @ matrix


def score(queries: Tensor, keys: Tensor) -> Tensor:
    """Step 2: score each query against each key.

        S = Q K^T

    queries: (queries, depth); keys: (keys, depth). Returns: (queries, keys).
    Source: Vaswani et al. 2017, equation 1.

    >>> score(torch.tensor([[1., 2.]]), torch.tensor([[3., 4.], [1., 0.]]))
    tensor([[11.,  1.]])
    """
    return queries @ keys.T


def scale(scores: Tensor, depth: int) -> Tensor:
    """Step 3: scale the scores, so that those of random vectors have variance 1 at any depth.

        S / sqrt(depth)

    Source: Vaswani et al. 2017, equation 1.

    >>> scale(torch.tensor([[6., 8.]]), depth=4)
    tensor([[3., 4.]])
    """
    return scores / math.sqrt(depth)


def mask(scores: Tensor, allowed: Tensor) -> Tensor:
    """Step 4: set the scores of masked keys to minus infinity.

    allowed: bool, True = visible; broadcastable to the scores.
    Source: Vaswani et al. 2017, section 3.2.3.

    >>> mask(torch.tensor([[1., 2.]]), torch.tensor([[True, False]]))
    tensor([[1., -inf]])
    """
    return scores.masked_fill(~allowed, -math.inf)


def softmax(scores: Tensor) -> Tensor:
    """Step 5: turn scores into weights, 0 or more, that sum to 1 in each row.

        weights_j = exp(scores_j) / sum_k exp(scores_k)

    The row's largest score is subtracted first, which avoids overflow and changes nothing else. A
    row without keys (all scores minus infinity) has weights 0.

    scores: (..., keys). Returns: the same shape.
    Source: Vaswani et al. 2017, equation 1; weights 0 for an empty row are our choice.

    >>> softmax(torch.tensor([[0., math.log(3.)], [-math.inf, -math.inf]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])
    """
    if scores.shape[-1] == 0:
        return scores
    largest = scores.amax(-1, keepdim=True).detach()
    largest = largest.masked_fill(largest == -math.inf, 0)
    exponentials = (scores - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1)


def weigh(weights: Tensor, values: Tensor) -> Tensor:
    """Step 6: average the values by the weights.

        z_i = sum_j weights_ij v_j

    weights: (queries, keys); values: (keys, value_depth). Returns: (queries, value_depth).
    Source: Vaswani et al. 2017, equation 1.

    >>> weigh(torch.tensor([[0.25, 0.75]]), torch.tensor([[4., 0.], [0., 4.]]))
    tensor([[1., 3.]])
    """
    return weights @ values


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Compute steps 2 to 6 in matrix form.

        attention(Q, K, V) = softmax(Q K^T / sqrt(depth)) V

    allowed: bool, (queries, keys), True = visible; None: all.
    Returns: (queries, value_depth).
    Source: Vaswani et al. 2017, equation 1.

    Weights 3/4 and 1/4, from scores log(3) and 0:

    >>> queries, keys = torch.tensor([[math.log(3.)]]), torch.tensor([[1.], [0.]])
    >>> attention(queries, keys, torch.tensor([[8.], [4.]]))
    tensor([[7.0000]])
    """
    scores = scale(score(queries, keys), queries.shape[-1])
    if allowed is not None:
        scores = mask(scores, allowed)
    return weigh(softmax(scores), values)


def attention_vector_form(
    queries: Tensor, keys: Tensor, values: Tensor, *, scaled: bool = False
) -> Tensor:
    """Compute attention without a matrix: one sum over the keys for each query.

        z(q) = sum_i ( e^{q . k_i} / sum_j e^{q . k_j} ) v_i

    scaled: divide each q . k_i by sqrt(depth) first, as `attention` does.
    Returns: (queries, value_depth). It needs at least one key.
    Source: Vaswani et al. 2017, equation 1, written out.

    >>> queries, keys = torch.tensor([[math.log(3.)]]), torch.tensor([[1.], [0.]])
    >>> attention_vector_form(queries, keys, torch.tensor([[8.], [4.]]))
    tensor([[7.]])
    """
    divisor = math.sqrt(queries.shape[-1]) if scaled else 1.0
    outputs = []
    for query in queries:
        exponentials = [torch.exp(torch.dot(query, key) / divisor) for key in keys]
        total = sum(exponentials, start=queries.new_zeros(()))
        output = values.new_zeros(values.shape[-1])
        for exponential, value in zip(exponentials, values, strict=True):
            output = output + exponential / total * value
        outputs.append(output)
    return torch.stack(outputs)


def self_attention(
    inputs: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, allowed: Tensor | None = None
) -> Tensor:
    """Run all six steps on one sequence.

        attention(X W_Q, X W_K, X W_V)

    inputs: X, (positions, width); W_Q, W_K, W_V: (width, depth).
    Returns: (positions, depth).
    Source: Vaswani et al. 2017, section 3.2.

    With W_Q = 0 every score is 0, every weight 1/2, and each output the mean of the values:

    >>> one = torch.ones(1, 1)
    >>> self_attention(torch.tensor([[2.], [6.]]), 0 * one, one, one)
    tensor([[4.],
            [4.]])
    """
    return attention(project(inputs, W_Q), project(inputs, W_K), project(inputs, W_V), allowed)


# Many heads.


def multi_head(
    queries_from: Tensor,
    keys_from: Tensor,
    W_Q: Tensor,
    W_K: Tensor,
    W_V: Tensor,
    W_O: Tensor,
    allowed: Tensor | None = None,
) -> Tensor:
    """Run several attention heads side by side, each with its own projections.

        head_i = attention(X W_Q_i, Y W_K_g, Y W_V_g),  g = i // (heads / kv_heads)
        output = Concat(head_1, ..., head_h) W_O

    With kv_heads = heads, g = i. With fewer, each group of query heads shares one key/value head.

    Args:
        queries_from: X, (queries, width).
        keys_from: Y, (keys, source_width).
        W_Q: (heads, width, depth).
        W_K: (kv_heads, source_width, depth).
        W_V: like W_K.
        W_O: (heads * depth, width).
        allowed: bool, (queries, keys).

    Returns: (queries, width).
    Source: Vaswani et al. 2017, section 3.2.2; groups: Ainslie et al. 2023.

    >>> # Two heads, W_Q = 0: both give the mean of their values, 4 and 40; W_O adds them.
    >>> zero, one = torch.zeros(2, 1, 1), torch.ones(2, 1, 1)
    >>> W_V = torch.tensor([[[1.]], [[10.]]])
    >>> multi_head(torch.ones(1, 1), torch.tensor([[2.], [6.]]), zero, one, W_V, torch.ones(2, 1))
    tensor([[44.]])
    """
    group_size = len(W_Q) // len(W_K)
    heads = []
    for head, W_Q_head in enumerate(W_Q):
        group = head // group_size
        heads.append(
            attention(
                project(queries_from, W_Q_head),
                project(keys_from, W_K[group]),
                project(keys_from, W_V[group]),
                allowed,
            )
        )
    return torch.cat(heads, -1) @ W_O


# Graphs and images.


def neighbourhood_attention(
    scores: Tensor, values: Tensor, neighbours: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Compute attention on a graph: each node attends to its neighbours.

        A_ij = exp(w(i, j)) / sum_{k in N(i)} exp(w(i, k)),  j in N(i)
        z_i  = sum_{j in N(i)} A_ij v_j

    scores: w, (nodes, nodes); values: (nodes, depth); neighbours: N(i) for each node i.
    Returns: the output, (nodes, depth), and A, (nodes, nodes), 0 where there is no edge.
    Source: Velickovic et al. 2018, equations 3 and 4.

    >>> output, A = neighbourhood_attention(torch.zeros(2, 2), torch.eye(2), [[0, 1], [0]])
    >>> A
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """
    weights = torch.zeros_like(scores)
    output = values.new_zeros(len(neighbours), values.shape[-1])
    for i, nodes in enumerate(neighbours):
        if not nodes:
            continue
        largest = max(float(scores[i, j]) for j in nodes)
        total = sum(math.exp(float(scores[i, j]) - largest) for j in nodes)
        for j in nodes:
            weights[i, j] = math.exp(float(scores[i, j]) - largest) / total
            output[i] += weights[i, j] * values[j]
    return output, weights


def image_self_attention(
    image: Tensor, W_f: Tensor, W_g: Tensor, W_h: Tensor, W_v: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Compute self-attention over the positions of an image.

        s_ij    = f(x_i)^T g(x_j),  f(x) = W_f x,  g(x) = W_g x          (1x1 convolutions)
        beta_ji = exp(s_ij) / sum_i exp(s_ij)                            (j attends to i)
        o_j     = v( sum_i beta_ji h(x_i) ),  h(x) = W_h x,  v(x) = W_v x
        y_j     = gamma o_j + x_j

    Args:
        image: x, (channels, height, width).
        W_f: (inner, channels).
        W_g: like W_f.
        W_h: like W_f.
        W_v: (channels, inner).
        gamma: factor; 0 at the start of training leaves the image unchanged.

    Returns: y, (channels, height, width), and beta, (positions, positions), rows j.
    Source: Zhang et al. 2019, equations 1 to 3.

    >>> # With f = 0 each position gets the mean, 2, of the image:
    >>> one = torch.ones(1, 1)
    >>> y, beta = image_self_attention(torch.tensor([[[1., 3.]]]), 0 * one, one, one, one, 10.)
    >>> y
    tensor([[[21., 23.]]])
    """
    channels, height, width = image.shape
    x = [image[:, row, column] for row in range(height) for column in range(width)]
    f, g, h = ([W @ pixel for pixel in x] for W in (W_f, W_g, W_h))
    beta = torch.stack([softmax(torch.stack([f_i @ g_j for f_i in f])) for g_j in g])
    o = [W_v @ (beta[j, :, None] * torch.stack(h)).sum(0) for j in range(len(x))]
    y = [gamma * o_j + x_j for o_j, x_j in zip(o, x, strict=True)]
    return torch.stack(y, -1).reshape(channels, height, width), beta
