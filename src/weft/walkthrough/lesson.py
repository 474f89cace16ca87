"""`Steps`: what a user holds of a walk: text, HTML and pictures; `AllKinds`: the same of three."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weft.errors import InputError
from weft.formats.files import atomic_file
from weft.mechanism.worked import Worked
from weft.mechanism.worked_back import Learned
from weft.walkthrough.matrices import Words
from weft.walkthrough.walk import Kind, Kinds, Walk, place_of, title_of

if TYPE_CHECKING:
    from weft.pictures.palette import Theme
    from weft.walkthrough.parts import Line, Step

__all__ = ["AllKinds", "Steps", "View"]

#: Heads whose tables all are shown.
_FEW = 2


class Steps(Walk):
    """Multi-head attention on a short sentence, worked through.

    The fields and matrices are those of `weft.walkthrough.walk.Walk`. `print` shows the walk as
    text, a notebook as HTML; `picture` draws it.
    """

    @property
    def steps(self) -> list[Step]:
        """What is said and shown, in order."""
        from weft.walkthrough.explain import explain

        return explain(self)

    def lines(self) -> list[Line]:
        """The walk as lines of styled text."""
        from weft.walkthrough.text import walk

        return walk(self)

    def __str__(self) -> str:
        from weft.walkthrough.text import plain

        return plain(self.lines())

    def __repr__(self) -> str:
        heads, queries, keys = self.weights.shape
        return f"Steps({self.kind}, {heads} heads, {queries} queries, {keys} keys; {self.origin})"

    def _repr_html_(self) -> str:
        from weft.walkthrough.html import fragment

        return fragment(self)

    def page(self, path: Path | str) -> None:
        """Write the walk as one HTML file that needs nothing else."""
        from weft.walkthrough.html import page

        _write(path, page(self))

    def picture(self, path: Path | str, *, theme: Theme = "light") -> None:
        """Draw the walk of one head as a picture: .png, .svg or .pdf."""
        from weft.pictures import save_picture, steps

        E, P = self.queries.E, self.queries.P
        figure = steps(
            self.worked, self.queries.tokens, self.keys.tokens, head=self.head, kind=self.kind,
            embeddings=None if E is None or P is None else (E, P), title=title_of(self),
            origin=self.origin, learned=self.learned, digits=self.digits, theme=theme,
        )  # fmt: skip
        save_picture(figure, path)


class AllKinds(Kinds):
    """Encoder, masked decoder and encoder-decoder attention, side by side.

    The fields are those of `weft.walkthrough.walk.Kinds`.
    """

    def lines(self) -> list[Line]:
        """The comparison as lines of styled text."""
        from weft.walkthrough.text import comparison

        return comparison(self)

    def __str__(self) -> str:
        from weft.walkthrough.text import plain

        return plain(self.lines())

    def __repr__(self) -> str:
        return f"AllKinds({', '.join(map(repr, self.kinds))})"

    def _repr_html_(self) -> str:
        from weft.walkthrough.html import fragment

        return fragment(self)

    def page(self, path: Path | str) -> None:
        """Write the comparison as one HTML file that needs nothing else."""
        from weft.walkthrough.html import page

        _write(path, page(self))

    def picture(self, path: Path | str, *, theme: Theme = "light") -> None:
        """Draw the weights of the three side by side: .png, .svg or .pdf."""
        from weft.pictures import save_picture, three_kinds

        walks = {walk.kind: (walk.worked, walk.queries.tokens, walk.keys.tokens)
                 for walk in self.kinds}  # fmt: skip
        head, digits = self.encoder.head, self.encoder.digits
        save_picture(three_kinds(walks, head=head, digits=digits, theme=theme), path)


@dataclass(frozen=True)
class View:
    """What of a walk is shown: see `Steps`. None: the last query; both of two heads, or head 0."""

    query: str | int | None = None
    head: int | None = None
    digits: int = 2

    def of(
        self,
        kind: Kind,
        queries: Words,
        keys: Words,
        worked: Worked,
        origin: str,
        learned: tuple[Learned | None, str] = (None, ""),
    ) -> Steps:
        """The walk. Raises: InputError: no such head or word."""
        heads = len(worked.Z)
        if self.head is not None and not 0 <= self.head < heads:
            raise InputError(f"head {self.head}: there are heads 0 to {heads - 1}.")
        shown = range(heads) if self.head is None and heads <= _FEW else (self.head or 0,)
        place = place_of(self.query, queries.tokens)
        return Steps(
            kind, queries, keys, worked, place, shown[0], tuple(shown), origin, self.digits,
            *learned,
        )  # fmt: skip


def _write(path: Path | str, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, "utf-8", errors="backslashreplace")
