"""The folder of a training run: what is where.

run.json               format, version, state ("training" or "finished")
config.json            the whole configuration, defaults filled in
vocabulary.json        the tokenizer (format of the `tokenizers` library), where text is read
data.json              what else the model must know of its data, as the names of classes
places.json            where the data are: the absolute path, and the path from this folder
tokens.bin             ids of the text that a language model learns from, 2 or 4 bytes each; what
                       they are of is in data.json. Made anew where it is missing
checkpoint.safetensors everything needed to go on: weights, optimiser, random state
shards/                the same, of a run whose model is shared by several processes, see
                       headloom.formats.shards
best.safetensors       the weights to use: those with the best validation loss
metrics.jsonl          one line a report: losses, learning rate, speed
measures.jsonl         one line a measured step, of a training that `headloom.monitor` watches
history/               snapshots of the weight matrices, see headloom.formats.history
lock                   empty; locked by the process that trains the run, while it does

A training that `headloom.monitor` watches has no vocabulary, no data and no weights: these are its
owner's. Its config.json says "monitor", and what is known of the model; its probe.safetensors holds
the fixed input that is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headloom.errors import DataError, InputError
from headloom.formats.files import (
    MARK,
    NOT_WRITABLE,
    JsonObject,
    is_there,
    read_json,
    reason_of,
    remove_leftovers,
    write_json,
)
from headloom.formats.locks import lock
from headloom.formats.reports import Reports
from headloom.formats.shards import Shards, latest_shards
from headloom.formats.tensors import read_notes

__all__ = [
    "ENDS",
    "Completed",
    "RunFolder",
    "is_free",
    "is_run",
]

#: Gives a configuration on disk the defaults of keys that came after it was written.
Completed = Callable[[JsonObject], JsonObject]

_FORMAT, _VERSION = "headloom run", 1

#: What ends a run. Where it is raised, or given up, the same run goes on.
ENDS = ("training.max_steps", "training.max_epochs", "training.patience")


def is_run(path: Path | str) -> bool:
    """Whether the folder of a training run is at a path, whole or damaged."""
    return (Path(path) / "run.json").is_file()


@dataclass(frozen=True)
class RunFolder:
    """A run's folder on disk."""

    path: Path

    @property
    def vocabulary(self) -> Path:
        """The tokenizer."""
        return self.path / "vocabulary.json"

    @property
    def data(self) -> Path:
        """What else a model must know of its data."""
        return self.path / "data.json"

    def keep_place(self, data: Path) -> None:
        """Write where the data are, so that they are found from any folder."""
        places = [str(data.resolve()), os.path.relpath(data.resolve(), self.path.resolve())]
        write_json(self.path / "places.json", places)

    def place(self) -> Path | None:
        """Where the data are; None: no longer where they were, or nobody has kept where."""
        path = self.path / "places.json"
        kept = read_json(path, "list of places") if path.exists() else None
        places = [self.path / str(place) for place in kept] if isinstance(kept, list) else []
        return next(filter(Path.exists, places), None)

    @property
    def tokens(self) -> Path:
        """Ids of the text to learn from."""
        return self.path / "tokens.bin"

    @property
    def checkpoint(self) -> Path:
        """Everything needed to go on."""
        return self.path / "checkpoint.safetensors"

    @property
    def shards(self) -> Path:
        """Checkpoints of a model that several processes share."""
        return self.path / "shards"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to go on from."""
        return self.last_checkpoint() is not None

    def last_checkpoint(self) -> Path | Shards | None:
        """What to go on from: a file, or a folder of shards, whichever is of the later step."""
        shards = latest_shards(self.shards)
        if not self.checkpoint.exists():
            return shards
        if shards is None:
            return self.checkpoint
        # A process was killed between writing the one and removing the other.
        return shards if _step_of(shards) > _step_of(self.checkpoint) else self.checkpoint

    @property
    def best(self) -> Path:
        """The weights to use."""
        return self.path / "best.safetensors"

    @property
    def metrics(self) -> Path:
        """Reports, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def measures(self) -> Reports:
        """What the heads of a watched training did, one report a measured step."""
        return Reports(self.path / "measures.jsonl", "measures")

    @property
    def probe(self) -> Path:
        """The fixed input of a watched training."""
        return self.path / "probe.safetensors"

    @property
    def history(self) -> Path:
        """Snapshots of the weight matrices."""
        return self.path / "history"

    @classmethod
    def create_or_open(
        cls,
        path: Path,
        config: JsonObject,
        completed: Completed = lambda saved: saved,
    ) -> RunFolder:
        """A new run's folder, or the folder of the same run to go on with.

        The same run may end later: see `ENDS` and `extend`.

        completed: of a configuration that an earlier version wrote.

        Raises: InputError: there is a run with another configuration, or something else.
        """
        folder = cls(path)
        if (path / "run.json").exists():
            folder.check()
            if ("monitor" in folder.config()) != ("monitor" in config):
                kinds = ("a training of headloom's own", "a training that headloom.monitor watches")
                raise InputError(
                    f"{path}: this is the folder of {kinds['monitor' in folder.config()]}. Choose "
                    "another folder."
                )
            remove_leftovers(path)
            remove_leftovers(folder.history)
            folder._check_same(config, completed)
            return folder
        _refuse_something_else(path)
        if path.exists():
            remove_leftovers(path)
        _make(path, folder.history)
        write_json(path / "config.json", config)
        folder.set_state("training")
        return folder

    def _check_same(self, config: JsonObject, completed: Completed) -> None:
        """Raise an InputError unless this configuration is the run's, or extends the run."""
        changed = list(_differences(completed(self.config()), config))
        others = [change for change in changed if change[0] not in ENDS]
        if others:
            place, before, after = others[0]
            more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
            raise InputError(
                f"{self.path}: this run was started with another configuration: {place} was "
                f"{before!r}, is {after!r}{more}. Choose another folder with --run, or remove this "
                "one."
            )
        for place, before, after in changed:
            if not _is_later(before, after):
                raise InputError(
                    f"{self.path}: {place} was {before}, is {after}, and {self.steps_done()} steps "
                    "are done: a run can be extended, not shortened. Leave it, or choose another "
                    "folder with --run."
                )

    def steps_done(self) -> int:
        """Steps of the training at its last checkpoint."""
        last = self.last_checkpoint()
        return 0 if last is None else _step_of(last)

    def extend(self, config: JsonObject, completed: Completed) -> None:
        """Let the run go on to the ends of this configuration, where they are not the run's yet.

        A process killed between the two writes leaves a run that trains and has the old ends:
        the same command extends it then.
        """
        if completed(self.config()) != config:
            self.set_state("training")
            write_json(self.path / "config.json", config)

    @classmethod
    @contextmanager
    def training_lock(cls, path: Path) -> Iterator[None]:
        """Makes this training the only one that writes the run; the folder is made if need be.

        The system takes the lock back when the process ends, however it ends. Where the block ends
        before there is a run.json, nothing is left of what was made.

        Raises: InputError: it is being trained already, or there is something else.
        """
        if not (path / "run.json").exists():
            _refuse_something_else(path)
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        with ExitStack() as stack:
            stack.callback(_remove_empty, missing)
            _make(path)
            stack.callback(os.close, _locked(path / "lock"))
            stack.callback(cls(path)._remove_start)
            yield

    def _remove_start(self) -> None:
        """Remove what was made of a run that has not begun: it has no run.json."""
        if (self.path / "run.json").exists():
            return
        with suppress(OSError):
            remove_leftovers(self.path)
            for file in (self.path / "config.json", self.vocabulary, self.tokens, self.data):
                file.unlink(missing_ok=True)
            _remove_empty([self.history])
            (self.path / "lock").unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run's folder, checked."""
        folder = cls(path)
        folder.check()
        return folder

    def check(self) -> None:
        """Raise a DataError unless this is a run of a version that this headloom reads."""
        if not is_there(self.path, "run"):
            raise DataError(
                f"{self.path}: no such run. Check the path, or train one: headloom train."
            )
        if not is_there(self.path / "run.json", "run"):
            raise DataError(
                f"{self.path}: not a headloom run (it has no run.json). Give a run's folder, as "
                f"headloom "
                "train makes it."
            )
        content = read_json(self.path / "run.json", "run")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(
                f"{self.path}: not a headloom run (its run.json says otherwise). Give a run's "
                f"folder."
            )
        if content.get("version") != _VERSION:
            raise DataError(
                f"{self.path}: a run of version {content.get('version')}; this headloom reads "
                f"{_VERSION}. Install a newer headloom."
            )

    def config(self) -> JsonObject:
        """The run's configuration."""
        content = read_json(self.path / "config.json", "configuration")
        if not isinstance(content, dict):
            raise DataError(
                f"{self.path / 'config.json'}: this configuration is damaged. Put a copy back."
            )
        return content

    def monitored(self) -> JsonObject | None:
        """What is known of a training that `headloom.monitor` watches; None: it is headloom's
        own.
        """
        content = self.config().get("monitor")
        if content is None:
            return None
        if not isinstance(content, dict) or not isinstance(content.get("layers"), list):
            raise DataError(
                f"{self.path / 'config.json'}: this configuration is damaged. Put a copy back."
            )
        return content

    @property
    def state(self) -> str:
        """The state: "training" or "finished"."""
        self.check()
        return str(read_json(self.path / "run.json", "run").get("state"))

    def set_state(self, state: str) -> None:
        """Write the state."""
        write_json(self.path / "run.json", {"format": _FORMAT, "version": _VERSION, "state": state})

    def append_metrics(self, report: JsonObject) -> None:
        """Add a report."""
        self._reports.append(report)

    def read_metrics(self) -> list[JsonObject]:
        """All reports; a last line that was cut off is left out."""
        return self._reports.read()

    def rewind_metrics(self, step: int) -> None:
        """Forget reports of later steps, before the run goes on from this one."""
        self._reports.rewind(step)

    @property
    def _reports(self) -> Reports:
        return Reports(self.metrics, "metrics")


