"""What the studio's page sends to write a note: see `weft.formats.notes`.

All are POST requests with JSON, which no page of another site can send: see `weft.studio.server`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, Field

from weft.errors import WeftError
from weft.formats.files import JsonObject
from weft.formats.notes import LONGEST, ChangedMeanwhileError, Note, NotesFile
from weft.studio.collection import Example, as_json, note_shown
from weft.studio.pieces import JSON, Number, Pieces, within
from weft.studio.questions import Whole

__all__ = ["add_notes"]

_WRITTEN: dict[int | str, JsonObject] = {
    **JSON,
    400: {"description": "The request is no JSON."},
    403: {"description": "Asked by another page than the studio's, or notes are only read here."},
    409: {"description": "The note was changed meanwhile."},
}
_UNCACHED = {"Cache-Control": "no-store"}
_EXAMPLE = "/api/examples/{example}/notes"

Count = Annotated[int, Field(ge=0, lt=2**53), Whole]
Text = Annotated[str, Field(max_length=LONGEST)]
Name = Annotated[str, Field(max_length=64)]


#: A query and a key, or neither, as a schema says it.
_BOTH_OR_NEITHER: JsonObject = {
    "anyOf": [
        {
            "required": ["query", "key"],
            "properties": {"query": {"type": "integer"}, "key": {"type": "integer"}},
        },
        {"properties": {"query": {"type": "null"}, "key": {"type": "null"}}},
    ]
}


class NewNote(BaseModel, strict=True, extra="forbid", json_schema_extra=_BOTH_OR_NEITHER):
    """A note on a head, or on an edge: then its query and its key."""

    text: Text
    layer: Count
    head: Count
    query: Count | None = None
    key: Count | None = None


class SeenNote(BaseModel, strict=True, extra="forbid"):
    """A note as somebody saw it."""

    id: Name
    version: Count


class ChangedNote(SeenNote):
    """Another text for it."""

    text: Text


def add_notes(app: FastAPI, pieces: Pieces) -> None:
    """Add their paths."""

    def answered(content: JsonObject) -> Response:
        return Response(as_json(content), media_type="application/json", headers=_UNCACHED)

    def written(example: Example, write: Callable[[NotesFile], list[Note]]) -> Response:
        """All notes after one was written; or the problem, in one line."""
        if pieces.collection.read_only:
            raise HTTPException(403, "notes are only read here: weft view without --read-only")
        if example.notes is None:
            raise HTTPException(404, "this trace is in memory alone: save it, to write notes")
        try:
            notes = write(example.notes)
        except ChangedMeanwhileError as error:
            raise HTTPException(409, str(error)) from None
        except WeftError as error:
            return answered({"problem": str(error)})
        return answered({"notes": [note_shown(note, example.digest) for note in notes]})

    @app.get(_EXAMPLE, responses=JSON, response_class=Response)
    def notes(example: Number) -> Response:
        """What was written about a trace's heads and edges."""
        return answered(pieces.example(example).known_notes(not pieces.collection.read_only))

    @app.post(_EXAMPLE + "/add", responses=_WRITTEN, response_class=Response)
    def add(example: Number, note: NewNote) -> Response:
        """Write a note; all notes, or the problem in one line."""
        chosen, layer, head = pieces.head(example, str(note.layer), str(note.head))
        _, queries, keys = chosen.trace.layers[layer].shape
        if (note.query is None) != (note.key is None):
            raise HTTPException(422, "a note on an edge names its query and its key")
        for what, place, count in (("query", note.query, queries), ("key", note.key, keys)):
            if place is not None:
                within(what, str(place), count)
        of = (layer, head, note.query, note.key, chosen.digest)
        return written(chosen, lambda file: file.add(note.text, *of))

    @app.post(_EXAMPLE + "/change", responses=_WRITTEN, response_class=Response)
    def change(example: Number, note: ChangedNote) -> Response:
        """Write another text for a note, if it is still the version that was seen."""
        chosen = pieces.example(example)
        return written(chosen, lambda file: file.change(note.id, note.version, note.text))

    @app.post(_EXAMPLE + "/remove", responses=_WRITTEN, response_class=Response)
    def remove(example: Number, note: SeenNote) -> Response:
        """Remove a note, if it is still the version that was seen."""
        chosen = pieces.example(example)
        return written(chosen, lambda file: file.remove(note.id, note.version))
