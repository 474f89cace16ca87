"""`export_page`: traces and a training's history as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.formats.trace import Trace

__all__ = ["export_page"]


def export_page(
    path: Path | str,
    traces: Sequence[Trace],
    title: str = "weft",
    *,
    names: Sequence[str] | None = None,
    history: Sequence[Mapping[str, Any]] | None = None,
    probe: Trace | None = None,
    summary: Mapping[str, Any] | None = None,
) -> None:
    """Write one HTML file that shows traces in a browser, offline, with nothing beside it.

    Args:
        path: the file; replaced if it is there.
        traces: the examples to choose from; at least one.
        title: what the page is called.
        names: a short name for each example; None: made of its tokens.
        history: snapshots along a training, in order, each

                {"step": 100, "loss": 1.25,                     # loss may be None
                 "layers": {"encoder.layers.0.attention": {
                     "weights": (heads, queries, keys),         # of the probe input, 0 to 1
                     "norm": (heads,),                          # |W_Q W_K^T|
                     "effective_rank": (heads,),
                     "symmetry": (heads,),                      # -1 to 1
                     "product": (heads, n, n)}}}                # W_Q W_K^T, or a part; optional

            Tensors, arrays or lists; every measure may be missing.
        probe: the trace of the probe input, whose tokens and layers the history's weights have;
            None: the first of `traces`.
        summary: what else to say of the run: {"exact match": "99.4 %", ...}, in order.

    Raises: InputError: nothing to show, or a history that does not fit; DataError: the file cannot
    be written.
    """
    raise NotImplementedError
