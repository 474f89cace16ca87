"""A case for every error of the mechanism: its name, a call, the operation, the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.mechanism.graph_error_cases import GRAPH_CASES
from tests.mechanism.kind_error_cases import KIND_CASES
from torch import nn

import headloom
from headloom.mechanism import scores
from headloom.mechanism.head_matrices import product_cells
from headloom.mechanism.linear import products
from headloom.mechanism.masks import as_mask
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.mechanism.packed import packed
from headloom.mechanism.ring import check_alike, check_none_wrong
from headloom.mechanism.spectra import singular_values

# For arguments whose types are wrong.
untyped: Any = headloom
untyped_as_mask: Any = as_mask


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def call(
    queries: tuple[int, ...] = (2, 4, 5, 8),
    keys: tuple[int, ...] = (2, 2, 7, 8),
    values: tuple[int, ...] = (2, 2, 7, 3),
    **options: object,
) -> object:
    return untyped.attention(zeros(*queries), zeros(*keys), zeros(*values), **options)


def compiled(lengths: list[int]) -> object:
    """A program that is given lengths: there are none to look at while it is compiled."""

    def padded(real: torch.Tensor) -> torch.Tensor:
        return headloom.attention(*[zeros(2, 2, 7, 8)] * 3, mask=headloom.padding(real))

    program = torch.compile(padded, fullgraph=True, backend="eager")
    return program(torch.tensor(lengths))


def changed_mask() -> object:
    """A mask that is written to between a call and its backward."""
    tokens, mask = torch.zeros(1, 5, 4, requires_grad=True), torch.ones(5, 5, dtype=torch.bool)
    output = headloom.attention(tokens, tokens, tokens, mask=mask)
    mask.tril_()
    return output.sum().backward()


def layer(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(8, 2, **options)


def ring(grad: bool = False, **options: object) -> object:
    part = torch.zeros(2, 3, 4, requires_grad=grad)
    return untyped.ring_attend(part, part, part, **options)


def graph(*leading: int) -> headloom.AttentionGraph:
    x = zeros(*leading, 2, 3, 4)
    return headloom.attend(x, x, x, keep=headloom.Top(2))[1]


def big_graph() -> headloom.AttentionGraph:
    """Three edges of a matrix with 3 * 10^9 cells."""
    one = graph()
    return headloom.AttentionGraph(
        *(one.keys, one.scores, one.weights, one.lse, one.entropy, one.rest, one.count), 10**9
    )


def torch_layer(**options: object) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(4, 2, **options)


class Own(headloom.Score):
    def __call__(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return queries.sum(-1)


def matrix(*shape: int) -> AttentionMatrix:
    return AttentionMatrix(zeros(*shape), zeros(*shape))


def wide_matrix() -> AttentionMatrix:
    return AttentionMatrix(zeros(1, 2, 4), zeros(1, 3, 4))


meta = torch.zeros(2, 2, 7, 8, device="meta")

#: What is done; what the message begins with; what must be in it.
CASES: list[tuple[str, Callable[[], object], str, str]] = [
    ("two dimensions", lambda: call((5, 8)), "attention", "(batch, heads, positions, depth)"),
    (
        "whole numbers",
        lambda: headloom.attention(zeros(1, 2, 3).int(), zeros(1, 2, 3), zeros(1, 2, 3)),
        "attention",
        "queries.float()",
    ),
    (
        "two types",
        lambda: headloom.attention(zeros(1, 2, 3), zeros(1, 2, 3).double(), zeros(1, 2, 3)),
        "attention",
        "one type",
    ),
    (
        "two devices",
        lambda: headloom.attention(zeros(2, 2, 7, 8), meta, meta),
        "attention",
        "one device",
    ),
    ("batches", lambda: call((3, 4, 5, 8)), "attention", "same batch"),
    ("heads of values", lambda: call(values=(2, 1, 7, 3)), "attention", "share their heads"),
    ("heads of queries", lambda: call((2, 3, 5, 8)), "attention", "must divide"),
    ("no heads", lambda: call(keys=(2, 0, 7, 8), values=(2, 0, 7, 3)), "attention", "must divide"),
    ("keys and values", lambda: call(values=(2, 2, 6, 3)), "attention", "one value"),
    ("depths", lambda: call((2, 4, 5, 6)), "attention", "one depth"),
    (
        "attend is named",
        lambda: headloom.attend(zeros(1), zeros(1), zeros(1)),
        "attend",
        "expected",
    ),
    ("bool bias", lambda: call(bias=zeros(5, 7).bool()), "attention", "mask="),
    ("bias", lambda: call(bias=zeros(5, 6)), "attention", "(2, 4, 5, 7)"),
    ("bias of 5 dimensions", lambda: call(bias=zeros(1, 2, 4, 5, 7)), "attention", "broadcast"),
    ("sinks", lambda: call(sinks=zeros(3)), "attention", "(4,)"),
    ("softcap", lambda: call(softcap=0.0), "attention", "above 0"),
    ("softcap NaN", lambda: call(softcap=float("nan")), "attention", "finite number"),
    ("scale", lambda: call(scale=float("inf")), "attention", "finite number"),
    ("softcap text", lambda: call(softcap="a"), "attention", "finite number"),
    ("no dropout", lambda: call(dropout=None), "attention", "finite number"),
    ("score name", lambda: call(score="dot"), "attention", "headloom.Dot()"),
    ("score class", lambda: call(score=headloom.Dot), "attention", "headloom.Dot()"),
    ("relative name", lambda: call(relative="alibi"), "attention", "headloom.ALiBi"),
    ("bias elsewhere", lambda: call(bias=zeros(5, 7).to("meta")), "attention", "one device"),
    ("sinks elsewhere", lambda: call(sinks=zeros(4).to("meta")), "attention", "one device"),
    ("bias list", lambda: call(bias=[1.0]), "attention", "real numbers"),
    (
        "complex bias",
        lambda: call(bias=zeros(5, 7).to(torch.complex64)),
        "attention",
        "real numbers",
    ),
    ("sinks list", lambda: call(sinks=[1.0]), "attention", "real numbers"),
    ("no queries", lambda: untyped.attention(None, zeros(1), zeros(1)), "attention", "a tensor"),
    ("key list", lambda: untyped.attend(zeros(1), [1], zeros(1)), "attend", "a tensor"),
    ("dropout", lambda: call(dropout=1.0), "attention", "from 0 to below 1"),
    ("dropout below 0", lambda: call(dropout=-0.1), "attention", "from 0 to below 1"),
    ("lengths of a program", lambda: compiled([8, 7]), "mask", "from 0 to 7"),
    ("mask changed in place", changed_mask, "attention", "mask.clone()"),
    (
        "packed keys",
        lambda: call(
            (1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 3), mask=headloom.packed([4, 5], [8, 9])
        ),
        "packed",
        "must fill the call",
    ),
    (
        "head of a graph",
        lambda: untyped.attend(*[zeros(1, 2, 4)] * 3)[1].of_head(1),
        "of_head",
        "the graph has heads 0 to 0",
    ),
    (
        "matrix mass of a bool",
        lambda: headloom.AttentionMatrix(zeros(1, 2, 4), zeros(1, 2, 4)).mass(True),
        "mass",
        "expected an offset",
    ),
    ("unknown backend", lambda: call(backend="cuda"), "attention", '"native"'),
    ("triton backend", lambda: call(backend="triton"), "attention", 'backend="torch"'),
    (
        "dense weights by triton",
        lambda: untyped.attend(*[zeros(1, 2, 4)] * 3, keep=headloom.All(), backend="triton"),
        "attend",
        'backend="torch"',
    ),
    (
        "native backend",
        lambda: call(backend="native", score=headloom.GraphAttentionV2(zeros(8))),
        "attention",
        'backend="torch"',
    ),
    (
        "keep",
        lambda: untyped.attend(zeros(1, 2, 3), zeros(1, 2, 3), zeros(1, 2, 3), keep=3),
        "attend",
        "headloom.Top(k)",
    ),
    (
        "received",
        lambda: untyped.attend(zeros(1, 2, 3), zeros(1, 2, 3), zeros(1, 2, 3), received=64),
        "attend",
        "headloom.LastQueries(n)",
    ),
    (
        "received of the dense weights",
        lambda: untyped.attend(
            zeros(1, 2, 3), zeros(1, 2, 3), zeros(1, 2, 3), keep=headloom.All(), received=True
        ),
        "attend",
        "weights.sum(-2)",
    ),
    ("no last queries", lambda: headloom.LastQueries(0), "LastQueries", "1 or more"),
    ("LastQueries of a bool", lambda: headloom.LastQueries(True), "LastQueries", "whole number"),
    ("LastQueries of a text", lambda: untyped.LastQueries("9"), "LastQueries", "whole number"),
    ("Top", lambda: headloom.Top(-1), "Top", "0 or more"),
    ("Top of a bool", lambda: headloom.Top(True), "Top", "whole number"),
    ("Top of a fraction", lambda: untyped.Top(2.5), "Top", "whole number"),
    # masks
    ("mask of numbers", lambda: call(mask=zeros(5, 7)), "mask", "bias="),
    ("mask of another type", lambda: untyped_as_mask([[True]]), "mask", "bool tensor"),
    ("mask of 1 dimension", lambda: call(mask=zeros(7).bool()), "mask", "(queries, keys)"),
    ("mask over keys", lambda: call(mask=zeros(2, 7).bool()), "mask", "headloom.padding"),
    ("window", lambda: headloom.window(-1, 0), "window", "0 or more"),
    ("lengths", lambda: call(mask=headloom.padding([1, 2, 3])), "padding", "for each"),
    (
        "padding columns",
        lambda: call(mask=headloom.padding(zeros(2, 6).bool())),
        "padding",
        "column",
    ),
    ("length below 0", lambda: headloom.padding([2, -1]), "padding", "0 or more"),
    ("lengths with a point", lambda: untyped.padding([2.0]), "padding", "integers"),
    ("window fraction", lambda: untyped.window(1.5, 0), "window", "0 or more"),
    ("padding text", lambda: untyped.padding("abc"), "padding", "whole number"),
    ("padding None", lambda: untyped.padding(None), "padding", "whole number"),
    ("padding ragged", lambda: untyped.padding([[1], [1, 2]]), "padding", "whole number"),
    ("lengths past", lambda: call(mask=headloom.padding([8, 1])), "padding", "or fewer"),
    (
        "bilinear type",
        lambda: call(score=headloom.Bilinear(zeros(8, 8).double())),
        "Bilinear",
        "of their type",
    ),
    (
        "bilinear heads",
        lambda: call(score=headloom.Bilinear(zeros(3, 8, 8))),
        "Bilinear",
        "each of 4",
    ),
    (
        "bilinear square",
        lambda: call((2, 4, 5, 6), score=headloom.Bilinear(zeros(6, 8), symmetric=True)),
        "Bilinear",
        "a square one",
    ),
    ("neighbours text", lambda: headloom.neighbours("ab"), "neighbours", "of numbers"),
    ("neighbours", lambda: headloom.neighbours([[1]]), "neighbours", "got list; expected an"),
    ("neighbours of 1 dimension", lambda: headloom.neighbours(zeros(3)), "neighbours", "adjacency"),
    (
        "nodes",
        lambda: call(mask=headloom.neighbours(zeros(5, 6))),
        "neighbours",
        "row for each query",
    ),
    ("offset", lambda: headloom.causal(2**63), "causal", "whole number"),
    ("offset of Shaw", lambda: untyped.Shaw(zeros(3, 8), offset=0.5), "Shaw", "whole number"),
    ("lengths of 80 bits", lambda: headloom.padding([2**80]), "padding", "whole number"),
    ("packed text", lambda: packed("ab"), "packed", "whole numbers"),  # type: ignore[arg-type]
    (
        "edges or adjacency",
        lambda: headloom.neighbours(torch.eye(2).long()),
        "neighbours",
        "nodes=N",
    ),
    (
        "too many nodes",
        lambda: headloom.neighbours(torch.tensor([[1], [0]]), nodes=2**40),
        "neighbours",
        "2,147,483,647 or fewer",
    ),
    (
        "edges past",
        lambda: headloom.neighbours(torch.tensor([[0], [3]]), 3),
        "neighbours",
        "0 to 2",
    ),
    (
        "nodes of a matrix",
        lambda: headloom.neighbours(zeros(3, 3), 3),
        "neighbours",
        "Leave nodes out",
    ),
    ("scale past float32", lambda: call(scale=1e39), "attention", "float64"),
    ("scale past float64", lambda: call(scale=10**400), "attention", "finite"),
    *GRAPH_CASES,
    *KIND_CASES,
    # scores
    ("dot", lambda: scores.dot(zeros(5, 64), zeros(7, 32)), "dot", "Project both"),
    ("scaled dot", lambda: scores.scaled_dot(zeros(5, 6), zeros(7, 3)), "scaled_dot", "one depth"),
    (
        "bilinear",
        lambda: call(score=headloom.Bilinear(zeros(8, 7))),
        "bilinear",
        "(query depth, key depth)",
    ),
    (
        "additive",
        lambda: call(score=headloom.Additive(zeros(3, 8), zeros(3, 7), zeros(3))),
        "additive",
        "(hidden, key depth)",
    ),
    (
        "graph attention",
        lambda: call(score=headloom.GraphAttention(zeros(7), zeros(8))),
        "graph_attention",
        "(heads, depth)",
    ),
    (
        "graph attention, version 2",
        lambda: call(score=headloom.GraphAttentionV2(zeros(7))),
        "graph_attention_v2",
        "(heads, depth)",
    ),
    (
        "additive vector",
        lambda: call(score=headloom.Additive(zeros(3, 8), zeros(3, 8), zeros(1, 3))),
        "additive",
        "(hidden,)",
    ),
    (
        "vectors of 3 dimensions",
        lambda: call(score=headloom.GraphAttention(zeros(2, 1, 8), zeros(8))),
        "graph_attention",
        "(heads, depth)",
    ),
    (
        "matrix of 4 dimensions",
        lambda: call(score=headloom.Bilinear(zeros(1, 1, 8, 8))),
        "bilinear",
        "one for each head",
    ),
    # positions
    ("sinusoidal", lambda: headloom.sinusoidal(4, 3), "sinusoidal", "pairs"),
    ("rotary", lambda: headloom.rotary(zeros(4, 3)), "rotary", "pairs"),
    ("rotary of 1-D", lambda: headloom.rotary(zeros(4)), "rotary", "two dimensions"),
    ("no slopes", lambda: headloom.alibi_slopes(0), "alibi_slopes", "1 or more"),
    ("Shaw, depth", lambda: call(relative=headloom.Shaw(zeros(3, 7))), "Shaw", "(2 clip + 1, 8)"),
    ("Shaw, even", lambda: call(relative=headloom.Shaw(zeros(4, 8))), "Shaw", "2 clip + 1"),
    (
        "Shaw, two clips",
        lambda: call(relative=headloom.Shaw(zeros(3, 8), zeros(5, 3))),
        "Shaw",
        "one clip",
    ),
    (
        "Shaw, heads",
        lambda: call(relative=headloom.Shaw(zeros(3, 3, 8))),
        "Shaw",
        "(4, 2 clip + 1, 8)",
    ),
    ("ALiBi", lambda: call(relative=headloom.ALiBi(zeros(3))), "ALiBi", "(4,)"),
    ("Buckets", lambda: call(relative=headloom.Buckets(zeros(32, 3))), "Buckets", "(buckets, 4)"),
    ("few buckets", lambda: call(relative=headloom.Buckets(zeros(3, 4))), "Buckets", "4 buckets"),
    (
        "near buckets",
        lambda: call(relative=headloom.Buckets(zeros(32, 4), max_distance=8)),
        "Buckets",
        "above 8",
    ),
    # graph
    ("graph without batch", lambda: graph()[0], "graph[0]", "graph[head, query]"),
    ("length without batch", lambda: len(graph()), "len(graph)", "graph.shape"),
    ("row of a batch", lambda: graph(5)[0, 0], "graph[head, query]", "graph[0]"),
    ("adjacency of a batch", lambda: graph(5).adjacency(0), "adjacency", "graph[0]"),
    ("adjacency, head", lambda: graph().adjacency(2), "adjacency", "heads 0 to 1"),
    ("adjacency, of", lambda: graph().adjacency(0, of="keys"), "adjacency", '"scores"'),
    (
        "one sequence of two",
        lambda: big_graph().to_networkx(0, one_sequence=True),
        "to_networkx",
        "Leave it out",
    ),
    ("networkx of a batch", lambda: graph(5).to_networkx(0), "to_networkx", "graph[0]"),
    ("dense", lambda: big_graph().dense(), "dense", "force=True"),
    # layers
    ("layer, heads", lambda: MultiHeadAttention(8, 3, kv_heads=2), "MultiHeadAttention", "divide"),
    ("layer, no heads", lambda: MultiHeadAttention(8, 0), "MultiHeadAttention", "1 or more"),
    ("layer, width", lambda: MultiHeadAttention(8, 3), "MultiHeadAttention", "depth="),
    (
        "layer, positions",
        lambda: MultiHeadAttention(8, 2, relative="learned"),  # type: ignore[arg-type]
        "MultiHeadAttention",
        '"rotary"',
    ),
    ("head", lambda: MultiHeadAttention(8, 2).head_weights(2), "head_weights", "0 to 1"),
    (
        "torch with a learned key",
        lambda: MultiHeadAttention.from_torch(torch_layer(add_bias_kv=True)),
        "from_torch",
        "add_bias_kv",
    ),
    (
        "torch with two widths",
        lambda: MultiHeadAttention.from_torch(torch_layer(kdim=3)),
        "from_torch",
        "one width",
    ),
    (
        "groups to torch",
        lambda: MultiHeadAttention(8, 2, kv_heads=1).to_torch(),
        "to_torch",
        "as many heads",
    ),
    (
        "positions to torch",
        lambda: MultiHeadAttention(8, 2, relative="alibi").to_torch(),
        "to_torch",
        "no alibi positions",
    ),
    ("packed lengths", lambda: untyped.packed([1.5]), "packed", "whole numbers"),
    ("packed total", lambda: packed([2**62]), "packed", "2,147,483,647 at most"),
    ("packed totals", lambda: packed([2**62] * 4), "packed", "2,147,483,647 at most"),
    ("packed sequences", lambda: packed([1], [1, 2]), "packed", "Give both for each sequence"),
    ("packed sizes", lambda: call(mask=packed([4], [7])), "ranges", "must fill the call"),
    ("matrix batch", lambda: matrix(2, 2, 3, 4), "AttentionMatrix", "one sequence of a batch"),
    ("score arguments", lambda: Own(1), "Own", "put @dataclass above the class"),
    ("score shape", lambda: call(score=Own()), "Own", "one for each query and key"),
    ("matrix product", lambda: matrix(2, 3, 4) @ zeros(4), "@", "(3, columns)"),
    ("matrix index", lambda: matrix(2, 3, 4)[0], "matrix[0]", "matrix[head, queries, keys]"),
    ("matrix cell", lambda: matrix(2, 3, 4)[0, 3, 0], "matrix[0, 3, 0]", "a number below 3"),
    ("matrix above", lambda: matrix(2, 3, 4).above(2), "above", "above 0, at most 1"),
    ("matrix head", lambda: matrix(2, 3, 4).head(2), "head", "heads 0 to 1"),
    ("matrix dense", lambda: matrix(1, 20_000, 1).dense(), "dense", "force=True"),
    (
        "matrix blocks",
        lambda: matrix(2, 3, 4).block_summaries(0, 2, slice(None, None, 2)),
        "block_summaries",
        "without a step",
    ),
    ("matrix row", lambda: matrix(2, 3, 4)[0, 0.5, 0], "matrix[0, 0.5, 0]", "no such query"),
    ("matrix block", lambda: matrix(2, 3, 4).block_maxima(0), "block_maxima", "1 or more"),
    ("matrix mass", lambda: matrix(2, 3, 4).mass([3]), "mass", "indices below 3"),
    (
        "matrix lse",
        lambda: headloom.AttentionMatrix(zeros(2, 3, 4), zeros(2, 3, 4), lse=zeros(3)),
        "AttentionMatrix",
        "each head and query, (2, 3)",
    ),
    ("matrix square", lambda: wide_matrix().reciprocity(), "reciprocity", "a square one"),
    (
        "a matrix that is not finite",
        lambda: singular_values("spectrum", torch.full((3, 2), torch.nan)),
        "spectrum",
        "take an earlier snapshot, or another file",
    ),
    ("layer relative", lambda: layer(relative="sideways"), "MultiHeadAttention", '"rotary"'),
    ("layer weights", lambda: layer(weights="all"), "MultiHeadAttention", '"learned"'),
    (
        "uniform layer",
        lambda: layer(weights="uniform").to_torch(),
        "to_torch",
        "no uniform weights",
    ),
    (
        "matrices of two widths",
        lambda: product_cells(zeros(1, 4, 2), zeros(1, 3, 2), 2),
        "product",
        "expected one width",
    ),
    ("products", lambda: products("half").__enter__(), "products", 'expected "float32", '),
    (
        "ring: alone",
        lambda: ring(),
        "ring_attend",
        "Call torch.distributed.init_process_group in each process",
    ),
    ("ring: gradients", lambda: ring(grad=True), "ring_attend", "under torch.no_grad()"),
    ("ring: keep", lambda: ring(keep=headloom.All()), "ring_attend", "expected headloom.Top(k)"),
    (
        "ring: relative",
        lambda: ring(relative="far"),
        "ring_attend",
        "expected Shaw, ALiBi or Buckets",
    ),
    (
        "ring: other shapes",
        lambda: check_alike(1, [(0, 2, 4, 8, -1), (0, 2, 3, 8, -1)]),
        "ring_attend",
        "heads and depths [2, 4, 8]. Give all the same",
    ),
    (
        "ring: an error elsewhere",
        lambda: check_none_wrong([False, False, True]),
        "ring_attend",
        "process 2 cannot use what it was given",
    ),
    (
        "ring: other types",
        lambda: check_alike(0, [(1, 4, 8), (2, 4, 8)]),
        "ring_attend",
        "process 0 has torch.float64 and batch, heads and depths [4, 8], process 1 torch.bfloat16",
    ),
]
