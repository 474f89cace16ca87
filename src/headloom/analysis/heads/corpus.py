"""One layer over many texts: exemplars, spreads and words of every head.

    exemplar     the strongest edge of a head in a text; texts are ordered by it. A query with one
                 visible key, such as the first of a causal text, has none: its weight is always 1
    spread       the head's scores, one for each text: the same as in `trace.heads()`, except
                 "partner", which is slow, and "sink", which needs the other layers
    words        attention received by each word over all texts, and the number of its keys

Nearly every head has edges to sinks (the first token, or one that ends or separates texts), which
tell little: so exemplars and words are computed twice, with and without sinks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.heads.layer_weights import LayerWeights
from headloom.analysis.heads.measures import head_patterns, layer_scores
from headloom.analysis.heads.roles import MEASURES, special_keys
from headloom.formats.tokens import shown
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import AttentionGraph

#: Bins of a spread.
BINS = 40
#: Measures that are exact for kept edges too.
_ALWAYS_EXACT = ("entropy", "broad")
#: Quantiles of a spread.
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Exemplar:
    """Strongest edge of a head in a text, given by its number."""

    text: int
    query: int
    key: int
    weight: float
    score: float


@dataclass(frozen=True)
class Spread:
    """Distribution of a head's measure over texts.

    values, mean: number of texts with it, and their mean. quantiles: of QUANTILES. bounds: number
    of texts with kept edges only. counts: of texts in BINS equal bins from low to high. lowest,
    highest: numbers of the texts.
    """

    values: int
    mean: float
    quantiles: tuple[float, ...]
    bounds: int
    low: float
    high: float
    counts: tuple[int, ...]
    lowest: int
    highest: int


@dataclass(frozen=True)
class Word:
    """Word spelled by keys.

    share: of the weight of all rows; count: number of such keys; mean: attention received by one
    of them from all queries of its text.
    """

    word: str
    share: float
    count: int
    mean: float


class CorpusLayer:
    """Heads of one layer over texts that are added one by one.

    name, heads: of the layer, the same in every trace. number: its place in each trace.
    """

    def __init__(self, trace: TraceData, number: int) -> None:
        layer = trace.layers[number]
        self.number, self.name, self.heads = number, layer.name, layer.heads
        self.texts: list[int] = []
        self.rows = 0
        #: Whether edges were left out, so that the words' shares are lower bounds.
        self.bounds = False
        self._scores: list[np.ndarray] = []  # by text (measures, heads)
        self._kept: list[bool] = []  # by text, whether it has kept edges only
        # With and without sinks: by text (heads, 4), query key weight score; by word its mass in
        # each head, and its count.
        self._best: dict[bool, list[np.ndarray]] = {True: [], False: []}
        self._received: dict[bool, dict[str, np.ndarray]] = {True: {}, False: {}}
        self._counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def fits(self, trace: TraceData) -> bool:
        """Return whether a trace has the layer."""
        layers = [(layer.name, layer.heads) for layer in trace.layers]
        return (self.name, self.heads) in layers[self.number : self.number + 1]

    def add(self, text: int, trace: TraceData) -> None:
        """Add a text with its number and its trace, which has the layer.

        Raises: DataError: it cannot be read.
        """
        layer = trace.layers[self.number]
        special = special_keys(trace, layer.keys_from)
        weights = LayerWeights(layer, patterns=head_patterns(layer, special))
        # All measures except one, which takes longer than all others together.
        scores, graph = layer_scores(weights, without=("partner",)), weights.graph
        none = torch.full((self.heads,), torch.nan, dtype=torch.float64)
        columns = [scores[name].score if name in scores else none for name in MEASURES]
        hidden = torch.zeros(graph.length, dtype=torch.bool)
        words = [word.strip() or word for word in shown(layer.key_tokens)]
        received = _received(weights).double().nan_to_num(0).numpy()
        for sinks in (True, False):
            if not sinks and graph.length:
                hidden[[0, *special]] = True
            self._best[sinks].append(_strongest(graph, hidden))
            known = self._received[sinks]
            for place in (~hidden).nonzero().flatten().tolist():
                known[words[place]] = known.get(words[place], 0) + received[:, place]
                self._counts[sinks][words[place]] += 1
        self._scores.append(torch.stack(columns).float().numpy())
        self._kept.append(weights.source == "kept")
        self.rows += layer.shape[1]
        self.bounds |= weights.source == "kept" and graph.received is None
        self.texts.append(text)

    def exemplars(self, head: int, *, sinks: bool, most: int = 20) -> list[Exemplar]:
        """Return the strongest edges of a head, one for each text, strongest first."""
        if not self.texts:
            return []
        table = np.stack([of_text[head] for of_text in self._best[sinks]])
        order = np.lexsort((-table[:, 3], -table[:, 2]))
        return [
            Exemplar(self.texts[n], int(table[n, 0]), int(table[n, 1]), *map(float, table[n, 2:]))
            for n in order[:most]
            if table[n, 0] >= 0
        ]

    def spreads(self, head: int) -> dict[str, Spread]:
        """Return each measure of a head over the texts that have it."""
        spreads: dict[str, Spread] = {}
        for place, name in enumerate(MEASURES):
            values = np.array([scores[place, head] for scores in self._scores], np.float64)
            texts = np.flatnonzero(np.isfinite(values))
            if not len(texts):
                continue
            known = values[texts]
            # Shares of a row range from 0 to 1; other measures from their minimum to their maximum.
            low, high = min(0.0, float(known.min())), max(1.0, float(known.max()))
            counts, _ = np.histogram(known, BINS, (low, high))
            spreads[name] = Spread(
                len(known), float(known.mean()), tuple(np.quantile(known, QUANTILES).tolist()),
                0 if name in _ALWAYS_EXACT else sum(self._kept[n] for n in texts), low, high,
                tuple(counts.tolist()), self.texts[int(texts[known.argmin()])],
                self.texts[int(texts[known.argmax()])],
            )  # fmt: skip
        return spreads

    def words(self, head: int, *, sinks: bool, most: int = 25) -> list[Word]:
        """Return the words with the largest share of a head's weight."""
        totals = {word: float(part[head]) for word, part in self._received[sinks].items()}
        words = sorted(totals, key=lambda word: -totals[word])[:most]
        counts = self._counts[sinks]
        return [
            Word(word, totals[word] / self.rows, counts[word], totals[word] / counts[word])
            for word in words
            if totals[word] > 0
        ]


