"""Rollout against the product of dense matrices, exact and with bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import headloom
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.paths import strongest_paths
from headloom.analysis.graphs.rollout import (
    of_own,
    of_rounded,
    passed_over,
    rollout,
    rollout_columns,
    rollout_rows,
    whole_rollout,
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
            assert float(part.bound.max()) < 1e-5


def test_kept_edges_are_below_by_exactly_the_bound(minilm_top, minilm_weights) -> None:
    expected = reference.rollout([weights.mean(0).double() for weights in minilm_weights]).float()
    whole = whole_rollout(minilm_top, exact=False)
    short = expected - whole.values
    assert float(short.min()) > -1e-6
    assert float(whole.bound.min()) > 0.05  # there is something to be bounded
    assert torch.allclose(short.sum(1), whole.bound, atol=1e-5)
    assert bool((short.max(1).values <= whole.bound).all())
    rows = rollout_rows(minilm_top, range(19), exact=False)
    columns = rollout_columns(minilm_top, range(19), exact=False)
    for part in (rows, columns):
        assert torch.allclose(part.values, whole.values, atol=1e-6)
        assert torch.allclose(part.bound, whole.bound, atol=1e-6)


def test_between_two_sequences(pair_trace) -> None:
    """The recursion of the three kinds, written out with dense matrices."""
    dense = {layer.kind: layer.graph.dense().mean(0) for layer in pair_trace.layers}
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
    assert float(rows.bound.max()) < 1e-5  # the other half is what the target holds of itself
    columns = rollout_columns(pair_trace, 2)
    assert torch.allclose(columns.values, cross[:, [2]], atol=1e-6)


def test_a_causal_trace_of_many_tokens(language_model) -> None:
    tokens = torch.randint(1, 50, (300,), generator=torch.Generator().manual_seed(3))
    trace = headloom.trace(language_model, tokens, keep=headloom.Top(8))
    expected = reference.rollout([layer.matrix.dense().mean(0) for layer in trace.layers])
    assert torch.allclose(rollout(trace), expected, atol=1e-6)
    kept = whole_rollout(trace, exact=False)
    short = expected - kept.values
    assert float(short.min()) > -1e-6
    assert torch.allclose(short.sum(1), kept.bound, atol=1e-5)
    assert float(rollout(trace, residual=1.0).sub(torch.eye(300)).abs().max()) == 0


@pytest.mark.parametrize(
    ("kept", "exact"), [(3, False), (9, False), (3, True)], ids=["kept", "whole", "exact"]
)
def test_only_what_was_left_out_beside_sinks_is_missing(kept: int, exact: bool) -> None:
    """What a sink takes, or a row without keys lacks, is in no entry."""
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
    found = whole_rollout(trace, exact=exact)
    short = true - found.values.double()
    assert float(short.min()) > -1e-6
    assert bool((short.sum(1) <= found.bound + 1e-6).all())
    if kept == 9 or exact:
        assert float(found.bound.max()) < 1e-5
    rows = rollout_rows(trace, [2, 6], exact=exact)
    columns = rollout_columns(trace, [2, 6], exact=exact)
    assert torch.allclose(rows.bound, found.bound[[2, 6]], atol=1e-6)
    assert torch.allclose(columns.bound, found.bound, atol=1e-6)


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
        lambda trace: strongest_paths(trace, 0, 0),
    ],
    ids=["rollout", "rows", "columns", "flow", "paths"],
)
def test_a_tower_of_another_kind_is_warned_of_at_the_line_that_asks(through) -> None:
    image = [_looks(f"image.{i}", "encoder", "patches", "patches") for i in range(4)]
    text = [_looks(f"text.{i}", "decoder", "tokens", "tokens") for i in range(2)]
    trace = _trace(*image, *text)
    with pytest.warns(UserWarning) as warned:
        through(trace)
    assert str(warned[0].message).partition(": ")[2] == (
        "Through 2 layers, not through 4 over other positions than tokens: "
        "image.0, image.1, image.2 and 1 more."
    )
    assert warned[0].filename == __file__
    # Who asks for a kind does not miss the other.
    assert passed_over(trace, "decoder") is None


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_queries_and_keys_are_said_to_be_so(dtype, tmp_path) -> None:
    parts = torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(1))
    headloom.from_queries_keys(*parts, keep=headloom.Top(2), save=tmp_path / "t", dtype=dtype)
    trace = headloom.open(tmp_path / "t")
    name = str(dtype).removeprefix("torch.")
    assert f"of queries and keys rounded to {name}" in of_rounded(trace)
    assert of_rounded(trace, exact=False) is None
    assert of_rounded(headloom.from_queries_keys(*parts)) is None


def test_all_kept_edges_are_the_models_own_though_queries_and_keys_are_rounded(tmp_path) -> None:
    whole = headloom.from_queries_keys(*torch.randn(2, 1, 6, 4))
    whole.save(tmp_path / "half", dtype=torch.bfloat16)
    half = headloom.open(tmp_path / "half")
    differs = half.layers[0].matrix.dense() - whole.layers[0].matrix.dense()
    assert float(differs.abs().max()) > 1e-4
    for exact in (None, True, False):
        assert rollout(half, exact=exact) == pytest.approx(rollout(whole), abs=1e-6)
    assert of_rounded(half) is None


@pytest.mark.parametrize("exact", [True, False])
def test_the_bound_holds_of_scores_that_float32_rounds(exact: bool) -> None:
    """Scores of some 400, as of models with large biases, are known to 2e-5."""
    queries, keys = 3 * torch.randn(2, 4, 2, 64, 16, generator=torch.Generator().manual_seed(1))
    queries[..., 0], keys[..., 0] = 40, 40 + keys[..., 0] / 100
    trace = headloom.from_queries_keys(
        queries, keys / 3, mask=headloom.causal(), kind="decoder", scale=0.75, keep=headloom.Top(64)
    )
    ahead = torch.ones(64, 64, dtype=torch.bool).triu(1)
    expected = torch.eye(64, dtype=torch.float64)
    for q, k in zip(queries.double(), (keys / 3).double(), strict=True):
        scores = (q @ k.transpose(1, 2) * 0.75).masked_fill(ahead, -torch.inf)
        expected = expected / 2 + scores.softmax(-1).mean(0) @ expected / 2
    for found in (
        rollout_rows(trace, range(64), exact=exact),
        rollout_columns(trace, range(64), exact=exact),
        whole_rollout(trace, exact=exact),
    ):
        assert bool(((expected - found.values).clamp(min=0).sum(1) <= found.bound).all())
        assert float(found.bound.max()) < 5e-4


def test_what_the_target_holds_of_itself_is_said(pair_trace) -> None:
    """One cross layer, above a decoder layer: half of each row passes it by."""
    rows = rollout_rows(pair_trace, [2, 3])
    assert rows.own is not None
    torch.testing.assert_close(rows.own + rows.values.sum(1), torch.ones(2))
    assert of_own(pair_trace, rows) == (
        f"In all {float(rows.values[0].sum()):.4f} of it from the source, "
        f"{float(rows.own[0]):.4f} of the target itself."
    )
    few = of_own(pair_trace, rollout_rows(pair_trace, 2, exact=False))
    assert few is not None and few.startswith("In all ")
    assert of_own(pair_trace, rollout_rows(pair_trace, 1, kind="encoder"), "encoder") is None


def test_what_rows_lack_is_not_called_the_targets_own() -> None:
    """Each row of the cross layer hands on 0.3, half of which counts."""
    cross = torch.full((1, 3, 4), 0.3 / 4)
    trace = headloom.from_weights([cross], kind="cross", partial=True)
    rows = rollout_rows(trace, 1)
    assert float(rows.values.sum()) == pytest.approx(0.15, abs=1e-5)
    assert rows.own is not None and float(rows.own[0]) == pytest.approx(0.5)
    assert "0.5000 of the target itself, 0.3500 from nowhere" in str(of_own(trace, rows))
