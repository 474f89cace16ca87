"""Cases for the errors of arguments of a wrong kind: arrays, texts, layouts; see `error_cases`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import headloom
from headloom.mechanism import scores
from headloom.mechanism.key_value_cache import KeyValueCache
from headloom.mechanism.linear import linear_maps
from headloom.mechanism.positions import bucket_of_distance
from headloom.mechanism.shapes import check_flag, check_type, chosen, finite_number

untyped: Any = headloom
zeros, array = torch.zeros, np.zeros
tokens = zeros(1, 2, 5, 8)


def attention(**options: Any) -> object:
    return untyped.attention(tokens, tokens, tokens, **options)


class OwnMask(headloom.Mask):
    """Somebody's own, whose block is always the same."""

    def __init__(self, cells: torch.Tensor) -> None:
        self.cells_given = cells

    def block(self, rows: range, keys: int, device: torch.device) -> torch.Tensor:
        """See Mask.block."""
        return self.cells_given


class Later(OwnMask):
    """One whose first row alone fits."""

    def block(self, rows: range, keys: int, device: torch.device) -> torch.Tensor:
        """See Mask.block."""
        return self.cells_given if len(rows) > 1 else self.cells_given[:1, :1]


def matrix() -> Any:
    return headloom.AttentionMatrix(zeros(2, 3, 4), zeros(2, 3, 4))


def graph(*batch: int) -> Any:
    x = zeros(*batch, 2, 3, 4)
    return headloom.attend(x, x, x, keep=headloom.Top(2))[1]


def layer(**options: Any) -> Any:
    return untyped.MultiHeadAttention(**{"width": 8, "heads": 2} | options)


def filled(batch: int = 2) -> KeyValueCache:
    cache = KeyValueCache()
    layer()(zeros(2, 3, 8), cache=cache)
    layer()(zeros(batch, 1, 8), cache=cache)
    return cache


