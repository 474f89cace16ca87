"""The table that `weft projections` prints, and what its columns are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.cli.tables import print_frame

if TYPE_CHECKING:
    import pandas

__all__ = ["print_projections"]

_COMMON = (
    "Norms are Frobenius norms; ranks effective ones (e^entropy of the singular values).",
    "symmetry: 1 symmetric, -1 antisymmetric. directionality: above 0 more long columns than rows.",
    "copying: the sum of the eigenvalues over that of their sizes.",
)
#: What stands below the table, by what a row is.
_ABOUT = {
    "layer": (
        "symmetry, directionality, qk_norm: of the sum of W_Q W_K^T over heads; ov_norm: W_V W_O.",
        "norm_W_...: of the matrices of all heads. qk_rank, ov_rank, copying: means over heads.",
        *_COMMON,
    ),
    "head": (
        "symmetry, directionality, qk_...: of a head's W_Q W_K^T; copying, ov_...: of its W_V W_O.",
        *_COMMON,
    ),
    "pair": (
        "score, 0 to 1: how much of what the earlier head writes is read by queries, keys, values.",
        "times_random: the score over 1 / sqrt(width), which matrices at random have.",
    ),
}


def print_projections(table: pandas.DataFrame, by: str, as_csv: bool) -> None:
    """Print the rows, and below them what the columns are; as CSV the rows alone."""
    print_frame(table, as_csv)
    if not as_csv:
        print(*_ABOUT[by], sep="\n")
