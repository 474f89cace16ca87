"""`headloom.compare`: compare two traces, or two models on a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headloom.analysis.arguments import trace_of
from headloom.analysis.compare import Comparison
from headloom.analysis.compare import compare as compare_traces
from headloom.api.opening import trace
from headloom.errors import InputError
from headloom.formats.run import is_run
from headloom.formats.trace import TraceData


def compare(
    first: Any, second: Any, text: str | None = None, *, exact: bool | None = None, edges: int = 20
) -> Comparison:
    """Find the heads and edges that changed most, between two traces or two models.

    Rows are compared by their total variation, the share of mass that is elsewhere, 0 to 1:

        d_i = 1/2 sum_j |p_ij - q_ij|

    Args:
        first: a trace or its path; with a text, a model as `headloom.load` takes it.
        second: likewise, with the same number of heads and tokens. Layers are paired by kind and
            index; those of one trace alone are left out.
        text: input of both models.
        exact: True: from all weights; False: from the kept edges; None: from all where a trace has
            queries and keys.
        edges: number of edges to return.

    Returns: a Comparison: its `heads` and `edges` are DataFrames, `to_pandas()` gives the heads.

    Raises: InputError: no common layer; exact weights that a trace lacks; models without a text.

    >>> import headloom, torch
    >>> before, after = (torch.tensor([[[1, 0], [p, 1 - p]]]) for p in (0.5, 0.25))
    >>> compared = headloom.compare(headloom.from_weights(before), headloom.from_weights(after))
    >>> compared.heads["distance"].item()
    0.125
    """
    if text is None:
        for item in (first, second):
            is_path_of_run = isinstance(item, str | Path) and is_run(item)
            if is_path_of_run or (hasattr(item, "trace") and not isinstance(item, TraceData)):
                raise InputError(
                    f"compare: {item} is a model; give a text that both read: "
                    "headloom.compare(a, b, text)."
                )
        both = first, second
    elif isinstance(first, TraceData) or isinstance(second, TraceData):
        raise InputError("compare: traces have texts of their own. Leave text out.")
    else:
        both = trace_of("compare", trace(first, text)), trace_of("compare", trace(second, text))
    return compare_traces(*both, exact=exact, edges=edges)