def nested(layout: torch.layout, dims: int = 4) -> torch.Tensor:
    """Queries of two sequences of different lengths, of several heads, or of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        long = tokens[0] if dims == 4 else tokens[0, 0]
        return torch.nested.nested_tensor([long, long[:1]], layout=layout)


def on_graph(score: headloom.Score) -> object:
    """By the kernels of neighbours, which read as many numbers of a vector as nodes have."""
    nodes = zeros(1, 2, 40, 8)
    return headloom.attention(
        nodes, nodes, nodes, mask=headloom.neighbours(torch.eye(40)), score=score
    )


#: An error of a kind of argument, whatever it is an argument of.
Cases = list[tuple[str, Callable[[], object], str, str]]

KIND_CASES: Cases = [
    ("word", lambda: chosen("layer", "kind", "b", ("a",)), "layer", 'expected one of "a"'),
    ("array", lambda: chosen("layer", "p", np.zeros(2), ("a",)), "layer", "an array (2,)"),
    ("number", lambda: finite_number("layer", "p", array((9, 9))), "layer", "a finite number"),
    ("type", lambda: check_type("layer", "p", [1], str, "a text"), "layer", "p is [1]; expected"),
    ("flag", lambda: check_flag("layer", "p", array(2)), "layer", "p=an array (2,); expected True"),
    ("number in words", lambda: finite_number("layer", "p", "1", 0, 1), "layer", "to below 1"),
    # queries, keys and values
    (
        "sparse queries",
        lambda: headloom.attention(tokens.to_sparse(), tokens, tokens),
        "attention",
        "a dense tensor",
    ),
    (
        "mkldnn queries",
        lambda: headloom.attend(tokens.to_mkldnn(), tokens, tokens),
        "attend",
        "a dense tensor",
    ),
    (
        "nested queries",
        lambda: headloom.attention(nested(torch.strided), tokens, tokens),
        "attention",
        "dense tensors",
    ),
    (
        "jagged queries",
        lambda: headloom.attention(nested(torch.jagged), tokens, tokens),
        "attention",
        "a dense tensor",
    ),
    (
        "nested sequences of one head",
        lambda: headloom.attention(*[nested(torch.strided, dims=3)] * 3),
        "attention",
        "the tensor of queries is a nested tensor; expected a dense tensor",
    ),
    ("sparse bias", lambda: attention(bias=zeros(5, 5).to_sparse()), "attention", "the bias is a"),
    (
        "nested sinks",
        lambda: attention(sinks=nested(torch.jagged)),
        "attention",
        "the tensor of sinks is a nested",
    ),
    (
        "queries of 8 bits",
        lambda: headloom.attention(*[tokens.to(torch.float8_e4m3fn)] * 3),
        "attention",
        "queries.float()",
    ),
    # scores as functions
    ("dot of vectors", lambda: scores.dot(zeros(3), zeros(3)), "dot", "(..., positions, depth)"),
    ("dot of arrays", lambda: scores.dot(array((2, 3)), array((2, 3))), "dot", "is ndarray"),
    (
        "bilinear of a list",
        lambda: scores.bilinear(zeros(2, 3), zeros(2, 3), [[1]]),  # type: ignore[arg-type]
        "bilinear",
        "A is list",
    ),
    # masks
    ("array and mask", lambda: array((5, 5), bool) & headloom.causal(), "mask", "got ndarray"),
    ("sparse mask", lambda: attention(mask=zeros(5, 5).bool().to_sparse()), "mask", "a dense"),
    (
        "mask of a trace",
        lambda: headloom.from_queries_keys(
            zeros(2, 5, 8), zeros(2, 5, 8), mask=zeros(4, 4).bool(), names=["one"]
        ),
        "mask",
        "broadcasts to (queries, keys)",
    ),
    ("a mask of numbers", lambda: attention(mask=OwnMask(zeros(5, 5))), "OwnMask.block", "of bool"),
    (
        "a mask of other sizes",
        lambda: attention(mask=OwnMask(zeros(5, 4).bool())),
        "OwnMask.block",
        "what broadcasts to",
    ),
    (
        "a mask of other heads",
        lambda: attention(mask=OwnMask(zeros(3, 1, 5).bool())),
        "OwnMask.block",
        "a batch of 1 and 2 heads",
    ),
    (
        "a mask of more heads later",
        lambda: attention(mask=Later(zeros(3, 5, 5).bool()), backend="native"),
        "mask",
        "a batch of 1 and 2 heads",
    ),
    ("few cells", lambda: headloom.neighbours(torch.eye(3)).dense(5, 5), "neighbours",
     "each query"),
    ("bool lengths", lambda: untyped.packed([True]), "packed", "whole numbers"),
    ("complex lengths", lambda: untyped.packed(zeros(1).cfloat()), "packed", "whole numbers"),
    # positions
    ("Shaw, array", lambda: attention(relative=untyped.Shaw(array((3, 8)))), "Shaw", "as_tensor"),
    ("ALiBi, list", lambda: attention(relative=untyped.ALiBi([1.0])), "ALiBi", "as_tensor"),
    ("Buckets, none", lambda: attention(relative=untyped.Buckets(None)), "Buckets", "as_tensor"),
    ("complex ALiBi", lambda: attention(relative=headloom.ALiBi(zeros(2).cfloat())), "ALiBi",
     "real"),
    (
        "a bucket for all",
        lambda: bucket_of_distance(torch.arange(3), 1, 8, False),
        "bucket_of_distance",
        "2 buckets or more",
    ),
    (
        "a bucket of its own",
        lambda: bucket_of_distance(torch.arange(3), 4, 1, True),
        "bucket_of_distance",
        "max_distance above 1",
    ),
    ("rotary of an array", lambda: untyped.rotary(array((4, 4))), "rotary", "as_tensor"),
    ("rotary of whole numbers", lambda: headloom.rotary(zeros(4, 4).long()), "rotary", ".float()"),
    ("rotary of base 0", lambda: headloom.rotary(zeros(4, 4), base=0), "rotary", "above 0"),
    ("odd dims", lambda: headloom.rotary(zeros(4, 8), dims=3), "rotary", "from 2 to the depth, 8"),
    ("no dims", lambda: headloom.rotary(zeros(4, 8), dims=0), "rotary", "from 2 to the depth, 8"),
    ("dims past the "
    "depth", lambda: headloom.rotary(zeros(4, 8), dims=10), "rotary", "to the depth, 8"),
    ("dims by words", lambda: untyped.rotary(zeros(4, 8), dims="a"), "rotary", "whole number"),
    (
        "interleaved by a word",
        lambda: untyped.rotary(zeros(4, 4), interleaved="yes"),
        "rotary",
        "True or False",
    ),
    (
        "scaling by a number",
        lambda: untyped.rotary(zeros(4, 4), scaling=8),
        "rotary",
        'headloom.RotaryScaling("linear", 4)',
    ),
    ("scaling by a word", lambda: untyped.RotaryScaling("dynamic", 8), "RotaryScaling", '"yarn"'),
    ("scaling to less", lambda: headloom.RotaryScaling("linear", 0.5), "RotaryScaling",
     "1 or more"),
    (
        "scaling without its length",
        lambda: headloom.RotaryScaling("llama3", 8),
        "RotaryScaling",
        "original_length=8192",
    ),
    (
        "a number of another scaling",
        lambda: headloom.RotaryScaling("linear", 8, temperature=1.2),
        "RotaryScaling",
        "Leave it out",
    ),
    ("no turns", lambda: headloom.RotaryScaling("yarn", 8, 64, slow=0), "RotaryScaling", "above 0"),
    (
        "slow above fast",
        lambda: headloom.RotaryScaling("llama3", 8, 64, slow=5),
        "RotaryScaling",
        "slow below fast",
    ),
    (
        "pairs without a logarithm",
        lambda: headloom.rotary(zeros(4, 4), base=1, scaling=headloom.RotaryScaling("yarn", 8, 64)),
        "rotary",
        "base above 1",
    ),
    ("layer softcap", lambda: layer(softcap=-1.0), "MultiHeadAttention", "above 0, or None"),
    ("layer sinks", lambda: layer(sinks=3), "MultiHeadAttention", "True or False"),
    (
        "layer norms of uniform weights",
        lambda: layer(weights="uniform", query_key_norm=True),
        "MultiHeadAttention",
        "a softcap, sinks or norms",
    ),
    (
        "layer with sinks to torch",
        lambda: layer(sinks=True).to_torch(),
        "to_torch",
        "no softcap, no sinks and no norms",
    ),
    (
        "scaling of what turns nothing",
        lambda: layer(rotary_scaling=headloom.RotaryScaling("linear", 8)),
        "MultiHeadAttention",
        'relative="rotary"',
    ),
    ("rotary by words", lambda: untyped.rotary(zeros(4, 4), "a"), "rotary", "whole number"),
    ("sinusoidal length", lambda: headloom.sinusoidal(-1, 4), "sinusoidal", "0 or more"),
    # scores
    ("slope", lambda: untyped.GraphAttention(zeros(8), zeros(8), "a"), "GraphAttention", "number"),
    ("slope 2", lambda: untyped.GraphAttentionV2(zeros(8), None), "GraphAttentionV2", "number"),
    (
        "score elsewhere",
        lambda: attention(score=headloom.Bilinear(torch.empty(8, 8, device="meta"))),
        "Bilinear",
        "one device",
    ),
    (
        "one number for eight",
        lambda: on_graph(headloom.GraphAttentionV2(zeros(1))),
        "graph_attention_v2",
        "(depth,)",
    ),
    (
        "one number for eight, version 1",
        lambda: on_graph(headloom.GraphAttention(zeros(8), zeros(1))),
        "graph_attention",
        "(depth,)",
    ),
    # graph
    ("slice of a row", lambda: graph()[0, 1:3], "graph[head, query]", "whole number"),
    ("row that is not there", lambda: graph()[0, 3], "graph[head, query]", "rows 0 to 2"),
    ("three numbers", lambda: graph()[0, 1, 2], "graph[head, query]", "a head and a query"),
    ("graph past the batch", lambda: graph(2)[2], "graph[b]", "graphs 0 to 1"),
    ("graphs past the batch", lambda: graph(2)[[0, 2]], "graph[places]", "0 to 1"),
    ("head in words", lambda: graph().adjacency("a"), "adjacency", "whole number"),
    # matrix
    (
        "lse array",
        lambda: untyped.AttentionMatrix(zeros(2, 3, 4), zeros(2, 3, 4), lse=array((2, 3))),
        "AttentionMatrix",
        "as_tensor",
    ),
    ("product with an array", lambda: matrix() @ array(3), "@", "as_tensor"),
    ("product with a list", lambda: matrix().T @ [1, 2, 3], "T @", "as_tensor"),
    ("mass of a word", lambda: matrix().mass("a"), "mass", "an offset"),
    ("above a word", lambda: matrix().above("a"), "above", "a finite number"),
    ("slice of words", lambda: matrix()[0, slice("a"), 0], "matrix[0, slice(None, 'a', None), 0]",
     "ends of the slice"),
    # layers
    ("heads in words", lambda: layer(heads="4"), "MultiHeadAttention", "whole number"),
    ("depth below 0", lambda: layer(depth=-1), "MultiHeadAttention", "1 or more"),
    ("dropout 2", lambda: layer(dropout=2), "MultiHeadAttention", "from 0 to below 1"),
    ("kind foo", lambda: layer(kind="foo"), "MultiHeadAttention", '"encoder", "decoder", "cross"'),
    ("odd heads", lambda: layer(depth=3, relative="rotary"), "MultiHeadAttention", "even depth"),
    ("base 0", lambda: layer(rotary_base=0, relative="rotary"), "MultiHeadAttention", "above 0"),
    ("few buckets of a layer", lambda: layer(relative="buckets", buckets=3), "MultiHeadAttention",
     "4 buckets or more"),
    ("a near end of buckets", lambda: layer(relative="buckets", max_distance=8),
     "MultiHeadAttention", "a max_distance above 8"),
    ("buckets by words", lambda: layer(buckets="a"), "MultiHeadAttention", "whole number"),
    ("a distance by words", lambda: layer(max_distance="a"), "MultiHeadAttention", "whole number"),
    ("one sequence", lambda: layer()(zeros(5, 8)), "MultiHeadAttention", "(batch, positions, 8)"),
    ("width 7", lambda: layer()(zeros(2, 5, 7)), "MultiHeadAttention", "queries_from is (2, 5, 7)"),
    ("keys of width 7", lambda: layer()(zeros(2, 5, 8), zeros(2, 5, 7)), "MultiHeadAttention",
     "keys_from is (2, 5, 7)"),
    ("array", lambda: layer()(array((2, 5, 8))), "MultiHeadAttention", "queries_from is ndarray"),
    ("cache", lambda: layer()(zeros(2, 5, 8), cache={}), "MultiHeadAttention", "a KeyValueCache"),
    ("cache of two", lambda: filled(3), "KeyValueCache", "Begin a new cache"),
    (
        "a step that begins at 0",
        lambda: layer()(zeros(2, 1, 8), mask=headloom.causal(), cache=filled()),
        "MultiHeadAttention",
        "causal(offset=cache.length)",
    ),
    ("order past the batch", lambda: filled().reorder(torch.tensor([2])), "reorder", "0 to 1"),
    ("order in a list", lambda: filled().reorder([0]), "reorder", "(new batch,)"),  # type: ignore[arg-type]
    (
        "torch's linear layer",
        lambda: untyped.MultiHeadAttention.from_torch(nn.Linear(2, 2)),
        "from_torch",
        "torch.nn.MultiheadAttention",
    ),
    ("double", lambda: layer()(zeros(2, 5, 8).double()), "linear maps", "layer.to(x)"),
    ("map, width", lambda: linear_maps(zeros(3, 4), [nn.Linear(5, 5)]), "linear maps", "(..., 5)"),
    ("map, array", lambda: linear_maps(array((3, 5)), [nn.Linear(5, 5)]),  # type: ignore[arg-type]
     "linear maps", "as_tensor"),
    (
        "nodes in double",
        lambda: headloom.GATConv(4, 3)(zeros(3, 4).double(), torch.tensor([[0], [1]])),
        "linear maps",
        "layer.to(x)",
    ),
]  # fmt: skip
