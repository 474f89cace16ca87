"""Patterns: for each query, the set of keys that a role is about.

Every role of a head is mass on such sets: the previous token is the diagonal one below the main
one, the first token is one column, a duplicate token is the keys of the query's own class.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.arguments import check_layer, texts
from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.shapes import in_words
from headloom.tracing.recording.score_terms import ranges_of

__all__ = [
    "SEPARATORS",
    "Allowed",
    "Classes",
    "Diagonals",
    "HeadKeys",
    "Pattern",
    "allowed_keys",
    "class_numbers",
    "punctuation_marks",
    "separators",
]


@dataclass(frozen=True, eq=False)
class Allowed:
    """Which keys each query may look at: a range of them.

    first, end   (queries,): keys first_i to end_i - 1
    count        (heads, queries): how many they are
    known        whether the ranges are the true ones. If not they are wider, and only `count` is
    seen         (queries, most): the keys of each query, in order, -1 behind them, where they are
                 known and are not side by side; else None
    """

    first: Tensor
    end: Tensor
    count: Tensor
    known: bool
    seen: Tensor | None = None


def allowed_keys(layer: TraceLayer) -> Allowed:
    """The keys that each query of a layer may look at.

    Where the trace does not say, as of weights that were given without a mask, they are the keys
    that some head of the layer looks at, if every edge was kept. Of one head that looks at one key
    a row, which tells of no mask: all, or all up to the query where none looks ahead. Of a graph
    that lacks edges, a window is looked for that explains how many keys each row may look at and
    has every kept edge in it.
    """
    check_layer("allowed_keys", layer)
    graph = layer.graph
    _, queries, keys = graph.shape
    position, count = torch.arange(queries), graph.count
    if layer.terms is not None and layer.mask is not None:
        ranges = ranges_of(layer.terms.mask, queries, keys)
        if ranges is not None:
            # A bias of minus infinity hides keys that the mask shows.
            shown = (count == ranges[1] - ranges[0]) | graph.lse.isnan()
            return Allowed(ranges[0], ranges[1], count, bool(shown.all()))
    whole = torch.zeros_like(position), torch.full_like(position, keys)
    if layer.mask == "all" or bool((count == keys).all()):
        return Allowed(*whole, count, True)
    causal = torch.zeros_like(position), position + 1
    if layer.mask == "causal":
        return Allowed(*causal, count, True)
    if layer.terms is None:
        looked_at = _looked_at(graph)
        if looked_at is not None:
            return looked_at
    same_for_heads = bool((count == count[:1]).all())
    if queries == keys and graph.k and queries and same_for_heads:
        of_row = count[0]
        reach = (int(of_row.max()) - 1) // 2
        both_sides = (position - reach).clamp(min=0), (position + reach + 1).clamp(max=keys)
        for first, end in (causal, (position + 1 - of_row, position + 1), both_sides):
            inside = (graph.keys >= first[:, None]) & (graph.keys < end[:, None])
            fits = bool((end - first == of_row).all()) and bool((first >= 0).all())
            if fits and bool((inside | (graph.keys < 0)).all()):
                return Allowed(first, end, count, True)
    return Allowed(*whole, count, False)


def _looked_at(graph: AttentionGraph) -> Allowed | None:
    """The keys that some head looks at, of a graph that keeps every edge.

    None: it does not keep every edge.
    """
    heads, queries, keys = graph.shape
    if bool((graph.count > (graph.keys >= 0).sum(-1)).any()):
        return None
    seen = _seen(graph)
    count = (seen >= 0).sum(-1)
    position = torch.arange(queries)
    if heads == 1 and not bool((count > 1).any()):
        ahead = queries != keys or bool((seen > position[:, None]).any())
        first = torch.zeros_like(position)
        end = torch.full_like(position, keys) if ahead else position + 1
        return Allowed(first, end, end.expand(heads, queries), True)
    of_heads = count.expand(heads, queries)
    first = seen[:, 0].clamp(min=0).long() if seen.shape[1] else torch.zeros_like(position)
    end = first + count
    past = seen.amax(-1).long() + 1 if seen.shape[1] else torch.zeros_like(end)
    if torch.equal(past, torch.where(count > 0, end, 0)):  # side by side
        return Allowed(first, end, of_heads, True)
    whole = torch.zeros_like(first), torch.full_like(first, keys)
    return Allowed(*whole, of_heads, False, seen)


#: Edges that are sorted at once.
_AT_ONCE = 2**22


def _seen(graph: AttentionGraph) -> Tensor:
    """The keys of each query that some head keeps, in order and each once, (queries, most).

    -1 stands behind them.
    """
    heads, queries, k = graph.keys.shape
    rows = max(1, _AT_ONCE // max(1, heads * k))
    parts = [graph.keys[:, start : start + rows] for start in range(0, queries, rows)]
    blocks = [_each_once(part.transpose(0, 1).flatten(1)) for part in parts]
    most = max((block.shape[1] for block in blocks), default=0)
    seen = torch.full((queries, most), -1, dtype=graph.keys.dtype)
    for number, block in enumerate(blocks):
        seen[number * rows : number * rows + len(block), : block.shape[1]] = block
    return seen


def _each_once(keys: Tensor) -> Tensor:
    """Each row's different keys, in order, -1 behind them: (queries, edges) to (queries, most).

    >>> _each_once(torch.tensor([[5, 2, 5], [-1, 3, 3]]))
    tensor([[ 2,  5],
            [ 3, -1]])
    """
    past = int(keys.max()) + 1 if keys.numel() else 0
    ordered = keys.masked_fill(keys < 0, past).sort(-1).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    ordered = ordered.masked_fill_(again, past).sort(-1).values
    most = int((ordered < past).sum(-1).max()) if keys.numel() else 0
    ordered = ordered[:, :most]
    return ordered.masked_fill(ordered == past, -1)


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Query i: the keys i + lowest to i + highest."""

    lowest: int
    highest: int

    def contains(self, keys: Tensor) -> Tensor:
        """Whether the kept keys, (..., queries, k), are in the sets of their queries."""
        distance = keys - torch.arange(keys.shape[-2])[:, None]
        return (distance >= self.lowest) & (distance <= self.highest) & (keys >= 0)

    def sizes(self, allowed: Allowed) -> Tensor:
        """How many keys of each set may be looked at, (heads, queries)."""
        position = torch.arange(len(allowed.first))
        first = torch.maximum(allowed.first, position + self.lowest)
        end = torch.minimum(allowed.end, position + self.highest + 1)
        return torch.minimum((end - first).clamp(min=0), allowed.count)


