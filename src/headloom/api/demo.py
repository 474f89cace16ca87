"""`headloom.demo`: train a translator of dates, trace it and draw its weights."""

from __future__ import annotations

import datetime
from importlib import resources
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headloom.api.run_model import RunModel
from headloom.api.train import train
from headloom.formats.files import JsonObject
from headloom.formats.history import History
from headloom.formats.trace import TraceData
from headloom.training.config import RunConfig, load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.progress import ConsoleProgress
from headloom.training.tasks.dates import write_date

#: Dates that the demo shows, in different scripts and orders.
SHOWN = (
    (datetime.date(2024, 3, 17), "de", "full"),
    (datetime.date(1999, 12, 31), "en", "short"),
    (datetime.date(1999, 12, 31), "en_GB", "short"),
    (datetime.date(1969, 7, 20), "fr", "long"),
    (datetime.date(2031, 10, 5), "ja", "full"),
    (datetime.date(1989, 11, 9), "ru", "full"),
    (datetime.date(2045, 1, 2), "ar", "long"),
    (datetime.date(1957, 10, 4), "th", "long"),
)

#: Name of the page among the files.
PAGE = "page with the model inside"

#: Indices of traced dates; the first is drawn.
TRACED = (0, 1, 2, 4, 5)


def demo_config(seed: int) -> RunConfig:
    """Load the built-in configuration of the demo."""
    with resources.as_file(resources.files("headloom.training") / "demo.toml") as path:
        return load_config(path, [f"training.seed={seed}"])


def demo(run: str | Path = "runs/demo", seed: int = 1) -> JsonObject:
    """Train a translator of dates from random matrices, test it, trace it, and draw its weights.

    Progress and the paths of all files are printed on standard error, or in the notebook.

    Args: run: the run's folder, resumed if it exists; seed: of data, matrices and batches.
    Returns: exact_match (share of held-out dates), train_seconds, steps, run, page, files.
    """
    progress = ConsoleProgress()
    console, path, config = progress.console, Path(run), demo_config(seed)
    console.print("[bold]1. Train[/] a Transformer that reads dates in 48 languages.")
    outcome = train(config, run=path).outcome
    trained = open_run(path)

    console.print("\n[bold]2. Translate[/] unseen dates, one character at a time.")
    exact = _translate(trained, console)

    console.print("\n[bold]3. Trace[/] which characters each character attends to.")
    traces = _trace(trained)
    console.print("\n[bold]4. Draw[/] them, and write a page in which the model itself runs.")
    files = _draw(trained, traces, outcome, exact)
    for name, file in files.items():
        progress.say(f"  {name:<32} {file}")
    examples = getattr(config.task, "test_examples", 0)
    progress.say(
        f"\n{exact:.1%} of {examples:,} held-out dates exactly right, after "
        f"{outcome['train_seconds']:.0f} s of training.\n"
        f"Open the page and type a date: the model inside answers. {files[PAGE]}"
    )
    return {
        "exact_match": exact, "train_seconds": round(outcome["train_seconds"], 2),
        "steps": outcome["steps"], "run": str(path), "page": str(files[PAGE]),
        "files": {name: str(file) for name, file in files.items()},
    }  # fmt: skip


def _translate(run: TrainedRun, console: Console) -> float:
    from headloom.training.translation import Search, translate

    texts = [write_date(*example) for example in SHOWN]
    answers = translate(run.model, run.vocabulary, texts, Search(beam=1))
    table = Table(box=None, padding=(0, 2))
    for heading in ("written", "read as", "right"):
        table.add_column(heading)
    for (date, _, _), text, answer in zip(SHOWN, texts, answers, strict=True):
        table.add_row(text, answer, "yes" if answer == date.isoformat() else f"no: {date}")
    console.print(table)
    results = run.task().results(run.model, split="test", beam=1, progress=lambda done, total: None)
    return float(results.values()["exact_match"])


def _trace(run: TrainedRun) -> dict[str, TraceData]:
    folder = run.folder.path / "traces"
    folder.mkdir(exist_ok=True)
    model = RunModel(run, beam=1)
    traces: dict[str, TraceData] = {}
    for index in TRACED:
        date, locale, style = SHOWN[index]
        text = write_date(date, locale, style)
        file = folder / f"{locale}-{style}.loom"
        trace = model.trace(text, keep=64, save=file, overwrite=True)
        assert isinstance(trace, TraceData)  # of one text
        # Source and translation, without start and end token.
        traces[f"{text} → {''.join(trace.sequences['target'][1:])}"] = trace
    return traces


def _draw(
    run: TrainedRun, traces: dict[str, TraceData], outcome: JsonObject, exact: float
) -> dict[str, Path]:
    from headloom.api.page_model import page_pieces
    from headloom.studio import pictures
    from headloom.studio.page import collect, export_live_page
    from headloom.studio.training import run_history

    folder = run.folder.path / "pictures"
    folder.mkdir(exist_ok=True)
    page = run.folder.path / "demo.html"
    first = next(iter(traces.values()))
    crossing = [layer for layer in first.layers if layer.kind == "cross"][-1]
    files = {
        "alignment, last cross layer": folder / "alignment.png",
        "all heads at a glance": folder / "heads.png",
        "one head's weights, in training": folder / "history-weights.png",
        "one head's W_Q W_K^T, in training": folder / "history-products.png",
        "traces": run.folder.path / "traces",
        PAGE: page,
    }
    past = History(run.folder.history)
    name, head = _moved_most(past)
    drawn = (
        pictures.alignment(crossing), pictures.heads(first),
        pictures.history(past, pictures.WEIGHTS, name, head),
        pictures.history(past, pictures.PRODUCT, name, head),
    )  # fmt: skip
    for picture, file in zip(drawn, files.values(), strict=False):
        pictures.save_picture(picture, file)
    summary = {
        "exactly right": f"{exact:.1%} of held-out dates",
        "training": f"{outcome['train_seconds']:.0f} s, {outcome['steps']:,} steps",
        "model": f"{sum(p.numel() for p in run.model.parameters()):,} parameters",
    }
    collection = collect(
        list(traces.values()), "dates in 48 languages", names=list(traces),
        history=run_history(run.folder), summary=summary,
    )  # fmt: skip
    texts = [write_date(*SHOWN[index]) for index in TRACED]
    examples = list(zip(texts, traces.values(), strict=True))
    export_live_page(page, collection, page_pieces(RunModel(run, beam=1), examples))
    return files


def _moved_most(past: History) -> tuple[str, int]:
    """Return the layer and head of cross-attention whose W_Q changed most."""
    first, last = past[0], past[-1]
    moved = {
        (before.name, head): float((after.matrices["W_Q"][head] - matrix).norm())
        for before, after in zip(first.layers, last.layers, strict=True)
        if before.kind == "cross"
        for head, matrix in enumerate(before.matrices["W_Q"])
    }
    return max(moved, key=lambda key: moved[key])
