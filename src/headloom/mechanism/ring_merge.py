"""What the rounds of a ring find, merged exactly: see `headloom.mechanism.ring`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.graph import AttentionGraph

__all__ = ["ROWS", "Merged"]

#: Queries that attend and are merged at once: what they need on the way is small beside the rest.
ROWS = 256


@dataclass(eq=False)
class Merged:
    """What was found among the keys of some rounds; others are merged in place.

    output: (..., queries, value_depth).
    lse: (..., queries): log-sum-exp of the scores, a sink's included; float64.
    mass, score: (..., queries): sums of the weights, and of the scores by their weights; float64.
    count: (..., queries).
    keys, scores: (..., queries, places).
    """

    output: Tensor
    lse: Tensor
    mass: Tensor
    score: Tensor
    count: Tensor
    keys: Tensor
    scores: Tensor

    @classmethod
    def empty(cls, queries: Tensor, values: Tensor, places: int) -> Merged:
        """Nothing yet."""
        rows, device = queries.shape[:-1], queries.device
        kind = torch.promote_types(queries.dtype, torch.float32)
        zeros = torch.zeros(rows, dtype=torch.float64, device=device)
        return cls(
            torch.zeros((*rows, values.shape[-1]), dtype=kind, device=device),
            torch.full_like(zeros, -torch.inf),
            zeros,
            zeros.clone(),
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.full((*rows, places), -1, dtype=torch.int32, device=device),
            torch.full((*rows, places), -torch.inf, dtype=kind, device=device),
        )

    def join(
        self, rows: slice, output: Tensor, graph: AttentionGraph, sinks: Tensor | None
    ) -> None:
        """Merge what some queries found among other keys."""
        other = graph.lse.double()
        sunk = 0.0 if sinks is None else (sinks.double()[:, None] - other).exp()
        mass = torch.where(graph.count > 0, 1.0 - sunk, 0.0).to(other.dtype)
        # entropy = sum of weight * (lse - score); a row without keys has none.
        score = torch.where(graph.count > 0, other * mass - graph.entropy, 0.0)

        before = self.lse[..., rows]
        lse = torch.logaddexp(before, other)
        mine, theirs = _share(before, lse), _share(other, lse)
        self.lse[..., rows] = lse
        self.mass[..., rows] = mine * self.mass[..., rows] + theirs * mass
        self.score[..., rows] = mine * self.score[..., rows] + theirs * score
        self.count[..., rows] += graph.count
        sums = self.output[..., rows, :]
        sums.mul_(mine[..., None].to(sums.dtype))
        sums.add_(output * theirs[..., None].to(sums.dtype))

        pairs = (self.keys[..., rows, :], graph.keys), (self.scores[..., rows, :], graph.scores)
        keys, scores = _strongest(*(torch.cat(pair, -1) for pair in pairs))
        places = self.keys.shape[-1]
        self.keys[..., rows, :] = keys[..., :places]
        self.scores[..., rows, :] = scores[..., :places]

    def graph(self, length: int) -> AttentionGraph:
        """The graph of all rounds."""
        weights = torch.empty_like(self.scores)
        for start in range(0, self.lse.shape[-1], ROWS):
            rows = slice(start, start + ROWS)
            weights[..., rows, :] = (self.scores[..., rows, :] - self.lse[..., rows, None]).exp()
        weights.masked_fill_(self.keys < 0, 0.0)
        # A row that sees sinks alone has all its weight on them.
        real = self.lse > -torch.inf
        entropy = torch.where(real, (self.lse * self.mass - self.score).clamp(min=0.0), 0.0)
        rest = torch.where(real, (1 - weights.sum(-1)).clamp(min=0.0), 0.0)
        kind = self.scores.dtype
        return AttentionGraph(
            self.keys,
            self.scores,
            weights,
            self.lse.to(kind),
            entropy.to(kind),
            rest.to(kind),
            self.count,
            length,
        )


def _strongest(keys: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Edges in their order: strongest first, ties to the lower key, empty places last."""
    order = torch.where(keys < 0, torch.iinfo(keys.dtype).max, keys).argsort(dim=-1, stable=True)
    best = scores.gather(-1, order).argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, best)
    return keys.gather(-1, order), scores.gather(-1, order)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole): 0 where no key was seen at all."""
    return torch.where(whole == -torch.inf, 0.0, (part - whole).exp())
