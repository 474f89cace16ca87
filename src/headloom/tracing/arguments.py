"""What a model's forward or generate takes, by the names of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "BESIDE",
    "CACHES",
    "Arguments",
    "Inputs",
    "Tokenizer",
    "cache_among",
    "positions_in",
]

#: Who names ids, of any library: see `headloom.tracing.names.token_names`.
Tokenizer = Any
#: To be read: tensors, and what else a model takes.
Inputs = Mapping[str, Any]
#: Of one's own, to be changed.
Arguments = dict[str, Any]

#: Beginnings of the names of arguments that hold images, videos or sounds, or say something of each
#: of these; no tokens.
BESIDE = ("pixel", "image", "video", "audio", "input_features", "input_values", "batch_num")

#: What a model of Transformers calls the argument that holds its cache: the first from 5.24 on, the
#: second before, and where a caller still does.
CACHES = ("cache", "past_key_values")


def cache_among(arguments: Inputs) -> object:
    """The cache that a model goes on with; None: it begins without one.

    >>> cache_among({"input_ids": [1], "cache": None, "past_key_values": "filled"})
    'filled'
    """
    return next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)


def positions_in(cache: object) -> int:
    """How many positions a cache of Transformers holds; 0: none, or a state without positions.

    >>> positions_in(None)
    0
    """
    if cache is None:
        return 0
    try:
        return int(getattr(cache, "get_seq_length")())  # noqa: B009 - every cache has one
    except ValueError:
        # A model without attention, as Mamba, keeps a state alone, and its cache says so by this.
        return 0
