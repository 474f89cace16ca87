"""Position encodings as the papers write them: dense, pair by pair."""

from __future__ import annotations

import cmath
import math

import torch
from torch import Tensor


def sinusoidal(length: int, width: int) -> Tensor:
    """Return sinusoidal positions, (length, width), float64.

        PE(position, 2i)     = sin(position / 10000^(2i / width))
        PE(position, 2i + 1) = cos(position / 10000^(2i / width))

    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal(1, 4)
    tensor([[0., 1., 0., 1.]], dtype=torch.float64)
    """
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[position, 2 * i] = math.sin(angle)
            table[position, 2 * i + 1] = math.cos(angle)
    return table


def rotary(
    vectors: Tensor,
    offset: int = 0,
    base: float = 10_000.0,
    *,
    dims: int | None = None,
    interleaved: bool = False,
) -> Tensor:
    """Rotate pairs of coordinates, as complex numbers, by an angle that grows with the position.

        z_m -> z_m e^{i m theta},  theta = base^(-2 pair / dims)

    Coordinates i and i + dims / 2 are the real and the imaginary part of pair i; interleaved,
    coordinates 2i and 2i + 1.

    vectors: queries or keys of one head, (positions, depth).
    dims: number of rotated coordinates, even; the others stay. None: all of an even depth.
    Returns: the same shape.
    Source: Su et al. 2021, section 3.2, whose pairs are interleaved; by halves: GPT-NeoX.

    >>> # Depth 2: one pair, theta = 1. The vector at position 1 turns by one radian.
    >>> rotary(torch.tensor([[1., 0.], [1., 0.]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    dims = vectors.shape[-1] if dims is None else dims
    half = dims // 2
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + half) for i in range(half)]
    rotated = vectors.clone()
    for row, vector in enumerate(vectors.tolist()):
        for i, (real, imaginary) in enumerate(pairs):
            rotation = cmath.exp(1j * (row + offset) * base ** (-2 * i / dims))
            number = complex(vector[real], vector[imaginary]) * rotation
            rotated[row, real], rotated[row, imaginary] = number.real, number.imag
    return rotated


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi: the geometric series with first term and ratio 2^(-8 / n).

    If the number of heads is no power of two: the series of the next smaller power n, then every
    second term, from the first, of the series of 2n.

    Source: Press et al. 2022, section 3, and its code for the second case.

    >>> alibi_slopes(8)[:3]
    [0.5, 0.25, 0.125]
    >>> alibi_slopes(3) == [2**-4, 2**-8, 2**-2]
    True
    """
    power = 1
    while 2 * power <= heads:
        power *= 2
    series = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    finer = [2 ** (-8 * n / (2 * power)) for n in range(1, 2 * power + 1)]
    return (series + finer[::2])[:heads]


def alibi_bias(slopes: Tensor, queries: int, keys: int, offset: int = 0) -> Tensor:
    """Return ``-slope |j - i|``, (heads, queries, keys).

    slopes: (heads,); offset: position of the first query among the keys.
    Source: Press et al. 2022, section 3; symmetric where keys after the query are visible.

    >>> alibi_bias(torch.tensor([0.5]), 2, 3)
    tensor([[[-0.0000, -0.5000, -1.0000],
             [-0.5000, -0.0000, -0.5000]]])
    """
    bias = slopes.new_zeros(len(slopes), queries, keys)
    for i in range(queries):
        for j in range(keys):
            bias[:, i, j] = -slopes * abs(j - (i + offset))
    return bias


def bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Return the bucket of one distance j - i.

    Half of the buckets hold one distance each, 0 to exact - 1; the others grow like a geometric
    series up to max_distance, and the last holds all larger distances:

        bucket(d) = exact + floor( log(d / exact) / log(max / exact) (buckets - exact) )

    If bidirectional, half of all buckets are for keys after the query; otherwise these keys are in
    bucket 0. Computed in integers, so that rounding moves no border.

    Source: Raffel et al. 2020, section 2.1.

    >>> [bucket(-d, 32, 128, False) for d in (0, 1, 15, 16, 127, 128, 1000)]
    [0, 1, 15, 16, 31, 31, 31]
    >>> bucket(1, 32, 128, True), bucket(-8, 32, 128, True), bucket(-16, 32, 128, True)
    (17, 8, 10)
    """
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    # The largest step with (max / exact)^(step / steps) <= d / exact.
    steps = buckets - exact
    step = 0
    while step + 1 < steps and (
        max_distance ** (step + 1) * exact**steps <= distance**steps * exact ** (step + 1)
    ):
        step += 1
    return first + exact + step


def bucket_bias(
    table: Tensor,
    queries: int,
    keys: int,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: int = 0,
) -> Tensor:
    """Return the learned bias of each pair's bucket of distances, (heads, queries, keys).

    table: (buckets, heads).
    Source: Raffel et al. 2020, section 2.1.

    >>> bucket_bias(torch.arange(8.)[:, None], 2, 2, max_distance=16)
    tensor([[[0., 5.],
             [1., 0.]]])
    """
    bias = table.new_zeros(table.shape[1], queries, keys)
    for i in range(queries):
        for j in range(keys):
            bias[:, i, j] = table[bucket(j - (i + offset), len(table), max_distance, bidirectional)]
    return bias


def shaw_embeddings(table: Tensor, queries: int, keys: int, offset: int = 0) -> Tensor:
    """Return the embedding a_ij of every pair as a full (queries, keys, depth) tensor.

        a_ij = table[clip(j - i, -k, k) + k]

    table: (2 k + 1, depth); row 0 is distance -k.
    Source: Shaw et al. 2018, section 3.2.

    >>> shaw_embeddings(torch.tensor([[-1.], [0.], [1.]]), 2, 3)[:, :, 0]
    tensor([[ 0.,  1.,  1.],
            [-1.,  0.,  1.]])
    """
    clip = (len(table) - 1) // 2
    pairs = table.new_zeros(queries, keys, table.shape[-1])
    for i in range(queries):
        for j in range(keys):
            pairs[i, j] = table[max(-clip, min(clip, j - (i + offset))) + clip]
    return pairs


def shaw_scores(queries: Tensor, keys: Tensor, a_K: Tensor) -> Tensor:
    """Return scores with relative positions.

        e_ij = q_i . (k_j + a_ij^K) / sqrt(depth)

    queries: (queries, depth); keys: (keys, depth); a_K: (queries, keys, depth).
    Source: Shaw et al. 2018, equation 4 (equation 5 is the same, split in two).

    >>> shaw_scores(torch.tensor([[2.]]), torch.tensor([[3.]]), torch.tensor([[[10.]]]))
    tensor([[26.]])
    """
    return (queries[:, None, :] * (keys[None, :, :] + a_K)).sum(-1) / math.sqrt(queries.shape[-1])


def shaw_output(weights: Tensor, values: Tensor, a_V: Tensor) -> Tensor:
    """Return the output with relative positions.

        z_i = sum_j w_ij (v_j + a_ij^V)

    weights: (queries, keys); values: (keys, depth); a_V: (queries, keys, depth).
    Source: Shaw et al. 2018, equation 3.

    >>> a_V = torch.tensor([[[1.], [2.]]])
    >>> shaw_output(torch.tensor([[0.5, 0.5]]), torch.tensor([[10.], [20.]]), a_V)
    tensor([[16.5000]])
    """
    return (weights[:, :, None] * (values[None, :, :] + a_V)).sum(1)


def shaw_attention(
    inputs: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, key_table: Tensor, value_table: Tensor
) -> Tensor:
    """Compute self-attention with relative positions for keys and values.

        e_ij = (x_i W_Q (x_j W_K)^T + x_i W_Q (a_ij^K)^T) / sqrt(depth)
        w_ij = exp(e_ij) / sum_k exp(e_ik)
        z_i  = sum_j w_ij (x_j W_V + a_ij^V)

    inputs: (positions, width); W_Q, W_K, W_V: (width, depth); tables: (2 clip + 1, depth).
    Returns: (positions, depth).
    Source: Shaw et al. 2018, equations 3 to 5.

    W_Q = 0: weights 1/2; the values are 0, so the mean of the embeddings is left.

    >>> zero, tables = torch.zeros(1, 1), torch.tensor([[-4.], [0.], [8.]])
    >>> shaw_attention(torch.ones(2, 1), zero, zero, zero, tables, tables)
    tensor([[ 4.],
            [-2.]])
    """
    length = len(inputs)
    queries, keys, values = inputs @ W_Q, inputs @ W_K, inputs @ W_V
    a_K = shaw_embeddings(key_table, length, length)
    a_V = shaw_embeddings(value_table, length, length)
    exponentials = shaw_scores(queries, keys, a_K).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return shaw_output(weights, values, a_V)
