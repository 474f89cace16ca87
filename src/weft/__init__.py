"""weft: the attention weight matrix - train it, trace it, see it.

The face of the library:

    out = weft.attention(q, k, v, mask=weft.causal())
    out, graph = weft.attend(q, k, v, mask=weft.causal(), keep=weft.Top(32))

    trace = weft.trace(model, inputs, tokenizer=tokenizer, keep=weft.Top(32))
    trace.save("run.weft")

Each name loads its module when it is first used: torch takes a second, which `weft --help` need not
wait for, and in which the command line already answers Ctrl-C.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from weft import moved
from weft.errors import (
    BackendError,
    DataError,
    InputError,
    ShapeError,
    VerificationError,
    WeftError,
)
from weft.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from weft.mechanism.adjacency import neighbours
    from weft.mechanism.function import attend, attention
    from weft.mechanism.graph import All, AttentionGraph, Top
    from weft.mechanism.masks import Mask, causal, padding, window
    from weft.mechanism.matrix.attention_matrix import AttentionMatrix
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
    from weft.traces import Trace, trace, watch

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
    "VerificationError",
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

#: The modules whose names are here, each loaded when one of its names is first used.
_LAZY = {
    "weft.mechanism.function": ("attend", "attention"),
    "weft.mechanism.graph": ("All", "AttentionGraph", "Top"),
    "weft.mechanism.adjacency": ("neighbours",),
    "weft.mechanism.masks": ("Mask", "causal", "padding", "window"),
    "weft.mechanism.matrix.attention_matrix": ("AttentionMatrix",),
    "weft.mechanism.packed": ("packed",),
    "weft.mechanism.positions": (
        "ALiBi", "Buckets", "Shaw", "alibi_slopes", "rotary", "sinusoidal",
    ),
    "weft.mechanism.scores": (
        "Additive", "Bilinear", "Dot", "GraphAttention", "GraphAttentionV2", "ScaledDot",
    ),
    "weft.traces": ("Trace", "trace", "watch"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

moved.install()


def open(path: "Path | str") -> "Trace":
    """Open a trace folder; its layers are read when they are first asked for.

    Raises: DataError: it is missing, half-written, damaged, or of a newer version.
    """
    from weft.traces import Trace

    return Trace.open(path)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
