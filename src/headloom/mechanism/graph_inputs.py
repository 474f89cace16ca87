"""What a graph attention layer is made of and called with, checked; errors name the layer."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import describe, finite_number, in_words, whole_number

__all__ = ["check_edges", "check_features", "check_numbers", "check_size", "checked_widths"]


def checked_widths(name: str, in_channels: object) -> int | tuple[int, int]:
    """The width of the nodes' features, or those of sources and targets; -1: the call tells."""
    widths = in_channels if isinstance(in_channels, tuple | list) else (in_channels,)
    numbers = [whole_number(name, "in_channels", width, -1, None) for width in widths]
    if len(numbers) not in (1, 2):
        raise InputError(
            f"{name}: in_channels={in_words(in_channels)}; expected the width of the nodes' "
            "features, or a pair, of sources and of targets."
        )
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def check_numbers(name: str, dropout: float, negative_slope: float) -> None:
    """Raise an InputError where one is no number, or not in its range."""
    if not 0 <= finite_number(name, "dropout", dropout) <= 1:
        raise InputError(f"{name}: dropout={in_words(dropout)}; expected a probability, 0 to 1.")
    finite_number(name, "negative_slope", negative_slope)


def check_features(name: str, what: str, features: object, width: int) -> None:
    """Raise where features are no floating-point rows of a width; -1: of any."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        got = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"{name}: {what} is {got}; expected a tensor of real numbers, as from {what}.float()."
        )
    if features.ndim != 2:
        raise ShapeError(
            f"{name}: {what} is {describe(features)}; expected features in rows, (rows, width)."
        )
    if width != -1 and features.shape[1] != width:
        raise ShapeError(
            f"{name}: {what} is {describe(features)}; expected features of width {width}, as the "
            "layer was made."
        )


def check_edges(name: str, edge_index: object) -> None:
    """Raise an InputError where the caller gave no edges; self-loops and flips come after."""
    got = type(edge_index).__name__
    if isinstance(edge_index, Tensor):
        got = f"{edge_index.dtype} of shape {describe(edge_index)}"
        if edge_index.layout != torch.strided:
            fits = edge_index.sparse_dim() == 2
        else:
            fits = edge_index.ndim == 2 and len(edge_index) == 2
            fits = fits and edge_index.dtype in (torch.int64, torch.int32)
        if fits:
            return
    raise InputError(
        f"{name}: the edge_index is {got}; expected a tensor of int64, (2, edges), "
        "sources over targets, or a sparse one, (targets, sources)."
    )


def check_size(name: str, size: object, sources: Tensor, targets: Tensor | None) -> None:
    """Raise where a size is no pair of numbers, or not that of the features given."""
    if size is None:
        return
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise InputError(
            f"{name}: size={in_words(size)}; expected the numbers of sources and targets."
        )
    for what, number, nodes in zip(("sources", "targets"), size, (sources, targets), strict=True):
        whole = whole_number(name, "size", number, 0, None)
        if nodes is not None and whole != len(nodes):
            raise ShapeError(
                f"{name}: size={in_words(size)}, but x has features of {len(nodes):,} {what}. "
                "Leave size out, or give that number."
            )
