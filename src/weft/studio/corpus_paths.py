"""The path of the studio's server for one head over all texts that are open."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI, Request, Response

from weft.studio.collection import as_json
from weft.studio.corpus import Corpus
from weft.studio.pieces import JSON, Number, Pieces, within

__all__ = ["add_corpus"]

_SO_FAR = {**JSON, 202: {"description": "Of the texts that were read so far: ask again."}}


def add_corpus(app: FastAPI, pieces: Pieces) -> None:
    """Add it."""
    corpora = Corpus(pieces.collection.examples)
    pieces.collection.ending.append(corpora.settle)

    @app.get(
        "/api/corpus/{example}/layers/{layer}/heads/{head}/{sinks}",
        responses=_SO_FAR,
        response_class=Response,
    )
    def corpus(
        request: Request,
        example: Number,
        layer: Number,
        head: Number,
        sinks: Literal["all", "without-sinks"],
    ) -> Response:
        """A head over the texts of its example's model: exemplars, scores, words."""
        # A text that was typed is none of the corpus.
        number = within("example", example, len(pieces.collection.examples))
        _, of_layer, of_head = pieces.head(example, layer, head)
        found, whole = corpora.head(number, of_layer, of_head, sinks=sinks == "all")
        if whole:
            return pieces.json(request, lambda: found)
        headers = {"Cache-Control": "no-store"}
        return Response(as_json(found), 202, headers, media_type="application/json")
