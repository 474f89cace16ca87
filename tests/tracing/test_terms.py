"""The rule of a mask, and what else scores are made of, found in what a call was given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headloom
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.mechanism.attention_layer import PositionSizes
from headloom.mechanism.masks import Ranges, Window
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.tracing.recording.score_terms import cut_terms, ranges_of, rule_of_ranges


@settings(deadline=None)
@given(
    queries=st.integers(1, 7),
    keys=st.integers(1, 7),
    left=st.none() | st.integers(0, 4),
    right=st.none() | st.integers(0, 4),
    offset=st.integers(-4, 4),
)
def test_a_window_is_found_in_its_cells(queries, keys, left, right, offset) -> None:
    mask = Window(left, right, offset)
    dense = mask.dense(queries, keys)
    found = ranges_of(headloom.mechanism.masks.as_mask(dense), queries, keys)
    assert torch.equal(found, ranges_of(mask, queries, keys))
    rule = rule_of_ranges(found, keys)
    again = torch.ones_like(dense) if rule is None else rule.dense(queries, keys)
    assert torch.equal(again.expand_as(dense), dense)
    # A band whose rows all see something is a window again, not a table of ranges.
    if bool(dense.any(-1).all()):
        assert not isinstance(rule, Ranges)


@settings(deadline=None)
@given(bits=st.lists(st.integers(0, 15), min_size=1, max_size=5))
def test_ranges_are_those_of_the_cells_or_none(bits) -> None:
    cells = torch.tensor([[bool(row >> key & 1) for key in range(4)] for row in bits])
    found = ranges_of(headloom.mechanism.masks.as_mask(cells), len(bits), 4)
    together = all("01" not in format(row, "04b").strip("0") for row in bits)
    assert (found is not None) == together
    if found is not None:
        assert torch.equal(Ranges(*found).dense(len(bits), 4)[0, 0], cells)


def whole(bias, limit=0) -> Terms:
    rows, columns = slice(0, bias.shape[2]), slice(0, bias.shape[3])
    ranges = ranges_of(None, bias.shape[2], bias.shape[3])
    return cut_terms(ranges, None, bias, None, sample=0, rows=rows, columns=columns, limit=limit)


def test_a_bias_is_kept_by_distance_or_whole_or_said_to_be_missing() -> None:
    values = torch.randn(2, 6)
    distance = torch.arange(4)[None, :] - torch.arange(3)[:, None] + 2
    terms = whole(values[:, distance][None])
    assert torch.equal(terms.relative.bias(range(3), 4, torch.device("cpu")), values[:, distance])
    assert terms.bias is None
    free = torch.randn(1, 2, 3, 4)
    assert torch.equal(whole(free, limit=24).bias, free[0])
    assert "a bias that follows no rule" in whole(free, limit=23).missing


def test_a_mask_with_holes_is_missing_and_said_so(language_model, tmp_path) -> None:
    holes = torch.ones(4, 4, dtype=torch.bool)
    holes[3, 1] = False
    language_model.forward = lambda tokens: [
        language_model.layers[0](language_model.embedding(tokens), mask=holes)
    ]
    trace = headloom.trace(language_model, torch.tensor([1, 2, 3, 4]))
    trace.save(tmp_path / "t")
    for found in (trace, headloom.open(tmp_path / "t")):
        layer = found.layers[0]
        assert layer.mask is None
        assert layer.matrix is None
        assert "not contiguous" in layer.no_matrix
        assert layer.queries is not None


@pytest.mark.parametrize("relative", ["none", "shaw", "alibi", "buckets", "rotary"])
def test_the_matrix_of_headlooms_own_layers(relative, tmp_path) -> None:
    class Model(torch.nn.Module):
        padding = 0

        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(20, 16)
            self.layer = MultiHeadAttention(
                16, 4, kv_heads=2, relative=relative, positions=PositionSizes(clip=3)
            )

        def forward(self, tokens):
            real = headloom.padding(tokens != 0)
            return self.layer(self.embedding(tokens), mask=headloom.window(4, 2) & real)

    torch.manual_seed(3)
    tokens = torch.tensor([[0, 0, 5, 6, 7, 8, 9, 10, 11], [1, 2, 3, 4, 5, 6, 7, 0, 0]])
    for trace in headloom.trace(Model(), tokens, keep=headloom.All()):
        assert isinstance(trace, Trace)
        trace.save(tmp_path / "t", overwrite=True)
        for found in (trace, headloom.open(tmp_path / "t")):
            (layer,) = found.layers
            assert layer.mask == "window"
            assert layer.terms.window == [4, 2, 0]
            assert torch.allclose(layer.matrix.to_dense(), layer.graph.to_dense(), atol=2e-6)
            assert layer.value_norms.shape == (2, 7)


@pytest.mark.parametrize(
    "mask", [headloom.packed([10, 14]), headloom.window(2, 5), headloom.causal(), None], ids=str
)
def test_the_mask_and_sinks_are_kept_without_queries_and_keys(tmp_path, mask) -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(2, 1, 2, 24, 8)
    trace = headloom.from_queries_keys(
        [queries], [keys], mask=mask, sinks=[torch.tensor([0.0, 3.0])], queries_keys=False,
        keep=headloom.Top(3),
    )  # fmt: skip
    trace.save(tmp_path / "t")
    found = headloom.open(tmp_path / "t")
    (before,), (after,) = trace.layers, found.layers
    assert after.no_matrix == "its queries and keys were not kept"
    assert after.terms.rule == before.terms.rule == after.mask
    for one in (before, after):
        assert one.terms.sinks.tolist() == [0, 3]
        shown = None if one.terms.mask is None else one.terms.mask.dense(24, 24)
        assert shown is mask is None or torch.equal(shown, mask.dense(24, 24))
    assert found.heads().equals(trace.heads())
    # Once more from the disk, and a file that is missing is noticed.
    found.save(tmp_path / "again")
    file = "queries_keys.safetensors"
    assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "t" / file).read_bytes()
    (tmp_path / "t" / file).unlink()
    with pytest.raises(headloom.DataError, match=rf"{file} is missing"):
        headloom.open(tmp_path / "t")
