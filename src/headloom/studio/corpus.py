"""`Corpus`: one head over all open texts.

Each answer reads some more texts: the page repeats its request until all are read.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from headloom.analysis.heads.corpus import QUANTILES, CorpusLayer, Exemplar
from headloom.errors import HeadloomError
from headloom.formats.files import JsonObject, finite
from headloom.formats.tokens import shown, visible

if TYPE_CHECKING:
    from headloom.studio.collection import Example

#: Texts that are read for one layer at most; a larger collection is sampled evenly.
TEXTS = 5000
#: Layers in memory, and seconds of reading for an answer.
_HELD, _PATIENCE = 4, 0.4
#: Tokens shown around an edge, and between its ends at most.
_AROUND, _BETWEEN = 5, 24
_PROBLEMS = 3


class _Reading:
    """Texts of a layer: those read and those waiting."""

    def __init__(self, examples: Sequence[Example], number: int, layer: int) -> None:
        self.layer = CorpusLayer(examples[number].trace, layer)
        fitting = [n for n, example in enumerate(examples) if self.layer.fits(example.trace)]
        self.others = len(examples) - len(fitting)
        self.fitting = len(fitting)
        if len(fitting) > TEXTS:
            fitting = [fitting[n * len(fitting) // TEXTS] for n in range(TEXTS)]
        self.texts = fitting
        self.next = 0
        self.problems: list[str] = []

    @property
    def whole(self) -> bool:
        return self.next >= len(self.texts)


class Corpus:
    """Heads of a collection over its texts; thread-safe."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples
        self._reading = lru_cache(_HELD)(partial(_Reading, examples))
        self._adding = threading.Lock()

    def head(
        self, number: int, layer: int, head: int, *, sinks: bool, wait: float = _PATIENCE
    ) -> JsonObject:
        """Return the results so far for a head of an example's model.

            texts, read     number of texts of the model, and of those already read
            taken           number of texts to read: at most 5,000, sampled evenly
            others          number of texts of other models, which are skipped
            failed          number of texts that could not be read; problems: the first few
            exemplars       example, query, key, weight, score, and pieces: [tokens, first] around
            spreads         by measure: see `headloom.analysis.heads.corpus.Spread`
            words           [word, share, count, mean]; bounds: whether they are lower bounds
            whole           whether all texts are read

        wait: seconds of reading.
        """
        reading = self._reading(self._first(number, layer), layer)
        end = time.monotonic() + wait
        while not reading.whole:
            self._add(reading)
            if time.monotonic() > end:
                break
        results = reading.layer
        with self._adding:
            result: JsonObject = finite({
                "texts": reading.fitting, "taken": len(reading.texts), "read": reading.next,
                "others": reading.others, "failed": reading.next - len(results.texts),
                "problems": reading.problems[:_PROBLEMS], "bounds": results.bounds,
                "quantiles": list(QUANTILES),
                "exemplars": [
                    self._shown(edge, layer) for edge in results.exemplars(head, sinks=sinks)
                ],
                "spreads": {
                    name: dataclasses.asdict(spread)
                    for name, spread in results.spreads(head).items()
                },
                "words": [
                    [visible(word.word, 40), word.share, word.count, word.mean]
                    for word in results.words(head, sinks=sinks)
                ],
                "whole": reading.whole,
            })  # fmt: skip
        return result

    def _first(self, number: int, layer: int) -> int:
        """Return the first example of the same model, whose texts are read once."""
        models = [
            [(part.name, part.heads) for part in example.trace.layers[layer : layer + 1]]
            for example in self._examples
        ]
        return models.index(models[number])

    def _add(self, reading: _Reading) -> None:
        """Read the next text; list its problem and skip it where it cannot be read."""
        with self._adding:
            if reading.whole:
                return
            text = reading.texts[reading.next]
            try:
                reading.layer.add(text, self._examples[text].trace)
            except HeadloomError as error:
                reading.problems.append(str(error))
            except Exception as error:
                # One bad text must not stop the others.
                logging.getLogger(__name__).debug("a text of a corpus", exc_info=True)
                name = visible(self._examples[text].name, 60)
                reading.problems.append(f"{name}: {type(error).__name__}: {error}")
            reading.next += 1

    def _shown(self, exemplar: Exemplar, layer: int) -> JsonObject:
        """Return an exemplar with the tokens around both ends."""
        trace_layer = self._examples[exemplar.text].trace.layers[layer]
        queries, keys = shown(trace_layer.query_tokens), shown(trace_layer.key_tokens)
        first, last = sorted((exemplar.query, exemplar.key))
        if trace_layer.queries_from == trace_layer.keys_from and last - first <= _BETWEEN:
            pieces = {"both": _piece(queries, first, last)}
        else:
            ends = ("query", queries, exemplar.query), ("key", keys, exemplar.key)
            pieces = {name: _piece(tokens, at, at) for name, tokens, at in ends}
        return {
            "example": exemplar.text, "name": self._examples[exemplar.text].name,
            "query": exemplar.query, "key": exemplar.key, "weight": exemplar.weight,
            "score": exemplar.score, "pieces": pieces,
        }  # fmt: skip


def _piece(tokens: Sequence[str], first: int, last: int) -> list[object]:
    """Return the tokens of a range and some around it, and the position of the first."""
    start = max(0, first - _AROUND)
    return [[visible(token, 24) for token in tokens[start : last + 1 + _AROUND]], start]
