"""The cards of traces and runs on the Hub: README.md, whose head is read by its viewer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.formats.trace import TraceData
from weft.jobs.hub_tables import TABLES
from weft.version import __version__

if TYPE_CHECKING:
    from weft.training.inference import TrainedRun

__all__ = ["run_card", "trace_card"]

#: What the Hub calls the work of a task.
_WORK = {
    "dates": "translation", "translation": "translation", "language": "text-generation",
    "labels": "text-classification", "images": "image-classification",
}  # fmt: skip


def _plain(text: object) -> str:
    """Text of others in a line of Markdown: as code, which nothing leaves."""
    line = " ".join(str(text).split()).replace("`", "'")
    return f"`{line[:200]}`"


def trace_card(repository: str, traces: Sequence[TraceData], names: Sequence[str]) -> str:
    """The card of a data set of traces; its configurations are the tables of all of them."""
    files = ("keys", "received")
    there = [
        table for table in TABLES
        if table not in files or any(_has(trace, table) for trace in traces)
    ]  # fmt: skip
    title = json.dumps(f"Attention of {repository.split('/')[1]}")
    head = ["---", f"pretty_name: {title}"]
    head += ["tags:", "- weft", "- attention", "- interpretability", "configs:"]
    for table in there:
        head += [f"- config_name: {table}", "  data_files:", "  - split: train"]
        head += [f'    path: "*/{table}.parquet"']
        head += ["  default: true"] if table == there[0] else []
    lines = [
        *head, "---", "", f"# {repository}", "",
        "Attention of a model on a text, layer by layer and head by head: the strongest edges of "
        "every query, exact, and the rest of each row. Recorded by weft "
        f"{__version__}.", "",
        "| trace | model | layers | heads | tokens |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, trace in zip(names, traces, strict=True):
        heads = sum(layer.heads for layer in trace.layers)
        tokens = " + ".join(str(len(sequence)) for sequence in trace.sequences.values())
        model = Path(str(trace.model.get("name") or "not named")).name
        lines.append(
            f"| {_plain(name)} | {_plain(model)} | {len(trace.layers)} | {heads} | {tokens} |"
        )
    lines += ["", "| table | a row is |", "|---|---|"]
    lines += [f"| {table} | {TABLES[table]} |" for table in there]
    lines += [
        "", "## Read it", "",
        "```console", f"$ weft pull {repository} -o t.weft", "$ weft view t.weft", "```", "",
        "```python", "import datasets", "",
        f'edges = datasets.load_dataset("{repository}", "edges", split="train")', "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _has(trace: TraceData, table: str) -> bool:
    """Whether some layer of a trace has a table that not every trace has."""
    from weft.formats.trace_reader import StoredLayer

    return any(
        isinstance(layer.data, StoredLayer) and (layer.data.folder / f"{table}.parquet").exists()
        for layer in trace.layers
    )


def run_card(repository: str, run: TrainedRun, loading: str | None) -> str:
    """The card of a run.

    loading: the line of Python by which Transformers opens the model; None: it cannot.
    """
    from weft.jobs.run_list import list_runs
    from weft.training.config import PretrainedConfig

    (listed,) = list_runs([run.folder.path])
    head = ["---", "tags:", "- weft", "- attention"]
    head += [f"library_name: {'weft' if loading is None else 'transformers'}"]
    head += [f"pipeline_tag: {_WORK[listed.task]}"] if listed.task in _WORK else []
    pretrained = isinstance(run.config.model, PretrainedConfig)
    began = "A model trained from random matrices"
    began = "A model of Transformers, trained further" if pretrained else began
    numbers = sum(weight.numel() for weight in run.model.parameters())
    lines = [
        *head, "---", "", f"# {repository}", "",
        f"{began} by weft {__version__}.", "",
        "| | |", "|---|---|", f"| task | {_plain(listed.task)} |", f"| weights | {numbers:,} |",
    ]  # fmt: skip
    if listed.best is not None:
        lines.append(f"| best validation loss | {listed.best:.4f}, at step {listed.best_step:,} |")
    if listed.step is not None:
        lines.append(f"| steps trained | {listed.step:,} |")
    lines += ["", "## Use it", "", "```console", f"$ weft pull {repository} -o run"]
    lines += ["$ weft heads run", "$ weft view run", "```", ""]
    if loading is not None:
        loader = loading.split("(")[0]
        lines += ["```python", "import transformers", ""]
        lines += [f'model = {loader}("{repository}")', "```", ""]
    return "\n".join(lines)
