"""How tokens, heads and shapes are written beside the tables of a walk."""

from __future__ import annotations

from torch import Tensor

from weft.formats.tokens import visible
from weft.walkthrough.walk import Walk

__all__ = ["head_suffix", "named", "of_head", "shape_of"]

_LONGEST_WORD = 10


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
