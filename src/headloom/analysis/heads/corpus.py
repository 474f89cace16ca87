"""One layer over many texts: what each text says of every head, and all of them together.

    exemplar     the strongest edge of a head in a text; texts are ordered by it. A query that may
                 look at one key alone, as the first of a causal text, has none: its weight is 1
                 whatever the head does
    spread       the head's scores, one for each text: the same numbers as `trace.heads()`, but for
                 "partner", which takes too long, and "sink", which needs the other layers
    words        sum over texts of what the keys that spell a word receive, and how often it stands

An edge to a sink - the first token, or one that ends or parts texts - says little, and nearly every
head has one: so all but the scores is known twice, with sinks and without.
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
#: Measures that are exact of kept edges too.
_ALWAYS_EXACT = ("entropy", "broad")
#: Quantiles of a spread.
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Exemplar:
    """The strongest edge of a head in a text, by its number: query looks at key."""

    text: int
    query: int
    key: int
    weight: float
    score: float


@dataclass(frozen=True)
class Spread:
    """A measure of a head over texts.

    values, mean: how many texts have it, and their mean. quantiles: as QUANTILES. bounds: in how
    many of them it is of kept edges alone. counts: texts in BINS equal bins from low to high.
    lowest, highest: the texts, by number.
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
    """A word that keys spell. share: of the weight of all rows; count: how often it is a key;
    mean: what one such key receives from all queries of its text.
    """

    word: str
    share: float
    count: int
    mean: float


class CorpusLayer:
    """The heads of one layer over texts that are added one after the other.

    name, heads: of the layer, which every trace must have. number: its place in each trace.
    """

    def __init__(self, trace: TraceData, number: int) -> None:
        layer = trace.layers[number]
        self.number, self.name, self.heads = number, layer.name, layer.heads
        self.texts: list[int] = []
        self.rows = 0
        #: Whether edges were left out somewhere, so that words receive at least what is said.
        self.bounds = False
        self._scores: list[np.ndarray] = []  # by text (measures, heads)
        self._kept: list[bool] = []  # by text, whether it is of the kept edges
        # With sinks and without: by text (heads, 4), query key weight score; by word what each head
        # gives it, and how often it stands.
        self._best: dict[bool, list[np.ndarray]] = {True: [], False: []}
        self._received: dict[bool, dict[str, np.ndarray]] = {True: {}, False: {}}
        self._counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def fits(self, trace: TraceData) -> bool:
        """Whether a trace has the layer."""
        layers = [(layer.name, layer.heads) for layer in trace.layers]
        return (self.name, self.heads) in layers[self.number : self.number + 1]

    def add(self, text: int, trace: TraceData) -> None:
        """Add a text, by its number, of a trace that fits.

        Raises: DataError: it cannot be read.
        """
        layer = trace.layers[self.number]
        special = special_keys(trace, layer.keys_from)
        weights = LayerWeights(layer, patterns=head_patterns(layer, special))
        # All measures but one, which takes longer than all others together.
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
        """The texts with the strongest edges of a head, strongest first; of equals the first."""
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
        """Each measure of a head over the texts that have it."""
        spreads: dict[str, Spread] = {}
        for place, name in enumerate(MEASURES):
            values = np.array([scores[place, head] for scores in self._scores], np.float64)
            there = np.flatnonzero(np.isfinite(values))
            if not len(there):
                continue
            known = values[there]
            # Shares of a row go from 0 to 1; others as far as they go.
            low, high = min(0.0, float(known.min())), max(1.0, float(known.max()))
            counts, _ = np.histogram(known, BINS, (low, high))
            spreads[name] = Spread(
                len(known),
                float(known.mean()),
                tuple(np.quantile(known, QUANTILES).tolist()),
                0 if name in _ALWAYS_EXACT else sum(self._kept[n] for n in there),
                low,
                high,
                tuple(counts.tolist()),
                self.texts[int(there[known.argmin()])],
                self.texts[int(there[known.argmax()])],
            )
        return spreads

    def words(self, head: int, *, sinks: bool, most: int = 25) -> list[Word]:
        """The words that a head looks at most, by their share of all its weight."""
        totals = {word: float(part[head]) for word, part in self._received[sinks].items()}
        words = sorted(totals, key=lambda word: -totals[word])[:most]
        counts = self._counts[sinks]
        return [
            Word(word, totals[word] / self.rows, counts[word], totals[word] / counts[word])
            for word in words
            if totals[word] > 0
        ]


def _strongest(graph: AttentionGraph, hidden: Tensor) -> np.ndarray:
    """The strongest kept edge of every head to a key that is not hidden, of queries with several
    keys, (heads, 4); query -1: there is none. Of equal weights, as of 1, that of the higher score.
    """
    heads, queries, kept = graph.keys.shape
    found = np.full((heads, 4), -1.0)
    if not queries * kept:
        return found
    out = graph.keys < 0
    out |= hidden[graph.keys.clamp(min=0)]
    out |= (graph.count < 2)[..., None]
    weights = graph.weights.double().masked_fill(out, -1).nan_to_num(-1).flatten(1)
    scores = graph.scores.double().nan_to_num(-torch.inf).flatten(1)
    most = weights.amax(1, keepdim=True)
    place = scores.masked_fill(weights < most, -torch.inf).argmax(1)
    at = place[:, None]
    there = most[:, 0] >= 0
    found[:, 0] = torch.where(there, place // kept, -1).numpy()
    found[:, 1] = graph.keys.flatten(1).gather(1, at)[:, 0].numpy()
    found[:, 2], found[:, 3] = most[:, 0].numpy(), scores.gather(1, at)[:, 0].numpy()
    return found


def _received(weights: LayerWeights) -> Tensor:
    """What each key receives, (heads, keys): of all weights where these, or it, are known."""
    graph, source = weights.graph, weights.weights
    if graph.received is not None:
        return graph.received
    return graph.strength() if isinstance(source, AttentionGraph) else source.received()
