"""`headloom.train`: train on data in memory or in files."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from headloom.api.launch import launch
from headloom.api.run import Run
from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.formats.run import RunFolder, is_free, is_run
from headloom.models.dense import why_not_here
from headloom.training import loop
from headloom.training.config import (
    RunConfig,
    TrainingConfig,
    check_config,
    kinds,
    overridden,
    read_config,
)
from headloom.training.examples import extension_of
from headloom.training.in_memory import ENDS, Gathered, gather, is_path
from headloom.training.progress import Callback, Callbacks, ConsoleProgress
from headloom.training.sections import TaskSection
from headloom.training.settings import SECTIONS, canonical_names, sections_of, with_settings

#: Keys of [task] that name columns.
_ROLES = ("text", "label", "source", "target")


def train(
    config: object = None,
    data: object = None,
    *,
    run: str | Path | None = None,
    overrides: Sequence[str] | None = None,
    callbacks: Sequence[Callback | Callable[[JsonObject], object]] = (),
    processes: int = 1,
    **settings: object,
) -> Run:
    """Train a model, resume a stopped run, or extend a finished one.

        run = headloom.train(pairs, task="translation", max_minutes=2)
        run = headloom.train(frame, text="review", label="stars", width=64, seed=3)
        run = headloom.train("examples/dates.toml")
        run = headloom.train({"task": "labels", "model": {"layers": 1}}, frame, run="runs/mine")

    The same configuration, data and seed give the same bits as `headloom train`. A finished run of
    the same configuration and data is returned at once; a stopped one is resumed; one whose limits
    (max_steps, max_epochs, max_minutes, patience) are higher now is extended.

    Args:
        config: a dict of the sections "task", "model" and "training", the path of a TOML file, a
            RunConfig, a TrainingConfig, or the folder of a run; or the data.
        data: a list of pairs, of texts or of dicts; two lists, also as the first two arguments; a
            dict of columns; a DataFrame; a Dataset or DatasetDict of Hugging Face; arrays (X, y)
            of images (N, H, W[, C]) or of token ids; a PyTorch Geometric Data; files of CSV, TSV,
            Parquet, JSON lines, text (.gz too) or .npz; or a dict of such parts "train", "valid"
            and "test" (or valid= and test=). Data of memory are written to the run's folder, as
            JSON lines, text or .npz, and read from there. None: the configuration names the data.
        run: the run's folder; None: runs/ and the name of the file or of the task's kind, for data
            in memory the first that is free or holds the same training.
        overrides: "section.key=value", as --set takes it.
        callbacks: functions that are called with each report (a dict, as in metrics.jsonl), or
            objects of `headloom.Callback`.
        processes: number of processes of this machine.
        settings: keys of any section (max_minutes=2, width=64, text="review", task="labels");
            task, model and training take a kind or a dict too.

    Raises: HeadloomError: the data cannot be used, a key is unknown, the folder holds another run.
    """
    named = canonical_names(settings)
    run = named.pop("run", run)
    content, kept, data = _read(config, data)
    if data is not None:
        held_out: JsonObject = {
            part: named.pop(part) for part in ("valid", "test") if part in named
        }
        data = {"train": data, **held_out} if held_out else data
    source = str(config) if isinstance(config, str | Path) and config is not data else "train"
    content = overridden(sections_of(content), overrides or ())
    plan = _plan(content, data, named, f"{source} with --set" if overrides else source)
    if run is None:
        is_file = isinstance(config, str | Path) and (config is not data or is_path(config))
        stem = Path(str(config).removesuffix(".gz")).stem if is_file else plan.kind
        run = kept or plan.free(Path("runs") / stem)
    folder = Path(run)
    run_config = plan.config(folder)
    callback = Callbacks(callbacks)
    if processes > 1 and callbacks:
        raise InputError(
            "train: callbacks need a single process. Leave callbacks or processes out."
        )
    leader = os.environ.get("RANK", "0") == "0"
    with plan.written(folder) if leader else nullcontext():
        if processes > 1:
            _launch(run_config, folder, processes)
        elif leader:
            _train_with_progress(run_config, folder, callback)
        else:
            loop.train(run_config, folder, Callback())
    return Run(folder)


@dataclass(frozen=True)
class _Plan:
    """Training before its folder is chosen."""

    content: JsonObject
    data: Gathered | None
    settings: JsonMapping
    source: str

    @property
    def kind(self) -> str:
        """Kind of its task."""
        task = self.content.get("task")
        return str(task.get("kind") if isinstance(task, dict) else task)

    def config(self, folder: Path) -> RunConfig:
        """Return the configuration of the run in this folder."""
        content = self.content
        if self.data is not None:
            content = {**content, "task": {**content["task"], **self.data.task(folder / "data")}}
        return check_config(with_settings(content, self.settings), self.source)

    def free(self, first: Path) -> Path:
        """Return the first free folder, or that of this training; for files, the first."""
        if self.data is None or not self.data.files:
            return first
        if "RANK" in os.environ:
            raise InputError("train: several processes need one folder. Name it as run=.")
        folders = (first if n == 1 else first.with_name(f"{first.name}-{n}") for n in count(1))
        return next(folder for folder in folders if is_free(folder) or self._is_in(folder))

    def _is_in(self, folder: Path) -> bool:
        if self.data is None or not is_run(folder) or not self.data.is_in(folder / "data"):
            return False
        return RunFolder(folder).config() == self.config(folder).model_dump(mode="json")

    @contextmanager
    def written(self, folder: Path) -> Iterator[None]:
        """Write data of memory to a run's folder; remove them again if no run is created."""
        if self.data is None or not self.data.files:
            yield
            return
        place = folder / "data"
        if is_run(folder):
            if not self.data.is_in(place):
                raise InputError(
                    f"{folder}: this run was trained on other data. Choose another folder as run, "
                    "or remove this one."
                )
        elif not is_free(folder):
            raise InputError(f"{folder}: exists and is not a run. Choose another folder as run.")
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            if not is_run(folder):
                self.data.write(place)
            yield
        finally:
            if not is_run(folder):
                shutil.rmtree(place, ignore_errors=True)
                with suppress(OSError):
                    for path in missing:
                        path.rmdir()


