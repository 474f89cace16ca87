"""What the output of a walk should be, so that its matrices can learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import InputError, ShapeError
from weft.walkthrough.matrices import as_tensor
from weft.walkthrough.walk import Kind

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["WISHES", "wanted_of"]

#: From a word to the place whose vector is wanted at place i of n, of m places; and in words.
WISHES: dict[str, tuple[Callable[[int, int], int], str]] = {
    "previous": (lambda i, m: max(i - 1, 0), "the word before it, the first word its own"),
    "next": (lambda i, m: min(i + 1, m - 1), "the word after it, the last word its own"),
    "same": (lambda i, m: i, "the word at its own place"),
    "first": (lambda i, m: 0, "the first word"),
    "last": (lambda i, m: m - 1, "the last word"),
    "reversed": (
        lambda i, m: m - 1 - i,
        "the word that far from the end",
    ),
}
#: What is wanted where nobody says: of a decoder the next word, as of a language model.
_USUAL: dict[Kind, str] = {"encoder": "previous", "decoder": "next", "cross": "same"}


def wanted_of(
    wanted: str | ArrayLike | Tensor | None, kind: Kind, output: Tensor, keys: Tensor
) -> tuple[Tensor, str]:
    """What the output should be, and that in words.

    Args:
        wanted: one of `WISHES`, or the vectors themselves, as the output; None: by the kind.
        kind: of attention.
        output: (queries, width).
        keys: Y, (keys, width): the vectors of the words that are looked at.

    Raises: InputError: no such wish, or a place that there is not; ShapeError: other sizes.

    >>> X = torch.tensor([[1.0], [2.0], [3.0]])
    >>> wanted_of("previous", "encoder", X, X)[0].flatten().tolist()
    [1.0, 1.0, 2.0]
    """
    if wanted is not None and not isinstance(wanted, str):
        vectors = as_tensor("wanted", wanted)
        if vectors.shape != output.shape:
            raise ShapeError(
                f"steps: wanted is {tuple(vectors.shape)}; expected {tuple(output.shape)}, as the "
                "output."
            )
        return vectors, "The vectors T that were given are wanted."
    name = _USUAL[kind] if wanted is None else wanted
    if name not in WISHES:
        raise InputError(
            f"wanted={name!r}; expected one of {', '.join(WISHES)}, or vectors as the output."
        )
    place_of, words = WISHES[name]
    places = [place_of(i, len(keys)) for i in range(len(output))]
    if not all(0 <= place < len(keys) for place in places):
        raise InputError(
            f"wanted={name!r}: {len(output)} words look at {len(keys)}, and the later ones have no "
            "such place. Choose another, as first."
        )
    if output.shape[1] != keys.shape[1]:
        raise ShapeError(
            f"steps: the output has the width {output.shape[1]}, the words {keys.shape[1]}, so "
            "that none of them can be wanted. Give wanted= as vectors, or another W_O."
        )
    source = " of the other text" if kind == "cross" else ""
    return keys[torch.tensor(places)], f"Each word is to give the vector of {words}{source}."
