"""Sequences of the positions of arrays, named by the tokens that come with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.tokens import Tokens
from headloom.tracing.names import texts_known, token_names
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.sequences import InputSequence, NamesOfSequences

#: Sequences of the queries and of the keys for each kind of layer of an encoder-decoder.
ENDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}

#: Texts or ids of the positions of one input, or of each input of a batch.
TokensOfSequence = Sequence[str] | Sequence[int] | NDArray[np.integer] | Tensor | Sequence[object]
#: Positions without padding of each input, by the name of their sequence.
Spans = Mapping[str, list[slice]]
#: Tokens of one sequence, or of each sequence by its name.
TokensGiven = TokensOfSequence | Mapping[str, TokensOfSequence]


class GivenSequences(NamesOfSequences):
    """Sequences of layers from arrays: see `NamesOfSequences`.

    Args:
        tokens: see `from_queries_keys`. tokenizer: turns ids into names.
        samples: inputs of the batch.
        pair: whether there are a source and a target.
        spans: the positions without padding of each input, by the name of their sequence.
        rows: positions of a generation, whose tokens may be one more; None: as many as tokens.
    """

    def __init__(
        self, tokens: TokensGiven | None, tokenizer: object, samples: int, pair: bool,
        spans: Spans | None = None, rows: int | None = None,
    ) -> None:  # fmt: skip
        self._spans = spans or {}
        named = tokens if isinstance(tokens, Mapping) else {"tokens": tokens}
        self.samples, self.pair = samples, pair or "source" in named
        if tokens is not None and set(named) - ({"source", "target"} if self.pair else {"tokens"}):
            raise InputError(
                f"tokens of {', '.join(map(repr, named))}; expected tokens of one sequence, or "
                'tokens={"source": ..., "target": ...} of an encoder-decoder.'
            )
        self._texts = {
            name: _texts(name, entries, tokenizer, samples)
            for name, entries in named.items()
            if entries is not None
        }
        for name, texts in self._texts.items():
            if name != "source" and rows is not None and len(texts[0]) == rows + 1:
                self._texts[name] = [_part(tokens, slice(rows)) for tokens in texts]
        #: Sequences whose tokens no layer has read.
        self.unread = set(self._texts)
        #: Length of each sequence, from its tokens or its first layer.
        self._lengths = {name: len(texts[0]) for name, texts in self._texts.items()}

    def ends(self, call: LayerCall) -> tuple[str, str]:
        path, kind, (queries, keys) = call.path, call.kind, call.graph.shape[2:]
        names = ENDS[kind] if self.pair else ("tokens", "tokens")
        self.unread.difference_update(names)
        of_keys = self._of_length(path, names[1], keys)
        if kind == "decoder" and queries < keys:  # a later step of a generation
            return f"{of_keys}-{queries}-from-{keys - queries}", of_keys
        return self._of_length(path, names[0], queries), of_keys

    def _of_length(self, path: str, name: str, length: int) -> str:
        """Return the sequence of a length: without tokens, every length has its own sequence."""
        known = self._lengths.setdefault(name, length)
        if known != length and name in self._texts:
            raise InputError(
                f"layer {path} has {length} positions, the sequence {name!r} {known} tokens; "
                "expected a token for each, special tokens too. If the dimensions are (positions, "
                'heads, depth), give layout="NHD".'
            )
        return name if known == length else f"{name}-{length}"

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        whole, _, start = name.partition(f"-{length}-from-")
        first = int(start or 0)
        span = self._spans[name][sample] if name in self._spans else slice(0, length)
        if whole not in self._texts:
            names = [f"position {first + i}" for i in range(span.stop - span.start)]
            return InputSequence(span, names)
        texts = _part(self._texts[whole][sample], slice(first + span.start, first + span.stop))
        return InputSequence(span, texts, {**texts_known(texts)})


def _part(tokens: list[str], span: slice) -> list[str]:
    """Return some of the tokens, with their texts where known."""
    if isinstance(tokens, Tokens):
        return Tokens(tokens[span], tokens.texts[span])
    return tokens[span]


def _texts(name: str, entries: object, tokenizer: object, samples: int) -> list[list[str]]:
    """Return the names of the tokens of a sequence, for each input of a batch."""
    entries = entries.tolist() if isinstance(entries, (Tensor, np.ndarray)) else entries
    if isinstance(entries, Sequence) and not isinstance(entries, str):
        if all(isinstance(entry, str) for entry in entries):
            return [entries if isinstance(entries, Tokens) else list(entries)] * samples
        if all(isinstance(entry, int | np.integer) for entry in entries):
            return [token_names(entries, tokenizer)] * samples
        if len(entries) == samples and not isinstance(entries[0], str | int | np.integer):
            inputs = [_texts(name, entry, tokenizer, 1)[0] for entry in entries]
            if len({len(texts) for texts in inputs}) == 1:
                return inputs
    raise InputError(
        f"the tokens of {name!r}: expected a text or an id for each position; for a batch of "
        f"{samples} inputs, a list of such lists, each as long as the arrays, padding included."
    )
