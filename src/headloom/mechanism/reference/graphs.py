"""Measures of a dense weight matrix, as the papers define them.

Rows are queries, columns are keys; (positions, positions) for self-attention. A mean over no
query is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def with_residual(weights: Tensor) -> Tensor:
    """Return ``0.5 W + 0.5 I``: the weights with the residual connection.

    Source: Abnar and Zuidema 2020, section 3.

    >>> with_residual(torch.tensor([[0., 1.], [1., 0.]]))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    return 0.5 * weights + 0.5 * torch.eye(len(weights), dtype=weights.dtype)


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Return the attention rollout: the share of each input position in each output position.

        (0.5 W_L + 0.5 I) ... (0.5 W_1 + 0.5 I)

    layers: the weights of each layer, the first layer first, (positions, positions) each.
    Returns: (positions, positions); rows are positions of the last layer.
    Source: Abnar and Zuidema 2020, equation 1.

    >>> step = torch.tensor([[1., 0.], [1., 0.]])            # all attend to position 0
    >>> rollout([step, step])
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500]])
    """
    product = torch.eye(len(layers[0]), dtype=layers[0].dtype)
    for weights in layers:
        product = with_residual(weights) @ product
    return product


def flow(layers: Sequence[Tensor], position: int) -> Tensor:
    """Return the attention flow: the maximum flow from an output position to each input position.

    The network has a node for each position of each layer; an edge from a position of layer l to
    one of layer l - 1 has the weight as its capacity. Pass ``with_residual`` of each layer's
    weights to count the residual connections, as the paper does.

    layers: as for `rollout`; position: of the last layer. Returns: (positions,), float64.
    Source: Abnar and Zuidema 2020, section 3. For small graphs: one max-flow for each position.

    Two paths lead from position 1 to position 0; each has the capacity of its weakest edge:

    >>> first = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    >>> second = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> flow([first, second], 1)                             # min(.5, .25) + min(.5, .5)
    tensor([0.7500, 1.0000], dtype=torch.float64)
    """
    import networkx

    network = networkx.DiGraph()
    for layer, weights in enumerate(layers):
        for i, row in enumerate(weights.tolist()):
            for j, weight in enumerate(row):
                network.add_edge((layer + 1, i), (layer, j), capacity=weight)
    source = (len(layers), position)
    largest = [networkx.maximum_flow_value(network, source, (0, j)) for j in range(len(layers[0]))]
    return torch.tensor(largest, dtype=torch.float64)


def in_strength(weights: Tensor) -> Tensor:
    """Return the sum of each column, (keys,): the weight that each key receives.

    >>> in_strength(torch.tensor([[0.25, 0.75], [1., 0.]]))
    tensor([1.2500, 0.7500])
    """
    return weights.sum(0)


def entropy(weights: Tensor) -> Tensor:
    """Return ``-sum_j w_ij log w_ij`` in nats, (queries,); 0 log 0 = 0.

    >>> entropy(torch.tensor([[0.5, 0.5], [1., 0.]]))        # log 2, 0
    tensor([0.6931, 0.0000])
    """
    return torch.stack(
        [sum((-w * w.log() for w in row if w > 0), row.new_zeros(())) for row in weights]
    )


def pagerank(weights: Tensor, damping: float = 0.85) -> Tensor:
    """Return the PageRank: the share of time that a random walk along the weights spends at a key.

        r = damping P^T r + (1 - damping) / n

    A row without mass counts as uniform. Solved as a linear system; sums to 1.

    weights: (positions, positions). Returns: (positions,).
    Source: Page et al. 1999.

    >>> pagerank(torch.tensor([[0., 1.], [0., 1.]]), damping=0.5)    # r_0 = (1 - 0.5) / 2
    tensor([0.2500, 0.7500])
    """
    n = len(weights)
    total = weights.sum(-1, keepdim=True)
    P = torch.where(total > 0, weights / total.masked_fill(total == 0, 1), 1 / n)
    start = torch.full((n,), (1 - damping) / n, dtype=weights.dtype)
    rank: Tensor = torch.linalg.solve(torch.eye(n, dtype=weights.dtype) - damping * P.T, start)
    return rank


def effective_rank(matrix: Tensor) -> Tensor:
    """Return ``exp(-sum_i p_i log p_i)``, p the singular values divided by their sum.

    Source: Roy and Vetterli 2007.

    >>> effective_rank(torch.tensor([[0., 1.], [2., 0.]])).log()      # log(3) - 2/3 log(2)
    tensor(0.6365)
    """
    singular_values = torch.linalg.svdvals(matrix)
    return entropy((singular_values / singular_values.sum())[None])[0].exp()


def reciprocity(weights: Tensor) -> Tensor:
    """Return ``<P, P^T> / |P|^2``: 1 where attention is mutual (P symmetric).

    >>> reciprocity(torch.tensor([[0., 1.], [1., 0.]]))
    tensor(1.)
    >>> reciprocity(torch.tensor([[0., 1.], [0., 0.]]))
    tensor(0.)
    """
    return (weights * weights.T).sum() / (weights * weights).sum()


def symmetry(M: Tensor) -> Tensor:
    """Return ``(|M_sym|^2 - |M_anti|^2) / |M|^2``: 1 symmetric, -1 antisymmetric.

    M_sym = (M + M^T) / 2, M_anti = (M - M^T) / 2. (The authors' code returns |M_sym|^2 / |M|^2.)

    M: W_Q W_K^T, (width, width).
    Source: Saponati et al. 2025.

    >>> symmetry(torch.tensor([[0., 2.], [0., 0.]])), symmetry(torch.tensor([[0., -1.], [1., 0.]]))
    (tensor(0.), tensor(-1.))
    """
    symmetric, antisymmetric = (M + M.T) / 2, (M - M.T) / 2
    return (symmetric.square().sum() - antisymmetric.square().sum()) / M.square().sum()


def directionality(M: Tensor, spread: float = 2.0) -> Tensor:
    """Return ``(c - r) / (c + r)``: c and r sum the norms of the long columns and the long rows.

    A norm is long above mean + spread * standard deviation (of a sample: over n - 1). 0 where none
    is long.

    M: W_Q W_K^T, (width, width).
    Source: Saponati et al. 2025, definition 3.4.

    >>> M = torch.zeros(8, 8)                                # one long column, equal rows
    >>> M[:, 3] = 1.0
    >>> directionality(M), directionality(M.T)
    (tensor(1.), tensor(-1.))
    """

    def long_norms(norms: Tensor) -> Tensor:
        return norms[norms > norms.mean() + spread * norms.std()].sum()

    columns = long_norms(torch.stack([column.norm() for column in M.T]))
    rows = long_norms(torch.stack([row.norm() for row in M]))
    return (columns - rows) / (columns + rows) if columns + rows > 0 else columns


# Roles of a head: means over the queries of the mass on certain keys, 0 to 1.


def _mean(masses: Sequence[Tensor | float]) -> float:
    return sum(float(mass) for mass in masses) / len(masses) if masses else 0.0


def previous(weights: Tensor) -> float:
    """Return the mean weight on the token before, over the queries that have one.

    Source: Clark et al. 2019, section 3.1.

    >>> previous(torch.tensor([[1., 0.], [0.75, 0.25]]))
    0.75
    """
    return _mean([weights[i, i - 1] for i in range(1, len(weights))])


def next_token(weights: Tensor) -> float:
    """Return the mean weight on the token after, over the queries that have one.

    Source: Clark et al. 2019, section 3.1.

    >>> next_token(torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    0.75
    """
    return _mean([weights[i, i + 1] for i in range(len(weights) - 1)])


def same(weights: Tensor) -> float:
    """Return the mean weight of a token on itself.

    >>> same(torch.tensor([[1., 0.], [0.5, 0.5]]))
    0.75
    """
    return _mean([weights[i, i] for i in range(len(weights))])


def first(weights: Tensor) -> float:
    """Return the mean weight on the first token, the sink of many models.

    Source: Clark et al. 2019, section 3.2; Xiao et al. 2024.

    >>> first(torch.tensor([[1., 0.], [0.5, 0.5]]))
    0.75
    """
    return _mean([weights[i, 0] for i in range(len(weights))])


def separator(weights: Tensor, separators: Sequence[int], *, causal: bool = False) -> float:
    """Return the mean mass on separators, over the queries that see one.

    separators: their positions. causal: a query sees only the keys up to itself.
    Source: Clark et al. 2019, section 3.2.

    >>> separator(torch.tensor([[0.5, 0.25, 0.25]]), [0, 2])
    0.75
    """
    return _mean_mass(weights, lambda i, j: j in separators, causal=causal)


def duplicate(weights: Tensor, tokens: Sequence[object], *, causal: bool = False) -> float:
    """Return the mean mass on other copies of the query's token, over queries that see one.

    causal: as for `separator`.
    Source: Wang et al. 2022.

    >>> duplicate(torch.tensor([[1., 0., 0.], [0., 1., 0.], [0.75, 0., 0.25]]), [7, 8, 7],
    ...     causal=True)
    0.75
    """
    return _mean_mass(weights, lambda i, j: j != i and tokens[j] == tokens[i], causal=causal)


def induction(weights: Tensor, tokens: Sequence[object], *, causal: bool = False) -> float:
    """Return the mean mass on tokens after other copies of the query's, over queries with one.

    causal: as for `separator`. The token right after the query follows the query itself.
    Source: Olsson et al. 2022.

    >>> induction(torch.tensor([[1., 0., 0.], [0., 1., 0.], [0., 0.75, 0.25]]), [7, 8, 7],
    ...     causal=True)
    0.75
    """
    return _mean_mass(
        weights, lambda i, j: j > 0 and j != i + 1 and tokens[j - 1] == tokens[i], causal=causal
    )


def local(weights: Tensor, reach: int) -> float:
    """Return the mean mass on keys at most `reach` positions away, on either side.

    >>> local(torch.tensor([[0.5, 0.25, 0.25]]), 1)
    0.75
    """
    return _mean_mass(weights, lambda i, j: abs(j - i) <= reach)


def _mean_mass(
    weights: Tensor, chosen: Callable[[int, int], bool], *, causal: bool = False
) -> float:
    """Return the mean mass on the chosen keys, over the queries that see one of them."""
    masses = []
    for i, row in enumerate(weights):
        end = i + 1 if causal else len(row)
        keys = [j for j in range(end) if chosen(i, j)]
        if keys:
            masses.append(sum(float(row[j]) for j in keys))
    return _mean(masses)


def broad(weights: Tensor, *, causal: bool = False) -> float:
    """Return the mean of e^entropy / keys: 1 for equal weights, 1/n where one of n keys gets all.

    causal: as for `separator`. A query that sees only one key does not count.
    Source: the perplexity of a row; Clark et al. 2019, section 3.3 (broad heads).

    >>> round(broad(torch.tensor([[0.5, 0.5], [1., 0.]])), 4)
    0.75
    """
    shares = []
    for i, nats in enumerate(entropy(weights)):
        keys = i + 1 if causal else weights.shape[-1]
        if keys > 1:
            shares.append(math.exp(nats) / keys)
    return _mean(shares)


def retrieval(
    weights: Tensor, tokens: Sequence[object], start: int, answer: int, length: int
) -> float:
    """Return the share of a needle's tokens that the head copies while the answer repeats them.

        |g and k| / |k|

    k: the distinct tokens of the needle. g: those of them that are copied: in the row before the
    token of the answer, the head's strongest edge leads to the same token in the needle.
    start, answer: first rows of the needle and of the answer; length: number of their tokens.
    Source: Wu et al. 2024, section 2.

    >>> weights = torch.tensor([[1., 0., 0.], [0.1, 0.7, 0.2], [0.7, 0.2, 0.1]])
    >>> retrieval(weights, ["a", "b", "a"], 0, 2, 1)        # row 1 attends to b
    0.0
    """
    needle = range(start, start + length)
    expected = {tokens[j] for j in needle}
    copied = set()
    for index in range(answer, answer + length):
        key = int(weights[index - 1].argmax())
        if key in needle and tokens[key] == tokens[index]:
            copied.add(tokens[key])
    return len(copied) / len(expected) if expected else 0.0
