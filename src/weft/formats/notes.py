"""`NotesFile`: what people write about the heads and the edges of a trace, in a file beside it.

    dog.weft/              the trace, which notes never change
    dog.weft.notes.json    {"format": "weft-notes", "version": 1, "notes": [...]}

A change reads the file, changes one note and puts the file in the place of the old one, under a
lock of the trace: of several writers none loses what another wrote. Whoever changes a note says
which version of it they saw; where that is not the last one, nothing is changed.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft.errors import DataError, InputError
from weft.formats.files import is_there, read_json, write_json
from weft.formats.locks import lock, open_folder

__all__ = ["LONGEST", "MOST", "ChangedMeanwhileError", "Note", "NotesFile"]

#: Characters of a note, and notes of a trace, at most.
LONGEST, MOST = 2000, 1000
_FORMAT, _VERSION = "weft-notes", 1
#: Bytes of a file of so many notes, at most.
_BYTES = 16 * 2**20
#: Seconds that a writer waits for another.
_PATIENCE = 5.0
_DAMAGED = "Move it away: the trace itself is whole."


class ChangedMeanwhileError(InputError):
    """A note is no longer as the one who changes it saw it."""


@dataclass(frozen=True)
class Note:
    """A note on a head, or on one of its edges.

    id       its name in the file
    version  how often it was written
    layer    the number of its layer in the trace
    query, key   the edge; None: it is on the head
    written  when it was last changed, UTC
    trace    the digest of the trace that it was written of, see `weft.studio.collection.Example`
    """

    id: str
    version: int
    layer: int
    head: int
    query: int | None
    key: int | None
    text: str
    written: str
    trace: str


class NotesFile:
    """The notes of a trace folder.

    Raises of every method: DataError: the file is damaged, newer, or cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(os.path.realpath(folder))
        self.path = self._folder.with_name(f"{self._folder.name}.notes.json")
        self._writing = threading.Lock()

    def read(self) -> list[Note]:
        """Every note, in the order in which they were first written."""
        if not is_there(self.path, "file of notes"):
            return []
        if self.path.stat().st_size > _BYTES:
            raise DataError(
                f"{self.path}: these notes are larger than {_BYTES:,} bytes, which weft never "
                f"writes. {_DAMAGED}"
            )
        content = read_json(self.path, "file of notes")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(f"{self.path}: not the notes of a trace. {_DAMAGED}")
        version = content.get("version")
        if type(version) is int and version > _VERSION:
            raise DataError(
                f"{self.path}: notes of version {version}; this weft reads up to version "
                f"{_VERSION}. Upgrade weft: pip install -U weft."
            )
        notes = content.get("notes")
        if not isinstance(notes, list) or len(notes) > MOST:
            raise DataError(f"{self.path}: expected a list of at most {MOST} notes. {_DAMAGED}")
        found = [self._note(number, note) for number, note in enumerate(notes)]
        if len({note.id for note in found}) < len(found):
            raise DataError(f"{self.path}: two notes have one name. {_DAMAGED}")
        return found

    def add(
        self,
        text: str,
        layer: int,
        head: int,
        query: int | None = None,
        key: int | None = None,
        trace: str = "",
    ) -> list[Note]:
        """Write a new note, last; returns all.

        Raises: InputError: the text is empty or too long, or there are too many notes.
        """
        text = _checked(text)
        with self._change() as notes:
            if len(notes) >= MOST:
                raise InputError(f"notes: this trace has {MOST:,} already. Remove some first.")
            taken = {note.id for note in notes}
            name = next(
                name for name in iter(lambda: secrets.token_hex(4), "") if name not in taken
            )
            notes.append(Note(name, 1, layer, head, query, key, text, _now(), trace))
        return notes

    def change(self, name: str, version: int, text: str) -> list[Note]:
        """Write another text for a note, as its next version; returns all.

        Raises: ChangedMeanwhileError: it has another version, or is gone; InputError: as for `add`.
        """
        text = _checked(text)
        with self._change() as notes:
            place = _find(notes, name, version)
            notes[place] = replace(notes[place], version=version + 1, text=text, written=_now())
        return notes

    def remove(self, name: str, version: int) -> list[Note]:
        """Remove a note; returns the others. Raises: ChangedMeanwhileError: as for `change`."""
        with self._change() as notes:
            del notes[_find(notes, name, version)]
        return notes

    @contextmanager
    def _change(self) -> Iterator[list[Note]]:
        """The notes as they are; written when the block ends well."""
        with self._writing, self._lock():
            notes = self.read()
            yield notes
            content = {
                "format": _FORMAT,
                "version": _VERSION,
                "notes": [asdict(note) for note in notes],
            }
            write_json(self.path, content)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Other processes wait meanwhile. The trace's folder has the lock: the file is replaced."""
        try:
            descriptor = open_folder(self._folder)
        except OSError:
            raise DataError(f"{self._folder}: this trace is no longer there.") from None
        if descriptor is None:
            yield
            return
        try:
            end = time.monotonic() + _PATIENCE
            while True:
                try:
                    lock(descriptor)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise DataError(
                            f"{self.path}: another program is writing there. Try again."
                        ) from None
                    time.sleep(0.01)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(descriptor)

    def _note(self, number: int, content: Any) -> Note:
        """A note as it was read. Raises: DataError: it is none."""
        names = [field.name for field in fields(Note)]
        if not isinstance(content, dict) or set(content) != set(names):
            raise DataError(
                f"{self.path}: note {number} is damaged: expected {', '.join(names)}. {_DAMAGED}"
            )
        for name, value in content.items():
            edge = name in ("query", "key")
            fits = (
                (edge and value is None)
                or (name in _TEXTS and isinstance(value, str) and _fits(value))
                or (name not in _TEXTS and type(value) is int and 0 <= value < 2**53)
            )
            if not fits:
                raise DataError(
                    f"{self.path}: note {number} is damaged: its {name} cannot be that. {_DAMAGED}"
                )
        if (content["query"] is None) != (content["key"] is None):
            raise DataError(
                f"{self.path}: note {number} is damaged: an edge has a query and a key. {_DAMAGED}"
            )
        return Note(**content)


_TEXTS = ("id", "text", "written", "trace")


def _checked(text: str) -> str:
    """A text that can be a note, without the spaces around it."""
    text = text.strip()
    if not text:
        raise InputError("notes: the text is empty. Write something, or remove the note.")
    if len(text) > LONGEST:
        raise InputError(
            f"notes: the text has {len(text):,} characters; a note has at most {LONGEST:,}. "
            "Shorten it, or write two."
        )
    if not _fits(text):
        raise InputError("notes: the text has half a character (a lone surrogate). Type it again.")
    return text


def _fits(text: str) -> bool:
    """Whether a file of UTF-8 can hold a text, and it is not too long."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return len(text) <= LONGEST


def _find(notes: list[Note], name: str, version: int) -> int:
    for place, note in enumerate(notes):
        if note.id == name and note.version == version:
            return place
        if note.id == name:
            raise ChangedMeanwhileError(
                "notes: somebody changed this note meanwhile. Look at it, and change it again."
            )
    raise ChangedMeanwhileError("notes: somebody removed this note meanwhile.")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
