"""Sharded checkpoints of a run: a folder a step, written by several processes at once.

shards/step-00000500/
  shard-*.safetensors    the parts of each tensor that one process held
  checkpoint.json        the notes, and the digest of each file; written last

A folder without checkpoint.json was not finished, and is no checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headloom.errors import DataError
from headloom.formats.files import JsonObject, file_digest, read_json, sync, write_json

__all__ = [
    "Shards",
    "digests_of",
    "latest_shards",
    "remove_unfinished",
]

_FORMAT, _VERSION = "headloom shards", 1


@dataclass(frozen=True)
class Shards:
    """One sharded checkpoint."""

    path: Path

    @classmethod
    def of_step(cls, folder: Path, step: int) -> Shards:
        """The checkpoint of a step, there or to be."""
        return cls(folder / f"step-{step:08}")

    @property
    def files(self) -> list[Path]:
        """What processes wrote."""
        return sorted(self.path.glob("*.safetensors"))

    def make(self) -> None:
        """An empty folder to write into."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def finish(self, digests: dict[str, str], notes: JsonObject) -> None:
        """Say that all is written; other checkpoints beside this one are removed."""
        content = {"format": _FORMAT, "version": _VERSION, "files": digests, "notes": notes}
        sync(self.path)
        write_json(self.path / "checkpoint.json", content)
        sync(self.path.parent)
        for other in self.path.parent.glob("step-*"):
            if other != self.path:
                shutil.rmtree(other, ignore_errors=True)

    def notes(self) -> JsonObject:
        """The notes. Raises: DataError: damaged."""
        notes = self._content().get("notes")
        if not isinstance(notes, dict):
            raise self._damaged("it has no notes")
        return notes

    def check(self, part: int, parts: int) -> None:
        """Hold every parts-th file against its digest, from the part-th on.

        Raises: DataError: a file is missing or not what was written.
        """
        digests = self._content().get("files")
        if not isinstance(digests, dict) or not digests:
            raise self._damaged("it names no files")
        if strangers := {file.name for file in self.files} - set(digests):
            raise self._damaged(f"{sorted(strangers)[0]} is not one of its files")
        for name in sorted(digests)[part::parts]:
            try:
                digest = file_digest(self.path / Path(name).name)
            except OSError as error:
                raise self._damaged(f"{name} cannot be read") from error
            if digest != digests[name]:
                raise self._damaged(f"{name} is not what was written")

    def _content(self) -> JsonObject:
        content = read_json(self.path / "checkpoint.json", "checkpoint")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise self._damaged("its checkpoint.json is of another kind")
        if content.get("version") != _VERSION:
            raise DataError(
                f"{self.path}: a checkpoint of version {content.get('version')}; this headloom "
                f"reads "
                f"{_VERSION}. Install a newer headloom."
            )
        return content

    def _damaged(self, reason: str) -> DataError:
        return DataError(
            f"{self.path}: this checkpoint is damaged: {reason}. Restore it from a copy, or train "
            "again in another folder with --run."
        )


def digests_of(paths: Sequence[Path]) -> dict[str, str]:
    """SHA-256 of files by their names."""
    return {path.name: file_digest(path) for path in paths}


def latest_shards(folder: Path) -> Shards | None:
    """The last sharded checkpoint in a run's folder of them; None: there is none."""
    finished = sorted(path.parent for path in folder.glob("step-*/checkpoint.json"))
    return Shards(finished[-1]) if finished else None


def remove_unfinished(folder: Path) -> None:
    """Remove what a process began that was killed."""
    for path in folder.glob("step-*"):
        if not (path / "checkpoint.json").exists():
            shutil.rmtree(path, ignore_errors=True)
