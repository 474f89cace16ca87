"""AttentionMatrix with every score, against the formulas in float64, written out here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import headloom

HEADS, ROWS, DEPTH = 4, 9, 3


class Distance(headloom.Score):
    """-|q - k|^2 times a number for each head, and no dataclass."""

    by_head = 3

    def __init__(self, width: Tensor) -> None:
        self.width = width

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -torch.cdist(queries, keys).square() * self.width


@dataclass(frozen=True)
class Cosine(headloom.Dot):
    """A subclass of a score that kernels know, with another formula."""

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        sizes = queries.norm(dim=-1)[..., :, None] * keys.norm(dim=-1)[..., None, :]
        return queries @ keys.mT / sizes


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


A, B = random(HEADS, DEPTH, DEPTH, seed=1), random(DEPTH, DEPTH, seed=2)
W, U, V = random(5, DEPTH, seed=3), random(5, DEPTH, seed=4), random(5, seed=5)
A1, A2 = random(HEADS, DEPTH, seed=6), random(DEPTH, seed=7)
WIDTH = random(HEADS, 1, 1, seed=8).abs()


def leaky(x: float) -> float:
    return x if x > 0 else 0.2 * x


#: The score; its formula, of numpy's vectors and the number of the head; the default scale.
SCORES: dict[str, tuple[headloom.Score, Callable[[np.ndarray, np.ndarray, int], float], float]] = {
    "dot": (headloom.Dot(), lambda q, k, h: q @ k, 1.0),
    "scaled": (headloom.ScaledDot(), lambda q, k, h: q @ k, DEPTH**-0.5),
    "bilinear": (headloom.Bilinear(B), lambda q, k, h: q @ B.numpy() @ k, 1.0),
    "bilinear by head": (headloom.Bilinear(A), lambda q, k, h: q @ A[h].numpy() @ k, 1.0),
    "additive": (
        headloom.Additive(W, U, V),
        lambda q, k, h: V.numpy() @ np.tanh(W.numpy() @ q + U.numpy() @ k),
        1.0,
    ),
    "graph": (
        headloom.GraphAttention(A1, A2),
        lambda q, k, h: leaky(A1[h].numpy() @ q + A2.numpy() @ k),
        1.0,
    ),
    "graph v2": (
        headloom.GraphAttentionV2(A1),
        lambda q, k, h: sum(a * leaky(x) for a, x in zip(A1[h].tolist(), q + k, strict=True)),
        1.0,
    ),
    "own": (
        Distance(WIDTH),
        lambda q, k, h: -float(((q - k) ** 2).sum()) * float(WIDTH[h]),
        1.0,
    ),
    "subclass": (
        Cosine(), lambda q, k, h: q @ k / np.linalg.norm(q) / np.linalg.norm(k), 1.0,
    ),
}  # fmt: skip


def weights_by_hand(
    formula: Callable[[np.ndarray, np.ndarray, int], float], factor: float, causal: bool,
    softcap: float | None,
) -> tuple[Tensor, Tensor, np.ndarray]:  # fmt: skip
    """Queries, keys of two heads, and the weights, each number from its own two vectors."""
    queries, keys = random(HEADS, ROWS, DEPTH, seed=9), random(2, ROWS, DEPTH, seed=10)
    scores = np.full((HEADS, ROWS, ROWS), -np.inf)
    for h in range(HEADS):
        for i in range(ROWS):
            for j in range(i + 1 if causal else ROWS):
                score = factor * formula(queries[h, i].numpy(), keys[h // 2, j].numpy(), h)
                scores[h, i, j] = softcap * np.tanh(score / softcap) if softcap else score
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return queries, keys, weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SCORES)
def test_every_question_of_every_score(name: str, causal: bool) -> None:
    score, formula, factor = SCORES[name]
    softcap = 2.0 if causal else None
    queries, keys, weights = weights_by_hand(formula, factor, causal, softcap)
    mask = headloom.causal() if causal else None
    matrix = headloom.AttentionMatrix(queries, keys, mask=mask, score=score, softcap=softcap)
    vectors = random(ROWS, 2, seed=11).numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(weights * np.log(weights), -1)
    padded = np.pad(weights, ((0, 0), (0, 3), (0, 3)))
    blocks = padded.reshape(HEADS, 3, 4, 3, 4)
    for found, expected in (
        (matrix.to_dense(), weights),
        (matrix[1, 2:5, :3], weights[1, 2:5, :3]),
        (matrix @ torch.from_numpy(vectors), weights @ vectors),
        (matrix.T @ torch.from_numpy(vectors), weights.transpose(0, 2, 1) @ vectors),
        (matrix.received(), weights.sum(1)),
        (matrix.entropy(), entropy),
        (matrix.sum_of_squares(), (weights**2).sum(-1)),
        (matrix.reciprocity(), (weights * weights.transpose(0, 2, 1)).sum(-1)),
        (matrix.mass([0, 2]), weights[..., [0, 2]].sum(-1)),
        (matrix.top(2).weights, np.sort(weights, -1)[..., :-3:-1]),
        (matrix.block_summaries(3, 4)[1], blocks.sum((2, 4))[3]),
        (matrix.of_head(3).to_dense()[0], weights[3]),
        (torch.from_numpy(matrix.head(2) @ vectors), weights[2] @ vectors),
        # What a batch of one gives, and the lse of a graph.
        (
            headloom.AttentionMatrix(
                queries[None], keys[None], mask=mask, score=score, softcap=softcap,
                lse=matrix.top(1).lse[None],
            )[0].to_dense(),
            weights,
        ),
    ):  # fmt: skip
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["own", "subclass", "bilinear by head"])
def test_the_same_scores_in_attend(name: str) -> None:
    score, formula, factor = SCORES[name]
    queries, keys, weights = weights_by_hand(formula, factor, False, None)
    output, graph = headloom.attend(queries, keys, keys, score=score, keep=headloom.Top(ROWS))
    np.testing.assert_allclose(graph.to_dense().numpy(), weights, atol=1e-12)
    np.testing.assert_allclose(output.numpy(), weights @ keys.numpy().repeat(2, 0), atol=1e-12)
    # Graph attention by a list of edges: the complete graph gives the same.
    every = torch.ones(ROWS, ROWS, dtype=torch.bool)
    again = headloom.attention(queries, keys, keys, score=score, mask=headloom.neighbours(every))
    np.testing.assert_allclose(again.numpy(), output.numpy(), atol=1e-12)


def test_parameters_of_an_own_score_are_trained_and_become_float() -> None:
    width = WIDTH.clone().requires_grad_()
    queries, keys = random(HEADS, ROWS, DEPTH), random(2, ROWS, DEPTH)

    def loss(width: Tensor) -> Tensor:
        return headloom.attention(queries, keys, keys, score=Distance(width)).square().sum()

    assert torch.autograd.gradcheck(loss, width)
    half = Distance(WIDTH.bfloat16())
    short = headloom.attention(queries.bfloat16(), keys.bfloat16(), keys.bfloat16(), score=half)
    parts = [part.bfloat16().double() for part in (queries, keys, WIDTH)]
    long = headloom.attention(parts[0], parts[1], parts[1], score=Distance(parts[2]))
    np.testing.assert_allclose(short.double().numpy(), long.numpy(), atol=0.02)
    assert half.width.dtype == torch.bfloat16  # the caller's is left alone
