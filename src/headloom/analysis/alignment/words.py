"""Weights between words from the weights between tokens."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from headloom.analysis.heads.patterns import separators
from headloom.analysis.weights import weights_of
from headloom.errors import InputError
from headloom.formats.tokens import each_once, shown
from headloom.formats.trace import TraceData

#: Query of a target token: the one that reads it, or the one before, which writes it.
Step = Literal["read", "write"]
STEPS: tuple[Step, ...] = ("read", "write")
#: Special tokens that only begin a sequence.
_BEGINNINGS = frozenset({"<start>", "<s>", "<bos>", "<pad>", "[CLS]", "[BOS]", "[PAD]"})
_HEAD = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?::(read|write))?")


class AligningHead(NamedTuple):
    """Head for word alignment.

    layer: its number in a trace of all layers, from 0; head: its number there; step: the query of
    a target token.

    >>> print(AligningHead(0, 1), AligningHead(3, 2, "write"))
    0.1 3.2:write
    """

    layer: int
    head: int
    step: Step = "read"

    def __str__(self) -> str:
        return f"{self.layer}.{self.head}" + ("" if self.step == "read" else f":{self.step}")

    @classmethod
    def named(cls, name: str) -> AligningHead:
        """Parse the name of a head. Raises: InputError: not a name."""
        parts = _HEAD.fullmatch(str(name).strip())
        if parts is None:
            raise InputError(
                f"heads: {name!r:.40}; expected LAYER.HEAD, as 5.1, by the layer's number in a "
                "trace, or 5.1:write for the step that writes the word."
            )
        return cls(int(parts[1]), int(parts[2]), "write" if parts[3] == "write" else "read")


@dataclass(frozen=True, eq=False)
class WordParts:
    """Words of a sequence, and the tokens of each.

    words  as they are spelled
    share  (words, tokens): 1 if the token is a part of the word, 1 / n for a token in n words
    unread number of last tokens that the model wrote but did not read, 0 or 1: they have no rows
    """

    words: list[str]
    share: Tensor
    unread: int = 0


@dataclass(frozen=True, eq=False)
class WordWeights:
    """Weights between each word of a target and each word of its source.

    weights         (heads, target words, source words)
    heads           head and step of each
    source, target  the words
    """

    weights: Tensor
    heads: tuple[AligningHead, ...]
    source: list[str]
    target: list[str]

    def of(self, places: Sequence[int]) -> WordWeights:
        """Return some of the heads, by their places."""
        heads = tuple(self.heads[place] for place in places)
        return WordWeights(self.weights[list(places)], heads, self.source, self.target)


def parts_by_offsets(text: str, offsets: Sequence[Sequence[int]]) -> WordParts:
    """Return the words of a text, split at spaces, and their tokens.

    Args:
        text: of the sequence.
        offsets: start and end of each token in the text; [0, 0]: not in the text.

    >>> parts = parts_by_offsets("an end", [(0, 0), (0, 2), (2, 4), (4, 6)])
    >>> parts.words, parts.share.tolist()
    (['an', 'end'], [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    """
    words = list(re.finditer(r"\S+", text))
    begins, ends = [word.start() for word in words], [word.end() for word in words]
    owners: list[tuple[int, int]] = []
    for place, (start, end) in enumerate(offsets):
        if start >= end:
            continue
        # The first word that ends after the token begins, and the first that begins after it.
        first, last = bisect_right(ends, start), bisect_left(begins, end)
        if text[start:end].isspace():
            # A token that is a single space belongs to the next word.
            last = first + (begins[first : first + 1] == [end])
        owners += [(number, place) for number in range(first, last)]
    share = torch.zeros(len(words), len(offsets))
    if owners:
        share[tuple(torch.tensor(owners).T)] = 1
    return WordParts([word[0] for word in words], share / share.sum(0).clamp(min=1))


def parts_by_tokens(tokens: Sequence[str], special: Sequence[bool] | None = None) -> WordParts:
    """Return the words of a sequence, by the spelling of its tokens.

    A word begins at a token with a leading space (or "▁"), or after a trailing space; if no token
    has one, at each token without "##". Special tokens are not words.

    >>> parts_by_tokens(["<start>", " gold", "en", " end", "<end>"]).words
    ['golden', 'end']
    """
    texts = [text.replace("▁", " ") for text in each_once(shown(tokens))]
    no_word = set(separators(tokens, special))
    # `separators` ignores the first token, so a doubled one is tested.
    first = tokens[:1] and (
        special[0] if special else tokens[0] in _BEGINNINGS or 1 in separators([tokens[0]] * 2)
    )
    if first:
        no_word.add(0)
    spaced = any(" " in text for number, text in enumerate(texts) if number not in no_word)
    text, offsets = "", []
    for number, piece in enumerate(texts):
        if number in no_word:
            text += " "
            offsets.append((0, 0))
            continue
        if not spaced:
            piece = piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
        offsets.append((len(text), len(text) + len(piece)))
        text += piece
    return parts_by_offsets(text, offsets)


def word_weights(
    trace: TraceData, source: WordParts | None = None, target: WordParts | None = None, *,
    steps: Sequence[Step] = STEPS,
) -> WordWeights:  # fmt: skip
    """Return the weights between words, of every head of cross-attention.

        W(t, s) = 1/|P_t|  sum over i in P_t  sum over j in P_s  w(r(i), j)

    P_t and P_s are the tokens of a target word and of a source word; r(i) is the row of target
    token i: the query that reads it and predicts the next token ("read"), or the one before, which
    predicts it ("write"). Special tokens are not part of a word; their weights are left out.

    Args:
        trace: of an encoder-decoder.
        source: words of the source; None: by the spelling of tokens.
        target: words of the target; None: by the spelling of tokens.
        steps: "read", "write", or both, for each head one after the other.

    Raises: InputError: no cross-attention, or no exact weights.

    Source: Clark et al. 2019, section 4.1 (sum over key tokens, mean over query tokens); Chen et
    al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation" (the steps).
    """
    crossing = [n for n, layer in enumerate(trace.layers) if layer.kind == "cross"]
    layers = [trace.layers[number] for number in crossing]
    if not layers:
        raise InputError(
            "align: the trace has no cross-attention from a target to its source. Give traces of "
            "an encoder-decoder."
        )

    def parts_of(name: str) -> WordParts:
        return parts_by_tokens(trace.sequences[name], trace.positions.get(name, {}).get("special"))

    source = source or parts_of(layers[0].keys_from)
    target = target or parts_of(layers[0].queries_from)
    # The mean over the tokens of a word that have a row.
    tokens = target.share[:, : target.share.shape[1] - target.unread]
    read = tokens / tokens.sum(1, keepdim=True).clamp(min=1e-9)
    written = (target.share / target.share.sum(1, keepdim=True).clamp(min=1e-9))[:, 1:]
    rows_of = {"read": read, "write": torch.nn.functional.pad(written, (0, 1 - target.unread))}
    columns = source.share.T
    parts: list[Tensor] = []
    heads: list[AligningHead] = []
    for number, layer in zip(crossing, layers, strict=True):
        weights_on_words = weights_of(layer, exact=True).to_dense().float() @ columns
        for step in steps:
            parts.append(rows_of[step] @ weights_on_words)
            heads += [AligningHead(number, head, step) for head in range(layer.heads)]
    return WordWeights(torch.cat(parts), tuple(heads), source.words, target.words)
