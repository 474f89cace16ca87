"""The roles of a trace's heads, as the studio shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.formats.trace import Trace

__all__ = ["head_roles"]


def head_roles(trace: Trace) -> Sequence[Mapping[str, Any] | None] | None:
    """By layer a list by head of {"role", "scores"}; None where no analysis is there."""
    return None
