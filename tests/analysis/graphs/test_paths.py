"""The strongest paths through all layers, against all paths multiplied out by hand in NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from headloom.analysis.dense_layer import layer_of_weights
from headloom.analysis.graphs.paths import Network, strongest_paths
from headloom.errors import InputError
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Top
from headloom.tracing.given import from_queries_keys

Array = np.ndarray[Any, Any]


def random_weights(seed: int, heads: int, queries: int, keys: int, causal: bool = False) -> Array:
    scores = np.random.default_rng(seed).normal(0, 2, (heads, queries, keys))
    if causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def by_hand(steps: list[Array], start: int, end: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every path from (L, start) to (0, end) and its product, largest first. steps: A_1 ... A_L."""
    found = []
    inner = [range(step.shape[0]) for step in steps[:-1]]
    for between in itertools.product(*reversed(inner)):
        path = (start, *between, end)
        factors = [step[path[place], path[place + 1]] for place, step in enumerate(reversed(steps))]
        found.append((float(np.prod(factors)), path))
    return sorted(found, key=lambda one: (-one[0], one[1]))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.9])
def test_paths_of_one_sequence(causal: bool, residual: float) -> None:
    weights = [random_weights(seed, 3, 5, 5, causal) for seed in range(4)]
    mask = "causal" if causal else "all"
    layers = [layer_of_weights(torch.from_numpy(of), mask=mask) for of in weights]
    trace = TraceData({"tokens": list("abcde")}, tuple(layers))
    steps = [residual * np.eye(5) + (1 - residual) * of.mean(0) for of in weights]
    rollout = steps[3] @ steps[2] @ steps[1] @ steps[0]
    for start, end in ((4, 0), (3, 1), (2, 2), (-1, -4)):
        expected = [one for one in by_hand(steps, start % 5, end % 5) if one[0] > 0][:7]
        found = strongest_paths(trace, start, end, count=7, residual=residual)
        products = [path.product for path in found.paths]
        assert products == pytest.approx([one for one, _ in expected], rel=1e-5)
        places = [tuple(place for _, place in path.steps) for path in found.paths]
        assert places == [path for _, path in expected]
        assert found.least == pytest.approx(rollout[start, end], rel=1e-5)
        assert found.most == pytest.approx(rollout[start, end], rel=1e-5)
    if causal:
        ahead = strongest_paths(trace, 1, 3)
        assert (ahead.paths, ahead.least, ahead.most) == ([], 0, 0)


def test_paths_between_two_sequences(pair_trace: Any) -> None:
    """Of an encoder, a decoder and a cross layer: the target holds the source through all three."""
    encoder, decoder, cross = (
        layer.graph.dense().double().mean(0).numpy() for layer in pair_trace.layers
    )
    # Nodes: 7 of the source, then 4 of the target.
    steps = []
    for own, other, mean in ((0, 0, encoder), (7, 7, decoder), (7, 0, cross)):
        step = np.eye(11)
        rows = slice(own, own + len(mean))
        step[rows] *= 0.5
        step[rows, other : other + mean.shape[1]] += mean / 2
        steps.append(step)
    found = strongest_paths(pair_trace, 3, 6, count=4)
    expected = by_hand(steps, 7 + 3, 6)[:4]
    assert [path.product for path in found.paths] == pytest.approx(
        [one for one, _ in expected], rel=1e-5
    )
    first = found.paths[0]
    flat = tuple(place + 7 * (name == "target") for name, place in first.steps)
    assert flat == expected[0][1]
    assert first.steps[0] == ("target", 3) and first.steps[-1] == ("source", 6)
    network = Network(pair_trace)
    shares = network.shares(network.node("target", 3))
    held = np.eye(11)[10]
    for level in (2, 1, 0):
        held = held @ steps[level]
        assert shares[level] == pytest.approx(held, rel=1e-5, abs=1e-9)


