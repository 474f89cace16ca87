"""Weights that are not numbers are refused by name, by every measure that would sum them."""

from __future__ import annotations

import pytest
import torch

import headloom
from headloom.analysis.graphs.components import components
from headloom.analysis.graphs.norms import given_by_rows
from headloom.analysis.graphs.pagerank import pagerank
from headloom.analysis.graphs.reciprocity import reciprocity
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank
from headloom.analysis.graphs.strength import heavy_hitters, received
from headloom.errors import InputError

MEASURES = {
    "components": components,
    "effective_rank": effective_rank,
    "energy_rank": energy_rank,
    "heavy_hitters": heavy_hitters,
    "norms": lambda source: given_by_rows(source, torch.ones(2, 6)),
    "pagerank": pagerank,
    "received": received,
    "reciprocity": reciprocity,
}


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("kept", [False, True])
def test_weights_that_are_not_numbers_are_refused(measure, kept) -> None:
    tokens = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    broken = tokens.clone()
    broken[1, 3] = torch.nan
    _, graph = headloom.attend(broken, tokens, tokens, keep=headloom.Top(2))
    source = graph if kept else headloom.AttentionMatrix(broken, tokens)
    with pytest.raises(InputError, match=r"head 1, query 3 are not numbers .* isnan\(lse\)"):
        MEASURES[measure](source)
