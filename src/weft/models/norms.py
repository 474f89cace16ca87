"""The norms of Transformers."""

from __future__ import annotations

from torch import nn

from weft.models.configuration import Architecture

__all__ = ["closing_norm", "norm_of"]


def norm_of(architecture: Architecture) -> nn.LayerNorm | nn.RMSNorm:
    """A new norm.

        layer:  (x - mean(x)) / sqrt(var(x) + epsilon) g + b
        rms:    x / sqrt(mean(x^2) + epsilon) g

    Source: Ba et al. 2016; Zhang and Sennrich 2019, equation 4.
    """
    kind = nn.RMSNorm if architecture.normalisation == "rms" else nn.LayerNorm
    return kind(architecture.width, eps=architecture.norm_epsilon)


def closing_norm(architecture: Architecture) -> nn.Module:
    """What follows the last block: pre-norm blocks leave their sum unnormalised."""
    return norm_of(architecture) if architecture.norm == "pre" else nn.Identity()
