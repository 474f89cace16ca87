from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.studio.arrays import LayerArrays, layer_arrays
from weft.studio.summary import layer_measures


def arrays_of(weights: torch.Tensor) -> LayerArrays:
    """Arrays of a dense matrix of weights, (heads, queries, keys)."""
    order = weights.sort(-1, descending=True)
    entropy = torch.special.entr(weights).sum(-1)
    return LayerArrays(
        keys=np.where(order.values > 0, order.indices, -1).astype(np.int32),
        weights=order.values.numpy(),
        lse=torch.zeros_like(entropy).numpy(),
        entropy=entropy.numpy(),
        rest=(1 - weights.sum(-1)).numpy(),
        count=(weights > 0).sum(-1).numpy().astype(np.uint32),
        length=weights.shape[-1],
    )


def test_measures_of_matrices_made_by_hand():
    before = torch.zeros(1, 5, 5)
    before[0, 0, 0] = 1
    before[0, range(1, 5), range(4)] = 1
    (found,) = layer_measures(arrays_of(before), one_sequence=True)
    # Each row keeps one key: by its count of 1 it may look at that alone.
    assert found["first"] == pytest.approx(2 / 5)
    assert found["distance"] == pytest.approx(4 / 5)
    assert found["local"] == 1
    assert found["entropy"] == 0
    assert found["largest"] == 1
    even = torch.full((1, 6, 6), 1 / 6)
    (found,) = layer_measures(arrays_of(even), one_sequence=True)
    for name in ("previous", "next", "same", "first"):
        assert found[name] == found["even"][name] == pytest.approx(1 / 6, abs=1e-5)
    assert found["spread"] == pytest.approx(6, rel=1e-4)
    assert found["local"] == found["even"]["local"]
    assert found["bounds"] == []


def test_what_kept_edges_leave_out_is_said(make_trace):
    layer = make_trace([str(place) for place in range(100)], keep=8).layers[0]
    arrays = layer_arrays(layer)
    complete = make_trace(["a", "b", "c"]).layers[0]
    for head, found in enumerate(layer_measures(arrays, one_sequence=True)):
        assert found["unkept"] == pytest.approx(float(layer.graph.rest[head].mean()), rel=1e-4)
        assert sorted(found["bounds"]) == [
            "distance", "first", "local", "next", "previous", "same",
        ]  # fmt: skip
    for found in layer_measures(layer_arrays(complete), one_sequence=True):
        assert found["bounds"] == [] and found["unkept"] == 0


def test_between_two_sequences_there_is_no_token_before(pair_trace):
    cross = pair_trace.layer("cross", 0)
    for found in layer_measures(layer_arrays(cross), one_sequence=False):
        assert "previous" not in found and "distance" not in found
        assert 0 <= found["first"] <= 1


def test_no_tokens_and_no_edges(language_model):
    empty = weft.trace(language_model, torch.tensor([0]))
    arrays = layer_arrays(empty.layers[0])
    assert layer_measures(arrays, one_sequence=True)[0]["previous"] is None
