"""Masks and positions on disk: each that has a form there comes back as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headloom
from headloom.formats.terms import MASKS, POSITIONS, Terms
from headloom.mechanism.masks import Mask, Ranges, Window
from headloom.mechanism.positions import ALiBi, ByDistance, Shaw

QUERIES, KEYS = 3, 4
RANGES = Ranges(torch.tensor([0, 1, 2]), torch.tensor([1, 4, 2]))
WHOLE = {
    Ranges: RANGES,
    Shaw: Shaw(torch.randn(2, 5, 6), None, -1),
    ALiBi: ALiBi(headloom.alibi_slopes(2), 3),
    ByDistance: ByDistance(torch.randn(2, QUERIES + KEYS - 1), QUERIES - 1, 1),
}


def again(terms: Terms) -> Terms:
    """Written and read: what goes into the manifest, and the tensors."""
    entry: dict[str, Any] = {"mask": terms.rule, "window": terms.window}
    entry["terms"] = terms.to_manifest()
    tensors = terms.tensors()
    assert entry["terms"]["tensors"] == sorted(tensors)
    return Terms.from_manifest(entry, tensors, QUERIES)


@pytest.mark.parametrize("kind", POSITIONS)
def test_positions_come_back(kind: type) -> None:
    relative = WHOLE[kind]
    found = again(Terms(relative=relative)).relative
    assert type(found) is kind
    assert found.offset == relative.offset
    queries = torch.randn(1, 2, QUERIES, 6)
    parts = [
        (
            one.key_scores(queries, range(QUERIES), KEYS),
            one.bias(range(QUERIES), KEYS, queries.device),
        )
        for one in (found, relative)
    ]
    for one, other in zip(*parts, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (None, "all"),
        (headloom.causal(), "causal"),
        (Window(2, None, -1), "window"),
        (RANGES, "ranges"),
    ],
)
def test_masks_come_back(mask: Mask | None, rule: str) -> None:
    found = again(Terms(mask=mask))
    assert found.rule == rule
    assert found.mask_known
    if mask is None:
        assert found.mask is None
    else:
        assert type(found.mask) is type(mask)
        assert torch.equal(found.mask.dense(QUERIES, KEYS), mask.dense(QUERIES, KEYS))
    assert {Ranges} == set(MASKS)
