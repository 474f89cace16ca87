"""Tiny models of every kind."""

from __future__ import annotations

import pytest

from headloom.models.configuration import Architecture

#: Every kind of positions, both norms, and groups of heads.
ARCHITECTURES = {
    f"{positions}-{norm}-{kv_heads or 4}": Architecture(
        width=16,
        heads=4,
        kv_heads=kv_heads,
        feed_forward=24,
        encoder_layers=2,
        decoder_layers=2,
        positions=positions,  # type: ignore[arg-type]
        clip=3,
        norm=norm,  # type: ignore[arg-type]
        dropout=0.1,
        tied=tied,
        max_length=40,
    )
    for positions, norm, kv_heads, tied in (
        ("sinusoidal", "pre", None, True),
        ("sinusoidal", "post", 2, False),
        ("learned", "pre", 1, True),
        ("learned", "post", None, True),
        ("shaw", "pre", None, False),
        ("shaw", "post", 2, True),
        ("alibi", "pre", 2, True),
        ("alibi", "post", None, True),
        ("buckets", "pre", 2, True),
        ("buckets", "post", None, False),
        ("rotary", "pre", None, True),
        ("rotary", "post", 1, False),
        ("none", "pre", 2, True),
    )
}


@pytest.fixture(params=list(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> Architecture:
    """Each of ARCHITECTURES in turn."""
    return ARCHITECTURES[request.param]
