"""GATConv and GATv2Conv: what PyTorch Geometric's tests ask of its own, and that both agree."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.forked import Loaded
from torch import Tensor

import headloom
from headloom.mechanism.neighbourhood.function import neighbour_graph
from headloom.mechanism.neighbourhood.loops import with_self_loops

LAYERS = [headloom.GATConv, headloom.GATv2Conv]
EDGES = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])


def sparse(targets: int, layout: torch.layout) -> Tensor:
    """EDGES as a sparse matrix (targets, sources)."""
    matrix = torch.sparse_coo_tensor(
        EDGES.flip(0), torch.ones(4), (targets, 4), check_invariants=True
    ).coalesce()
    return matrix if layout == torch.sparse_coo else matrix.to_sparse_csr()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(12)


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_one_kind_of_nodes(layer_class: Any, residual: bool) -> None:
    x = torch.randn(4, 8)
    layer = layer_class(8, 32, heads=2, residual=residual)
    assert str(layer) == f"{layer_class.__name__}(8, 32, heads=2)"
    output = layer(x, EDGES)
    assert output.shape == (4, 64)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        torch.testing.assert_close(layer(x, sparse(4, layout)), output)
    if layer_class is headloom.GATConv:
        torch.testing.assert_close(layer(x, EDGES, size=(4, 4)), output)
    again, (edges, weights) = layer(x, EDGES, return_attention_weights=True)
    torch.testing.assert_close(again, output)
    # One of four edges is a self-loop, which is replaced; all four nodes have one.
    assert edges.shape == (2, 7) and weights.shape == (7, 2)
    assert weights.min() >= 0 and weights.max() <= 1
    sums = torch.zeros(4, 2).index_add(0, edges[1], weights)
    torch.testing.assert_close(sums, torch.ones(4, 2))
    again, (matrix, _) = layer(x, sparse(4, torch.sparse_coo), return_attention_weights=True)
    torch.testing.assert_close(again, output)
    assert matrix.shape == (4, 4, 2) and matrix._nnz() == 7
    torch.testing.assert_close(matrix.to_dense().sum(1), torch.ones(4, 2))


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("residual", [False, True])
def test_sources_and_targets_of_two_kinds(layer_class: Any, residual: bool) -> None:
    sources, targets = torch.randn(4, 8), torch.randn(2, 16)
    layer = layer_class((8, 16), 32, heads=2, residual=residual)
    assert str(layer) == f"{layer_class.__name__}((8, 16), 32, heads=2)"
    output = layer((sources, targets), EDGES)
    assert output.shape == (2, 64)
    torch.testing.assert_close(layer((sources, targets), sparse(2, torch.sparse_coo)), output)
    if layer_class is headloom.GATConv:
        torch.testing.assert_close(layer((sources, targets), EDGES, size=(4, 2)), output)
        assert layer((sources, None), EDGES, size=(4, 2)).shape == (2, 64)
    else:
        with pytest.raises(headloom.InputError, match="no targets"):
            layer((sources, None), EDGES)


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize(("width", "fill"), [(1, 0.5), (1, "mean"), (4, 0.5), (4, "mean")])
def test_edges_with_features(layer_class: Any, width: int, fill: Any) -> None:
    x, features = torch.randn(4, 8), torch.randn(4, width)
    layer = layer_class(8, 32, heads=2, edge_dim=width, fill_value=fill)
    output = layer(x, EDGES, features)
    assert output.shape == (4, 64)
    assert not torch.allclose(output, layer(x, EDGES, features + 1))
    if width == 1:
        torch.testing.assert_close(layer(x, EDGES, features[:, 0]), output)
    with pytest.raises(headloom.ShapeError, match="there are 4 edges"):
        layer(x, EDGES, features[:3])


@pytest.mark.parametrize("layer_class", LAYERS)
def test_a_graph_without_nodes(layer_class: Any) -> None:
    layer = layer_class(8, 32, heads=2)
    assert layer(torch.randn(0, 8), torch.empty(2, 0, dtype=torch.int64)).shape == (0, 64)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_the_width_is_told_by_the_first_call(layer_class: Any) -> None:
    for width, x in ((-1, torch.randn(4, 8)), ((-1, -1), (torch.randn(4, 8), torch.randn(2, 3)))):
        layer = layer_class(width, 5, heads=2)
        assert layer(x, EDGES).isfinite().all()
        weight = (
            (layer.lin or layer.lin_src).weight
            if layer_class is headloom.GATConv
            else (layer.lin_l.weight)
        )
        assert weight.shape == (10, 8)
        assert 0 < float(weight.detach().abs().max()) <= (6 / 18) ** 0.5


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own call
def test_derivatives_of_torch_func(layer_class: Any) -> None:
    torch.manual_seed(0)
    layer, x = layer_class(6, 3, heads=2).double(), torch.randn(7, 6).double()
    edge_index = torch.randint(0, 7, (2, 20))
    tangent, step = torch.randn(7, 6).double(), 1e-6

    def output(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = layer(x, edge_index)
        return result

    by_steps = (output(x + step * tangent) - output(x - step * tangent)) / (2 * step)
    _, forward = torch.func.jvp(output, (x,), (tangent,))
    torch.testing.assert_close(forward, by_steps, rtol=1e-6, atol=1e-8)
    gradient = torch.func.grad(lambda x: output(x).sum())(x)
    leaf = x.clone().requires_grad_()
    output(leaf).sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
    both = torch.func.vmap(output)(torch.stack((x, 2 * x)))
    torch.testing.assert_close(both, torch.stack((output(x), output(2 * x))))


def test_v2_with_shared_weights() -> None:
    layer = headloom.GATv2Conv(8, 32, heads=2, share_weights=True)
    assert layer.lin_l is layer.lin_r
    assert layer(torch.randn(4, 8), EDGES).shape == (4, 64)


@pytest.mark.parametrize("layer_class", LAYERS)
def test_dropout_falls_on_the_normalised_weights(layer_class: Any) -> None:
    layer = layer_class(8, 32, heads=2, dropout=0.5)
    x = torch.randn(4, 8)
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
    torch.testing.assert_close(graph.dense(), matrix)
    pair = headloom.GATConv((8, 8), 32)
    pair.observer = layer.observer
    pair((x, x.clone()), EDGES)
    assert not calls[-1][2]


@pytest.mark.parametrize("layer_class", LAYERS)
def test_bad_input(layer_class: Any) -> None:
    layer = layer_class(8, 32)
    x = torch.randn(4, 8)
    with pytest.raises(
        headloom.InputError, match="an edge has the source 4; there are 4 such nodes"
    ):
        layer(x, torch.tensor([[4], [0]]))
    with pytest.raises(headloom.InputError, match="an edge has the target -1"):
        layer(x, torch.tensor([[0], [-1]]))
    # What the caller gave is named, not what it is with self-loops.
    for edges, said in (
        (torch.zeros(3, 2, dtype=torch.int64), r"torch\.int64 of shape \(3, 2\)"),
        (EDGES.float(), r"torch\.float32 of shape \(2, 4\)"),
        (EDGES.bool(), r"torch\.bool of shape \(2, 4\)"),
        (EDGES[0], r"torch\.int64 of shape \(4\)"),
        (torch.ones(3).to_sparse(), r"torch\.float32 of shape \(3\)"),
        (EDGES.numpy(), "ndarray"),
        (EDGES.tolist(), "list"),
    ):
        with pytest.raises(
            headloom.InputError, match=rf"edge_index is {said}; expected .*\(2, edges\)"
        ):
            layer(x, edges)
    with pytest.raises(headloom.ShapeError, match=r"x is \(8\)"):
        layer(x[0], EDGES)
    with pytest.raises(headloom.InputError, match="fill_value: it is 'median'"):
        layer_class(8, 2, edge_dim=1, fill_value="median")(x, EDGES, torch.ones(4))
    with pytest.raises(headloom.InputError, match=r"dropout=1\.5"):
        layer_class(8, 2, dropout=1.5)


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("slope", [0.0, -0.1, -1.0])
@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_slopes_that_are_not_above_0(layer_class: Any, slope: float, heads: int) -> None:
    layer = layer_class(5, 4, heads=heads, negative_slope=slope)
    x, edges = torch.randn(3, 5), torch.tensor([[0, 1, 2, 1], [1, 2, 0, 0]])

    def run(layer: Any, x: Tensor) -> list[Tensor]:
        output = layer(x, edges)
        factors = torch.arange(output.numel()).reshape(output.shape).to(x).cos()
        gradients = torch.autograd.grad(output, list(layer.parameters()), factors)
        return [output.detach(), *gradients]

    found = run(layer, x)
    for mine, exact in zip(found, run(layer.double(), x.double()), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"heads": 3},
    {"heads": 2, "concat": False, "residual": True},
    {"heads": 2, "negative_slope": 0.4, "add_self_loops": False},
    {"heads": 2, "bias": False, "flow": "target_to_source"},
    *({"heads": 2, "edge_dim": 3, "fill_value": f} for f in ("mean", "add", "min", "max", "mul")),
    {"heads": 2, "edge_dim": 3, "fill_value": 0.3, "residual": True},
    {"heads": 2, "edge_dim": 3, "fill_value": torch.tensor([1.0, 2.0, 3.0])},
]


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("pair", [False, True])
def test_a_state_dict_of_pyg_gives_its_output_and_gradients(
    layer_class: Any, options: dict[str, Any], pair: bool
) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    if pair and "flow" in options:
        with pytest.raises(headloom.InputError, match="x is a pair"):
            layer_class((8, 6), 5, **options)((torch.ones(4, 8), torch.ones(4, 6)), EDGES)
        return
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
def test_double_precision_agrees_with_pyg_to_the_last_digits(layer_class: Any) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    theirs = getattr(pyg, layer_class.__name__)(8, 5, heads=2).double()
    mine = layer_class(8, 5, heads=2).double()
    mine.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(mine(x, EDGES), theirs(x, EDGES), rtol=1e-12, atol=1e-12)


def test_headloom_does_not_import_pyg(loaded: Loaded) -> None:
    code = (
        "import sys, torch, headloom; headloom.GATConv(2, 2)(torch.ones(2, 2), "
        "torch.tensor([[0], [1]])); "
        "assert 'torch_geometric' not in sys.modules"
    )
    with loaded.start(program=code) as process:
        assert process.wait() == 0, process.errors()


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_features_of_edges_in_a_sparse_matrix(layer_class: Any) -> None:
    """The matrix sorts them by target and source; a list of edges keeps its own order."""
    layer = layer_class(8, 4, heads=2, edge_dim=3)
    x, order = torch.randn(4, 8), torch.tensor([2, 0, 3, 1])
    features = torch.randn(4, 3)
    matrix = torch.sparse_coo_tensor(EDGES[:, order].flip(0), features[order], (4, 4, 3))
    torch.testing.assert_close(layer(x, matrix), layer(x, EDGES, features))


@pytest.mark.parametrize("layer_class", LAYERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_and_no_more(layer_class: Any, dtype: torch.dtype) -> None:
    """Of numbers that half precision holds, the output is that of float64, rounded on the way."""
    layer = layer_class(8, 4, heads=2, edge_dim=3).to(dtype)
    x, features = torch.randn(4, 8).to(dtype), torch.randn(4, 3).to(dtype)
    output, (_, weights) = layer(x, EDGES, features, return_attention_weights=True)
    assert output.dtype == weights.dtype == dtype
    exact, (_, expected) = copy.deepcopy(layer).double()(
        x.double(), EDGES, features.double(), return_attention_weights=True
    )
    close = 0.05 if dtype == torch.bfloat16 else 0.01
    torch.testing.assert_close(output.double(), exact, rtol=close, atol=close)
    torch.testing.assert_close(weights.double(), expected, rtol=close, atol=close)


@pytest.mark.parametrize(
    ("fill", "loops"),
    [
        ("mean", [0, 4, 0]), ("add", [0, 8, 0]), ("min", [0, 2, 0]), ("max", [0, 6, 0]),
        ("mul", [1, 12, 1]), (None, [1, 1, 1]), (0.5, [0.5] * 3),
    ],
)  # fmt: skip
def test_features_of_self_loops_where_a_node_has_no_edge(fill: Any, loops: list[float]) -> None:
    """Edges 0 -> 1 and 2 -> 1, one to a fourth target, which has no loop, and a loop that goes."""
    edges = torch.tensor([[0, 1, 2, 2], [1, 1, 1, 3]])
    index, features = with_self_loops(edges, torch.tensor([2.0, 9.0, 6.0, 5.0]), fill, 3)
    assert index.tolist() == [[0, 2, 2, 0, 1, 2], [1, 1, 3, 0, 1, 2]]
    assert features is not None and features.tolist() == [2, 6, 5, *loops]


def test_a_size_without_targets() -> None:
    layer = headloom.GATConv((8, 8), 2, heads=2)
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert layer((torch.randn(3, 8), None), none, size=(3, 0)).shape == (0, 4)
