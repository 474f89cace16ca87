"""What `headloom trace` was asked: one trace, one for each window of a text, or one for each text
of a corpus.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headloom.api.corpus import CorpusTraces, trace_corpus, trace_windows
from headloom.api.opening import load
from headloom.api.questions import TraceChoices, check_text, tell_unknown
from headloom.errors import DataError, InputError
from headloom.formats.files import NOT_WRITABLE, JsonObject, disk_errors
from headloom.formats.images import open_image
from headloom.formats.run import is_run
from headloom.formats.tokens import shown, visible
from headloom.formats.trace import TraceData
from headloom.formats.trace_writer import not_a_trace
from headloom.formats.verification import in_words
from headloom.tracing.capture import trace_nodes
from headloom.training.inference import TrainedRun, open_run
from headloom.training.sections import NodesConfig
from headloom.training.tasks.nodes import UNKNOWN, NodesTask

#: Told how much of how much is done, or None; and perhaps of what.
Show = Callable[[int, int | None, str | None], None]


@dataclass(frozen=True)
class TraceRequest:
    """A model, what it reads, and the traces to write.

    text, image: for one trace. window: tokens of each part of the text, which gets a trace.
    corpus: a file with a text a line, or a folder of .txt files: a trace of each.
    workers: processes that trace a corpus, a number; or the address of a Ray cluster that does.
    """

    model: str
    output: Path
    text: str | None = None
    image: Path | None = None
    window: int | None = None
    corpus: Path | None = None
    workers: str = "1"


@dataclass(frozen=True)
class Report:
    """What was traced: in lines, and by names. failed: why not everything was."""

    lines: list[str]
    content: JsonObject
    failed: str | None = None


def is_image(path: Path) -> bool:
    """Whether a file that a model is to read is a picture, by its name.

    >>> is_image(Path("dog.png")), is_image(Path("far/test.npz:4")), is_image(Path("dog.txt"))
    (True, True, False)
    """
    suffix = path.suffix.lower().partition(":")[0]
    return suffix in (".png", ".jpg", ".jpeg", ".npz")


def run_trace(request: TraceRequest, options: TraceChoices, show: Show) -> Report:
    """Trace what is asked for. Raises: InputError: options that do not go together."""
    read = (request.text, request.image, request.window, options.generate, options.target)
    if request.corpus is not None:
        if any(part is not None for part in read if part is not options.generate):
            raise InputError("--corpus has the texts: leave out all but --generate beside it.")
        return _many(
            request,
            trace_corpus(
                request.model, request.corpus, request.output, options, workers=request.workers,
                progress=lambda count, total: show(count, total, "texts"),
            ),
        )  # fmt: skip
    graph = opened_graph(request.model)
    if graph is not None:
        if any(part is not None for part in read):
            raise InputError(f"{request.model} reads its graph alone. Give it nothing else.")
        return report_of(_trace_graph(*graph, request.output, options), request.output, "nodes")
    if request.text is None and (request.image is None or request.window is not None):
        raise InputError("trace: give what the model reads by --text or --file.")
    if request.window is not None:
        if (request.image, options.generate, options.target) != (None, None, None):
            raise InputError("--window splits one text: leave out --generate and --target.")
        return _many(
            request,
            trace_windows(
                request.model, request.text or "", request.output, options,
                window=request.window, workers=request.workers,
                progress=lambda count, total: show(count, total, "windows"),
            ),
        )  # fmt: skip
    return report_of(_one(request, options, show), request.output)


def _one(request: TraceRequest, options: TraceChoices, show: Show) -> TraceData:
    """Trace a run or a model of Hugging Face on a text, an image or both, into a folder."""

    def progress(path: str, number: int, total: int | None) -> None:
        show(number + 1, total, f"layer {path}" if options.generate is None else "tokens read")

    check_output(request.output, options.overwrite)
    if request.text is not None:
        check_text(request.text)
    picture = None if request.image is None else open_image(request.image)
    model, text, description = load(request.model), request.text or "", None
    if picture is not None:
        model, inputs = model._image_inputs(picture, request.text)
        description = {"image": str(request.image)}
    else:
        inputs = model._inputs(text, options.target, generates=options.generate is not None)
    trace = model._traced(
        inputs, options.as_asked(model.tokenizer, request.output), options.generate,
        description=description, progress=progress,
    )  # fmt: skip
    assert isinstance(trace, TraceData)  # of one text
    if picture is None:
        tell_unknown("the text", model._unknown_parts(text + (options.target or "")))
    return trace


def check_output(output: Path, overwrite: bool) -> None:
    """Raise a DataError where a trace cannot be written, before the model runs."""
    with disk_errors(output, NOT_WRITABLE):
        parent = Path(os.path.realpath(output)).parent
        tempfile.TemporaryFile(dir=parent).close()
    if output.exists():
        problem = not_a_trace(output)
        if problem:
            raise DataError(f"{output} is not overwritten: {problem}. Choose another name.")
        if not overwrite:
            raise DataError(f"{output} exists already. Choose another name, or give --overwrite.")


def report_of(trace: TraceData, output: Path, unit: str = "tokens") -> Report:
    """What is said of a trace that was written: its tokens, layers and verification."""
    lines = []
    for name, tokens in trace.sequences.items():
        first = " ".join(map(visible, shown(tokens)[:50])) + (" ..." if len(tokens) > 50 else "")
        lines.append(f"{name}: {len(tokens)} {unit}: {first}")
    verified = "" if trace.deviation is None else f" Deviation: {trace.deviation:.1e}."
    if trace.verification is not None:
        verified += f" {in_words(trace.verification).capitalize()}."
    count = len(trace.layers)
    lines.append(f"{count} attention layer{'s' * (count != 1)}.{verified} Trace: {output}")
    content = {
        "trace": str(output),
        "layers": count,
        "quantization": trace.model.get("quantization"),
        "deviation": trace.deviation,
        "verification": trace.verification,
        "sequences": {name: list(tokens) for name, tokens in trace.sequences.items()},
    }
    return Report(lines, content)


def _many(request: TraceRequest, done: CorpusTraces) -> Report:
    """What is said of the traces of a corpus, or of windows."""
    lines = [f"{name}: {reason}" for name, reason in done.failed.items()]
    count = f"{done.traced} texts traced, {done.there} were there already."
    if request.window is not None:
        count = count.replace("texts", f"windows of at most {request.window} tokens")
        count += " No token looks from one window into another."
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
    return Report([*lines, f"{count} Traces: {request.output}"], content, failed)


def opened_graph(name: str) -> tuple[TrainedRun, NodesTask] | None:
    """A run that reads a graph, with its task; None for any other model."""
    if not is_run(name):
        return None
    run = open_run(name)
    if not isinstance(run.config.task, NodesConfig):
        return None
    task = run.task()
    assert isinstance(task, NodesTask)  # as its configuration says
    return run, task


def _trace_graph(
    run: TrainedRun, task: NodesTask, output: Path, options: TraceChoices
) -> TraceData:
    """Trace a run on its whole graph, every neighbour kept; its nodes are named "35:theory"."""
    check_output(output, options.overwrite)
    data = task.data
    names = [
        name if label == UNKNOWN else f"{name}:{data.classes[label]}"
        for name, label in zip(data.names, data.labels.tolist(), strict=True)
    ]
    trace = trace_nodes(run.model, task.inputs(), names)
    trace.save(output, overwrite=options.overwrite)
    return trace
