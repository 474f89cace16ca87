"""The picture of docs/graphs.md: attention that a run learned on Cora, into docs/pictures.

    headloom train examples/cora.toml --set task.graph=PATH/TO/cora.npz
    python scripts/graph_picture.py runs/cora

On the left, a paper and its neighbours, with the weights of one head; on the right, of all papers,
how far weights are from the mean over neighbours.
"""

from __future__ import annotations

import sys
from pathlib import Path

import networkx
import numpy as np
from matplotlib.figure import Figure

from headloom.api.trace_request import opened_graph
from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph
from headloom.studio.pictures.canvas import new_figure, save_picture
from headloom.studio.pictures.palette import palette
from headloom.tracing.sources.graphs import trace_nodes
from headloom.training.tasks.nodes import NodesTask

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "cora.png"
#: Neighbours that the chosen paper has at least and at most: so many can be told apart.
FEW, MANY = 9, 14


def main() -> None:
    """Draw."""
    opened = opened_graph(sys.argv[1])
    if opened is None:
        raise InputError(f"{sys.argv[1]}: expected a run of the task nodes.")
    run, task = opened
    layers = trace_nodes(run.model, task.inputs(), task.data.names).layers
    figure = new_figure(9.0, 4.2, palette())
    head, node = chosen(layers[0].graph)
    neighbourhood(figure, layers[0].graph, head, node, task)
    distribution(figure, [layer.graph for layer in layers])
    save_picture(figure, PICTURE)


def shares(graph: AttentionGraph) -> np.ndarray:
    """Each kept weight times the number of neighbours: 1 where all have the same. NaN: no edge."""
    weights = (graph.weights * graph.count[..., None]).numpy()
    return np.where(graph.keys.numpy() >= 0, weights, np.nan)


def chosen(graph: AttentionGraph) -> tuple[int, int]:
    """The head and the paper of few neighbours whose weights differ most."""
    count = graph.count.numpy()
    spread = np.nanstd(shares(graph), axis=-1)
    spread[(count < FEW) | (count > MANY)] = -1
    head, node = np.unravel_index(spread.argmax(), spread.shape)
    return int(head), int(node)


def neighbourhood(
    figure: Figure, graph: AttentionGraph, head: int, node: int, task: NodesTask
) -> None:
    """A paper in the middle, those that it looks at around it, wider lines for larger weights."""
    colours = palette()
    axes = figure.add_axes((0.01, 0.02, 0.47, 0.80))
    row = graph[head, node]
    ring = [key for key in row.keys.tolist() if key != node]
    weight_of = dict(zip(row.keys.tolist(), row.weights.tolist(), strict=True))
    places = networkx.circular_layout(ring)
    labels = task.data.labels.tolist()
    for key in ring:
        x, y = places[key]
        weight = weight_of[key]
        axes.plot((0, x), (0, y), color=colours.faint, linewidth=40 * weight, alpha=0.55,
                  solid_capstyle="butt", zorder=1)  # fmt: skip
        axes.text(1.22 * x, 1.22 * y, f"{weight:.2f}", ha="center", va="center", fontsize=8,
                  color=colours.ink)  # fmt: skip
    for key, (x, y) in {**places, node: (0.0, 0.0)}.items():
        axes.scatter(x, y, s=330 if key == node else 190, color=colours.heads[labels[key]],
                     edgecolors=colours.ground, linewidths=1.5, zorder=2)  # fmt: skip
    axes.text(0, 0, f"{weight_of.get(node, 0):.2f}", color=colours.ground, fontsize=7.5,
              ha="center", va="center", zorder=3)  # fmt: skip
    axes.set(xlim=(-1.45, 1.45), ylim=(-1.4, 1.4), aspect="equal")
    axes.axis("off")
    figure.text(0.02, 0.95, f"One paper and its {len(ring)} neighbours", fontsize=11,
                color=colours.ink, va="top")  # fmt: skip
    figure.text(
        0.02, 0.885, f"layer 1, head {head}; colour: class; line: weight (all alike: "
        f"{1 / row.count:.2f}); in the middle: on itself", fontsize=7.5, color=colours.faint,
        va="top",
    )  # fmt: skip


def distribution(figure: Figure, graphs: list[AttentionGraph]) -> None:
    """How far weights are from the mean over neighbours, for each layer."""
    colours = palette()
    axes = figure.add_axes((0.56, 0.14, 0.42, 0.68))
    bins = np.geomspace(0.5, 2, 81)
    for number, (graph, colour) in enumerate(
        zip(graphs, (colours.query, colours.key), strict=True), 1
    ):
        some = graph.count.numpy() > 1  # a node alone has but one weight, 1
        values = shares(graph)[some]
        values = values[np.isfinite(values)].clip(0.5, 2)
        heads = graph.shape[0]
        axes.hist(values, bins, weights=np.full(len(values), 100 / len(values)), color=colour,
                  alpha=0.6, label=f"layer {number}, {heads} head{'s' if heads > 1 else ''}",
                  zorder=2)  # fmt: skip
    axes.axvline(1, color=colours.ink, linewidth=0.8, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5, 0.71, 1, 1.41, 2], ["÷2", "÷1.4", "alike", "×1.4", "×2"])
    axes.minorticks_off()
    axes.set_xlabel("weight of a neighbour, against the mean over neighbours", fontsize=8.5,
                    color=colours.ink)  # fmt: skip
    axes.set_ylabel("% of all edges", fontsize=8.5, color=colours.ink)
    axes.tick_params(labelsize=8, colors=colours.faint, length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colours.line)
    axes.legend(frameon=False, fontsize=8, labelcolor=colours.ink)
    figure.text(0.52, 0.95, "All papers: weights stay close to the mean", fontsize=11,
                color=colours.ink, va="top")  # fmt: skip


if __name__ == "__main__":
    main()
