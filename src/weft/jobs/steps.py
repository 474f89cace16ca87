"""`weft.steps`: the six steps of attention on a short sentence, with any matrices."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import InputError
from weft.formats.files import JsonObject
from weft.mechanism.shapes import finite_number, whole_number
from weft.mechanism.worked import work
from weft.mechanism.worked_back import learn as learn_from
from weft.walkthrough.lesson import AllKinds, Steps, View
from weft.walkthrough.matrices import MATRICES, Matrices, read_matrices, words_of
from weft.walkthrough.walk import Kind, mask_of
from weft.walkthrough.wishes import wanted_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

__all__ = ["steps"]

_KINDS = ("encoder", "decoder", "cross", "all")
_SENTENCE, _TARGET = "the cat sat", "die Katze saß"


def steps(
    sentence: str | Sequence[str] | None = None,
    *,
    kind: str | None = None,
    target: str | Sequence[str] | None = None,
    query: str | int | None = None,
    head: int | None = None,
    matrices: Path | str | None = None,
    model: Path | str | None = None,
    layer: int = 0,
    width: int | None = None,
    heads: int | None = None,
    positions: str = "sinusoidal",
    seed: int = 1,
    digits: int = 2,
    learn: int = 0,
    wanted: str | ArrayLike | Tensor | None = None,
    rate: float = 0.1,
    **arrays: ArrayLike | Tensor | None,
) -> Steps | AllKinds:
    """Work attention through on a short sentence: every matrix, from embeddings to the output.

    The matrices are given as arrays or in a file, drawn from a seed, or those of a trained model.

    Args:
        sentence: words, or tokens one by one; None: "the cat sat". With a model: its text.
        kind: "encoder" (everybody looks at everybody), "decoder" (nobody looks ahead), "cross"
            (the target looks at the sentence), or "all": the three side by side. None: "encoder",
            with a model its first layer's.
        target: what a decoder has written; None: a translation of the default sentence, with a
            model that translates its own.
        query: the word, or its number, that is worked through alone; None: the last.
        head: whose tables are shown; None: both of two, else head 0.
        matrices: a .npz or .json file with some of the arrays; JSON also "sentence" and "target".
        model: a training run, or a model of Hugging Face.
        layer: of a model, which one of the kind, from 0.
        width, heads: of what is drawn; None: 4, and 2 heads.
        positions: "sinusoidal" or "none"; added to the embeddings.
        seed: of what is drawn.
        digits: decimals shown, 0 to 6.
        learn: steps of gradient descent, worked through backward from the output; 0: none. Not
            with a model, whose training `weft train` keeps.
        wanted: what each word's output should be: the vector of the word "previous", "next",
            "same" (at its place), "first", "last" or "reversed"; or vectors, as the output. None:
            "previous", of a decoder "next", of "cross" "same".
        rate: how far a step of gradient descent goes.
        arrays: embeddings, target_embeddings, positions of your own (in a file), W_Q, W_K, W_V,
            W_O, b_Q, b_K, b_V, b_O; what is missing is drawn. See
            `weft.walkthrough.matrices.Matrices`.

    Returns: Steps: print it, show it in a notebook, `picture` it; every matrix is an attribute.
        AllKinds of three of them for "all".
    Raises: InputError, ShapeError, DataError: what is given cannot be used; one line says why.
    Source: Vaswani et al. 2017, section 3.2.

    >>> walk = steps("I see", W_Q=[[0.0]], W_K=[[1.0]], W_V=[[1.0]], W_O=[[1.0]], heads=1,
    ...              embeddings=[[2.0], [6.0]], positions="none")
    >>> walk.weights.tolist(), walk.output.tolist()
    ([[[0.5, 0.5], [0.5, 0.5]]], [[4.0], [4.0]])
    """
    if kind is not None and kind not in _KINDS:
        raise InputError(f"kind={kind!r}; expected one of {', '.join(_KINDS)}.")
    if not 0 <= digits <= 6:
        raise InputError(f"digits={digits}; expected 0 to 6 decimals.")
    for name in arrays:
        if name not in MATRICES:
            others = inspect.signature(steps).parameters
            raise InputError(
                f"steps: no argument {name!r}; there are {', '.join(list(others)[:-1])}, and the "
                f"arrays {', '.join(MATRICES)}."
            )
    learn = whole_number("steps", "learn", learn, 0)
    if finite_number("steps", "rate", rate) <= 0:
        raise InputError(f"rate={rate:g}; expected a number above 0, as 0.1.")
    if not learn and wanted is not None:
        raise InputError("wanted: nothing learns. Give the steps, as --learn 100, or leave it out.")
    if learn and model is not None:
        raise InputError(
            "learn: the matrices of a model have learned already, from all of its data. `weft "
            "train` shows how (`weft view RUN`); leave out the model for matrices that learn here."
        )
    if learn and kind == "all":
        raise InputError('learn: kind="all" shows three layers side by side. Choose one kind.')
    lesson = _Lesson(learn, wanted, rate)
    view = View(query, head, digits)
    if model is not None:
        from weft.jobs.trained_head import steps_of_model

        if matrices is not None or arrays or width is not None or heads is not None:
            raise InputError(
                "give matrices, or their width and heads, or a model whose matrices they are; not "
                "both."
            )
        return steps_of_model(str(model), sentence, target, kind, layer, view)
    table: JsonObject = {} if matrices is None else read_matrices(Path(matrices))
    if layer:
        raise InputError(
            f"layer {layer}: matrices that are given or drawn are one layer. Give a model, or "
            "leave it out."
        )
    if kind in (None, "encoder") and target is not None:
        raise InputError(
            'target: an encoder reads one sentence. Choose the kind "decoder", "cross" or "all".'
        )
    in_file = table.pop("sentence", None), table.pop("target", None)
    sentence = in_file[0] if sentence is None else sentence
    target = in_file[1] if target is None else target
    known = Matrices.of_arrays({**table, **arrays}, width, heads, seed)
    if kind == "all":
        if query is not None:
            raise InputError('query: kind="all" works no word through alone. Choose one kind.')
        if sentence is None and target is None:
            target = _TARGET
        each = (
            _walk(known, sentence, target, name, positions, view, lesson) for name in _KINDS[:3]
        )
        return AllKinds(*each)
    return _walk(known, sentence, target, kind or "encoder", positions, view, lesson)


class _Lesson(NamedTuple):
    """What the matrices learn: see `steps`."""

    steps: int
    wanted: str | ArrayLike | Tensor | None
    rate: float


def _walk(
    known: Matrices,
    sentence: str | Sequence[str] | None,
    target: str | Sequence[str] | None,
    kind: str,
    positions: str,
    view: View,
    lesson: _Lesson,
) -> Steps:
    """A walk of one kind with matrices that are given or drawn."""
    projections = known.projections()
    if sentence is None and target is None and kind == "cross":
        target = _TARGET
    sentence = _SENTENCE if sentence is None and "embeddings" not in known.known else sentence
    source = known.words(None if sentence is None else words_of(sentence), positions)
    keys, queries = source, source
    if kind == "cross" or (kind == "decoder" and target is not None):
        if target is None and "target_embeddings" not in known.known:
            raise InputError(
                "cross: give the target too, whose words look at the sentence, as in: weft steps "
                '"the cat" --target "die Katze" --kind cross.'
            )
        tokens = None if target is None else words_of(target, "target")
        queries = known.words(tokens, positions, "target_embeddings")
        keys = source if kind == "cross" else queries
    chosen: Kind = "cross" if kind == "cross" else "decoder" if kind == "decoder" else "encoder"
    worked = work(queries.X, keys.X, projections, mask_of(chosen, len(queries.tokens)))
    if not lesson.steps:
        return view.of(chosen, queries, keys, worked, known.origin)
    wanted, wish = wanted_of(lesson.wanted, chosen, worked.output, worked.Y)
    learned = learn_from(worked, wanted, lesson.steps, lesson.rate)
    return view.of(chosen, queries, keys, worked, known.origin, (learned, wish))
