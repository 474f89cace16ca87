"""`Steps`: the six steps of attention on a short sentence; `AllKinds`: three kinds of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from weft.formats.tokens import visible
from weft.walkthrough.explain import SOURCES, explain
from weft.walkthrough.learning import explain_learning
from weft.walkthrough.lesson import Lesson, Shown, Step, Table
from weft.walkthrough.walk import Walk

__all__ = ["AllKinds", "Steps"]


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Walk, Shown):
    """Multi-head attention on a short sentence, worked through.

    Fields and matrices are those of `weft.walkthrough.walk.Walk`. `print` shows them as text, a
    notebook as HTML; `page` and `picture` write files.
    """

    def lesson(self) -> Lesson:
        """The six steps, one word alone, and how the matrices learned where they did."""
        heads, _, depth = self.Q.shape
        queries_from, keys_from, mask = SOURCES[self.kind]
        which = f", tables of head {self.shown[0]}" if len(self.shown) < heads else ""
        about = (
            f"{self.kind.capitalize()}: Q from {queries_from}; K, V from {keys_from}; {mask}.",
            f"Width {self.X.shape[1]}, {heads} head{'s' * (heads > 1)} of depth {depth}{which}. "
            f"{self.origin[:1].upper()}{self.origin[1:]}.",
            f"Shown to {self.digits} decimals, computed in float64.",
        )
        text, source = (" ".join(visible(token, 12) for token in words.tokens)
                        for words in (self.queries, self.keys))  # fmt: skip
        title = f"The six steps of attention: “{text}”"
        title += f" looks at “{source}”" if self.kind == "cross" else ""
        steps = explain(self)
        if self.learned is not None:
            steps += explain_learning(self, self.learned)
        return Lesson(title, about, tuple(steps), self.digits)

    def __repr__(self) -> str:
        heads, queries, keys = self.weights.shape
        return f"Steps({self.kind}, {heads} heads, {queries} queries, {keys} keys; {self.origin})"


@dataclass(frozen=True, eq=False)
class AllKinds(Shown):
    """Encoder, masked decoder and encoder-decoder attention, to be compared.

    They differ in who gives Q, in who gives K and V, and in the mask; those of a trained model
    also in their matrices.
    """

    encoder: Steps
    decoder: Steps
    cross: Steps

    @property
    def kinds(self) -> tuple[Steps, Steps, Steps]:
        """The three of them."""
        return self.encoder, self.decoder, self.cross

    def lesson(self) -> Lesson:
        """Masked scores and weights of the three, one below the other."""
        same = all(
            torch.equal(getattr(walk, name), getattr(self.encoder, name))
            for walk in self.kinds
            for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        about = ("The same" if same else "Each with its own") + " matrices, the same six steps."
        origins = dict.fromkeys(walk.origin for walk in self.kinds)
        steps = tuple(map(self._step, self.kinds))
        lines = (about, *(f"{origin[:1].upper()}{origin[1:]}." for origin in origins))
        return Lesson("Three kinds of attention", lines, steps, self.encoder.digits)

    @staticmethod
    def _step(walk: Steps) -> Step:
        queries_from, keys_from, mask = SOURCES[walk.kind]
        head, names = walk.shown[0], walk.names
        tables = (
            Table(f"masked scores, head {head}", walk.masked[head], *names, "scores"),
            Table(f"A, head {head}", walk.weights[head], *names, "weights", "→"),
        )
        return Step(
            None, walk.kind.capitalize(), "A = softmax(Q Kᵀ / √d), −∞ where hidden", "",
            f"Q from {queries_from}; K, V from {keys_from}; {mask}.", (tables,),
            result=f"Matrix form and one word at a time differ by {walk.difference:.1e}",
        )  # fmt: skip
