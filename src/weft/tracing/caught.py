"""What comes of one attention call of a model, with its batch, before it is cut to its inputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weft.mechanism.graph import AttentionGraph

__all__ = ["Caught"]


@dataclass(frozen=True, eq=False)
class Caught:
    """One attention call; what is not said here is as TraceLayer says.

    graph        with a batch
    queries      (batch, heads, queries, depth), or None: models traced from dense weights
    keys         (batch, kv_heads, keys, depth), or None
    value_norms  (batch, kv_heads, keys), or None
    ranges       first key and end for each query, (2, queries), for each input of the batch; None
                 for one whose mask has no such ranges. None for all: nothing is known of the mask
    bias, sinks  as the call took them
    is_causal    whether the model says that no query looks ahead
    missing      what else enters its scores and is not here, with the reason; None: nothing

    Of a batch of one, a bias stands for every input.
    """

    path: str
    kind: str
    index: int
    graph: AttentionGraph
    scale: float
    positions: str
    deviation: float | None
    queries: Tensor | None = None
    keys: Tensor | None = None
    value_norms: Tensor | None = None
    ranges: tuple[Tensor | None, ...] | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    softcap: float | None = None
    is_causal: bool = False
    missing: str | None = None
