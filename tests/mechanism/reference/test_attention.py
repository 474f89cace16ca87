"""The reference against itself, torch, and answers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from headloom.mechanism.reference import attention as formulas
from headloom.mechanism.reference.call import attend


def random(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_the_six_steps_by_hand() -> None:
    """Two tokens, depth 4, W_Q = W_K so that q . k is 0 or 4 log 3, and scaled 0 or 2 log 3."""
    inputs = torch.eye(2, dtype=torch.float64)
    root = math.sqrt(math.log(3))
    W_Q = torch.tensor([[2 * root, 0, 0, 0], [0, 2 * root, 0, 0]], dtype=torch.float64)
    queries = formulas.project(inputs, W_Q)
    scores = formulas.score(queries, queries)
    log3 = math.log(3)
    expected = torch.tensor([[4 * log3, 0], [0, 4 * log3]], dtype=torch.float64)
    torch.testing.assert_close(scores, expected)
    scaled = formulas.scale(scores, 4)
    torch.testing.assert_close(scaled, expected / 2)
    allowed = torch.tensor([[True, False], [True, True]])
    masked = formulas.mask(scaled, allowed)
    assert masked[0, 1] == -math.inf
    weights = formulas.softmax(masked)
    torch.testing.assert_close(weights, torch.tensor([[1, 0], [0.1, 0.9]], dtype=torch.float64))
    output = formulas.weigh(weights, torch.tensor([[10.0], [20.0]], dtype=torch.float64))
    torch.testing.assert_close(output, torch.tensor([[10.0], [19.0]], dtype=torch.float64))
    assert torch.equal(
        formulas.self_attention(inputs, W_Q, W_Q, inputs, allowed), formulas.weigh(weights, inputs)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_matrix_and_vector_form_are_equal(seed: int, rows: int, length: int, scaled: bool) -> None:
    queries, keys, values = (
        random(seed, rows, 3),
        random(seed + 1, length, 3),
        random(seed + 2, length, 2),
    )
    vector = formulas.attention_vector_form(queries, keys, values, scaled=scaled)
    own = queries if scaled else queries * math.sqrt(3)
    torch.testing.assert_close(vector, formulas.attention(own, keys, values), rtol=0, atol=1e-12)


def test_multi_head_is_torchs_layer() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(6, 3, bias=False, batch_first=True).double()
    x, y = random(0, 4, 6), random(1, 5, 6)
    W_Q, W_K, W_V = (
        matrix.T.reshape(6, 3, 2).transpose(0, 1) for matrix in layer.in_proj_weight.chunk(3)
    )
    W_O = layer.out_proj.weight.T
    expected, _ = layer(x[None], y[None], y[None])
    ours = formulas.multi_head(x, y, W_Q, W_K, W_V, W_O)
    torch.testing.assert_close(ours, expected[0], rtol=0, atol=1e-12)
    expected, _ = layer(x[None], x[None], x[None], attn_mask=torch.ones(4, 4).triu(1).bool())
    ours = formulas.multi_head(x, x, W_Q, W_K, W_V, W_O, torch.ones(4, 4).tril().bool())
    torch.testing.assert_close(ours, expected[0], rtol=0, atol=1e-12)


def test_groups_share_keys_and_values() -> None:
    x = random(0, 4, 6)
    W_Q, W_K, W_V, W_O = random(1, 4, 6, 2), random(2, 2, 6, 2), random(3, 2, 6, 2), random(4, 8, 6)
    grouped = formulas.multi_head(x, x, W_Q, W_K, W_V, W_O)
    repeated = formulas.multi_head(x, x, W_Q, W_K[[0, 0, 1, 1]], W_V[[0, 0, 1, 1]], W_O)
    assert torch.equal(grouped, repeated)
    wrong = formulas.multi_head(x, x, W_Q, W_K[[0, 1, 0, 1]], W_V[[0, 1, 0, 1]], W_O)
    assert not torch.allclose(grouped, wrong)


def test_neighbourhood_attention_is_masked_attention() -> None:
    scores, values = random(0, 4, 4), random(1, 4, 3)
    neighbours = [[1, 2], [], [0, 1, 2, 3], [3]]
    allowed = torch.zeros(4, 4, dtype=torch.bool)
    for i, nodes in enumerate(neighbours):
        allowed[i, nodes] = True
    output, weights = formulas.neighbourhood_attention(scores, values, neighbours)
    expected = formulas.softmax(formulas.mask(scores, allowed))
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(output, expected @ values, rtol=0, atol=1e-14)


def test_image_attention_is_attention_over_places() -> None:
    """Place j is the query, g its projection; f the keys and v h the values."""
    image = random(0, 4, 2, 3)
    W_f, W_g, W_h = random(1, 3, 2, 4)
    W_v = random(2, 4, 2)
    y, beta = formulas.image_self_attention(image, W_f, W_g, W_h, W_v, 0.5)
    places = image.flatten(1).T
    queries, keys, values = places @ W_g.T, places @ W_f.T, places @ (W_v @ W_h).T
    weights = (queries @ keys.T).softmax(-1)
    torch.testing.assert_close(beta, weights, rtol=0, atol=1e-12)
    expected = image + 0.5 * (weights @ values).T.reshape(4, 2, 3)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    unchanged, _ = formulas.image_self_attention(image, W_f, W_g, W_h, W_v, 0.0)
    assert torch.equal(unchanged, image)


def test_a_call_with_everything_by_hand() -> None:
    """Raw 0, 0, 0; biases log 2, 0, and the third key hidden; sink 0: weights 1/2 and 1/4."""
    raw = torch.zeros(1, 1, 1, 3, dtype=torch.float64)
    values = torch.tensor([[[[4.0], [8.0], [100.0]]]], dtype=torch.float64)
    attended = attend(
        raw,
        values,
        scale=3.0,
        softcap=5.0,
        bias=torch.tensor([math.log(2), 0, 50], dtype=torch.float64),
        allowed=torch.tensor([True, True, False]),
        sinks=torch.zeros(1),
        relative_values=torch.tensor([[[2.0], [4.0], [9.0]]], dtype=torch.float64),
        k=3,
    )
    assert attended.output.item() == pytest.approx(0.5 * 6 + 0.25 * 12)
    assert attended.weights.flatten().tolist() == pytest.approx([0.5, 0.25, 0])
    assert attended.lse.item() == pytest.approx(math.log(4))
    assert attended.entropy.item() == pytest.approx(math.log(2))  # 1/2 log 2 + 1/4 log 4
    assert attended.rest.item() == pytest.approx(0.25)
    assert attended.count.item() == 2
    assert attended.kept_keys.flatten().tolist() == [0, 1, -1]
    assert attended.kept_scores[..., 2].item() == -math.inf
