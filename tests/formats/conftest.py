"""What makes two traces the same."""

from __future__ import annotations

import torch

from headloom.api.trace import Trace

TENSORS = ("keys", "scores", "weights", "lse", "entropy", "rest", "count")


def assert_same(left: Trace, right: Trace) -> None:
    assert left.sequences == right.sequences
    assert left.model == right.model
    assert len(left.layers) == len(right.layers)
    for one, other in zip(left.layers, right.layers, strict=True):
        for name in ("name", "kind", "index", "shape", "scale", "positions", "mask"):
            assert getattr(one, name) == getattr(other, name), name
        assert (one.query_tokens, one.key_tokens) == (other.query_tokens, other.key_tokens)
        for name in TENSORS:
            assert torch.equal(getattr(one.graph, name), getattr(other.graph, name)), name
        assert one.graph.length == other.graph.length
        for name in ("queries", "keys"):
            mine, its = getattr(one, name), getattr(other, name)
            assert (mine is None) == (its is None)
            assert mine is None or torch.equal(mine, its)
        assert (one.value_norms is None) == (other.value_norms is None)
        assert one.value_norms is None or torch.equal(one.value_norms, other.value_norms)
        assert one.no_matrix == other.no_matrix
        if one.matrix is not None:
            assert torch.equal(one.matrix.to_dense(), other.matrix.to_dense())
