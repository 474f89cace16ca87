"""torch's attention layer with the weights of headloom's."""

from __future__ import annotations

import torch
from torch import nn

from headloom.mechanism.multihead import MultiHeadAttention

__all__ = ["torch_attention"]


def torch_attention(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    """A torch.nn.MultiheadAttention of one width, batch first."""
    maps = (layer.w_q, layer.w_k, layer.w_v)
    biased = layer.w_o.bias is not None
    module = nn.MultiheadAttention(
        layer.width, layer.heads, layer.dropout, biased, batch_first=True
    ).to(layer.w_o.weight)
    state = {
        "in_proj_weight": torch.cat([linear.weight for linear in maps]),
        "out_proj.weight": layer.w_o.weight,
    }
    if biased:
        state |= {
            "in_proj_bias": torch.cat([linear.bias for linear in maps]),
            "out_proj.bias": layer.w_o.bias,
        }
    module.load_state_dict(state)
    return module.train(layer.training)
