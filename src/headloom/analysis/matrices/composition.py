"""How much heads read of what earlier heads write: composition, from the learned matrices alone.

What head 1 writes is h OV_1, with h what it looked at. A later head 2 may read that

    Q: in its queries, by OV_1 QK_2       who looks depends on what head 1 found
    K: in its keys,    by OV_1 QK_2^T     who is looked at does: so an induction head reads one that
                                          looks at the previous token
    V: in its values,  by OV_1 OV_2       both move the same thing, as one virtual head

and the score of the pair is how much of both circuits is left in their product,

    |first second| / (|first| |second|)    (Frobenius norms),

1 where head 2 reads the one direction that head 1 writes, 0 where it reads none of it. Of circuits
that lie anywhere it is 1 / sqrt(width), in the mean of its squares. What stands between the heads,
norms and their gains, is left out, and so are rotations of positions within QK.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.analysis.matrices.circuits import Circuit, ov_circuit, qk_circuit
from headloom.analysis.matrices.projections import LayerMatrices, check_finite, checked_matrices
from headloom.errors import InputError, ShapeError, optional_package
from headloom.mechanism.shapes import check_type

if TYPE_CHECKING:
    import pandas

__all__ = ["composition", "composition_table"]

#: What a head reads an earlier one by: a circuit that begins in the stream between both.
_READS: dict[str, Callable[[LayerMatrices], Circuit]] = {
    "Q": qk_circuit,
    "K": lambda layer: qk_circuit(layer).transposed(),
    "V": ov_circuit,
}


def composition(first: Circuit, second: Circuit) -> Tensor:
    """How much of what the heads of one circuit write the heads of another read.

        |first second| / (|first| |second|), the products never formed

    Args:
        first: (heads, rows, width); of what writes: OV.
        second: (later_heads, width, columns); of what reads: QK, its transpose, or OV.

    Returns: (heads, later_heads), from 0 to 1; 0 where a circuit is 0.
    Raises: ShapeError: the first does not lead to where the second begins.
    Source: Elhage et al. 2021, "Attention heads compose".

    >>> axes = torch.eye(4)
    >>> one = Circuit(axes[None, :, :2], axes[None, :, :2])  # reads and writes the first two axes
    >>> other = Circuit(axes[None, :, 1:3], axes[None, :, 1:3])  # the second and the third
    >>> composition(one, one), composition(one, other)
    (tensor([[0.7071]]), tensor([[0.5000]]))
    """
    for name, circuit in (("the first", first), ("the second", second)):
        check_type("composition", name, circuit, Circuit, "a Circuit, as ov_circuit gives")
    if first.shape[2] != second.shape[1]:
        raise ShapeError(
            f"composition: the first circuit leads to a width of {first.shape[2]}, the second "
            f"begins in one of {second.shape[1]}. Give heads of one stream."
        )
    # A factor counts by its triangle alone: what is left of it is a rotation.
    written = torch.linalg.qr(first.left, mode="r").R @ first.right.transpose(-2, -1)
    read = second.left @ torch.linalg.qr(second.right, mode="r").R.transpose(-2, -1)
    joined = torch.einsum("hrw,gwc->hgrc", written, read).norm(dim=(-2, -1))
    sizes = written.norm(dim=(-2, -1))[:, None] * read.norm(dim=(-2, -1))
    return torch.where(sizes > 0, joined / sizes.clamp(min=torch.finfo(sizes.dtype).tiny), 0.0)


def composition_table(layers: Sequence[LayerMatrices]) -> pandas.DataFrame:
    """Every pair of an attention head and one that can read what it writes, strongest first.

    Columns: by ("Q", "K" or "V": what reads), layer and head, of what reads, from_layer and
    from_head, of what writes; score, from 0 to 1, and times_random, the score over that of circuits
    that lie anywhere, ``score sqrt(width)``.

    An encoder's heads are read by its later ones and, as keys and values, by the heads of
    cross-attention; a decoder's by its later ones.

    Args: layers: as `headloom.analysis.matrices.projections.matrices_of` gives them.

    Raises: InputError: no layer can read another one, a matrix holds an infinite number or NaN, or
    pandas is not installed.
    """
    with optional_package("composition"):
        import pandas
    layers = checked_matrices("composition", layers)
    check_finite("composition", layers)
    parts = []
    for later, reader in enumerate(layers):
        for earlier, writer in enumerate(layers[:later]):
            parts += [
                _pairs(by, (later, reader), (earlier, writer))
                for by in _READS
                if _reads(by, reader, writer)
            ]
    if not parts:
        raise InputError(
            "composition: no attention layer can read what another one writes. Expected a model "
            "with two or more in a row, whose W_O are known."
        )
    table = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def _reads(by: str, reader: LayerMatrices, writer: LayerMatrices) -> bool:
    """Whether a later layer reads what an earlier one writes, and both circuits are known."""
    if writer.W_O is None or (by == "V" and reader.W_O is None):
        return False
    source = reader.kind == "cross" and by != "Q"  # keys and values are of the encoder
    if (writer.kind == "encoder") != (source or reader.kind == "encoder"):
        return False
    width = (reader.W_Q if by == "Q" else reader.W_K).shape[1]
    return writer.W_O.shape[2] == width


def _pairs(
    by: str, reads: tuple[int, LayerMatrices], writes: tuple[int, LayerMatrices]
) -> dict[str, object]:
    """The columns of the table of two layers."""
    (later, reader), (earlier, writer) = reads, writes
    first = ov_circuit(writer)
    scores = composition(first, _READS[by](reader)).float()
    from_head, head = torch.meshgrid(*(torch.arange(size) for size in scores.shape), indexing="ij")
    return {
        "by": by,
        "layer": later,
        "head": head.flatten().numpy(),
        "from_layer": earlier,
        "from_head": from_head.flatten().numpy(),
        "score": scores.flatten().numpy(),
        "times_random": (scores * math.sqrt(first.shape[2])).flatten().numpy(),
    }
