"""What `headloom compare` prints of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headloom.formats.bounds import outward

if TYPE_CHECKING:
    import pandas

__all__ = ["between"]


def between(edges: pandas.DataFrame) -> pandas.DataFrame:
    """Weights that are not sure as intervals: of these no change is known."""
    shown = edges.drop(columns=["before_high", "after_high", "exact"]).astype({"change": object})
    for end in ("before", "after"):
        ends = zip(edges[end], edges[f"{end}_high"], strict=True)
        shown[end] = [
            f"{low:.6g}" if low == high else f"0 to {outward(high, '.4g', upper=True)}"
            for low, high in ends
        ]
    shown["change"] = [
        f"{change:.6g}" if exact else "not sure"
        for change, exact in zip(edges["change"], edges["exact"], strict=True)
    ]
    return shown
