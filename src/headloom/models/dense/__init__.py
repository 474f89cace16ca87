"""Native kernels of models that are not attention, behind one door.

    kinds         how linear layers multiply: float32, float32 on a matrix unit, or bfloat16
    maps          linear maps of one input, forward and both gradients
    loss          the loss of a model's last map, without the logits of all rows in memory
    passes        dropout, and the loss of rows of logits, in one pass over memory

Each gives more than a tenth of a training step or of a step of decoding
(docs/decisions/0055-dense-kernels.md); what gives less is left to torch.
"""

from headloom.models.dense.kinds import (
    Products,
    current_products,
    has_matrix_unit,
    multiplies_bfloat16,
    products,
    why_not_here,
)
from headloom.models.dense.loss import projected_loss
from headloom.models.dense.maps import is_plain, linear_maps
from headloom.models.dense.passes import Dropout, dropout, losses, serves

__all__ = [
    "Dropout",
    "Products",
    "current_products",
    "dropout",
    "has_matrix_unit",
    "is_plain",
    "linear_maps",
    "losses",
    "multiplies_bfloat16",
    "products",
    "projected_loss",
    "serves",
    "why_not_here",
]
