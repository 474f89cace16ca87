"""The folder of a training run: docs/formats.md says what is where.

A training that `headloom.monitor` watches has no vocabulary, no data and no weights: these are its
owner's. Its config.json says "monitor", and what is known of the model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from headloom.errors import DataError, InputError
from headloom.formats.files import (
    MARK,
    JsonMapping,
    JsonObject,
    atomic_file,
    disk_errors,
    is_there,
    parse_json,
    read_json,
    read_text,
    reason_of,
    remove_leftovers,
    write_json,
)
from headloom.formats.tensors import read_notes

_FORMAT, _VERSION = "headloom run", 1
#: What there may be of a run before its run.json.
_START = {"lock", "history", "config.json", "vocabulary.json", "data.json"}
_CHOOSE = "Choose another folder with --run."


def is_run(path: Path | str) -> bool:
    """Whether the folder of a training run is at a path, whole or damaged."""
    return (Path(path) / "run.json").is_file()


def is_free(path: Path) -> bool:
    """Whether a run may begin at a path: nothing is there, or a run that was killed being made."""
    if not path.is_dir():
        return not path.exists()
    names = {entry.name for entry in path.iterdir() if MARK not in entry.name}
    # A folder with a config.json alone is somebody else's.
    names -= {"data"}  # of a training from memory that was killed before it began
    return names <= {"lock"} or ("history" in names and names <= _START)


@dataclass(frozen=True)
class Reports:
    """The reports of a file; `what` is what errors call it."""

    path: Path
    what: str

    def append(self, report: JsonMapping) -> None:
        """Add a report."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(report) + "\n")
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {reason_of(error)}. Free some space, and give the "
                "command again: it goes on."
            ) from error

    def read(self) -> list[JsonObject]:
        """All reports; a last line that was cut off is left out."""
        if not is_there(self.path, self.what):
            return []
        reports = []
        lines = read_text(self.path, self.what).removesuffix("\n").split("\n")
        for number, line in enumerate(lines if lines != [""] else [], 1):
            try:
                report = parse_json(line, self.path, self.what)
            except DataError as error:
                if number < len(lines):
                    raise DataError(f"{self.path}: line {number} is damaged.") from error
                continue
            if (
                not isinstance(report, dict)
                or type(report.get("step")) is not int
                or not 0 <= report["step"] < 2**53
            ):
                raise DataError(
                    f"{self.path}: line {number} is damaged: expected an object with a step."
                )
            reports.append(report)
        return reports

    def rewind(self, step: int) -> None:
        """Forget reports of later steps, before the run goes on from this one."""
        reports = [report for report in self.read() if report["step"] <= step]
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(report) + "\n" for report in reports), "utf-8")


class RunFolder:
    """A run's folder on disk.

    vocabulary: the tokenizer; data: what else a model must know of its data; checkpoint: everything
    needed to go on; best: the weights to use; reports: of the training; measures: what the heads of
    a watched training did, a report a measured step; probe: its fixed input; history: snapshots of
    the weight matrices.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.vocabulary = path / "vocabulary.json"
        self.data = path / "data.json"
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.reports = Reports(path / "metrics.jsonl", "metrics")
        self.measures = Reports(path / "measures.jsonl", "measures")
        self.probe = path / "probe.safetensors"
        self.history = path / "history"

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

    @classmethod
    def create(cls, path: Path, config: JsonObject) -> RunFolder:
        """A new run's folder. Raises: InputError: something else is there; DataError."""
        if not is_free(path):
            raise InputError(f"{path}: exists and is not a run. {_CHOOSE}")
        folder = cls(path)
        with disk_errors(path, _CHOOSE):
            folder.history.mkdir(parents=True, exist_ok=True)
        folder.set_config(config)
        folder.set_state("training")
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run's folder, checked."""
        folder = cls(path)
        folder.check()
        return folder

    @classmethod
    @contextmanager
    def training_lock(cls, path: Path) -> Iterator[None]:
        """Makes this training the only one that writes the run; the folder is made if need be.

        The system takes the lock back when the process ends, however it ends. Where the block ends
        before there is a run.json, nothing is left of what was made.

        Raises: InputError: it is being trained already, or there is something else.
        """
        if not is_run(path) and not is_free(path):
            raise InputError(f"{path}: exists and is not a run. {_CHOOSE}")
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        lock = FileLock(path / "lock", blocking=False)
        try:
            with disk_errors(path, _CHOOSE):
                path.mkdir(parents=True, exist_ok=True)
                _acquire(lock, path)
                for folder in (path, path / "history"):
                    remove_leftovers(folder)
            yield
        finally:
            if lock.is_locked and not is_run(path):
                remove_leftovers(path)
                shutil.rmtree(path / "history", ignore_errors=True)
                for name in _START - {"history"}:
                    (path / name).unlink(missing_ok=True)
            lock.release()
            if not is_run(path):
                with suppress(OSError):
                    for folder in missing:
                        folder.rmdir()

    def check(self) -> None:
        """Raise a DataError unless this is a run of a version that this headloom reads."""
        if not is_there(self.path, "run"):
            raise DataError(
                f"{self.path}: no such run. Check the path, or train one: headloom train."
            )
        if not is_there(self.path / "run.json", "run"):
            raise DataError(
                f"{self.path}: not a headloom run (it has no run.json). Give a run's folder, as "
                "headloom train makes it."
            )
        content = read_json(self.path / "run.json", "run")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(
                f"{self.path}: not a headloom run (its run.json says otherwise). Give a run's "
                "folder."
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
            raise self._damaged_config()
        return content

    def set_config(self, config: JsonObject) -> None:
        """Write the configuration."""
        write_json(self.path / "config.json", config)

    def _damaged_config(self) -> DataError:
        path = self.path / "config.json"
        return DataError(f"{path}: this configuration is damaged. Put a copy back.")

    def monitored(self) -> JsonObject | None:
        """What is known of a training that `headloom.monitor` watches; None: it is no such one."""
        content = self.config().get("monitor")
        if content is None:
            return None
        if not isinstance(content, dict) or not isinstance(content.get("layers"), list):
            raise self._damaged_config()
        return content

    @property
    def state(self) -> str:
        """The state: "training" or "finished"."""
        self.check()
        return str(read_json(self.path / "run.json", "run").get("state"))

    def set_state(self, state: str) -> None:
        """Write the state."""
        write_json(self.path / "run.json", {"format": _FORMAT, "version": _VERSION, "state": state})

    def steps_done(self) -> int:
        """Steps of the training at its last checkpoint. Raises: DataError: it is damaged."""
        if not self.checkpoint.exists():
            return 0
        position = read_notes(self.checkpoint, "checkpoint").get("position")
        step = position.get("step") if isinstance(position, dict) else None
        if type(step) is not int:
            raise DataError(f"{self.checkpoint}: this checkpoint is damaged: it has no step.")
        return step


def _acquire(lock: FileLock, path: Path) -> None:
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path}: is being trained already, by another process or in this one. Let that "
            "training end, or choose another folder."
        ) from None
