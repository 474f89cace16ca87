"""Cases for the errors of graph attention layers and of their kernels; see `test_errors`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import headloom

untyped: Any = headloom
zeros = torch.zeros
no_edges = zeros(2, 0, dtype=torch.int64)
one_edge = torch.tensor([[0], [1]])


def alone(size: Any) -> object:
    """Three sources; size tells the targets."""
    layer = headloom.GATConv((8, 8), 2, add_self_loops=False)
    return layer((zeros(3, 8), None), no_edges, size=size)


def with_features(edge_attr: Any, fill_value: Any = "mean") -> object:
    """Two nodes, an edge of two features."""
    layer = headloom.GATConv(8, 2, edge_dim=2, fill_value=fill_value)
    return layer(zeros(2, 8), one_edge, edge_attr)


def in_double() -> object:
    x = zeros(1, 9, 4).double()
    mask = headloom.neighbours(one_edge, nodes=9)
    return headloom.attention(x, x, x, mask=mask, backend="native")


GRAPH_CASES: list[tuple[str, Callable[[], object], str, str]] = [
    ("layer of no heads", lambda: headloom.GATConv(8, 2, heads=0), "GATConv", "1 or more"),
    ("layer's dropout", lambda: headloom.GATConv(8, 2, dropout=2), "GATConv", "a probability"),
    ("layer's flow", lambda: untyped.GATConv(8, 2, flow="down"), "GATConv", "source_to_target"),
    (
        "pair and flow",
        lambda: headloom.GATConv(8, 2, flow="target_to_source")(
            (zeros(3, 8), zeros(3, 8)), no_edges
        ),
        "GATConv",
        "Flip the edge_index",
    ),
    ("features", lambda: headloom.GATConv(8, 2)(zeros(8), no_edges), "GATConv", "(rows, width)"),
    ("edges", lambda: headloom.GATConv(8, 2)(zeros(3, 8), no_edges[0]), "GATConv", "(2, edges)"),
    (
        "features of edges",
        lambda: headloom.GATConv(8, 2, edge_dim=1)(zeros(3, 8), no_edges, zeros(2, 1)),
        "GATConv",
        "a row for each edge",
    ),
    (
        "features of plain edges",
        lambda: headloom.GATv2Conv(8, 2)(zeros(3, 8), no_edges, zeros(0, 1)),
        "GATv2Conv",
        "edge_dim=",
    ),
    (
        "no targets",
        lambda: headloom.GATv2Conv(8, 2)((zeros(3, 8), None), no_edges),
        "GATv2Conv",
        "Give (x, x_t)",
    ),
    ("layer's width", lambda: untyped.GATConv("wide", 2), "GATConv", "in_channels is 'wide'"),
    ("layer of width -2", lambda: headloom.GATConv(-2, 2), "GATConv", "in_channels is -2"),
    ("layer of three widths", lambda: untyped.GATConv((1, 2, 3), 2), "GATConv", "or a pair"),
    ("layer of half a head", lambda: untyped.GATConv(8, 2, heads=0.5), "GATConv", "1 or more"),
    ("layer's depth", lambda: headloom.GATv2Conv(8, 0), "GATv2Conv", "out_channels is 0"),
    ("layer's edges", lambda: untyped.GATConv(8, 2, edge_dim="a"), "GATConv", "edge_dim is 'a'"),
    ("dropout in words", lambda: untyped.GATConv(8, 2, dropout="a"), "GATConv", "a finite number"),
    (
        "layer's slope",
        lambda: untyped.GATConv(8, 2, negative_slope=None),
        "GATConv",
        "expected a finite number",
    ),
    ("no features", lambda: untyped.GATConv(8, 2)(None, no_edges), "GATConv", "x is NoneType"),
    (
        "whole features",
        lambda: headloom.GATConv(8, 2)(zeros(3, 8).long(), no_edges),
        "GATConv",
        "as from x.float()",
    ),
    (
        "features of another width",
        lambda: headloom.GATConv((8, 6), 2)((zeros(3, 8), zeros(3, 8)), no_edges),
        "GATConv",
        "expected features of width 6",
    ),
    (
        "three kinds of nodes",
        lambda: untyped.GATConv((8, 8), 2)((zeros(3, 8),) * 3, no_edges),
        "GATConv",
        "x is tuple of length 3",
    ),
    ("size", lambda: alone(5), "GATConv", "the numbers of sources and targets"),
    ("size of a part", lambda: alone((3, 2.5)), "GATConv", "size is 2.5"),
    ("size below 0", lambda: alone((3, -1)), "GATConv", "size is -1"),
    ("another size", lambda: alone((1, 4)), "GATConv", "x has features of 3 sources"),
    (
        "edge to no node",
        lambda: headloom.GATConv(8, 2)(zeros(1, 8), one_edge),
        "edges",
        "leave the",
    ),
    (
        "edges past 32 bits",
        lambda: headloom.GATConv(8, 2, add_self_loops=False)(
            zeros(3, 8), zeros(2, 1, dtype=torch.int64).expand(2, 2**31)
        ),
        "edges",
        "Take a part of the graph",
    ),
    ("nodes past 32 bits", lambda: alone((3, 2**31)), "edges", "2,147,483,647 or fewer"),
    ("edge_attr list", lambda: with_features([[1, 2]]), "GATConv", "edge_attr is list"),
    ("edge_attr, width", lambda: with_features(zeros(1, 3)), "GATConv", "features of width 2"),
    ("fill by a word", lambda: with_features(zeros(1, 2), "median"), "fill_value", "mean, min"),
    ("fill by two", lambda: with_features(zeros(1, 2), zeros(3)), "fill_value", "of that shape"),
    ("fill by a list", lambda: with_features(zeros(1, 2), [1, 2]), "fill_value", "a number, a"),
    ("kernels in double", in_double, "attention", 'Use backend="torch"'),
]
