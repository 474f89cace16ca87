"""Composition of heads against dense matrices in NumPy, hand-made heads, and a real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import headloom
from headloom.analysis.matrices.circuits import Circuit, composition, composition_table
from headloom.analysis.matrices.projections import LayerMatrices

WIDTH = 20


def drawn(seed: int, kind: str, heads: int = 4, kv_heads: int = 2, depth: int = 3) -> LayerMatrices:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W_Q, W_K, W_V = (random(n, WIDTH, depth) for n in (heads, kv_heads, kv_heads))
    return LayerMatrices(f"{kind}{seed}", kind, W_Q, W_K, W_V, random(heads, depth, WIDTH))


def dense(layer: LayerMatrices, head: int) -> tuple[np.ndarray, np.ndarray]:
    """QK and OV of a head, formed: queries share keys and values in groups."""
    group = head // (len(layer.W_Q) // len(layer.W_K))
    assert layer.W_O is not None
    W_Q, W_O = layer.W_Q[head].numpy(), layer.W_O[head].numpy()
    W_K, W_V = layer.W_K[group].numpy(), layer.W_V[group].numpy()
    return W_Q @ W_K.T, W_V @ W_O


def test_every_pair_is_that_of_the_dense_matrices() -> None:
    layers = [drawn(0, "decoder"), drawn(1, "decoder", 3, 3, 5), drawn(2, "decoder", 2, 1)]
    table = composition_table(layers)
    assert len(table) == 3 * (4 * 3 + 4 * 2 + 3 * 2)
    assert table["score"].is_monotonic_decreasing
    for row in table.to_dict("records"):
        _, written = dense(layers[row["from_layer"]], row["from_head"])
        looks, moves = dense(layers[row["layer"]], row["head"])
        read = {"Q": looks, "K": looks.T, "V": moves}[row["by"]]
        expected = np.linalg.norm(written @ read) / np.linalg.norm(written) / np.linalg.norm(read)
        assert row["score"] == pytest.approx(expected, rel=1e-5)
        assert row["times_random"] == pytest.approx(expected * WIDTH**0.5, rel=1e-5)


def test_an_induction_head_reads_the_previous_token_by_its_keys() -> None:
    """Head 1 moves what stands on axes 0 to 2 to axes 3 to 5; head 2 looks for it there."""
    axes = torch.eye(WIDTH)
    here, moved = axes[:, :3], axes[:, 3:6]
    first = LayerMatrices("a", "decoder", axes[None], axes[None], here[None], moved.T[None])
    second = LayerMatrices("b", "decoder", here[None], moved[None], here[None], here.T[None])
    scores = composition_table([first, second]).set_index("by")["score"]
    assert scores["K"] == pytest.approx(1 / 3**0.5)  # both are of three directions, alike
    assert scores["Q"] == scores["V"] == 0
    one = Circuit(axes[None, :, :1], axes[None, :, 3:4])
    assert float(composition(one, Circuit(axes[None, :, 3:4], axes[None, :, :1]))) == 1


def test_who_reads_whom_in_an_encoder_decoder() -> None:
    kinds = ("encoder", "encoder", "decoder", "cross", "decoder", "cross")
    table = composition_table([drawn(n, kind) for n, kind in enumerate(kinds)])
    found = {tuple(row) for row in table[["by", "layer", "from_layer"]].to_numpy().tolist()}
    sources = {("Q", 1, 0), ("K", 1, 0), ("V", 1, 0)}
    cross = {(by, layer, place) for by in "KV" for layer in (3, 5) for place in (0, 1)}
    target = {("Q", later, earlier) for later, earlier in ((3, 2), (5, 2), (5, 3), (5, 4))}
    target |= {(by, 4, earlier) for by in "QKV" for earlier in (2, 3)}
    assert found == sources | cross | target


def test_what_cannot_be_read_is_one_error() -> None:
    with pytest.raises(headloom.InputError, match="two or more in a row"):
        composition_table([drawn(0, "encoder")])
    broken = drawn(1, "encoder")
    broken.W_K[0, 0, 0] = torch.nan
    with pytest.raises(headloom.InputError, match=r"^composition: W_K of layer encoder1"):
        composition_table([drawn(0, "encoder"), broken])
    with pytest.raises(headloom.ShapeError, match="a width of 3, the second reads one of 4"):
        composition(
            Circuit(torch.eye(3)[None], torch.eye(3)[None]), Circuit(*[torch.eye(4)[None]] * 2)
        )
    none = Circuit(torch.zeros(1, 3, 2), torch.zeros(1, 3, 2))
    assert float(composition(none, none)) == 0
