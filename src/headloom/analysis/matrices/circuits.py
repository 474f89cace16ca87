"""QK and OV circuits of a head: two matrices of low rank that are never formed.

    QK = W_Q W_K^T    (width, source_width): the scores, x QK y^T
    OV = W_V W_O      (source_width, width): the output of an attended token

Head 1 writes h OV_1 for an attended vector h. A later head 2 may read that

    Q: in its queries, by OV_1 QK_2       its queries depend on head 1
    K: in its keys,    by OV_1 QK_2^T     its keys do: so an induction head reads a previous-token
                                          head
    V: in its values,  by OV_1 OV_2       both act as one virtual head

and the score of the pair is the relative norm of the product of both circuits,

    |first second| / (|first| |second|)    (Frobenius norms),

1 if head 2 reads the one direction that head 1 writes, 0 if it reads none of it. For random
circuits its root mean square is 1 / sqrt(width). Norms and their gains between the heads are left
out, and so are rotary positions within QK.

Source: Elhage et al. 2021, "A mathematical framework for transformer circuits".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas
import torch
from torch import Tensor

from headloom.analysis.matrices.projections import LayerMatrices
from headloom.errors import InputError, ShapeError
from headloom.mechanism import spectra
from headloom.mechanism.shapes import chosen


@dataclass(frozen=True, eq=False)
class Circuit:
    """Product ``left right^T`` of each head, with a rank of at most the head's depth.

    left: (heads, rows, depth); right: (heads, columns, depth).

    >>> half = Circuit(torch.eye(3)[None, :, :2], torch.eye(3)[None, :, :2])   # a projection
    >>> half.eigenvalues().real, half.copying()
    (tensor([[1., 1.]]), tensor([1.]))
    """

    left: Tensor
    right: Tensor

    @property
    def is_square(self) -> bool:
        """Whether it maps a space to itself, as in self-attention."""
        return self.left.shape[1] == self.right.shape[1]

    def norm(self) -> Tensor:
        """Return the Frobenius norm, (heads,)."""
        return spectra.product_norm(self.left, self.right)

    def singular_values(self) -> Tensor:
        """Return the singular values that may be above 0, (heads, depth or the shorter side)."""
        return spectra.product_spectrum(self.left, self.right)

    def effective_rank(self) -> Tensor:
        """Return the effective rank, (heads,): see `headloom.mechanism.spectra`."""
        return spectra.effective_rank(self.singular_values())

    def eigenvalues(self) -> Tensor:
        """Return the eigenvalues of right^T left, (heads, depth), complex.

        They contain all eigenvalues of a square circuit that are not 0.
        """
        values: Tensor = torch.linalg.eigvals(
            spectra.finite("eigenvalues", self.right.transpose(-2, -1) @ self.left)
        )
        return values

    def copying(self) -> Tensor:
        """Return the copying score of each head: for OV, whether the head copies.

            sum_i lambda_i / sum_i |lambda_i|

        1: all eigenvalues are positive, and attended tokens are copied; -1: they are removed;
        about 0: neither, as for random matrices. The sum of the eigenvalues is real.

        Returns: (heads,); 0 if all eigenvalues are 0.
        Source: Elhage et al. 2021, "Detecting copying behavior".
        """
        eigenvalues = self.eigenvalues()
        size = eigenvalues.abs().sum(-1)
        return torch.where(size > 0, eigenvalues.real.sum(-1) / size.clamp(min=1e-30), 0.0)

    def symmetry(self) -> Tensor:
        """Return the symmetry of a square circuit: 1 symmetric, 0 random, -1 antisymmetric.

        See `headloom.mechanism.spectra`.
        """
        return spectra.symmetry(self.left, self.right)

    def directionality(self) -> Tensor:
        """Return the directionality: long columns (above 0) or long rows (below), (heads,)."""
        return spectra.directionality(self.left, self.right)

    def transposed(self) -> Circuit:
        """Return the transposed circuit."""
        return Circuit(self.right, self.left)

    def together(self) -> Circuit:
        """Return the sum over heads as a circuit of one head: for QK, the layer's W_Q W_K^T."""
        left, right = (part.permute(1, 0, 2).flatten(1)[None] for part in (self.left, self.right))
        return Circuit(left, right)


