"""Rollout against the product of dense matrices, of all weights and of the kept edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import headloom
from headloom.analysis import measures
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.rollout import (
    passed_over,
    rollout,
    rollout_columns,
    rollout_rows,
)
from headloom.formats.trace import TraceLayer
from headloom.mechanism.reference import graphs as reference


def test_minilm_known_values(minilm_trace) -> None:
    """The row of [CLS] after the last layer, by the program that made the reference values."""
    found = minilm_trace.rollout()
    assert round(float(found[0, 0]), 4) == 0.6555
    assert round(float(found[0, 18]), 4) == 0.0876


def test_whole_rows_and_columns_agree_with_the_product(
    minilm_trace, minilm_top, minilm_weights
) -> None:
    expected = reference.rollout([weights.mean(0).double() for weights in minilm_weights]).float()
    for trace, exact in ((minilm_trace, None), (minilm_trace, False), (minilm_top, True)):
        assert torch.allclose(rollout(trace, exact=exact), expected, atol=1e-6)
        rows = rollout_rows(trace, [0, 7, -1], exact=exact)
        assert torch.allclose(rows.values, expected[[0, 7, 18]], atol=1e-6)
        columns = rollout_columns(trace, [3, -2], exact=exact)
        assert torch.allclose(columns.values, expected[:, [3, 17]], atol=1e-6)
        for part in (rows, columns):
            assert float(part.rest.max()) < 1e-5


def test_of_kept_edges_what_each_row_lacks_is_said(minilm_top) -> None:
    dense = [layer.graph.to_dense().mean(0).double() for layer in minilm_top.layers]
    expected = reference.rollout(dense).float()
    assert torch.allclose(rollout(minilm_top, exact=False), expected, atol=1e-6)
    rest = 1 - expected.sum(1)
    assert float(rest.min()) > 0.05
    rows = rollout_rows(minilm_top, range(19), exact=False)
    columns = rollout_columns(minilm_top, range(19), exact=False)
    for part in (rows, columns):
        assert torch.allclose(part.values, expected, atol=1e-6)
        assert torch.allclose(part.rest, rest, atol=1e-5)


@pytest.mark.parametrize("kept", [3, 9])
def test_sinks_and_rows_without_keys_hand_nothing_on(kept: int) -> None:
    generator = torch.Generator().manual_seed(5)
    queries, keys = torch.randn(2, 2, 2, 9, 4, generator=generator)
    sinks, mask = torch.tensor([0.5, -1.0]), torch.ones(9, 9, dtype=torch.bool)
    mask[6] = False
    trace = headloom.from_queries_keys(
        queries, keys, sinks=sinks, mask=mask, keep=headloom.Top(kept)
    )
    powers = (queries.double() @ keys.double().transpose(-1, -2) / 2).exp() * mask
    weights = powers / (powers.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None])
    true = reference.rollout(list(weights.mean(1)))
    assert torch.allclose(rollout(trace).double(), true, atol=1e-6)
    rows, columns = rollout_rows(trace, [2, 6]), rollout_columns(trace, [2, 6])
    assert torch.allclose(rows.rest.double(), 1 - true.sum(1)[[2, 6]], atol=1e-6)
    assert torch.allclose(columns.rest.double(), 1 - true.sum(1), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_of_half_precision_rows_sum_to_1(dtype, tmp_path) -> None:
    queries, keys = torch.randn(2, 3, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    queries[..., 0], keys[..., 0] = 11.3, 7.7  # scores of some 32, as of models with biases
    headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), kind="decoder", scale=0.37, keep=headloom.Top(3),
        dtype=dtype, save=tmp_path / "half",
    )  # fmt: skip
    half = headloom.open(tmp_path / "half")
    layer = half.layers[0]
    assert float((layer.matrix.to_dense().sum(-1) - 1).abs().max()) > 1e-3
    ahead = torch.ones(12, 12, dtype=torch.bool).triu(1)
    dense = []
    for layer in half.layers:
        scores = layer.queries.double() @ layer.keys.double().transpose(1, 2) * layer.scale
        dense.append(scores.masked_fill(ahead, -torch.inf).softmax(-1).mean(0))
    expected = reference.rollout(dense)
    for found in (rollout(half), rollout_rows(half, range(12)).values):
        assert torch.allclose(found.double(), expected, atol=1e-5)
    layers = [reference.with_residual(weights) for weights in dense]
    flows = attention_flow(half, 11, range(12))
    assert torch.allclose(flows, reference.flow(layers, 11), atol=1e-5)


def test_between_two_sequences(pair_trace) -> None:
    """The recursion of the three kinds, written out with dense matrices."""
    dense = {layer.kind: layer.graph.to_dense().mean(0) for layer in pair_trace.layers}
    encoder = reference.with_residual(dense["encoder"])
    decoder = reference.with_residual(dense["decoder"])
    assert torch.allclose(rollout(pair_trace, kind="encoder"), encoder, atol=1e-6)
    with pytest.warns(UserWarning, match="not through 1 of another kind: .*cross"):
        assert torch.allclose(rollout(pair_trace, kind="decoder"), decoder, atol=1e-6)
    cross = 0.5 * dense["cross"] @ encoder
    assert torch.allclose(rollout(pair_trace), cross, atol=1e-6)
    assert torch.allclose(rollout(pair_trace, exact=True), cross, atol=1e-6)
    rows = rollout_rows(pair_trace, [1, 3])
    assert torch.allclose(rows.values, cross[[1, 3]], atol=1e-6)
    assert float(rows.rest.max()) < 1e-5  # the other half is what the target holds of itself
    columns = rollout_columns(pair_trace, 2)
    assert torch.allclose(columns.values, cross[:, [2]], atol=1e-6)


def test_what_there_is_not(minilm_trace, make_trace) -> None:
    with pytest.raises(headloom.InputError, match="no cross layer; it has encoder"):
        rollout(minilm_trace, kind="cross")
    with pytest.raises(headloom.InputError, match="queries and keys were not kept"):
        rollout(make_trace(["a", "b"], keep=1), exact=True)
    with pytest.raises(headloom.InputError, match="no position 19"):
        rollout_rows(minilm_trace, 19)


def test_layers_over_the_same_positions_that_are_left_out_are_named() -> None:
    causal = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    trace = headloom.from_weights([torch.full((1, 2, 2), 0.5), causal])
    assert [layer.kind for layer in trace.layers] == ["encoder", "decoder"]
    said = passed_over(trace)
    assert said == f"Through 1 layer, not through 1 of another kind: {trace.layers[0].name}."
    assert passed_over(headloom.from_weights([causal, causal])) is None


def _looks(name: str, kind: str, queries: str, keys: str) -> TraceLayer:
    layer = headloom.from_weights([torch.full((1, 2, 2), 0.5)]).layers[0]
    return replace(layer, name=name, kind=kind, queries_from=queries, keys_from=keys)


def _trace(*layers: TraceLayer) -> headloom.Trace:
    names = {name: ["a", "b"] for layer in layers for name in (layer.queries_from, layer.keys_from)}
    return headloom.Trace(names, layers)


@pytest.mark.parametrize(
    "through",
    [
        lambda trace: trace.rollout(),
        lambda trace: rollout_rows(trace, 0),
        lambda trace: rollout_columns(trace, 0),
        lambda trace: attention_flow(trace, 0, [0]),
    ],
    ids=["rollout", "rows", "columns", "flow"],
)
def test_a_tower_of_another_kind_is_warned_of(through) -> None:
    image = [_looks(f"image.{i}", "encoder", "patches", "patches") for i in range(4)]
    text = [_looks(f"text.{i}", "decoder", "tokens", "tokens") for i in range(2)]
    trace = _trace(*image, *text)
    with pytest.warns(UserWarning) as warned:
        through(trace)
    assert str(warned[0].message).partition(": ")[2] == (
        "Through 2 layers, not through 4 over other positions than tokens: "
        "image.0, image.1, image.2 and 1 more."
    )
    # Who asks for a kind does not miss the other.
    assert passed_over(trace, "decoder") is None


def test_layers_that_may_not_follow_each_other_are_refused() -> None:
    two = _trace(*(_looks(name, "encoder", "tokens", "tokens") for name in "ab"))
    in_parts = replace(two, positions={"tokens": {"parts": [0, 1]}})
    with pytest.raises(headloom.InputError, match=r"^2 layers read tokens in parts.*a \.\.\. b"):
        rollout(in_parts)
    assert torch.equal(rollout(replace(in_parts, layers=in_parts.layers[:1])).sum(1), torch.ones(2))
    back = _trace(_looks("c", "cross", "left", "right"), _looks("d", "cross", "right", "left"))
    with pytest.raises(headloom.InputError, match="the order of their updates is unknown"):
        rollout(back)


def test_layers_that_the_rows_hold_nothing_of_are_not_counted() -> None:
    co_attention = _trace(
        _looks("c.0", "cross", "left", "right"),
        _looks("d", "cross", "others", "third"),
        _looks("c.1", "cross", "left", "right"),
    )
    assert passed_over(co_attention) == (
        "Through 2 layers, not through 1 over other positions than left: d."
    )
    with pytest.warns(UserWarning, match="Through 2 layers, not through 1 over"):
        assert torch.equal(rollout(co_attention), torch.full((2, 2), 0.375))


def test_all_kept_edges_are_the_models_own_though_queries_and_keys_are_rounded(tmp_path) -> None:
    whole = headloom.from_queries_keys(*torch.randn(2, 1, 6, 4))
    whole.save(tmp_path / "half", dtype=torch.bfloat16)
    half = headloom.open(tmp_path / "half")
    differs = half.layers[0].matrix.to_dense() - whole.layers[0].matrix.to_dense()
    assert float(differs.abs().max()) > 1e-4
    for exact in (None, True, False):
        assert rollout(half, exact=exact) == pytest.approx(rollout(whole), abs=1e-6)


def test_what_the_target_holds_of_itself(pair_trace) -> None:
    """One cross layer, above a decoder layer: half of each row passes it by."""
    rows = rollout_rows(pair_trace, [2, 3])
    assert rows.own is not None
    torch.testing.assert_close(rows.own + rows.values.sum(1), torch.ones(2))
    assert rollout_rows(pair_trace, 1, kind="encoder").own is None
    notes = measures.rollout(pair_trace, token=2).attrs["notes"]
    taken, own = float(rows.values[0].sum()), float(rows.own[0])
    assert f"In all {taken:.4f} of it from the source, {own:.4f} of the target itself." in notes
