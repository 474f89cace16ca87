"""The whole attention weight matrix as an exact operator that is never formed."""

from weft.mechanism.matrix.attention_matrix import AttentionMatrix

__all__ = ["AttentionMatrix"]
