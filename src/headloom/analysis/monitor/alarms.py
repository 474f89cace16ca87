"""Warnings of a watched training: where entropy collapses, and where scores explode.

Of a layer, once, until it is in order again:

    entropy collapses   the mean evenness of its heads is below 0.02, and below half of what it was
                        when the watch began. Training then often diverges (Zhai et al. 2023). The
                        mean of the layer, since single heads of sound models look at one token
                        alone: the one before, or the first. (On English text the lowest layer of
                        SmolLM2-135M has 0.26, of MiniLM-L6 0.48, and each a head with 0.00; the
                        layer of examples/watched.py whose heads all become induction heads passes
                        0.03, and is sound)
    scores explode      the largest score of a head is above 100 and above twice what it was when
                        the watch began. 100 is where Kimi K2 clips W_Q and W_K (Kimi Team 2025);
                        scores that grow without end go before divergence (Dehghani et al. 2023,
                        Wortsman et al. 2024). (SmolLM2-135M reaches 15, MiniLM-L6 39.)
    numbers that are none   a score or a weight is infinite or NaN
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headloom.analysis.monitor.measures import LayerSeen
from headloom.formats.files import JsonObject

__all__ = ["Alarms", "in_words", "warn"]

#: Mean evenness of a layer's heads below which, and largest score above which, it is warned of.
EVENNESS, SCORE = 0.02, 100.0


def warn(text: str) -> None:
    """Tell who trains; the training goes on."""
    warnings.warn(f"headloom.monitor: {text}", stacklevel=2)


@dataclass
class Alarms:
    """Looks at what was measured, step by step."""

    #: Mean evenness and largest score of each layer when the watch began.
    _first: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    #: The heads of each layer that had an entropy then: those that may look at no key have none.
    _finite: dict[str, set[int]] = field(default_factory=dict)
    #: What is wrong already, by layer and kind.
    _wrong: set[tuple[str, str]] = field(default_factory=set)

    def begin(self, layers: Mapping[str, Mapping[str, Sequence[float | None]]]) -> None:
        """Take measures for those with which the watch began."""
        for name, measures in layers.items():
            self._first[name] = (
                _mean(measures.get("evenness", ())),
                _largest(measures.get("largest_score", ())),
            )
            entropy = measures.get("entropy", ())
            self._finite[name] = {head for head, nats in enumerate(entropy) if nats is not None}

    def check(self, step: int, layers: Sequence[LayerSeen]) -> list[JsonObject]:
        """What is wrong now and was not before: the kind, the layer, the heads and the words."""
        if not self._first:
            self.begin({layer.name: layer.measures for layer in layers})
        alarms = []
        for layer in layers:
            for kind, alarm in self._of_layer(layer).items():
                known = (layer.name, kind) in self._wrong
                if alarm is None:
                    self._wrong.discard((layer.name, kind))
                elif not known:
                    self._wrong.add((layer.name, kind))
                    heads, words = alarm
                    text = f"step {step:,}: {layer.name}: {words}"
                    alarms.append({"kind": kind, "layer": layer.name, "heads": heads, "text": text})
        return alarms

    def _of_layer(self, layer: LayerSeen) -> dict[str, tuple[list[int], str] | None]:
        """The heads and the words of each kind of alarm; None: there is none."""
        even, largest = self._first.get(layer.name, (None, None))
        evenness, scores = layer.measures["evenness"], layer.measures["largest_score"]
        now = _mean(evenness)
        collapse = explosion = broken = None
        if now is not None and even is not None and now < min(EVENNESS, even / 2):
            heads = [n for n, each in enumerate(evenness) if each is not None and each < EVENNESS]
            words = f"its heads look {100 * now:.1f} % as evenly as they may"
            before = f"{100 * even:.1f} % when the watch began"
            collapse = heads, f"entropy collapses: {words}, {before}"
        limit = max(SCORE, 2 * (largest or 0))
        high = {head: score for head, score in enumerate(scores) if (score or 0) > limit}
        if high:
            words = f"{_heads(list(high))} reach{'es' * (len(high) == 1)} {_largest(scores):,.0f}"
            before = f"before the softmax, {largest or 0:,.1f} when the watch began"
            explosion = list(high), f"scores explode: {words} {before}"
        entropy = enumerate(layer.measures["entropy"])
        finite = self._finite.get(layer.name, ())
        lost = [head for head, value in entropy if value is None and head in finite]
        if lost:
            broken = lost, f"numbers that are infinite or NaN in {_heads(lost)}"
        return {"entropy collapse": collapse, "score explosion": explosion, "not finite": broken}


def _heads(heads: Sequence[int]) -> str:
    """The numbers of some heads, or how many they are.

    >>> _heads([3]), _heads([0, 3, 7]), _heads(range(12))
    ('head 3', 'heads 0, 3 and 7', '12 heads')
    """
    if len(heads) == 1:
        return f"head {heads[0]}"
    if len(heads) > 4:
        return f"{len(heads)} heads"
    return f"heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def in_words(error: Exception) -> str:
    """An error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
