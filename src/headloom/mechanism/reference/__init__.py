"""The reference: every formula as its paper writes it. Slow, dense, meant to be read.

Each fast path of headloom is tested against these functions in float64. They use nothing of
headloom.

    attention   the six steps, the vector form, many heads, graphs, images
    scores      dot, bilinear, additive, graph attention
    positions   sinusoidal, rotary, ALiBi, buckets, Shaw
    call        a whole call: masks, caps, biases, sinks, and the strongest edges
    graphs      what a matrix of weights tells
"""

from headloom.mechanism.reference import attention, call, graphs, positions, scores

__all__ = ["attention", "call", "graphs", "positions", "scores"]