def qk_circuit(layer: LayerMatrices) -> Circuit:
    """Return ``W_Q W_K^T`` of each head, (heads, width, source_width)."""
    layer = layer.repeated()
    return Circuit(layer.W_Q, layer.W_K)


def ov_circuit(layer: LayerMatrices) -> Circuit:
    """Return ``W_V W_O`` of each head, (heads, source_width, width).

    Raises: InputError: the layer's W_O is not known.
    """
    layer = layer.repeated()
    if layer.W_O is None:
        raise InputError(f"ov_circuit: W_O of layer {layer.name} is not known.")
    return Circuit(layer.W_V, layer.W_O.transpose(-2, -1))


def composition(first: Circuit, second: Circuit) -> Tensor:
    """Return the composition scores between the heads of two circuits.

        |first second| / (|first| |second|), without forming the products

    Args:
        first: (heads, rows, width); of the writing heads: OV.
        second: (later_heads, width, columns); of the reading heads: QK, its transpose, or OV.

    Returns: (heads, later_heads), from 0 to 1; 0 if a circuit is 0.
    Raises: ShapeError: the widths of both differ.
    Source: Elhage et al. 2021, "Attention heads compose".

    >>> axes = torch.eye(4)
    >>> one = Circuit(axes[None, :, :2], axes[None, :, :2])  # reads and writes the first two axes
    >>> other = Circuit(axes[None, :, 1:3], axes[None, :, 1:3])  # the second and the third
    >>> composition(one, one), composition(one, other)
    (tensor([[0.7071]]), tensor([[0.5000]]))
    """
    if first.right.shape[1] != second.left.shape[1]:
        raise ShapeError(
            f"composition: the first circuit writes a width of {first.right.shape[1]}, the second "
            f"reads one of {second.left.shape[1]}. Give heads of one residual stream."
        )
    # Only the triangle of a factor matters for norms: the rest is a rotation.
    written = torch.linalg.qr(first.left, mode="r").R @ first.right.transpose(-2, -1)
    read = second.left @ torch.linalg.qr(second.right, mode="r").R.transpose(-2, -1)
    joined = torch.einsum("hrw,gwc->hgrc", written, read).norm(dim=(-2, -1))
    sizes = written.norm(dim=(-2, -1))[:, None] * read.norm(dim=(-2, -1))
    return torch.where(sizes > 0, joined / sizes.clamp(min=torch.finfo(sizes.dtype).tiny), 0.0)


#: Circuits by which a head reads an earlier one.
_READS: dict[str, Callable[[LayerMatrices], Circuit]] = {
    "Q": qk_circuit,
    "K": lambda layer: qk_circuit(layer).transposed(),
    "V": ov_circuit,
}


def composition_table(layers: Sequence[LayerMatrices]) -> pandas.DataFrame:
    """Return every pair of a writing and a later reading head, strongest composition first.

    Columns: by ("Q", "K" or "V"), layer and head of the reading head, from_layer and from_head of
    the writing head; score, from 0 to 1, and times_random, the score relative to random circuits,
    ``score sqrt(width)``.

    An encoder's heads are read by its later ones and, as keys and values, by the heads of
    cross-attention; a decoder's by its later ones.

    Args: layers: from `headloom.analysis.matrices.projections.matrices_of`.

    Raises: InputError: no layer can read another one, or a matrix holds an infinite number or NaN.
    """
    _check_finite("composition", layers)
    parts = []
    for later, reader in enumerate(layers):
        for earlier, writer in enumerate(layers[:later]):
            for by in _READS:
                if not _reads(by, reader, writer):
                    continue
                first = ov_circuit(writer)
                scores = composition(first, _READS[by](reader)).float()
                places = [torch.arange(size) for size in scores.shape]
                from_head, head = torch.meshgrid(*places, indexing="ij")
                columns: dict[str, object] = {
                    "by": by, "layer": later, "head": head.flatten().numpy(),
                    "from_layer": earlier, "from_head": from_head.flatten().numpy(),
                    "score": scores.flatten().numpy(),
                    "times_random": (scores * math.sqrt(first.right.shape[1])).flatten().numpy(),
                }  # fmt: skip
                parts.append(pandas.DataFrame(columns))
    if not parts:
        raise InputError(
            "composition: no attention layer can read another one's output. Expected a model with "
            "two or more in a row, with known W_O."
        )
    table = pandas.concat(parts, ignore_index=True)
    return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)