def _step_of(checkpoint: Path | Shards) -> int:
    """The step at which a checkpoint was written."""
    if isinstance(checkpoint, Shards):
        path, notes = checkpoint.path, checkpoint.notes()
    else:
        path, notes = checkpoint, read_notes(checkpoint, "checkpoint")
    position = notes.get("position")
    step = position.get("step") if isinstance(position, dict) else None
    if type(step) is not int:
        raise DataError(f"{path}: this checkpoint is damaged: it has no step.")
    return step


def _locked(path: Path) -> int:
    """The descriptor of a lock file, locked. Raises: InputError, DataError: it cannot be."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(f"cannot write {path}: {reason_of(error)}. {NOT_WRITABLE}") from error
    try:
        lock(descriptor)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"{path.parent}: is being trained already, by another process or in this one. Let "
            "that training end, or choose another folder."
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise DataError(
            f"cannot lock {path}: {reason_of(error)}. Choose another folder with --run."
        ) from error
    return descriptor


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders in which nothing is, each before the one that holds it."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _make(path: Path, *inside: Path) -> None:
    """Make the folder of a run, and folders in it. Raises: DataError: they cannot be made."""
    try:
        for folder in (path, *inside):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"cannot make {path}: {reason_of(error)}. Choose another folder with --run."
        ) from error


def is_free(path: Path) -> bool:
    """Whether a run may begin at a path where there is no run.json."""
    return not path.exists() or (path.is_dir() and not _holds_more_than_a_start(path))


def _refuse_something_else(path: Path) -> None:
    """Raise an InputError where a path without run.json is no place for a run."""
    if not is_free(path):
        raise InputError(f"{path}: exists and is not a run. Choose another folder with --run.")


def _holds_more_than_a_start(path: Path) -> bool:
    """Whether a folder without run.json is anything but a run that was killed while being made."""
    names = {entry.name for entry in path.iterdir() if MARK not in entry.name} - {"lock"}
    # In this order they are made: a folder with a config.json alone is somebody else's.
    if names not in (set(), {"history"}, {"history", "config.json"}):
        return True
    return any((path / "history").glob("*"))


def _is_later(before: object, after: object) -> bool:
    """Whether one of `ENDS` was raised, or given up (None)."""
    return before is not None and (
        after is None or (isinstance(before, int) and isinstance(after, int) and after > before)
    )


def _differences(before: object, after: object, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key at which two configurations differ, with both values: "model.width", 256, 128."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            where = f"{place}.{key}" if place else key
            yield from _differences(before.get(key), after.get(key), where)
    elif before != after:
        yield place, before, after
