"""Circuits of low rank against the matrices they stand for, and known values of a real model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headloom
from headloom.analysis.matrices.circuits import (
    Circuit,
    ov_circuit,
    qk_circuit,
    weight_measures,
)
from headloom.analysis.matrices.projections import LayerMatrices, matrices_of
from headloom.mechanism.reference import graphs as reference


@pytest.fixture
def layer() -> LayerMatrices:
    """Four heads of width 20 and depth 3, two of keys and values, in float64."""
    generator = torch.Generator().manual_seed(9)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return LayerMatrices(
        "l", "encoder", random(4, 20, 3), random(2, 20, 3), random(2, 20, 3), random(4, 3, 20)
    )


def test_every_measure_is_that_of_the_dense_matrix(layer) -> None:
    for circuit in (qk_circuit(layer), ov_circuit(layer)):
        for head in range(4):
            dense = circuit.left[head] @ circuit.right[head].T
            values = torch.linalg.svdvals(dense)
            assert torch.allclose(circuit.singular_values()[head], values[:3])
            assert float(circuit.norm()[head]) == pytest.approx(float(dense.norm()))
            assert float(circuit.symmetry()[head]) == pytest.approx(
                float(reference.symmetry(dense))
            )
            assert float(circuit.directionality()[head]) == pytest.approx(
                float(reference.directionality(dense)), abs=1e-9
            )
            found = np.linalg.eigvals(dense.numpy())
            found = sorted(found[np.abs(found) > 1e-9], key=lambda x: (x.real, x.imag))
            own = sorted(circuit.eigenvalues()[head].tolist(), key=lambda x: (x.real, x.imag))
            assert np.allclose(own, found)
            assert float(circuit.copying()[head]) == pytest.approx(
                sum(found).real / np.abs(found).sum()
            )


def test_copying_is_one_for_a_head_that_copies_and_nothing_for_a_random_one() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(50, 64, 8, generator=generator)
    copies = Circuit(values, values)
    assert torch.allclose(copies.copying(), torch.ones(50), atol=1e-4)
    assert torch.allclose(Circuit(values, -values).copying(), -torch.ones(50), atol=1e-4)
    random = Circuit(values, torch.randn(50, 64, 8, generator=generator))
    assert abs(float(random.copying().mean())) < 0.1


def test_minilm_known_values(minilm) -> None:
    """Saponati's symmetry of each layer's W_Q W_K^T, measured once by another program."""
    table = weight_measures(matrices_of(minilm[0]))
    expected = [0.4051, 0.6399, 0.5824, 0.5754, 0.4073, 0.2535]
    assert [round(value, 4) for value in table["symmetry"]] == expected


def test_matrices_that_are_not_finite_are_refused_by_name(layer: LayerMatrices) -> None:
    layer.W_V[0, 1, 1] = torch.nan
    with pytest.raises(headloom.InputError, match=f"^weights: W_V of layer {layer.name}: .*NaN"):
        weight_measures([layer])
    with pytest.raises(headloom.InputError, match="infinite or NaN"):
        ov_circuit(layer).copying()