def _reads(by: str, reader: LayerMatrices, writer: LayerMatrices) -> bool:
    """Return whether a later layer reads an earlier one, and both circuits are known."""
    if writer.W_O is None or (by == "V" and reader.W_O is None):
        return False
    source = reader.kind == "cross" and by != "Q"  # keys and values are of the encoder
    if (writer.kind == "encoder") != (source or reader.kind == "encoder"):
        return False
    width = (reader.W_Q if by == "Q" else reader.W_K).shape[1]
    return writer.W_O.shape[2] == width


def weight_measures(layers: Sequence[LayerMatrices], *, by: str = "layer") -> pandas.DataFrame:
    """Return measures of W_Q W_K^T and W_V W_O, a row for each layer, or for each head.

    Columns: layer, name, kind, (head); symmetry, directionality (of W_Q W_K^T, by layer of all
    heads side by side: Saponati et al. 2025), qk_norm, qk_rank, ov_norm, ov_rank, copying (of
    W_V W_O), norm_W_Q, norm_W_K, norm_W_V, norm_W_O. By layer, ranks and copying are means over
    heads. Ranks are effective ones (Roy and Vetterli 2007).

    Args: layers: from `headloom.analysis.matrices.projections.matrices_of`; by: "layer" or "head".

    Raises: InputError: a matrix holds an infinite number or NaN.
    """
    chosen("weights", "by", by, ("head", "layer"))
    _check_finite("weights", layers)
    tables = []
    for number, layer in enumerate(layers):
        labels: dict[str, object] = {"layer": number, "name": layer.name, "kind": layer.kind}
        rows = range(1 if by == "layer" else layer.heads)
        labels |= {} if by == "layer" else {"head": rows}
        measures = _measures(layer, by == "layer")
        tables.append(pandas.DataFrame(labels | measures, index=rows))
    return pandas.concat(tables, ignore_index=True)


def _measures(layer: LayerMatrices, together: bool) -> dict[str, object]:
    """Return the measures of each head, or of the layer."""

    def mean(of_heads: Tensor) -> Tensor:
        return of_heads.mean(0, keepdim=True) if together else of_heads

    measures: dict[str, Tensor] = {}
    qk = qk_circuit(layer)
    whole = qk.together() if together else qk
    if qk.is_square:
        measures["symmetry"] = whole.symmetry()
    measures |= {
        "directionality": whole.directionality(),
        "qk_norm": whole.norm(),
        "qk_rank": mean(qk.effective_rank()),
    }
    if layer.W_O is not None:
        ov = ov_circuit(layer)
        measures["ov_norm"] = (ov.together() if together else ov).norm()
        measures["ov_rank"] = mean(ov.effective_rank())
        if ov.is_square:
            measures["copying"] = mean(ov.copying())
    known = layer if together else layer.repeated()
    for name, matrix in known.known():
        measures[f"norm_{name}"] = matrix.norm()[None] if together else matrix.norm(dim=(1, 2))
    return {name: values.numpy() for name, values in measures.items()}


def _check_finite(operation: str, layers: Sequence[LayerMatrices]) -> None:
    """Raise an InputError for the first matrix with an infinite number or NaN."""
    for layer in layers:
        for name, matrix in layer.known():
            spectra.finite(f"{operation}: {name} of layer {layer.name}", matrix)
