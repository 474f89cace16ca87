"""What `headloom trace` was asked: one trace, one for each window of a text, or one for each
text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.api.corpus import trace_corpus
from headloom.api.engines import Engine, Processes
from headloom.api.model import TraceChoices
from headloom.api.tracing import check_output, trace_model
from headloom.api.windows import trace_windows
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.run import is_run
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData
from headloom.formats.verification import in_words
from headloom.tracing.capture import trace_nodes
from headloom.training.inference import TrainedRun, open_run
from headloom.training.sections import NodesConfig
from headloom.training.tasks.nodes import UNKNOWN, NodeData, NodesTask

if TYPE_CHECKING:
    from headloom.formats.trace import TraceData
    from headloom.tracing.options import Verify

__all__ = [
    "Report",
    "TraceRequest",
    "opened_graph",
    "report_of",
    "run_trace",
    "verify_of",
]


#: Of one machine.
_MOST_PROCESSES = 256
#: Told how much of how much is done, or None; and perhaps of what.
Show = Callable[[int, int | None, str | None], None]


@dataclass(frozen=True)
class TraceRequest:
    """A model, its texts, and the traces to write.

    text, image: for one trace; window, overlap: for a trace of each window of the text.
    corpus: the texts, for a trace of each; workers, threads: the processes, and threads of each.
    ray_address: of the Ray cluster whose processes they are; None: of this machine.
    data: where the graph of a run is; None: where it was in training.
    """

    model: str
    output: Path
    text: str | None = None
    image: Path | None = None
    window: int | None = None
    overlap: int | None = None
    corpus: Path | None = None
    workers: int = 1
    threads: int | None = None
    ray_address: str | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Report:
    """What was traced: in lines, and by names. failed: why not everything was."""

    lines: list[str]
    content: JsonObject
    failed: str | None = None


def run_trace(request: TraceRequest, options: TraceChoices, show: Show) -> Report:
    """Trace what is asked for.

    Raises: InputError: options that do not go together, or no text.
    """
    if request.overlap is not None and request.window is None:
        raise InputError("--overlap needs --window: it says how many tokens two windows share.")
    if request.workers != 1 and request.corpus is None:
        raise InputError("--workers needs --corpus: each process traces texts of it.")
    if request.ray_address is not None and request.corpus is None:
        raise InputError("--ray-address needs --corpus: each process traces texts of it.")
    if request.corpus is not None:
        if options.overwrite or (request.text, request.image, request.window) != (None, None, None):
            raise InputError(
                "--corpus brings its own texts and keeps what is there: leave out --text, --file, "
                "--stdin, --image, --window and --overwrite."
            )
        return _corpus(request, request.corpus, options, show)
    if (request.text, request.image, request.window) == (None, None, None):
        graph = opened_graph(request.model, request.data)
        if graph is not None:
            return report_of(_trace_graph(*graph, request.output, options), request.output, "nodes")
    if request.data is not None:
        raise InputError("--data: only a run that reads a graph is traced on it. Leave it out.")
    if request.text is None and (request.image is None or request.window is not None):
        raise InputError(
            "trace: give the text by one of --text, --file and --stdin, or an image by --image."
        )
    if request.window is not None:
        if (request.image, options.generate, options.target) != (None, None, None):
            raise InputError("--window splits one text: leave out --image, --generate, --target.")
        return _windows(request, request.text or "", request.window, options, show)
    return _one(request, options, show)


def verify_of(asked: str | None) -> Verify:
    """How much is verified, as `headloom.trace` takes it, from the word of an option.

    >>> verify_of("no"), verify_of("all"), verify_of("200")
    (False, 'all', 200)
    """
    if asked is None or asked == "all":
        return asked
    if asked == "no":
        return False
    if asked.isascii() and asked.isdigit() and int(asked[:9]) > 0:
        return int(asked[:9])
    raise InputError(f"--verify {asked}: expected a number of tokens, 1 or more, all or no.")


def _one(request: TraceRequest, options: TraceChoices, show: Show) -> Report:
    def progress(path: str, number: int, total: int | None) -> None:
        show(number + 1, total, f"layer {path}" if options.generate is None else "tokens read")

    trace = trace_model(
        request.model, request.text, request.output, options, image=request.image,
        progress=progress,
    )  # fmt: skip
    return report_of(trace, request.output)


def report_of(trace: TraceData, output: Path, unit: str = "tokens") -> Report:
    """What is said of a trace that was written."""
    return Report(
        _description(trace, output, unit),
        {
            "trace": str(output),
            "layers": len(trace.layers),
            "quantization": trace.model.get("quantization"),
            "deviation": trace.deviation,
            "verification": trace.verification,
            "sequences": {name: list(tokens) for name, tokens in trace.sequences.items()},
        },
    )


def _description(trace: TraceData, output: Path, unit: str) -> list[str]:
    """Its tokens, a line for each sequence; its layers and how far they were verified."""
    lines = []
    for name, tokens in trace.sequences.items():
        first = " ".join(map(visible, shown(tokens)[:50])) + (" ..." if len(tokens) > 50 else "")
        lines.append(f"{name}: {len(tokens)} {unit}: {first}")
    verified = "" if trace.deviation is None else f" Deviation: {trace.deviation:.1e}."
    if trace.verification is not None:
        verified += f" {in_words(trace.verification).capitalize()}."
    count = len(trace.layers)
    layers = f"{count} attention layer{'s' if count != 1 else ''}"
    return [*lines, f"{layers}.{verified} Trace: {output}"]


def _windows(
    request: TraceRequest, text: str, window: int, options: TraceChoices, show: Show
) -> Report:
    traces = trace_windows(
        request.model, text, request.output, options, window=window, overlap=request.overlap,
        progress=lambda done, total: show(done, total, "windows"),
    )  # fmt: skip
    there = f" {traces.there} were there already." if traces.there else ""
    line = (
        f"{len(traces.paths)} window{'s' * (len(traces.paths) != 1)} of at most {window} tokens, a "
        f"trace each.{there} No token looks from one window into another. Traces: {request.output}"
    )
    paths = [str(path) for path in traces.paths]
    return Report([line], {"traces": paths, "window": window, "there": traces.there})


def _engine(request: TraceRequest) -> Engine:
    """What traces the texts of a corpus."""
    if request.ray_address is not None:
        from headloom.api.ray_engine import RayEngine

        return RayEngine(request.ray_address, request.workers, request.threads or 1)
    if request.workers > _MOST_PROCESSES:
        raise InputError(
            f"--workers {request.workers}: expected {_MOST_PROCESSES} processes of one machine at "
            "most; on many machines give --ray-address."
        )
    return Processes(request.workers, request.threads)


def _corpus(request: TraceRequest, corpus: Path, options: TraceChoices, show: Show) -> Report:
    done = trace_corpus(
        request.model, corpus, request.output, options, engine=_engine(request),
        progress=lambda count, total: show(count, total, "texts"),
    )  # fmt: skip
    reasons = [f"{name}: {reason}" for name, reason in done.failed.items()]
    count = f"{done.traced} texts traced, {done.there} were there already."
    if done.empty:
        more = f" and {len(done.empty) - 3} more" if len(done.empty) > 3 else ""
        count += f" Empty, left out: {', '.join(done.empty[:3])}{more}."
    content = {
        "folder": str(request.output),
        "traced": done.traced,
        "there": done.there,
        "empty": list(done.empty),
        "failed": done.failed,
    }
    failed = None
    if done.failed:
        failed = (
            f"{len(done.failed)} of {done.traced + done.there + len(done.failed)} texts could not "
            "be traced; the lines above say why. The others are there."
        )
    return Report([*reasons, f"{count} Traces: {request.output}"], content, failed)


def opened_graph(name: str, data: Path | None = None) -> tuple[TrainedRun, NodesTask] | None:
    """A run that reads a graph, with its task; None for any other model."""
    if not is_run(name):
        return None
    run = open_run(name, data)
    if not isinstance(run.config.task, NodesConfig):
        return None
    task = run.task()
    assert isinstance(task, NodesTask)  # as its configuration says
    return run, task


def _node_names(data: NodeData) -> list[str]:
    """The names of nodes with their classes: "35:theory"; the name alone where it has none."""
    return [
        name if label == UNKNOWN else f"{name}:{data.classes[label]}"
        for name, label in zip(data.names, data.labels.tolist(), strict=True)
    ]


def _trace_graph(
    run: TrainedRun, task: NodesTask, output: Path, options: TraceChoices
) -> TraceData:
    """Trace a run on its whole graph, every neighbour kept, into a folder."""
    check_output(output, options.overwrite)
    if options.received is not None:
        raise InputError(
            "--received: the trace of a graph keeps every edge, whose weights on a node are what "
            "it receives: headloom measures. Leave the option out."
        )
    trace = trace_nodes(run.model, task.inputs(), _node_names(task.data))
    trace.save(output, overwrite=options.overwrite)
    return trace
