"""weft: the attention weight matrix - train it, trace it, see it.

The face of the library:

    out = weft.attention(q, k, v, mask=weft.causal())
    out, graph = weft.attend(q, k, v, mask=weft.causal(), keep=weft.Top(32))

Heavier parts load when they are first used.
"""

from weft.errors import BackendError, DataError, InputError, ShapeError, WeftError
from weft.mechanism.function import attend, attention
from weft.mechanism.graph import All, AttentionGraph, Top
from weft.mechanism.masks import Mask, causal, neighbours, padding, window
from weft.mechanism.positions import ALiBi, Buckets, Shaw, alibi_slopes, rotary, sinusoidal
from weft.mechanism.scores import (
    Additive,
    Bilinear,
    Dot,
    GraphAttention,
    GraphAttentionV2,
    ScaledDot,
)

__version__ = "0.1.0"

__all__ = [
    "ALiBi",
    "Additive",
    "All",
    "AttentionGraph",
    "BackendError",
    "Bilinear",
    "Buckets",
    "DataError",
    "Dot",
    "GraphAttention",
    "GraphAttentionV2",
    "InputError",
    "Mask",
    "ScaledDot",
    "ShapeError",
    "Shaw",
    "Top",
    "WeftError",
    "alibi_slopes",
    "attend",
    "attention",
    "causal",
    "neighbours",
    "padding",
    "rotary",
    "sinusoidal",
    "window",
]