def _strongest(graph: AttentionGraph, hidden: Tensor) -> np.ndarray:
    """Return the strongest edge of every head to a key that is not hidden, (heads, 4).

    Of queries with several keys; query -1: no edge. Of equal weights, the one of the higher score.
    """
    heads, queries, kept = graph.keys.shape
    edges = np.full((heads, 4), -1.0)
    if not queries * kept:
        return edges
    out = graph.keys < 0
    out |= hidden[graph.keys.clamp(min=0)]
    out |= (graph.count < 2)[..., None]
    weights = graph.weights.double().masked_fill(out, -1).nan_to_num(-1).flatten(1)
    scores = graph.scores.double().nan_to_num(-torch.inf).flatten(1)
    most = weights.amax(1, keepdim=True)
    place = scores.masked_fill(weights < most, -torch.inf).argmax(1)
    at = place[:, None]
    has_edge = most[:, 0] >= 0
    edges[:, 0] = torch.where(has_edge, place // kept, -1).numpy()
    edges[:, 1] = graph.keys.flatten(1).gather(1, at)[:, 0].numpy()
    edges[:, 2], edges[:, 3] = most[:, 0].numpy(), scores.gather(1, at)[:, 0].numpy()
    return edges


def _received(weights: LayerWeights) -> Tensor:
    """Return the attention received by each key, (heads, keys): of all weights, if known."""
    graph, source = weights.graph, weights.weights
    if graph.received is not None:
        return graph.received
    return graph.strength() if isinstance(source, AttentionGraph) else source.received()
