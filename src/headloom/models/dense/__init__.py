"""Native kernels of models other than attention.

    maps          linear maps of one input, forward and both gradients, in float32 or bfloat16
    passes        dropout, the loss of rows of logits, and of a last map without storing all logits

Each saves more than a tenth of a training or decoding step; everything else is left to torch
(docs/decisions/0006-native-kernel.md).
"""

from headloom.models.dense.maps import (
    Products,
    current_products,
    has_matrix_unit,
    is_plain,
    linear_maps,
    multiplies_bfloat16,
    products,
    why_not_here,
)
from headloom.models.dense.passes import Dropout, dropout, losses, projected_loss, serves

__all__ = [
    "Dropout", "Products", "current_products", "dropout", "has_matrix_unit", "is_plain",
    "linear_maps", "losses", "multiplies_bfloat16", "products", "projected_loss", "serves",
    "why_not_here",
]  # fmt: skip
