"""`headloom.steps`: the six steps of attention on a short sentence, with any matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headloom.errors import InputError
from headloom.mechanism.attention_layer import LayerKind as Kind
from headloom.mechanism.shapes import chosen
from headloom.studio.steps.learning import target_of
from headloom.studio.steps.lesson import SOURCES
from headloom.studio.steps.matrices import Matrices, read_matrices, words_of
from headloom.studio.steps.steps import Steps
from headloom.studio.steps.worked import learn as learn_from
from headloom.studio.steps.worked import work

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor


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
    positions: str | ArrayLike | Tensor = "sinusoidal",
    seed: int = 1,
    digits: int = 2,
    learn: int = 0,
    wanted: str | None = None,
    rate: float = 0.1,
    **arrays: ArrayLike | Tensor | None,
) -> Steps:
    """Work attention through on a short sentence: every matrix, from embeddings to the output.

    The matrices come from arrays, a file, a seed, or a trained model.

    Args:
        sentence: words, or a list of tokens; None: "the cat sat". With a model: its text.
        kind: "encoder" (no mask), "decoder" (causal), "cross" (from target to sentence). None:
            "encoder", with a model the kind of its first layer.
        target: text of the decoder; None: a translation of the default sentence, or the model's.
        query: the word, or its number, that is shown in detail; None: the last.
        head: the head that is shown; None: both of two, else head 0.
        matrices: a .npz or .json file with some of the arrays.
        model: a training run, or a model of Hugging Face.
        layer: of a model: number among the layers of this kind, from 0.
        width: of random matrices; None: 4.
        heads: of random matrices; None: 2.
        positions: "sinusoidal", "none" or a row for each place; added to the embeddings.
        seed: of random matrices.
        digits: decimals shown, 0 to 6.
        learn: steps of gradient descent, shown with back-propagation; 0: none. Not with a model.
        wanted: target output of each word: the vector of the "previous", "next" or "same" word.
            None: "previous", of a decoder "next", of "cross" "same".
        rate: learning rate of gradient descent.
        arrays: embeddings, target_embeddings, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O; missing ones
            are random. See `headloom.studio.steps.matrices.Matrices`.

    Returns: Steps: print it, show it in a notebook, `picture` it; every matrix is an attribute.
    Raises: InputError, ShapeError, DataError: an argument that cannot be used.
    Source: Vaswani et al. 2017, section 3.2.

    >>> walk = steps("I see", W_Q=[[0.0]], W_K=[[1.0]], W_V=[[1.0]], W_O=[[1.0]], heads=1,
    ...              embeddings=[[2.0], [6.0]], positions="none")
    >>> walk.weights.tolist(), walk.output.tolist()
    ([[[0.5, 0.5], [0.5, 0.5]]], [[4.0], [4.0]])
    """
    if kind is not None:
        chosen("steps", "kind", kind, tuple(SOURCES))
    if not 0 <= digits <= 6:
        raise InputError(f"digits={digits}; expected 0 to 6 decimals.")
    if learn < 0 or not 0 < rate < float("inf"):
        raise InputError(f"learn={learn}, rate={rate:g}; expected 0 or more, and a rate above 0.")
    show = partial(Steps.of, query=query, head=head, digits=digits)
    if model is not None:
        from headloom.api.opening import load
        from headloom.api.trained_head import steps_of_model

        if matrices is not None or arrays or width is not None or heads is not None or learn:
            raise InputError(
                "model: a model has matrices of its own, and `headloom train` trains it. Leave out "
                "matrices, sizes and learn, or the model."
            )
        return steps_of_model(load(model), sentence, target, kind, layer, show)
    if layer:
        raise InputError(f"layer {layer}: without a model there is one layer. Give a model.")
    if kind in (None, "encoder") and target is not None:
        raise InputError(
            'target: an encoder reads one sentence. Choose the kind "decoder" or "cross".'
        )
    if isinstance(positions, str) and positions not in ("sinusoidal", "none"):
        raise InputError(f'positions={positions!r}; expected "sinusoidal", "none" or an array.')
    table = {} if matrices is None else read_matrices(Path(matrices))
    if not isinstance(positions, str):
        table["positions"] = positions
    known = Matrices({**table, **arrays}, width, heads, seed)
    shape: Kind = next((name for name in SOURCES if name == kind), "encoder")
    if sentence is None and "embeddings" not in known.known:
        sentence = "the cat sat"
        target = "die Katze saß" if target is None and shape == "cross" else target
    projections = known.projections()
    placed = not isinstance(positions, str) or positions != "none"
    queries = source = known.words(None if sentence is None else words_of(sentence), placed)
    if target is not None or (shape == "cross" and "target_embeddings" in known.known):
        tokens = None if target is None else words_of(target, "target")
        queries = known.words(tokens, placed, "target_embeddings")
    elif shape == "cross":
        raise InputError(
            "cross: give the target too, which attends to the sentence: headloom steps "
            '"the cat" --target "die Katze" --kind cross.'
        )
    keys = source if shape == "cross" else queries
    length = len(queries.tokens)
    mask = torch.ones(length, length).tril().bool() if shape == "decoder" else None
    worked = work(queries.X, keys.X, projections, mask)
    if not learn:
        return show(worked, shape, queries, keys, known.origin)
    vectors, goal = target_of(wanted, shape, worked)
    learned = learn_from(worked, vectors, learn, rate)
    return show(worked, shape, queries, keys, known.origin, learned=learned, goal=goal)
