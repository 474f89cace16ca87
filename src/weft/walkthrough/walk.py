"""A walk as data: every matrix of attention on one sentence, and what of it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weft.errors import InputError
from weft.formats.tokens import visible
from weft.mechanism.multihead import LayerKind as Kind
from weft.mechanism.worked import Worked, largest_difference
from weft.mechanism.worked_back import Learned
from weft.walkthrough.matrices import Words

__all__ = [
    "Kind",
    "Kinds",
    "Walk",
    "head_suffix",
    "mask_of",
    "named",
    "of_head",
    "place_of",
    "shape_of",
    "title_of",
]

#: Characters of a token in a table.
_LONGEST_WORD = 10


@dataclass(frozen=True, eq=False)
class Walk:
    """Multi-head attention on a short sentence, worked through.

    kind        "encoder", "decoder" or "cross"
    queries     the words that look, with their vectors; keys: those that are looked at
    worked      every matrix: X, Y, Q, K, V, scores, scaled, masked, weights, Z, joined, output
    query       the position that is also worked through alone; head: of which head
    shown       the heads whose tables are shown
    origin      where the matrices come from, in words
    digits      decimals that are shown; everything is computed in float64
    learned     what gradient descent made of the matrices; None: they did not learn
    wish        what the output should be, as a sentence, where they did

    Each matrix of `worked` is an attribute here too, (heads, ...) where heads differ.
    """

    kind: Kind
    queries: Words
    keys: Words
    worked: Worked
    query: int
    head: int
    shown: tuple[int, ...]
    origin: str
    digits: int = 2
    learned: Learned | None = None
    wish: str = ""

    # The matrices, by the names that they have in formulas.

    @property
    def X(self) -> Tensor:  # noqa: N802
        """What queries are made from, (queries, width)."""
        return self.worked.X

    @property
    def Y(self) -> Tensor:  # noqa: N802
        """What keys and values are made from, (keys, width)."""
        return self.worked.Y

    @property
    def W_Q(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.worked.projections.W_Q

    @property
    def W_K(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.worked.projections.W_K

    @property
    def W_V(self) -> Tensor:  # noqa: N802
        """(heads, width, depth)."""
        return self.worked.projections.W_V

    @property
    def W_O(self) -> Tensor:  # noqa: N802
        """(heads * depth, width)."""
        return self.worked.projections.W_O

    @property
    def Q(self) -> Tensor:  # noqa: N802
        """(heads, queries, depth)."""
        return self.worked.Q

    @property
    def K(self) -> Tensor:  # noqa: N802
        """(heads, keys, depth)."""
        return self.worked.K

    @property
    def V(self) -> Tensor:  # noqa: N802
        """(heads, keys, depth)."""
        return self.worked.V

    @property
    def scores(self) -> Tensor:
        """Raw scores, (heads, queries, keys)."""
        return self.worked.scores

    @property
    def scaled(self) -> Tensor:
        """Scores over the square root of the depth."""
        return self.worked.scaled

    @property
    def masked(self) -> Tensor:
        """Scaled scores, minus infinity where a query may not look."""
        return self.worked.masked

    @property
    def weights(self) -> Tensor:
        """The softmax of each row, (heads, queries, keys)."""
        return self.worked.weights

    @property
    def Z(self) -> Tensor:  # noqa: N802
        """Weighted sums of the values, (heads, queries, depth)."""
        return self.worked.Z

    @property
    def joined(self) -> Tensor:
        """The heads side by side, (queries, heads * depth)."""
        return self.worked.joined

    @property
    def output(self) -> Tensor:
        """The heads joined by W_O, (queries, width)."""
        return self.worked.output

    @cached_property
    def difference(self) -> float:
        """The largest difference of Z by matrices and by one position at a time, computed."""
        return largest_difference(self.worked)


@dataclass(frozen=True, eq=False)
class Kinds:
    """Encoder, masked decoder and encoder-decoder attention with the same matrices.

    They differ in who gives Q, in who gives K and V, and in the mask; in nothing else.
    """

    encoder: Walk
    decoder: Walk
    cross: Walk

    @property
    def kinds(self) -> tuple[Walk, Walk, Walk]:
        """The three of them."""
        return self.encoder, self.decoder, self.cross

    @property
    def sameness(self) -> str:
        """Whether the three have the same matrices, in words: those of a trained model differ."""
        names = ("W_Q", "W_K", "W_V", "W_O")
        same = all(
            torch.equal(getattr(walk, name), getattr(self.encoder, name))
            for walk in self.kinds
            for name in names
        )
        return ("The same" if same else "Each with its own") + " matrices, the same six steps"


def place_of(query: str | int | None, tokens: tuple[str, ...]) -> int:
    """The position of a word, or of its number; None: the last.

    Raises: InputError: there is no such word.

    >>> place_of("cat", ("the", "cat")), place_of(-2, ("the", "cat")), place_of("0", ("a", "b"))
    (1, 0, 0)
    """
    if query is None:
        return len(tokens) - 1
    words = [token.strip() for token in tokens]
    if isinstance(query, str) and query in tokens:
        return tokens.index(query)
    if isinstance(query, str) and query in words:
        return words.index(query)
    try:
        place = int(query)
    except ValueError:
        listed = ", ".join(visible(token, 12) for token in tokens[:12])
        more = ", ..." if len(tokens) > 12 else ""
        raise InputError(
            f"query {query!r}: not among the words that look: {listed}{more}. Give one of them, or "
            f"its number, 0 to {len(tokens) - 1}."
        ) from None
    if not -len(tokens) <= place < len(tokens):
        raise InputError(f"query {place}: there are words 0 to {len(tokens) - 1}.")
    return place % len(tokens)


def title_of(walk: Walk) -> str:
    """The first line of a walk."""
    text = " ".join(visible(token, 12) for token in walk.queries.tokens)
    if walk.kind == "cross":
        source = " ".join(visible(token, 12) for token in walk.keys.tokens)
        return f"The six steps of attention: “{text}” looks at “{source}”"
    return f"The six steps of attention: “{text}”"


def mask_of(kind: Kind, length: int) -> Tensor | None:
    """Who may look at whom, of a kind; None: everybody."""
    return torch.ones(length, length, dtype=torch.bool).tril() if kind == "decoder" else None


def of_head(name: str, walk: Walk, head: int) -> str:
    """The name of a head's table."""
    return f"{name}{head_suffix(walk, head)}"


def head_suffix(walk: Walk, head: int) -> str:
    """What says of which head a table is, where there are several."""
    return f", head {head}" if len(walk.Z) > 1 else ""


def named(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Tokens as they are shown."""
    return tuple(visible(token, _LONGEST_WORD) for token in tokens)


def shape_of(matrix: Tensor) -> str:
    """As a person writes it: (3×4)."""
    return f"({matrix.shape[0]}×{matrix.shape[1]})"
