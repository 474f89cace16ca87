"""The reference: every formula as its paper writes it. Slow, dense, meant to be read.

Each fast path of headloom is tested against these functions in float64. They use nothing of
headloom.
"""

from headloom.mechanism.reference import attention, call, graphs, positions, scores

__all__ = ["attention", "call", "graphs", "positions", "scores"]
