"""`TokenFlows`: a token through all layers of a trace, and the strongest paths between two tokens.

Short texts a browser works out by itself, from the means of the layers (`means`), and asks here for
the largest flow alone.
"""

from __future__ import annotations

import math
import threading
import warnings

import numpy as np
import torch

from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.paths import KeptEdges, Network
from headloom.analysis.graphs.rollout import chosen_layers, passed_over
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.trace import TraceData, TraceLayer
from headloom.studio.arrays import Array, LayerCache
from headloom.studio.digits import few_digits

__all__ = ["PATHS", "TokenFlows"]

#: Tokens that are drawn, edges of all layers, and paths of an answer, at most.
_TOKENS, _EDGES, PATHS = 120, 8000, 8
#: Kept edges of all layers and heads, and positions of all layers, up to which a largest flow is
#: worked out here: seconds.
_FLOW_EDGES, _FLOW_NODES = 2**24, 2**14


class TokenFlows:
    """Of one trace. Safe to ask from several threads."""

    def __init__(self, trace: TraceData, layers: LayerCache) -> None:
        self._trace, self._arrays = trace, layers
        self._number = {id(layer): number for number, layer in enumerate(trace.layers)}
        self._networks: dict[str, Network] = {}
        self._working = threading.Lock()

    def kinds(self) -> list[JsonObject]:
        """Through which layers a token can be followed: of each kind of the trace one list.

        kind, layers   the kind, and the numbers of the layers that take part
        queries, keys  the sequences of the last layer's positions and of the input
        note           what is passed over, in words, or None
        """
        found: list[JsonObject] = []
        for kind in dict.fromkeys(layer.kind for layer in self._trace.layers):
            try:
                layers, queries, keys, _ = chosen_layers(self._trace, kind)
            except InputError:
                continue  # Layers over parts that may not be the same: nothing leads through them.
            found.append(
                {
                    "kind": kind,
                    "layers": [self._number[id(layer)] for layer in layers],
                    "queries": queries,
                    "keys": keys,
                    "note": passed_over(self._trace, kind),
                }
            )
        return found

    def sizes(self, kind: str) -> tuple[int, int]:
        """How many positions the last layer and the input have.

        Raises: InputError: nothing leads through layers of this kind.
        """
        _, queries, keys, sizes = chosen_layers(self._trace, kind)
        return sizes[queries], sizes[keys]

    def sequence(self, kind: str) -> str:
        """The sequence of the last layer's positions."""
        return str(chosen_layers(self._trace, kind)[1])

    def flow(self, kind: str, position: int) -> JsonObject:
        """How much of a position comes through each token of each layer.

        tokens   [sequence, position] of those that are drawn, the ones that carry most
        shares   by level, from the input up, by token
        edges    by layer [token above, token below, share], the ones that carry most
        sums     by level the share that all tokens carry
        own      what positions of the token's own sequence hold at the input, where that is
                 another sequence; else 0
        unknown  what came along edges that were not kept; the rest of what a sum lacks ended at
                 sinks and at rows that may look at no key
        """
        network = self._network(kind)
        with self._working:
            start = network.node(network.queries, position)
            shares = network.shares(start)
            unknown = network.unknown(shares)
            most = shares.max(0)
            most[start] = 2  # drawn first of all
            chosen = np.sort(np.argsort(-most, kind="stable")[:_TOKENS])
            if network.nodes > _TOKENS:
                chosen = chosen[most[chosen] > 0]
            count = max(20, _EDGES // len(network.layers))
            edges = [
                _edges(network, level, shares[level], chosen, count)
                for level in range(1, len(network.layers) + 1)
            ]
        return {
            "tokens": [list(network.place(int(node))) for node in chosen],
            "shares": [[_short(share) for share in row] for row in shares[:, chosen].tolist()],
            "edges": edges,
            "sums": [_short(total) for total in shares.sum(1).tolist()],
            "own": _short(network.own(shares[0])),
            "unknown": _short(unknown),
        }

    def paths(self, kind: str, position: int, target: int) -> JsonObject:
        """The strongest paths from a position of the last layer to one of the input.

        paths        product and steps, [sequence, position] from the last layer to the input
        least, most  what all paths together hold: the entry of the rollout
        """
        network = self._network(kind)
        with self._working:
            start = network.node(network.queries, position)
            end = network.node(network.keys, target)
            found = network.strongest(start, end, PATHS)
        return {
            "paths": [
                {"product": path.product, "steps": [list(step) for step in path.steps]}
                for path in found.paths
            ],
            "least": found.least,
            "most": found.most,
        }

    def largest_flow(self, kind: str, position: int, target: int) -> JsonObject:
        """The largest flow between two positions, at least and at most; or why it is not known."""
        layers, _, _, _ = chosen_layers(self._trace, kind)
        places = sum(
            layer.shape[0] * layer.shape[1] * self._arrays[self._number[id(layer)]].kept
            for layer in layers
        )
        if places > _FLOW_EDGES or sum(layer.shape[1] for layer in layers) > _FLOW_NODES:
            return {
                "why": f"too long for here: headloom flow TRACE --token {position} --to {target}"
            }
        with self._working, warnings.catch_warnings(action="ignore"):
            found = attention_flow(self._trace, position, target, kind=kind)
        return {"least": float(found.lower[0]), "most": float(found.upper[0])}

    def _network(self, kind: str) -> Network:
        if kind not in self._networks:
            self._networks[kind] = Network(self._trace, kind=kind, kept=self._kept)
        return self._networks[kind]

    def _kept(self, layer: TraceLayer) -> KeptEdges:
        arrays = self._arrays[self._number[id(layer)]]
        keys, weights = torch.from_numpy(arrays.keys), torch.from_numpy(arrays.weights)
        return KeptEdges(keys, weights, arrays.rest.mean(0, dtype=np.float64))


def _edges(
    network: Network, level: int, above: Array, chosen: Array, count: int
) -> list[list[float]]:
    """What flows between tokens that are drawn, from a level to the one below, most first."""
    step = network.step(level)
    token = np.full(network.nodes, -1)
    token[chosen] = np.arange(len(chosen))
    wanted = np.zeros(network.nodes, bool)
    wanted[chosen] = above[chosen] > 0
    found = []
    for rows, part in step.parts(wanted[step.own]):
        flows = part.multiply(above[step.own][rows][:, None]).tocoo()
        ends = token[flows.col]
        there = ends >= 0
        tops = token[step.own][rows[flows.row[there]]]
        found.append(np.stack([tops, ends[there], flows.data[there]], -1))
    # What the layer does not change passes it.
    others = [n for n in np.flatnonzero(wanted) if not step.own.start <= n < step.own.stop]
    found.append(np.array([[token[n], token[n], above[n]] for n in others]).reshape(-1, 3))
    edges = np.concatenate(found)
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0], -edges[:, 2]))[:count]]
    return [[int(top), int(end), _short(share)] for top, end, share in edges.tolist()]


def _short(number: float) -> float:
    """Six digits that count, or more."""
    return few_digits(number, 6) if math.isfinite(number) else 0.0
