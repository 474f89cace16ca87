"""The classes of a graph's nodes, from their features and their neighbours.

Transductive: the whole graph is there in training, the labels of some nodes only. Inductive: what
is trained on is the graph of the training nodes alone, and the others come with validation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from headloom.errors import InputError
from headloom.models.predictor import Predictor
from headloom.training.batches import Batch
from headloom.training.data import DataDescription
from headloom.training.measures.corpus import Results, digest, mean_measure
from headloom.training.measures.labels import label_measures
from headloom.training.nodes import NodeData, read_nodes
from headloom.training.sections import NodesConfig
from headloom.training.tasks.task import Plan, Probe, Task

__all__ = ["NodesTask", "nodes_task"]

#: Share of features other than 0 below which they are multiplied as a sparse matrix.
SPARSE = 0.1


class NodesTask(Task):
    """One graph, whole in every batch; targets are the classes of the nodes of a split."""

    def __init__(self, data: NodeData, inductive: bool) -> None:
        self.data, self.inductive = data, inductive
        filled = int((data.features != 0).sum())
        sparse = filled < SPARSE * data.features.numel()
        self._features = data.features.to_sparse().coalesce() if sparse else data.features
        self.description = DataDescription(
            facts={"features": data.features.shape[1], "classes": data.classes}
        )

    def sizes(self) -> dict[str, int]:
        """See Task.sizes."""
        parts = {name: len(chosen) for name, chosen in self.data.splits.items()}
        return {"nodes": self.data.nodes, "edges": self.data.edge_index.shape[1], **parts}

    def plan_epoch(self, epoch: int, batch_tokens: int) -> list[Plan]:
        """One batch: the graph."""
        return [[0]]

    def batch(self, plan: Plan) -> Batch:
        """See Task.batch."""
        return self._batch("train", self._training_graph() if self.inductive else self.inputs())

    def validation(self, batch_tokens: int) -> list[Batch]:
        """See Task.validation."""
        return [self._batch("valid", self.inputs())]

    def inputs(self) -> dict[str, Tensor]:
        """What the model reads: the whole graph."""
        return {"features": self._features, "edge_index": self.data.edge_index}

    def _training_graph(self) -> dict[str, Tensor]:
        """The same without the edges to and from other nodes than those trained on."""
        known = torch.zeros(self.data.nodes, dtype=torch.bool)
        known[self.data.splits["train"]] = True
        sources, targets = self.data.edge_index
        edges = self.data.edge_index[:, known[sources] & known[targets]]
        return {"features": self._features, "edge_index": edges}

    def _batch(self, split: str, inputs: dict[str, Tensor]) -> Batch:
        chosen = self.data.splits[split]
        targets = torch.full((self.data.nodes,), self.ignored)
        targets[chosen] = self.data.labels[chosen]
        return Batch(inputs, targets, len(chosen))

    def probe(self) -> Probe:
        """The whole graph."""
        return Probe(self.inputs(), {"tokens": self.data.names})

    @property
    def has_test(self) -> bool:
        """See Task.has_test."""
        return "test" in self.data.splits

    def check_split(self, split: str) -> None:
        """Raise an InputError where the file has no such nodes."""
        if split not in self.data.splits:
            raise InputError(
                f"this run's graph has no {split!r} nodes: use --split "
                f"{' or '.join(self.data.splits)}."
            )

    def digest(self, split: str) -> str:
        """See Task.digest."""
        self.check_split(split)
        chosen = self.data.splits[split]
        return digest([self.data.nodes, chosen.tolist(), self.data.labels[chosen].tolist()])

    def results(
        self, model: Predictor, *, split: str, beam: int, progress: Callable[[int, int], None]
    ) -> Results:
        """Accuracy, macro-F1 and loss on the nodes of a split."""
        self.check_split(split)
        chosen = self.data.splits[split]
        with torch.no_grad():
            logits = model.logits(model.outputs(**self.inputs())[chosen])
        progress(len(chosen), len(chosen))
        labels = self.data.labels[chosen]
        nats = cross_entropy(logits, labels, reduction="none").double().numpy()
        measures = label_measures(labels.numpy(), logits.argmax(-1).numpy(), len(self.data.classes))
        loss = mean_measure("loss", "loss, nats", nats, np.ones(len(chosen)), higher=False)
        return Results(split, "nodes", [*measures, loss], {"nodes": len(chosen)})


def nodes_task(config: NodesConfig, seed: int, data: DataDescription | None = None) -> NodesTask:
    """The task, with its graph read and checked.

    Raises: InputError: the graph of a run that goes on has other classes or features now.
    """
    graph = read_nodes(Path(config.graph))
    if config.normalise:
        graph = graph.row_normalised()
    if config.undirected:
        graph = graph.undirected()
    task = NodesTask(graph, config.setting == "inductive")
    if data is not None and data.facts != task.description.facts:
        raise InputError(
            f"{config.graph}: its classes or its features are not those that this run learned. Put "
            "the graph back, or train in another folder."
        )
    return task
