"""Patterns: for each query, the set of keys of a role; and the visible keys.

Every role of a head is mass on such sets: the previous token is the diagonal below the main one,
the first token is one column, a duplicate token is the keys of the query's own class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headloom.analysis.weights import keeps_all
from headloom.formats.trace import TraceLayer


class Pattern(Protocol):
    """Protocol of a set of keys for each query."""

    def contains(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Return whether keys are in the sets of queries, (rows, keys) or (heads, rows, keys).

        rows: numbers of queries, (rows, 1); keys: (keys,), or some of each, (heads, rows, keys).
        """

    def sizes(self, first: Tensor, end: Tensor) -> Tensor:
        """Return the number of keys first_i to end_i - 1 in each set, (queries,) or with heads."""


@dataclass(frozen=True)
class Diagonals(Pattern):
    """Diagonals: the keys i + lowest to i + highest of query i."""

    lowest: int
    highest: int

    def contains(self, rows: Tensor, keys: Tensor) -> Tensor:
        return (keys - rows >= self.lowest) & (keys - rows <= self.highest)

    def sizes(self, first: Tensor, end: Tensor) -> Tensor:
        i = torch.arange(len(first))
        last = torch.minimum(end, i + self.highest + 1)
        return (last - torch.maximum(first, i + self.lowest)).clamp(min=0)


@dataclass(frozen=True, eq=False)
class Classes(Pattern):
    """Classes: the keys of class ``of_queries[i]`` for query i, except key i + without.

    of_queries, of_keys: class numbers (queries,) and (keys,); a negative one is in no set.

    >>> tokens = class_numbers(["a", "b", "a"])
    >>> others = Classes(tokens, tokens, without=0)           # other places of a token
    >>> others.contains(torch.arange(3)[:, None], torch.arange(3))
    tensor([[False, False,  True],
            [False, False, False],
            [ True, False, False]])
    >>> others.sizes(torch.zeros(3).long(), torch.arange(3) + 1)    # visible ones
    tensor([0, 0, 1])
    """

    of_queries: Tensor
    of_keys: Tensor
    without: int | None = None

    def contains(self, rows: Tensor, keys: Tensor) -> Tensor:
        classes = self.of_queries[rows]
        inside = (self.of_keys[keys] == classes) & (classes >= 0)
        return inside if self.without is None else inside & (keys != rows + self.without)

    def sizes(self, first: Tensor, end: Tensor) -> Tensor:
        length = len(self.of_keys)
        # Keys sorted by class, then by place.
        places = (self.of_keys * (length + 1) + torch.arange(length)).sort().values
        classes = self.of_queries * (length + 1)
        sizes = torch.searchsorted(places, classes + end) - torch.searchsorted(
            places, classes + first
        )
        if self.without is not None:
            i = torch.arange(len(first))
            other = (i + self.without).clamp(0, max(length - 1, 0))
            inside = (other == i + self.without) & (other >= first) & (other < end)
            sizes -= (inside & (self.of_keys[other] == self.of_queries)).long()
        return sizes * (self.of_queries >= 0)

    @classmethod
    def of_keys_at(cls, layer: TraceLayer, at: Sequence[int]) -> Classes:
        """Return the same keys for every query; places past the last key are left out."""
        _, queries, keys = layer.shape
        of_keys = torch.full((keys,), -1)
        of_keys[[place for place in at if place < keys]] = 0
        return cls(torch.zeros(queries, dtype=torch.long), of_keys)

    @classmethod
    def of_tokens(cls, layer: TraceLayer, *, shifted: bool) -> Classes:
        """Return classes of queries by token, and of keys by token, or by the token before."""
        known: dict[str, int] = {}
        of_queries = class_numbers(layer.query_tokens, known)
        of_keys = class_numbers(layer.key_tokens, known)
        if shifted:
            of_keys = torch.cat((torch.tensor([-1]), of_keys))[: len(of_keys)]
        one_sequence = layer.queries_from == layer.keys_from
        return cls(of_queries, of_keys, int(shifted) if one_sequence else None)


@dataclass(frozen=True, eq=False)
class HeadKeys(Pattern):
    """Keys of each head: the keys ``places[h]`` for query i of head h, if ``rows[i]``.

    places (heads, size): different keys of each head; keys: their total number; rows (queries,):
    queries that have a set, used by `sizes`; `contains` ignores rows, (heads, 1, keys).
    """

    places: Tensor
    rows: Tensor
    keys: int

    def contains(self, rows: Tensor, keys: Tensor) -> Tensor:
        member = torch.zeros(len(self.places), self.keys, dtype=torch.bool)
        member.scatter_(1, self.places, True)
        if keys.ndim > 1:
            return member.gather(1, keys.flatten(1)).view(keys.shape)
        return member[:, None, keys]

    def sizes(self, first: Tensor, end: Tensor) -> Tensor:
        places = self.places[:, None]
        inside = (places >= first[:, None]) & (places < end[:, None])
        return inside.sum(-1) * self.rows


