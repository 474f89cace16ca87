"""Folder of a training run, described in docs/formats.md.

The run of a training that `headloom.monitor` records has no vocabulary, data or weights: these
stay with the user's program. Its config.json has "monitor" with a description of the model.
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
#: Files that a run can have before its run.json.
_START = {"lock", "history", "config.json", "vocabulary.json", "data.json"}
_CHOOSE = "Choose another folder with --run."


def is_run(path: Path | str) -> bool:
    """Whether the path is a run's folder, intact or damaged."""
    return (Path(path) / "run.json").is_file()


def is_free(path: Path) -> bool:
    """Whether a run may start at a path: it is free, or holds a run killed at its creation."""
    if not path.is_dir():
        return not path.exists()
    names = {entry.name for entry in path.iterdir() if MARK not in entry.name}
    # A folder with only a config.json belongs to another program.
    names -= {"data"}  # of a training from memory that was killed before its start
    return names <= {"lock"} or ("history" in names and names <= _START)


@dataclass(frozen=True)
class Reports:
    """File of reports, one JSON object per line; `what` names it in errors."""

    path: Path
    what: str

    def append(self, report: JsonMapping) -> None:
        """Append a report."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(report) + "\n")
        except OSError as error:
            raise DataError(
                f"cannot write {self.path}: {reason_of(error)}. Free some space and run the "
                "command again: it resumes."
            ) from error

    def read(self) -> list[JsonObject]:
        """Read all reports; a truncated last line is skipped."""
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
        """Delete the reports of later steps, before the run resumes from this one."""
        reports = [report for report in self.read() if report["step"] <= step]
        with atomic_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(report) + "\n" for report in reports), "utf-8")


class RunFolder:
    """Folder of a run on disk.

    vocabulary: the tokenizer; data: other facts about the data that the model needs; checkpoint:
    everything needed to resume; best: the weights to use; reports: of the training; measures: of
    the heads of a monitored training, a report for each measured step; probe: its fixed input;
    history: snapshots of the weight matrices.
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
        """Store the absolute and the relative path of the data, to find them from any folder."""
        places = [str(data.resolve()), os.path.relpath(data.resolve(), self.path.resolve())]
        write_json(self.path / "places.json", places)

    def place(self) -> Path | None:
        """Return the path of the data; None: moved, or not stored."""
        path = self.path / "places.json"
        kept = read_json(path, "list of places") if path.exists() else None
        places = [self.path / str(place) for place in kept] if isinstance(kept, list) else []
        return next(filter(Path.exists, places), None)

    @classmethod
    def create(cls, path: Path, config: JsonObject) -> RunFolder:
        """Create a run's folder. Raises: InputError: the path is in use; DataError."""
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
        """Open an existing run's folder and check it."""
        folder = cls(path)
        folder.check()
        return folder

    @classmethod
    @contextmanager
    def training_lock(cls, path: Path) -> Iterator[None]:
        """Lock a run for one training during the block; create the folder if it is missing.

        The lock is released when the process ends, even if it is killed. If the block ends before
        run.json exists, everything created is removed.

        Raises: InputError: it is being trained already, or the path is in use.
        """
        if not is_run(path) and not is_free(path):
            raise InputError(f"{path}: exists and is not a run. {_CHOOSE}")
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        lock = FileLock(path / "lock", blocking=False)
        try:
            with disk_errors(path, _CHOOSE):
                path.mkdir(parents=True, exist_ok=True)
                try:
                    lock.acquire()
                except Timeout:
                    raise InputError(
                        f"{path}: is being trained already, in this or another process. Wait for "
                        "that training, or choose another folder."
                    ) from None
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
                f"{self.path}: not a headloom run (its run.json has another format). Give a "
                "run's folder."
            )
        if content.get("version") != _VERSION:
            raise DataError(
                f"{self.path}: a run of version {content.get('version')}; this headloom reads "
                f"{_VERSION}. Install a newer headloom."
            )

    def config(self) -> JsonObject:
        """Read the run's configuration."""
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
        """Return the description of a monitored training; None: not from `headloom.monitor`."""
        content = self.config().get("monitor")
        if content is None:
            return None
        if not isinstance(content, dict) or not isinstance(content.get("layers"), list):
            raise self._damaged_config()
        return content

    @property
    def state(self) -> str:
        """State: "training" or "finished"."""
        self.check()
        return str(read_json(self.path / "run.json", "run").get("state"))

    def set_state(self, state: str) -> None:
        """Write the state."""
        write_json(self.path / "run.json", {"format": _FORMAT, "version": _VERSION, "state": state})

    def steps_done(self) -> int:
        """Return the step of the last checkpoint, 0 without. Raises: DataError: it is damaged."""
        if not self.checkpoint.exists():
            return 0
        position = read_notes(self.checkpoint, "checkpoint").get("position")
        step = position.get("step") if isinstance(position, dict) else None
        if type(step) is not int:
            raise DataError(f"{self.checkpoint}: this checkpoint is damaged: it has no step.")
        return step