@dataclass(frozen=True, eq=False)
class Classes:
    """Query i: the keys of class ``of_queries[i]``, but for key i + without.

    of_queries, of_keys: class numbers (queries,) and (keys,); a negative one is in no set.

    >>> tokens = class_numbers(["a", "b", "a"])
    >>> pattern = Classes(tokens, tokens, without=0)          # the other places of a token
    >>> pattern.contains(torch.tensor([[2], [2], [0]]))[:, 0]
    tensor([ True, False,  True])
    """

    of_queries: Tensor
    of_keys: Tensor
    without: int | None = None

    def contains(self, keys: Tensor) -> Tensor:
        """Whether the kept keys, (..., queries, k), are in the sets of their queries."""
        of_edges = self.of_keys[keys.clamp(min=0)]
        wanted = self.of_queries[:, None]
        inside = (of_edges == wanted) & (wanted >= 0) & (keys >= 0)
        if self.without is not None:
            inside &= keys != torch.arange(keys.shape[-2])[:, None] + self.without
        return inside

    def sizes(self, allowed: Allowed) -> Tensor:
        """How many keys of each set may be looked at, (heads, queries)."""
        keys, queries = len(self.of_keys), len(self.of_queries)
        # Keys in the order of their class, then of their place: a set in a range is a slice.
        places, _ = (self.of_keys * (keys + 1) + torch.arange(keys)).sort()
        start = self.of_queries * (keys + 1)
        sizes = torch.searchsorted(places, start + allowed.end) - torch.searchsorted(
            places, start + allowed.first
        )
        sizes = torch.where(self.of_queries >= 0, sizes, 0)
        if self.without is not None and keys:
            other = torch.arange(queries) + self.without
            there = (other >= allowed.first) & (other < allowed.end)
            there &= self.of_keys[other.clamp(0, keys - 1)] == self.of_queries
            sizes = sizes - (there & (self.of_queries >= 0)).to(sizes.dtype)
        return torch.minimum(sizes, allowed.count)

    @classmethod
    def of_keys_at(cls, layer: TraceLayer, at: Sequence[int]) -> Classes:
        """The same keys for every query; places past the last key are left out."""
        _, queries, keys = layer.shape
        chosen = torch.as_tensor(list(at), dtype=torch.long)
        of_keys = torch.full((keys,), -1).index_fill(0, chosen[chosen < keys], 0)
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

    def contains(self, keys: Tensor) -> Tensor:
        """Whether the kept keys, (heads, queries, k), are in the sets of their queries."""
        inside = self.member.gather(1, keys.clamp(min=0).flatten(1).long()).reshape(keys.shape)
        return inside & (keys >= 0) & self.rows[:, None]

    @property
    def member(self) -> Tensor:
        """Whether each key is in the set of a head, (heads, keys)."""
        none = torch.zeros(len(self.places), self.keys, dtype=torch.bool)
        return none.scatter(1, self.places, True)

    def sizes(self, allowed: Allowed) -> Tensor:
        """How many keys of each set may be looked at, (heads, queries)."""
        places = self.places[:, None, :]
        inside = (places >= allowed.first[:, None]) & (places < allowed.end[:, None])
        return torch.minimum(inside.sum(-1) * self.rows, allowed.count)


Pattern = Diagonals | Classes | HeadKeys


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
    tokens = texts("separators", "tokens", tokens)
    if special is None:
        special = [token in SEPARATORS for token in tokens]
    elif not isinstance(special, Sequence) or len(special) != len(tokens):
        raise InputError(
            f"separators: special={in_words(special)}; expected True or False for each of "
            f"{len(tokens)} tokens."
        )
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

    tokens = texts("punctuation_marks", "tokens", tokens)
    return [place for place, token in enumerate(tokens) if is_mark(token)]
