"""How a token is followed through all layers of a trace: by rollout, or by relevance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.graphs.rollout import chosen_layers, passed_over
from headloom.errors import InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceData
from headloom.studio.digits import few_digits

__all__ = ["RelevanceShown", "flow_kinds"]

#: Tokens that are drawn, and edges of all layers, at most.
_TOKENS, _EDGES = 120, 8000


def flow_kinds(trace: TraceData) -> list[JsonObject]:
    """Through which layers a token can be followed: of each kind of the trace one list.

    kind, layers   the kind, and the numbers of the layers that take part
    queries, keys  the sequences of the last layer's positions and of the input
    note           what is passed over, in words, or None
    """
    number = {id(layer): number for number, layer in enumerate(trace.layers)}
    kinds: list[JsonObject] = []
    for kind in dict.fromkeys(layer.kind for layer in trace.layers):
        try:
            layers, queries, keys, _ = chosen_layers(trace, kind)
        except InputError:
            continue  # Layers over parts that may not be the same: nothing leads through them.
        kinds.append(
            {
                "kind": kind,
                "layers": [number[id(layer)] for layer in layers],
                "queries": queries,
                "keys": keys,
                "note": passed_over(trace, kind),
            }
        )
    return kinds


@dataclass(frozen=True, eq=False)
class RelevanceShown:
    """What a model said of a prediction: see `headloom.analysis.effects.relevance_levels`.

    predicted, logit: the token or the label, and its logit.
    position: the token that it comes after; None: of a classifier.
    pooling: how a classifier pools all positions; None: it reads the first, or predicts tokens.
    levels: (layers + 1, positions), from the input up; added: by layer, from the first, what it
    adds, (positions above, positions below).
    """

    tokens: Sequence[str]
    predicted: str
    logit: float
    position: int | None
    pooling: str | None
    levels: Tensor
    added: Sequence[Tensor]

    def as_drawn(self, sequence: str) -> JsonObject:
        """The diagram, as `Network.flow` of studio/src/flow.ts gives it, of a sequence.

        Drawn is what layers add, as what stays would hide it: shares are of all that was added on
        the way down, edges and `sums` beside the layer that adds most. `relevance` is that of each
        token of the input, as `headloom relevance` says it, `totals` are the sums of the levels.
        """
        levels = self.levels.double()
        totals = levels.sum(1)
        shares = (levels - levels[-1]) / _over_zero(float(totals[0] - totals[-1]))
        # First of all the positions that were asked about.
        most = torch.where(levels[-1] > 0, 2.0, shares.max(0).values)
        chosen = torch.sort(most.argsort(descending=True, stable=True)[:_TOKENS]).values
        count = max(20, _EDGES // max(len(self.added), 1))
        sums = [float(edges.double().sum()) for edges in self.added]
        largest = _over_zero(max(sums, default=0.0))
        return {
            "predicted": self.predicted,
            "logit": finite(self.logit),
            "position": self.position,
            "pooling": self.pooling,
            "relevance": [_short(value) for value in self.levels[0].tolist()],
            "totals": [_short(total) for total in totals.tolist()],
            "tokens": [[sequence, place] for place in chosen.tolist()],
            "shares": [[_short(one) for one in level] for level in shares[:, chosen].tolist()],
            "edges": [
                _strongest(edges.double()[chosen][:, chosen] / largest, count)
                for edges in self.added
            ],
            "sums": [0.0, *(_short(total / largest) for total in sums)],
        }


def _strongest(edges: Tensor, count: int) -> list[list[float]]:
    """[token above, token below, share], the ones that carry most."""
    flat = edges.flatten()
    order = flat.argsort(descending=True, stable=True)[:count]
    order = order[flat[order] > 0]
    width = edges.shape[1]
    return [
        [place // width, place % width, _short(share)]
        for place, share in zip(order.tolist(), flat[order].tolist(), strict=True)
    ]


def _over_zero(number: float) -> float:
    """What can be divided by."""
    return number if number > 0 else 1.0


def _short(number: float) -> float:
    """Six digits that count, or more."""
    return few_digits(number, 6)