@dataclass(frozen=True, eq=False)
class VisibleKeys:
    """Visible keys of each query: first_i to end_i - 1, of `keys` keys.

    first, end: (queries,). shown: the visible ones among these; None: all; (heads or 1, queries,
    keys).
    """

    first: Tensor
    end: Tensor
    keys: int
    shown: Tensor | None = None

    def cells(self, rows: range, keys: range) -> Tensor:
        """Return the mask of some rows and keys, (heads or 1, rows, keys)."""
        part, j = slice(rows.start, rows.stop), torch.arange(keys.start, keys.stop)
        inside = (j >= self.first[part, None]) & (j < self.end[part, None])
        if self.shown is None:
            return inside[None]
        return inside & self.shown[:, part, keys.start : keys.stop]

    def sizes(self, pattern: Pattern | None) -> Tensor:
        """Return the number of visible keys in each row's set, (heads or 1, queries); None: all."""
        if self.shown is None:
            if pattern is None:
                return (self.end - self.first)[None]
            return pattern.sizes(self.first, self.end)
        if pattern is None:
            return self.shown.sum(-1)
        rows = torch.arange(len(self.first))[:, None]
        return (pattern.contains(rows, torch.arange(self.keys)) & self.shown).sum(-1)

    def column_sums(self, values: Tensor, reach: int) -> Tensor:
        """Return the sum of values (heads, queries) over the distant rows that see each key."""
        i = torch.arange(len(self.first))
        if self.shown is not None:
            far = (torch.arange(self.keys) - i[:, None]).abs() > reach
            distant = (self.shown & far).to(values.dtype).expand(len(values), -1, -1)
            return torch.einsum("hq,hqk->hk", values, distant)
        steps = values.new_zeros(len(values), self.keys + 1)
        steps.index_add_(1, self.first, values).index_add_(1, self.end, -values)
        sums = steps.cumsum(1)[:, :-1]
        for offset in range(-reach, reach + 1):
            near = (i + offset >= self.first) & (i + offset < self.end)
            sums.index_add_(1, i[near] + offset, -values[:, near])
        return sums


def visible_keys(layer: TraceLayer) -> VisibleKeys:
    """Return the visible keys of each query of a layer.

    If the mask is unknown, as for weights without a mask, and every edge was kept, these are the
    keys with weight in some head. With one head and one key for each row, which shows no mask: all
    keys, or all up to the query if no row has a later key. Otherwise all up to the query if the
    counts fit, or all.
    """
    graph, terms = layer.graph, layer.terms
    heads, queries, keys = graph.shape
    first = torch.zeros(queries, dtype=torch.long)
    whole, behind = torch.full_like(first, keys), torch.arange(1, queries + 1).clamp(max=keys)
    if terms is not None and layer.mask is not None:
        end = whole
        if terms.mask is not None:
            first, end = terms.mask.bounds(queries, keys).of_sample(queries, keys, 0)
        known = VisibleKeys(first, end, keys)
        if terms.bias is None or not bool((terms.bias == -torch.inf).any()):
            return known
        shown = terms.bias.expand(-1, queries, keys) > -torch.inf
        return VisibleKeys(first, end, keys, shown.cpu() & known.cells(range(queries), range(keys)))
    if layer.mask == "all" or bool((graph.count == keys).all()):
        return VisibleKeys(first, whole, keys)
    if layer.mask == "causal" or (queries == keys and bool((graph.count == behind).all())):
        return VisibleKeys(first, behind, keys)
    if not keeps_all(graph):
        return VisibleKeys(first, whole, keys)
    if heads > 1 or bool((graph.count > 1).any()):
        kept = graph.keys.transpose(0, 1).flatten(1).long()
        shown = torch.zeros(queries, keys + 1, dtype=torch.bool)
        shown.scatter_(1, torch.where(kept < 0, keys, kept), True)
        return VisibleKeys(first, whole, keys, shown[None, :, :-1])
    ahead = queries != keys or bool((graph.keys >= behind[:, None]).any())
    return VisibleKeys(first, whole if ahead else behind, keys)


def class_numbers(tokens: Sequence[str], known: dict[str, int] | None = None) -> Tensor:
    """Return a number for each token, the same for equal tokens.

    known: earlier numbers, to which new ones are added.

    >>> class_numbers(["the", "dog", "the"])
    tensor([0, 1, 0])
    """
    known = {} if known is None else known
    return torch.tensor([known.setdefault(token, len(known)) for token in tokens]).long()


#: Names of tokens that end or separate texts.
SEPARATORS = frozenset(
    (
        *("[SEP]", "</s>", "<end>", "<sep>", "<eos>", "<EOS>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<end_of_turn>"),
    )
)


def separators(tokens: Sequence[str], special: Sequence[bool] | None = None) -> list[int]:
    """Return the places of special tokens that end or separate texts, except the first token.

    special: whether each token is special to the tokenizer; None: tokens with a name in
    `SEPARATORS`. Mask, padding and unknown tokens are special, but separate nothing.

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
    """Return the places of tokens that are punctuation only.

    >>> punctuation_marks(["a", ",", "\u2581.", "."])      # the mark of a word's start left out
    [1, 2, 3]
    """

    def is_mark(token: str) -> bool:
        bare = token.strip(" \u0120\u2581")
        return bool(bare) and all(unicodedata.category(letter)[0] == "P" for letter in bare)

    return [place for place, token in enumerate(tokens) if is_mark(token)]
