"""Attention over the neighbours of a graph: its edges, its kernels and its formula in torch."""
