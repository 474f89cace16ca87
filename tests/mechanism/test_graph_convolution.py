"""GATConv and GATv2Conv: what PyTorch Geometric's tests ask of its own, and that both agree."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.forked import Loaded
from torch import Tensor, zeros

import headloom
from headloom.mechanism.graph_convolution import _with_self_loops
from headloom.mechanism.neighbours import neighbour_graph

LAYERS = [headloom.GATConv, headloom.GATv2Conv]
EDGES = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(12)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_weights_of_one_kind_of_nodes(layer_class: Any) -> None:
    x, layer = torch.randn(4, 8), layer_class(8, 32, heads=2)
    assert str(layer) == f"{layer_class.__name__}(8, 32, heads=2)"
    output, (edges, weights) = layer(x, EDGES, return_attention_weights=True)
    torch.testing.assert_close(output, layer(x, EDGES))
    # One of four edges is a self-loop, which is replaced; all four nodes have one.
    assert output.shape == (4, 64) and edges.shape == (2, 7) and weights.shape == (7, 2)
    sums = torch.zeros(4, 2).index_add(0, edges[1], weights)
    torch.testing.assert_close(sums, torch.ones(4, 2))
    none = torch.empty(2, 0, dtype=torch.int64)
    assert layer(torch.randn(0, 8), none).shape == (0, 64)


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own call
def test_derivatives_of_torch_func(layer_class: Any) -> None:
    layer, x = layer_class(6, 3, heads=2).double(), torch.randn(7, 6).double()
    edge_index = torch.randint(0, 7, (2, 20))
    tangent, step = torch.randn(7, 6).double(), 1e-6

    def output(x: Tensor) -> Tensor:
        result: Tensor = layer(x, edge_index)
        return result

    by_steps = (output(x + step * tangent) - output(x - step * tangent)) / (2 * step)
    _, forward = torch.func.jvp(output, (x,), (tangent,))
    torch.testing.assert_close(forward, by_steps, rtol=1e-6, atol=1e-8)
    both = torch.func.vmap(output)(torch.stack((x, 2 * x)))
    torch.testing.assert_close(both, torch.stack((output(x), output(2 * x))))


@pytest.mark.parametrize("layer_class", LAYERS)
def test_dropout_falls_on_the_normalised_weights(layer_class: Any) -> None:
    layer, x = layer_class(8, 32, heads=2, dropout=0.5), torch.randn(4, 8)
    _, (_, weights) = layer(x, EDGES, return_attention_weights=True)
    _, (_, plain) = layer.eval()(x, EDGES, return_attention_weights=True)
    dropped = weights == 0
    assert 0 < int(dropped.sum()) < dropped.numel()
    torch.testing.assert_close(weights[~dropped], 2 * plain[~dropped])


def test_an_observer_sees_the_graph() -> None:
    layer, x = headloom.GATConv(8, 32, heads=2), torch.randn(4, 8)
    calls: list[Any] = []
    layer.observer = lambda *call: calls.append(call)
    _, (edges, weights) = layer(x, EDGES, return_attention_weights=True)
    [(seen, call, of_one)] = calls
    graph = neighbour_graph(call)
    assert seen is layer and of_one and graph.shape == (2, 4, 4)
    matrix = torch.zeros(2, 4, 4)
    matrix[:, edges[1], edges[0]] = weights.T
    torch.testing.assert_close(graph.to_dense(), matrix)
    pair = headloom.GATConv((8, 8), 32)
    pair.observer = layer.observer
    pair((x, x.clone()), EDGES)
    assert not calls[-1][2]


OPTIONS: list[dict[str, Any]] = [
    {"heads": 3},
    {"heads": 2, "concat": False, "residual": True},
    {"heads": 2, "negative_slope": 0.4, "add_self_loops": False, "bias": False},
    *({"heads": 2, "edge_dim": 3, "fill_value": f} for f in ("mean", "add", "min", "max", "mul")),
    {"heads": 2, "edge_dim": 3, "fill_value": 0.3, "residual": True},
]


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pair", [False, True])
def test_a_state_dict_of_pyg_gives_its_output_and_gradients(
    layer_class: Any, options: dict[str, Any], pair: bool
) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    width = (8, 6) if pair else 8
    theirs = getattr(pyg, layer_class.__name__)(width, 5, **options)
    mine = layer_class(width, 5, **options)
    assert set(mine.state_dict()) == set(theirs.state_dict())
    mine.load_state_dict(theirs.state_dict())
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(20, (2, 70), generator=generator)
    edge_index[1] %= 20 if not pair else 15
    features = torch.randn(70, 3, generator=generator) if "edge_dim" in options else None
    x: Any = torch.randn(20, 8, generator=generator)
    x = (x, torch.randn(15, 6, generator=generator)) if pair else x

    def run(layer: Any) -> dict[str, Tensor]:
        leaves = copy.deepcopy(x)
        inputs = [leaf.requires_grad_() for leaf in (leaves if pair else (leaves,))]
        if features is not None:
            inputs.append(edges := features.clone().requires_grad_())
        output, (index, weights) = layer(
            leaves, edge_index, edges if features is not None else None,
            return_attention_weights=True,
        )  # fmt: skip
        layer.zero_grad()
        (output.square().sum() + weights.square().sum()).backward()
        results = {"output": output, "index": index, "weights": weights}
        results |= {f"input {n}": leaf.grad for n, leaf in enumerate(inputs)}
        return results | {name: p.grad for name, p in layer.named_parameters()}

    expected = run(theirs)
    for name, result in run(mine).items():
        torch.testing.assert_close(result, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_and_no_more(layer_class: Any, dtype: torch.dtype) -> None:
    """Of numbers that half precision holds, the output is that of float64, rounded on the way."""
    layer, x = layer_class(8, 4, heads=2).to(dtype), torch.randn(4, 8).to(dtype)
    output, (_, weights) = layer(x, EDGES, return_attention_weights=True)
    assert output.dtype == weights.dtype == dtype
    double = copy.deepcopy(layer).double()
    exact, (_, expected) = double(x.double(), EDGES, return_attention_weights=True)
    close = 0.05 if dtype == torch.bfloat16 else 0.01
    torch.testing.assert_close(output.double(), exact, rtol=close, atol=close)
    torch.testing.assert_close(weights.double(), expected, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("fill", "loops"),
    [("mean", [0, 4, 0]), ("add", [0, 8, 0]), ("min", [0, 2, 0]), ("max", [0, 6, 0]),
     ("mul", [1, 12, 1]), (0.5, [0.5] * 3)],
)  # fmt: skip
def test_features_of_self_loops_where_a_node_has_no_edge(fill: Any, loops: list[float]) -> None:
    """Edges 0 -> 1 and 2 -> 1, one to a fourth target, which has no loop, and a loop that goes."""
    edges = torch.tensor([[0, 1, 2, 2], [1, 1, 1, 3]])
    index, features = _with_self_loops(edges, torch.tensor([[2.0], [9.0], [6.0], [5.0]]), fill, 3)
    assert index.tolist() == [[0, 2, 2, 0, 1, 2], [1, 1, 3, 0, 1, 2]]
    assert features is not None and features.flatten().tolist() == [2, 6, 5, *loops]


@pytest.mark.parametrize("layer_class", LAYERS)
def test_bad_input(layer_class: Any) -> None:
    layer, x = layer_class(8, 32), torch.randn(4, 8)
    with_features = layer_class(8, 2, edge_dim=2)
    cases: list[tuple[Any, str]] = [
        (lambda: layer(x, torch.tensor([[4], [0]])), "an edge has the source 4; there are 4 such"),
        (lambda: layer(x, torch.tensor([[0], [-1]])), "an edge has the target -1"),
        (lambda: layer(x, zeros(3, 2, dtype=torch.int64)), r"edge_index is a tensor \(3, 2\)"),
        (lambda: layer(x, EDGES.float()), "expected a tensor of int64"),
        (lambda: layer(x, torch.eye(4).to_sparse()), r"\(2, edges\), sources over targets"),
        (lambda: layer(x, EDGES.tolist()), "edge_index is a list"),
        (lambda: layer(x[0], EDGES), r"x is \(8\)"),
        (lambda: layer(x.long(), EDGES), r"as from x\.float\(\)"),
        (lambda: layer_class((8, 6), 2)((x, x), EDGES), r"expected \(rows, 6\)"),
        (lambda: layer_class(8, 2, edge_dim=1, fill_value="median"), "fill_value='median'"),
        (lambda: layer_class(8, 2, dropout=1.5), r"dropout=1\.5"),
        (lambda: layer_class(8, 2, heads=0), "1 or more"),
        (lambda: with_features(x, EDGES, zeros(3, 2)), "there are 4 edges"),
        (lambda: with_features(x, EDGES, zeros(4, 3)), r"expected \(rows, 2\)"),
    ]
    for run, words in cases:
        with pytest.raises(headloom.InputError, match=words):
            run()


def test_headloom_does_not_import_pyg(loaded: Loaded) -> None:
    code = (
        "import sys, torch, headloom; headloom.GATConv(2, 2)(torch.ones(2, 2), "
        "torch.tensor([[0], [1]])); "
        "assert 'torch_geometric' not in sys.modules"
    )
    with loaded.start(program=code) as process:
        assert process.wait() == 0, process.errors()