def test_kept_edges_bound_the_sum_from_both_sides() -> None:
    weights = [random_weights(seed, 2, 6, 6) for seed in range(3)]
    kept = [layer_of_weights(torch.from_numpy(of), keep=3) for of in weights]
    trace = TraceData({"tokens": list("abcdef")}, tuple(kept))
    steps = [np.eye(6) / 2 + of.mean(0) / 2 for of in weights]
    rollout = steps[2] @ steps[1] @ steps[0]
    lower = []
    for of in weights:
        least = np.sort(of, -1)[..., -3:-2]
        lower.append(np.eye(6) / 2 + np.where(of >= least, of, 0).mean(0) / 2)
    for start, end in itertools.product(range(6), range(6)):
        found = strongest_paths(trace, start, end, count=3)
        assert found.least <= rollout[start, end] * (1 + 1e-6) and rollout[start, end] <= found.most
        assert found.least < found.most
        expected = by_hand(lower, start, end)[:3]
        assert [path.product for path in found.paths] == pytest.approx(
            [one for one, _ in expected if one > 0], rel=1e-5
        )


@pytest.mark.parametrize(
    ("kept", "exact"), [(6, False), (3, False), (3, True)], ids=["whole", "kept", "exact"]
)
def test_what_ends_at_sinks_and_rows_without_keys_is_known(kept: int, exact: bool) -> None:
    """Only what went along edges that were not kept may have reached the target."""
    queries, keys = torch.randn(2, 2, 3, 6, 4, generator=torch.Generator().manual_seed(2))
    sinks, mask = torch.tensor([[0.5, 1.0, -1.0]] * 2), torch.ones(6, 6, dtype=torch.bool)
    mask[4] = False
    trace = from_queries_keys(
        queries, keys, mask=mask, sinks=list(sinks), keep=Top(kept), tokens=list("abcdef")
    )
    powers = (queries.double() @ keys.double().transpose(-1, -2) / 2).exp() * mask
    all_mass = powers.sum(-1, keepdim=True) + sinks.double().exp()[..., None, None]
    dense = (powers / all_mass).numpy()
    held = np.where(dense >= np.sort(dense, -1)[..., -kept, None], dense, 0)
    step = [np.eye(6) / 2 + of.mean(0) / 2 for of in dense]
    rollout = step[1] @ step[0]
    for start, end in ((4, 4), (0, 3), (5, 4)):
        found = strongest_paths(trace, start, end, exact=exact)
        assert found.least <= rollout[start, end] * (1 + 1e-6)
        assert rollout[start, end] <= found.most * (1 + 1e-6)
        if kept == 6 or exact:
            assert found.least == found.most
            continue
        # What a row has that was not kept, a sink's share of it included.
        lower = [np.eye(6) / 2 + of.mean(0) / 2 for of in held]
        missing = (mask.numpy().any(-1) - held.sum(-1)).mean(1) / 2
        unknown = missing[1][start] + lower[1][start] @ missing[0]
        assert found.most - found.least == pytest.approx(unknown, rel=1e-5)


def test_equal_products_do_not_try_every_path() -> None:
    """Of even weights every path has the same product: the first ones come at once."""
    even = layer_of_weights(torch.full((1, 40, 40), 1 / 40))
    trace = TraceData({"tokens": ["t"] * 40}, (even,) * 12)
    found = strongest_paths(trace, 7, 9, count=3, residual=0.0)
    assert [path.product for path in found.paths] == pytest.approx([40.0**-12] * 3)
    assert [place for _, place in found.paths[0].steps] == [7, *[0] * 11, 9]
    assert found.least == pytest.approx(1 / 40)


def test_bad_input_is_refused_in_a_line() -> None:
    layer = layer_of_weights(torch.full((1, 3, 3), 1 / 3))
    trace = TraceData({"tokens": list("abc")}, (layer,))
    with pytest.raises(InputError, match="no position 3; the sequence has positions 0 to 2"):
        strongest_paths(trace, 3, 0)
    with pytest.raises(InputError, match="no cross layer; it has encoder"):
        strongest_paths(trace, 0, 0, kind="cross")
    with pytest.raises(InputError, match="no exact weights"):
        few = layer_of_weights(torch.full((1, 3, 3), 1 / 3), keep=1)
        strongest_paths(TraceData(trace.sequences, (few,)), 0, 0, exact=True)
    broken = torch.full((1, 3, 3), 1 / 3)
    broken[0, 1] = torch.nan
    trace = TraceData({"tokens": list("abc")}, (layer_of_weights(broken),))
    with pytest.raises(InputError, match="not numbers"):
        strongest_paths(trace, 1, 0)
