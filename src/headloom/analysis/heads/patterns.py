"""Patterns: for each query, the set of keys that a role is about; and the keys it may look at.

Every role of a head is mass on such sets: the previous token is the diagonal one below the main
one, the first token is one column, a duplicate token is the keys of the query's own class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headloom.analysis.weights import keeps_all
from headloom.formats.trace import TraceLayer

__all__ = [
    "SEPARATORS",
    "Classes",
    "Diagonals",
    "HeadKeys",
    "Pattern",
    "class_numbers",
    "punctuation_marks",
    "separators",
    "visible_keys",
]


def visible_keys(layer: TraceLayer) -> Callable[[range], Tensor]:
    """Return a function from some rows to which keys each may look at, (heads or 1, rows, keys).

    Where the trace does not say, as of weights that were given without a mask, they are the keys
    that some head of the layer looks at, if every edge was kept. Of one head that looks at one key
    a row, which tells of no mask: all, or all up to the query where none looks ahead. Else all up
    to the query where each row has as many, or all.
    """
    graph, terms = layer.graph, layer.terms
    heads, queries, keys = graph.shape
    position = torch.arange(queries)
    everything = layer.mask == "all" or bool((graph.count == keys).all())
    causal = layer.mask == "causal" or (
        bool((graph.count == (position + 1).clamp(max=keys)).all()) and queries == keys
    )
    if terms is not None and layer.mask is not None:

        def by_terms(rows: range) -> Tensor:
            seen = torch.ones(1, len(rows), keys, dtype=torch.bool)
            if terms.mask is not None:
                seen = terms.mask.cells(rows, keys, torch.device("cpu"))[0].expand(
                    -1, len(rows), keys
                )
            if terms.bias is None:
                return seen
            bias = terms.bias.expand(heads, queries, keys)[:, rows.start : rows.stop]
            return seen & (bias > -torch.inf).cpu()

        return by_terms
    if not everything and not causal and keeps_all(graph):
        if heads > 1 or bool((graph.count > 1).any()):

            def by_edges(rows: range) -> Tensor:
                kept = graph.keys[:, rows.start : rows.stop].transpose(0, 1).flatten(1).long()
                seen = torch.zeros(len(rows), keys + 1, dtype=torch.bool)
                return seen.scatter_(1, torch.where(kept < 0, keys, kept), True)[None, :, :-1]

            return by_edges
        causal = queries == keys and not bool((graph.keys > position[:, None]).any())

    def by_rule(rows: range) -> Tensor:
        end = torch.arange(rows.start, rows.stop) + 1 if causal else torch.tensor([keys])
        return (torch.arange(keys) < end[:, None]).expand(1, len(rows), keys)

    return by_rule


class Pattern(Protocol):
    """A set of keys for each query."""

    def cells(self, rows: range) -> Tensor:
        """Which keys are in the sets of some queries, (rows, keys) or (heads, rows, keys)."""


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Query i: the keys i + lowest to i + highest, of so many keys."""

    lowest: int
    highest: int
    keys: int

    def cells(self, rows: range) -> Tensor:
        """See Pattern.cells."""
        distance = torch.arange(self.keys) - torch.arange(rows.start, rows.stop)[:, None]
        return (distance >= self.lowest) & (distance <= self.highest)


@dataclass(frozen=True, eq=False)
class Classes:
    """Query i: the keys of class ``of_queries[i]``, but for key i + without.

    of_queries, of_keys: class numbers (queries,) and (keys,); a negative one is in no set.

    >>> tokens = class_numbers(["a", "b", "a"])
    >>> Classes(tokens, tokens, without=0).cells(range(3))    # the other places of a token
    tensor([[False, False,  True],
            [False, False, False],
            [ True, False, False]])
    """

    of_queries: Tensor
    of_keys: Tensor
    without: int | None = None

    def cells(self, rows: range) -> Tensor:
        """See Pattern.cells."""
        wanted = self.of_queries[rows.start : rows.stop, None]
        inside = (self.of_keys == wanted) & (wanted >= 0)
        if self.without is not None:
            other = torch.arange(rows.start, rows.stop)[:, None] + self.without
            inside &= torch.arange(len(self.of_keys)) != other
        return inside

    @classmethod
    def of_keys_at(cls, layer: TraceLayer, at: Sequence[int]) -> Classes:
        """The same keys for every query; places past the last key are left out."""
        _, queries, keys = layer.shape
        of_keys = torch.full((keys,), -1)
        of_keys[[place for place in at if place < keys]] = 0
        return cls(torch.zeros(queries, dtype=torch.long), of_keys)

    @classmethod
    def of_tokens(cls, layer: TraceLayer, *, shifted: bool) -> Classes:
        """Queries by their token; keys by theirs, or by the token before them."""
        known: dict[str, int] = {}
        of_queries = class_numbers(layer.query_tokens, known)
        of_keys = class_numbers(layer.key_tokens, known)
        if shifted:
            of_keys = torch.cat((torch.tensor([-1]), of_keys))[: len(of_keys)]
        one_sequence = layer.queries_from == layer.keys_from
        return cls(of_queries, of_keys, int(shifted) if one_sequence else None)


@dataclass(frozen=True, eq=False)
class HeadKeys:
    """Query i of head h: the keys ``places[h]``, where ``rows[i]``.

    places (heads, size): different keys of each head, of so many keys; rows (queries,): which
    queries have a set.
    """

    places: Tensor
    rows: Tensor
    keys: int

    def cells(self, rows: range) -> Tensor:
        """See Pattern.cells."""
        member = torch.zeros(len(self.places), self.keys, dtype=torch.bool)
        member.scatter_(1, self.places, True)
        return member[:, None] & self.rows[rows.start : rows.stop, None]


def class_numbers(tokens: Sequence[str], known: dict[str, int] | None = None) -> Tensor:
    """A number for each token, equal ones alike.

    known: numbers given before, to which new ones are added.

    >>> class_numbers(["the", "dog", "the"])
    tensor([0, 1, 0])
    """
    known = {} if known is None else known
    return torch.tensor([known.setdefault(token, len(known)) for token in tokens]).long()


#: Names of tokens that end or part texts.
SEPARATORS = frozenset(
    (
        *("[SEP]", "</s>", "<end>", "<sep>", "<eos>", "<EOS>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<end_of_turn>"),
    )
)


def separators(tokens: Sequence[str], special: Sequence[bool] | None = None) -> list[int]:
    """The places of special tokens that end or part texts, but for the first token.

    special: whether each token is special to the tokenizer; None: those are, whose names are in
    `SEPARATORS`. A mask, a filler and an unknown word are special, and part nothing.

    >>> separators(["[CLS]", "a", "[SEP]"])
    [2]
    >>> separators(["[CLS]", "[MASK]", "/s"], [True, True, True])
    [2]
    """
    if special is None:
        special = [token in SEPARATORS for token in tokens]
    others = ("mask", "pad", "unk")
    return [
        place
        for place, (flag, token) in enumerate(zip(special, tokens, strict=True))
        if place and flag and token.strip("[]<>|").lower() not in others
    ]


def punctuation_marks(tokens: Sequence[str]) -> list[int]:
    """The places of tokens that are punctuation and nothing else.

    >>> punctuation_marks(["a", ",", "\u2581.", "."])      # the mark of a word's start left out
    [1, 2, 3]
    """

    def is_mark(token: str) -> bool:
        bare = token.strip(" \u0120\u2581")
        return bool(bare) and all(unicodedata.category(letter)[0] == "P" for letter in bare)

    return [place for place, token in enumerate(tokens) if is_mark(token)]
