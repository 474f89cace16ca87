"""What the studio's page sends: a text for the model to read, a prediction of it, SQL.

All are POST requests with JSON, which no page of another site can send: see
`headloom.studio.server`.
A question reads the views of one example, and nothing else: see `headloom.analysis.sql.bounded`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel, BeforeValidator, Field

from headloom.analysis.sql.bounded import LONGEST as LONGEST_QUERY
from headloom.analysis.sql.bounded import ask_bounded
from headloom.analysis.sql.questions import QUESTIONS
from headloom.errors import DataError, HeadloomError
from headloom.formats.files import JsonObject
from headloom.studio.asking import LONGEST, SupersededError
from headloom.studio.collection import Collection, Example, as_json
from headloom.studio.pieces import Binary, within

__all__ = [
    "Whole",
    "add_questions",
]

_ANSWER: dict[int | str, JsonObject] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}},
    400: {"description": "The request is no JSON."},
    403: {"description": "Asked by another page than the studio's."},
    404: {"description": "There is no such example, or no model that reads."},
    409: {"description": "Overtaken by a newer text, or another question is being answered."},
    422: {"description": "The request is none of these."},
}
_READ: dict[int | str, JsonObject] = {
    **_ANSWER,
    200: {
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/octet-stream": {},
        }
    },
}
_UNCACHED = {"Cache-Control": "no-store"}


def _whole(number: object) -> object:
    """To JSON 3.0 is a whole number; true is none."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


Whole = BeforeValidator(_whole)


class Text(BaseModel, strict=True, extra="forbid"):
    """A text, which window sends it, and its number there: of those that wait, the last is read.

    pictures: whether the first pictures of its heads are to come with it.
    """

    text: Annotated[str, Field(max_length=LONGEST)]
    window: Annotated[str, Field(max_length=64)] = ""
    turn: Annotated[int, Field(ge=0, lt=2**53), Whole] = 0
    pictures: bool = False


class Predicted(BaseModel, strict=True, extra="forbid"):
    """A position of an example's text, which window asks, and its number there: as of `Text`."""

    example: Annotated[int, Field(ge=0, lt=10**9), Whole]
    kind: Literal["encoder", "decoder", "cross"]
    position: Annotated[int, Field(ge=0, lt=10**9), Whole]
    window: Annotated[str, Field(max_length=64)] = ""
    turn: Annotated[int, Field(ge=0, lt=2**53), Whole] = 0


class Question(BaseModel, strict=True, extra="forbid"):
    """One SELECT over the views of an example."""

    query: Annotated[str, Field(max_length=LONGEST_QUERY)]
    example: Annotated[int, Field(ge=0, lt=10**9), Whole] = 0


def add_questions(app: FastAPI, collection: Collection, example: Callable[[str], Example]) -> None:
    """Add their paths. example: the one of a number."""
    answering = threading.Lock()

    def answered(content: JsonObject) -> Response:
        return Response(as_json(content), media_type="application/json", headers=_UNCACHED)

    @app.post("/api/ask", responses=_READ, response_class=Response)
    def ask(asked: Text) -> Response:
        """Trace a text by the model that is open: the example that it is from now on, or the
        problem in one line.

        With pictures the answer is binary: the length of the JSON, uint32, the JSON, and what
        `small/quick/0` has, of few heads too: uint8 pictures of the first layers, in order.
        """
        if collection.asking is None:
            raise HTTPException(404, "no model is open here: headloom view MODEL")
        try:
            number, found = collection.asking.ask(asked.window, asked.turn, asked.text)
        except SupersededError:
            raise HTTPException(409, "a newer text came meanwhile") from None
        except HeadloomError as error:
            return answered({"problem": str(error)})
        content = {"example": number, "description": found.description()}
        if not asked.pictures:
            return answered(content)
        described, (pictures, _) = as_json(content), (found.small or found.overviews).quick(0)
        length = len(described).to_bytes(4, "little")
        return Binary(length + described + pictures, headers=_UNCACHED)

    @app.post("/api/relevance", responses=_ANSWER, response_class=Response)
    def relevance(asked: Predicted) -> Response:
        """What the likeliest prediction at a position comes from, layer by layer, or the problem in
        one line.
        """
        of, asking = example(str(asked.example)), collection.asking
        if asking is None or asking.relevance is None or of.text is None:
            raise HTTPException(
                404, "no model is open here that read this text: headloom view MODEL"
            )
        try:
            above, _ = of.flows.sizes(asked.kind)
            within("position", str(asked.position), above)
            found = asking.relevant(asked.window, asked.turn, of.text, asked.position)
        except SupersededError:
            raise HTTPException(409, "another position was asked meanwhile") from None
        except HeadloomError as error:
            return answered({"problem": str(error)})
        if found is None or len(found.tokens) != above:
            return answered({"problem": "relevance: the model that predicts cuts this text apart."})
        return answered(found.as_drawn(of.flows.sequence(asked.kind)))

    @app.get("/api/questions", responses=_ANSWER, response_class=Response)
    def questions() -> Response:
        """Questions in SQL that are ready: what each asks, and its query."""
        return answered({"questions": [list(question) for question in QUESTIONS]})

    @app.post("/api/sql", responses=_ANSWER, response_class=Response)
    def sql(asked: Question) -> Response:
        """The first rows of the answer to a question in SQL, or the problem in one line."""
        trace = example(str(asked.example)).trace
        if not answering.acquire(timeout=10):
            raise HTTPException(409, "another question is being answered: ask again")
        try:
            answer = ask_bounded(trace, asked.query)
        except DataError:
            raise
        except HeadloomError as error:
            return answered({"problem": str(error)})
        finally:
            answering.release()
        return answered(asdict(answer))
