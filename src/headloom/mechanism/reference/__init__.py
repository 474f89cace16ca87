"""Reference implementations: every formula as its paper writes it; slow, dense, easy to read.

Each fast path of headloom is tested against these functions in float64. They import nothing else
from headloom.
"""

from headloom.mechanism.reference import attention, call, graphs, positions, scores

__all__ = ["attention", "call", "graphs", "positions", "scores"]
