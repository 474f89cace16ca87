"""weft: the attention weight matrix - train it, trace it, see it.

The face of the library:

    out = weft.attention(q, k, v, mask=weft.causal())
    out, graph = weft.attend(q, k, v, mask=weft.causal(), keep=weft.Top(32))

    trace = weft.trace(model, inputs, tokenizer=tokenizer, keep=weft.Top(32))
    trace.save("run.weft")

Heavier parts load when they are first used.
"""

from typing import TYPE_CHECKING, Any

from weft.errors import BackendError, DataError, InputError, ShapeError, WeftError
from weft.mechanism.function import attend, attention
from weft.mechanism.graph import All, AttentionGraph, Top
from weft.mechanism.masks import Mask, causal, neighbours, padding, window
from weft.mechanism.matrix import AttentionMatrix
from weft.mechanism.packed import packed
from weft.mechanism.positions import ALiBi, Buckets, Shaw, alibi_slopes, rotary, sinusoidal
from weft.mechanism.scores import (
    Additive,
    Bilinear,
    Dot,
    GraphAttention,
    GraphAttentionV2,
    ScaledDot,
)
from weft.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from weft.formats.trace import Trace
    from weft.tracing.capture import trace
    from weft.tracing.watch import watch


__all__ = [
    "ALiBi",
    "Additive",
    "All",
    "AttentionGraph",
    "AttentionMatrix",
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
    "Trace",
    "WeftError",
    "__version__",
    "alibi_slopes",
    "attend",
    "attention",
    "causal",
    "neighbours",
    "open",
    "packed",
    "padding",
    "rotary",
    "sinusoidal",
    "trace",
    "watch",
    "window",
]


def open(path: "Path | str") -> "Trace":
    """Open a trace folder; its layers are read when they are first asked for.

    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    from weft.formats.trace import Trace

    return Trace.open(path)


def __getattr__(name: str) -> Any:
    """Names whose modules are heavy: loaded when first used."""
    if name == "trace":
        from weft.tracing.capture import trace

        return trace
    if name == "watch":
        from weft.tracing.watch import watch

        return watch
    if name == "Trace":
        from weft.formats.trace import Trace

        return Trace
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
