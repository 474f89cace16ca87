"""Warnings of a monitored training: entropy collapse and score explosion.

Once for each layer, until it has recovered:

    entropy collapses   the mean evenness of its heads is below 0.02, and below half of its value
                        at the start. Training then often diverges (Zhai et al. 2023). The mean of
                        the layer, since single heads of healthy models attend to one token: the
                        one before, or the first. (Lowest layer of SmolLM2-135M on English text:
                        0.26.)
    scores explode      the largest score of a head is above 100 and above twice its value at the
                        start. 100 is where Kimi K2 clips W_Q and W_K (Kimi Team 2025); growing
                        scores precede divergence (Dehghani et al. 2023, Wortsman et al. 2024).
                        (SmolLM2-135M reaches 15, MiniLM-L6 39.)
    not finite          a score or a weight is infinite or NaN
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence

from headloom.analysis.monitor.measures import MeasuredLayer, Numbers
from headloom.formats.files import JsonObject

#: Thresholds of the warnings: mean evenness of a layer's heads, and largest score.
EVENNESS, SCORE = 0.02, 100.0

_Measures = Mapping[str, Numbers]


def warn(text: str) -> None:
    """Issue a warning; the training goes on."""
    warnings.warn(f"headloom.monitor: {text}", stacklevel=2)


class Alarms:
    """Checks of the measures, step by step.

    first: measures of each layer at the start; None: the ones of the first check.
    """

    def __init__(self, first: Mapping[str, _Measures] | None = None) -> None:
        self._first = first
        #: Current alarms, by layer and kind.
        self._wrong: set[tuple[str, str]] = set()

    def check(self, step: int, layers: Sequence[MeasuredLayer]) -> list[JsonObject]:
        """Return new alarms: the kind, the layer, the heads and the text."""
        if self._first is None:
            self._first = {layer.name: layer.measures for layer in layers}
        before, self._wrong = self._wrong, set()
        alarms = []
        for layer in layers:
            for kind, heads, words in _wrong(layer.measures, self._first.get(layer.name, {})):
                self._wrong.add((layer.name, kind))
                if (layer.name, kind) not in before:
                    text = f"step {step:,}: {layer.name}: {words}"
                    alarms.append({"kind": kind, "layer": layer.name, "heads": heads, "text": text})
        return alarms


def _wrong(now: _Measures, first: _Measures) -> Iterator[tuple[str, list[int], str]]:
    """Yield the kind, the heads and the text of each alarm of a layer."""
    even, before = (_mean(measures.get("evenness", ())) for measures in (now, first))
    if even < min(EVENNESS, before / 2):
        heads = [
            n for n, value in enumerate(now["evenness"]) if value is not None and value < EVENNESS
        ]
        words = f"mean entropy is {100 * even:.1f} % of its maximum"
        words = f"entropy collapses: {words}, {100 * before:.1f} % at the start of monitoring"
        yield "entropy collapse", heads, words
    scores = now["largest_score"]
    largest = max((score or 0.0 for score in first.get("largest_score", ())), default=0.0)
    high = [n for n, score in enumerate(scores) if (score or 0) > max(SCORE, 2 * largest)]
    if high:
        most = max(score or 0.0 for score in scores)
        words = f"{_heads(high)} reach{'es' * (len(high) == 1)} {most:,.0f} before the softmax"
        words = f"scores explode: {words}, {largest:,.1f} at the start of monitoring"
        yield "score explosion", high, words
    # Heads without visible keys have no entropy from the start.
    pairs = zip(now["entropy"], first.get("entropy", ()), strict=False)
    lost = [n for n, (value, was) in enumerate(pairs) if value is None and was is not None]
    if lost:
        yield "not finite", lost, f"numbers that are infinite or NaN in {_heads(lost)}"


def _mean(values: Numbers) -> float:
    """Return the mean of the known values; NaN: there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def _heads(heads: Sequence[int]) -> str:
    """Return the numbers of some heads, or their count, as text."""
    if len(heads) == 1:
        return f"head {heads[0]}"
    if len(heads) > 4:
        return f"{len(heads)} heads"
    return f"heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def in_words(error: Exception) -> str:
    """Return an error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
