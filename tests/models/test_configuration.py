"""Sizes that cannot be a Transformer are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from headloom.errors import InputError
from headloom.models.configuration import Architecture


@pytest.mark.parametrize("name", ["width", "heads", "feed_forward", "decoder_layers", "max_length"])
def test_sizes_below_one(name: str) -> None:
    with pytest.raises(
        InputError, match=rf"model\.{name} is 0; expected a whole number, 1 or more\.$"
    ):
        Architecture(**{name: 0})


def test_width_that_does_not_split() -> None:
    with pytest.raises(InputError, match=r"width 10 does not split into model.heads = 4"):
        Architecture(width=10, heads=4)


def test_buckets_that_some_layer_could_not_have() -> None:
    with pytest.raises(InputError, match=r"model.buckets: 3 buckets .* expected 4 buckets or more"):
        Architecture(positions="buckets", buckets=3)
    with pytest.raises(InputError, match=r"max_distance=16; .* a max_distance above 16"):
        Architecture(positions="buckets", max_distance=16)
    assert Architecture(buckets=3, max_distance=1).relative == "none"  # of no layer
    read = Architecture.read({"positions": "buckets", "width": 8})
    assert (read.buckets, read.max_distance) == (32, 128)


@pytest.mark.parametrize(
    ("positions", "relative"),
    [
        ("sinusoidal", "none"),
        ("learned", "none"),
        ("none", "none"),
        ("shaw", "shaw"),
        ("shaw-keys", "shaw-keys"),
        ("alibi", "alibi"),
        ("buckets", "buckets"),
        ("rotary", "rotary"),
    ],
)
def test_which_positions_act_inside_attention(positions: Any, relative: str) -> None:
    assert Architecture(positions=positions).relative == relative
