"""`Steps`: the six steps of attention on a short sentence, as text, as a page or a picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.formats.files import atomic_file
from headloom.formats.tokens import visible
from headloom.studio.steps.explain import SOURCES, explain
from headloom.studio.steps.learning import explain_learning
from headloom.studio.steps.lesson import Lesson
from headloom.studio.steps.text import Line, lines
from headloom.studio.steps.walk import Walk

if TYPE_CHECKING:
    from headloom.studio.pictures.palette import Theme

__all__ = ["Steps"]

_STYLE = """
.headloom-steps{white-space:pre;overflow-x:auto;margin:0;font:13px/1.45 ui-monospace,monospace}
.headloom-steps .title,.headloom-steps .strong{font-weight:700}
.headloom-steps .formula{color:#14857f}
.headloom-steps .faint,.headloom-steps .name{opacity:.7}
"""


@dataclass(frozen=True, eq=False, repr=False)
class Steps(Walk):
    """Multi-head attention on a short sentence, worked through.

    Fields and matrices are those of `headloom.studio.steps.walk.Walk`. `print` shows them as text,
    a notebook as HTML; `page` and `picture` write files.
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

    def lines(self) -> list[Line]:
        """The lesson as lines of styled text."""
        return lines(self.lesson())

    def __str__(self) -> str:
        return "\n".join("".join(span.text for span in line).rstrip() for line in self.lines())

    def _repr_html_(self) -> str:
        shown = (
            "".join(f'<span class="{span.style}">{_safe(span.text)}</span>' for span in line)
            for line in self.lines()
        )
        text = "\n".join(shown)
        return f'<style>{_STYLE}</style><div class="headloom-steps">{text}</div>\n'

    def page(self, path: Path | str) -> None:
        """Write the lesson as one HTML file that needs nothing else."""
        head = (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f"<title>{_safe(self.lesson().title)}</title>\n"
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
            "<style>:root{color-scheme:light dark}body{margin:1em}</style></head>\n"
        )
        with atomic_file(path) as temporary:
            temporary.write_text(f"{head}<body>{self._repr_html_()}</body></html>\n", "utf-8")

    def picture(self, path: Path | str, *, theme: Theme = "light") -> None:
        """Draw the tables of the lesson as a picture: .png, .svg or .pdf."""
        from headloom.studio.pictures import save_picture
        from headloom.studio.steps.picture import picture

        save_picture(picture(self.lesson(), theme), path)

    def __repr__(self) -> str:
        heads, queries, keys = self.weights.shape
        return f"Steps({self.kind}, {heads} heads, {queries} queries, {keys} keys; {self.origin})"


def _safe(text: str) -> str:
    """Text as HTML; halves of surrogate pairs, which no file may hold, as their numbers."""
    return escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
