"""Checked options of a trace: layers, edges, tokens to verify."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headloom.errors import InputError
from headloom.mechanism.graph import Keep, Top
from headloom.mechanism.received import LastQueries, last_queries
from headloom.mechanism.shapes import check_flag, in_words, whole_number
from headloom.tracing.arguments import Tokenizer

#: Tokens to verify by default. 64 of 8,192 are 0.8 percent.
TOKENS = 64

#: Tokens to verify: a number, "all", True or None for `TOKENS`, False for none.
Verify = int | str | None


@dataclass(frozen=True)
class TraceOptions:
    """Options of a trace: see `headloom.trace`.

    sampled: whether a sample of each layer's rows is compared with the model's own attention.

    Raises: InputError: an option is not valid.
    """

    tokenizer: Tokenizer = None
    keep: Keep = Top(32)  # noqa: RUF009 - frozen
    queries_keys: bool = True
    layers: Sequence[int | str] | None = None
    save: Path | str | None = None
    dtype: torch.dtype | None = None
    overwrite: bool = False
    verify: Verify = None
    sampled: bool = True
    received: bool | LastQueries = False

    def __post_init__(self) -> None:
        """Check each option."""
        object.__setattr__(self, "layers", checked_layers(self.layers, "trace"))
        save = self.save
        if save is not None and (not isinstance(save, str | os.PathLike) or not str(save)):
            raise InputError(
                f"trace: save={in_words(save)}; expected the path of a folder, such as 't.loom', "
                "or None."
            )
        for name in ("queries_keys", "overwrite"):
            check_flag("trace", name, getattr(self, name))
        last_queries(self.received, "trace")

    @property
    def received_last(self) -> int | None:
        """Number of last queries for `AttentionCall.received`."""
        return last_queries(self.received, "trace")


def checked_layers(layers: object, operation: str) -> tuple[int | str, ...] | None:
    """Return the numbers (in the order of the run) or paths of layers, checked.

    Raises: InputError: something else, or an empty list.
    """
    if layers is None:
        return None
    if isinstance(layers, str | Mapping) or not isinstance(layers, Iterable) or not layers:
        raise InputError(
            f"{operation}: layers={in_words(layers)}; expected a list of numbers or paths, such "
            'as [0, 5] or ["*.self_attn"]; None traces every layer.'
        )
    return tuple(
        layer if isinstance(layer, str) else whole_number(operation, "layers", layer, 0)
        for layer in layers
    )


def tokens_to_verify(verify: Verify) -> int | None:
    """Return the number of tokens to verify; None: all.

    >>> tokens_to_verify(None), tokens_to_verify(True), tokens_to_verify(9), tokens_to_verify("all")
    (64, 64, 9, None)

    Raises: InputError: not a value of `Verify`.
    """
    if isinstance(verify, str) and verify == "all":
        return None
    if verify is None or verify is True:
        return TOKENS
    if isinstance(verify, str):
        raise InputError(f"trace: verify={in_words(verify)}; expected a number, 'all' or a flag.")
    return 0 if verify is False else whole_number("trace", "verify", verify, 1)
