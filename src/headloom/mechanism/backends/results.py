"""Results of a call by their names: the output, and the tensors of its `AttentionGraph`."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.mechanism.call import AttentionCall
from headloom.mechanism.graph import AttentionGraph

__all__ = ["CONSTANT", "NAMES", "PER_ROW", "Results", "graph_of"]

#: Tensors by their names; those of a graph have a batch dimension.
Results = dict[str, Tensor]
#: Results that have a row for each query, and those of keys.
PER_ROW = ("output", "keys", "scores", "weights", "lse", "entropy", "rest", "count")
NAMES = (*PER_ROW, "received", "received_most", "received_last")
#: Those without a gradient.
CONSTANT = ("keys", "count", "received_most")


def graph_of(call: AttentionCall, results: Results) -> AttentionGraph:
    """The graph of a call with these results."""
    get = results.get
    fields = {
        "keys": results["keys"],
        "scores": results["scores"],
        "weights": results["weights"],
        "lse": results["lse"],
        "entropy": results["entropy"],
        "rest": results["rest"],
        "count": results["count"],
        "length": call.keys.shape[2],
        "symmetric": call.symmetric,
        "received": get("received"),
        "received_most": get("received_most"),
        "received_last": get("received_last"),
    }
    if torch.compiler.is_compiling():  # which before torch 2.11 is all that the compiler reads
        return AttentionGraph(**fields)  # type: ignore[arg-type]
    # Not by its __init__: of a frozen class that sets the fields one by one, in 3 microseconds.
    graph = AttentionGraph.__new__(AttentionGraph)
    vars(graph).update(fields)
    return graph