def _plan(content: JsonObject, data: object, settings: JsonObject, source: str) -> _Plan:
    """Combine the sections of a configuration with keywords and data."""
    sections = {name: settings.pop(name) for name in SECTIONS if name in settings}
    for name, section in sections_of(sections).items():
        content[name] = {**content.get(name, {}), **section}
    if data is None:
        return _Plan(content, None, settings, source)
    task = content.get("task", {})
    roles = {role: settings.get(role, task.get(role)) for role in _ROLES}
    gathered = gather(data, task.get("kind"), roles)
    section = kinds("task")[gathered.kind]
    drop = {"kind", "train", "valid", "test"}
    if issubclass(section, TaskSection) and section.place is not None:
        drop.add(section.place)
    if gathered.kind == "images":  # written without column names
        drop.add("label")
        settings.pop("label", None)
    rest = {name: value for name, value in task.items() if name not in drop}
    content["task"] = {"kind": gathered.kind, **gathered.usual, **rest}
    return _Plan(content, gathered, settings, source)


def _train_with_progress(config: RunConfig, folder: Path, callback: Callbacks) -> None:
    """Train with progress on the console."""
    with ConsoleProgress() as progress:
        kind = config.training.products
        if reason := why_not_here(kind):
            progress.say(
                f'Products are in float32 by torch, not "{kind}": {reason}. See headloom doctor.'
            )
        result = loop.train(config, folder, Callbacks([progress, callback]))
        done = f"Trained {result.steps:,} steps in {result.seconds:,.1f} s."
        if result.already:
            done = (
                f"Finished already, after {result.steps:,} steps. To train again, choose another "
                f"--run; to extend it, a larger training.{result.reason}."
            )
        elif result.reason != "max_steps":
            done += f" Ended by training.{result.reason}."
        best = f"Best validation loss {result.best_loss:.4f}, at step {result.best_step:,}."
        progress.say(f"{done} {best} Run: {folder}")


def _launch(config: RunConfig, folder: Path, processes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="headloom-train-") as name:
        file = Path(name) / "config.json"
        file.write_text(json.dumps(config.model_dump(mode="json")), "utf-8")
        launch(["train", str(file), "--run", str(folder)], processes)


def _read(config: object, data: object) -> tuple[JsonObject, Path | None, object]:
    """Return the sections of a configuration, the folder of its run, and the data."""
    if isinstance(config, TrainingConfig):
        config = {"training": config}
    if isinstance(config, RunConfig):
        config = dict(config)
    if isinstance(config, Mapping) and config and set(config) <= set(SECTIONS):
        return dict(config), None, data
    if isinstance(config, str | Path) and is_run(config):
        folder = RunFolder.open(Path(config))
        content = read_config(folder.path / "config.json")
        place = check_config(content, str(config)).task.place
        if place is not None and not Path(content["task"][place]).exists():
            content["task"][place] = str(folder.place() or content["task"][place])
        return content, folder.path, data
    if isinstance(config, str | Path) and not _names_data(config):
        return read_config(config), None, data
    if config is not None and data is not None:
        data = (config, data)
    return {}, None, config if data is None else data


def _names_data(path: str | Path) -> bool:
    """Return whether a path, or a text, is data rather than a configuration."""
    if "\n" in str(path) or Path(path).name == "config.json":
        return "\n" in str(path)
    return extension_of(Path(path)) in ENDS or Path(path).is_dir()
