"""Claim: graph attention takes at most 0.35 of PyTorch Geometric's time, 0.25 of its extra memory.

A random graph of 170,000 nodes and 1.2 million edges, in- and out-degrees by a power law, 64
features a node; one layer of 8 heads, forward and backward, features too. Peer: GATConv (with
--layer GATv2Conv, that) of torch_geometric with the same parameters, whose output and gradients are
compared first. Each memory is measured in a process of its own: the most that it holds while one
call and its gradients are computed, beyond what it held before.

Prints seconds and megabytes of peer and headloom, and, last on each line, the ratios headloom /
peer.

    python benchmarks/bench_graph_attention.py
    python benchmarks/bench_graph_attention.py --depths 8 --layer GATv2Conv
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch
from torch import Tensor, nn

import headloom
from side_by_side import extra_memory, side_by_side

FEATURES = 64
HEADS = 8


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=170_000)
    parser.add_argument("--edges", type=int, default=1_200_000)
    parser.add_argument("--depths", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--layer", choices=["GATConv", "GATv2Conv"], default="GATConv")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-of", choices=["peer", "headloom"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    graph = power_law(options.nodes, options.edges)
    x = torch.randn(options.nodes, FEATURES)
    for depth in options.depths:
        if options.memory_of:
            layer = layers(options.layer, depth)[options.memory_of == "headloom"]
            step(layer, x[:100], graph[:, (graph < 100).all(0)])  # what the first call sets up
            print(extra_memory(lambda: step(layer, x, graph)))  # noqa: B023
        else:
            measure(options, depth, x, graph)


def power_law(nodes: int, edges: int) -> Tensor:
    """Return a random edge_index, (2, edges), in which few nodes have most of the edges.

    The ends of an edge are drawn with probabilities 1 / sqrt(rank), each side in an order of its
    own, so that the number of nodes of degree d falls as d^-3.
    """
    weights = torch.arange(1, nodes + 1, dtype=torch.float64).pow(-0.5)
    ends = [torch.multinomial(weights, edges, replacement=True) for _ in range(2)]
    return torch.stack([torch.randperm(nodes)[end] for end in ends])


def layers(name: str, depth: int) -> tuple[nn.Module, nn.Module]:
    """Peer's layer and headloom's, with the same parameters."""
    import torch_geometric.nn

    peer = getattr(torch_geometric.nn, name)(FEATURES, depth, heads=HEADS)
    ours = getattr(headloom, name)(FEATURES, depth, heads=HEADS)
    ours.load_state_dict(peer.state_dict())
    return peer, ours


def step(layer: nn.Module, x: Tensor, graph: Tensor) -> tuple[Tensor, ...]:
    """Output, and the gradients of its sum of squares by features and parameters."""
    x = x.detach().requires_grad_()
    output = layer(x, graph)
    parameters = [parameter for _, parameter in sorted(layer.named_parameters())]
    gradients = torch.autograd.grad(output.square().sum(), [x, *parameters])
    return output.detach(), *gradients


def measure(options: argparse.Namespace, depth: int, x: Tensor, graph: Tensor) -> None:
    """One line."""
    peer, ours = layers(options.layer, depth)
    farthest = max(
        float((theirs - mine).norm() / theirs.norm())
        for theirs, mine in zip(step(peer, x, graph), step(ours, x, graph), strict=True)
    )
    theirs, mine = side_by_side(
        lambda: step(peer, x, graph), lambda: step(ours, x, graph), repeats=options.repeats
    )
    memory = {who: in_a_process(options, depth, who) for who in ("peer", "headloom")}
    print(
        f"{options.layer}, {HEADS} heads x {depth}: largest relative difference {farthest:.1e}; "
        f"PyG {theirs:.2f} s, {memory['peer']:.0f} MB; headloom {mine:.2f} s, "
        f"{memory['headloom']:.0f} MB; "
        f"time {mine / theirs:.2f}, memory {memory['headloom'] / memory['peer']:.2f}",
        flush=True,
    )


def in_a_process(options: argparse.Namespace, depth: int, who: str) -> float:
    """Extra memory in megabytes."""
    command = [sys.executable, __file__, "--memory-of", who, "--depths", str(depth)]
    for name in ("nodes", "edges", "layer", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
