"""Runs that classify the nodes of a graph, as commands ask them."""

from __future__ import annotations

from pathlib import Path

from weft.errors import InputError
from weft.formats.run import is_run
from weft.formats.trace import TraceData
from weft.jobs.model import TraceChoices
from weft.jobs.tracing import check_output
from weft.tracing.sources.graphs import trace_nodes
from weft.training.config import NodesConfig
from weft.training.inference import TrainedRun, open_run
from weft.training.nodes import UNKNOWN, NodeData
from weft.training.tasks import make_task
from weft.training.tasks.nodes import NodesTask

__all__ = ["node_names", "opened_graph", "trace_graph"]


def opened_graph(name: str) -> tuple[TrainedRun, NodesTask] | None:
    """A run that reads a graph, with its task; None for any other model."""
    if not is_run(name):
        return None
    run = open_run(name)
    if not isinstance(run.config.task, NodesConfig):
        return None
    task = make_task(run.config, run.data)
    assert isinstance(task, NodesTask)  # as its configuration says
    return run, task


def node_names(data: NodeData) -> list[str]:
    """The names of nodes with their classes: "35:theory"; the name alone where it has none."""
    return [
        name if label == UNKNOWN else f"{name}:{data.classes[label]}"
        for name, label in zip(data.names, data.labels.tolist(), strict=True)
    ]


def trace_graph(run: TrainedRun, task: NodesTask, output: Path, options: TraceChoices) -> TraceData:
    """Trace a run on its whole graph, every neighbour kept, into a folder."""
    check_output(output, options.overwrite)
    if options.received is not None:
        raise InputError(
            "--received: the trace of a graph keeps every edge, whose weights on a node are what "
            "it receives: weft measures. Leave the option out."
        )
    trace = trace_nodes(run.model, task.inputs(), node_names(task.data))
    trace.save(output, overwrite=options.overwrite)
    return trace
