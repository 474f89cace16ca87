"""What is said and shown of learning: from the loss back to the matrices, and a step down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.errors import InputError, ShapeError
from headloom.studio.steps.lesson import Ledger, Row, Step, Table, number
from headloom.studio.steps.matrices import as_tensor
from headloom.studio.steps.walk import Kind, Walk, shape_of
from headloom.studio.steps.worked import Worked
from headloom.studio.steps.worked_back import Learned

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["WISHES", "explain_learning", "wanted_of"]

#: How far from a word the word is whose vector is wanted, and that in words.
WISHES = {
    "previous": (-1, "the word before it, the first word its own"),
    "next": (1, "the word after it, the last word its own"),
    "same": (0, "the word at its own place"),
}
#: What is wanted where nobody says: of a decoder the next word, as of a language model.
_USUAL: dict[Kind, str] = {"encoder": "previous", "decoder": "next", "cross": "same"}

#: Steps whose loss is shown, and the last one.
_SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


def wanted_of(
    wanted: str | ArrayLike | Tensor | None, kind: Kind, worked: Worked
) -> tuple[Tensor, str]:
    """What the output should be, and that in words.

    Args:
        wanted: one of `WISHES`, or the vectors themselves, as the output; None: by the kind.
        kind: of attention.
        worked: before it learns; its Y are the vectors of the words that are looked at.

    Raises: InputError: no such wish, or a place that there is not; ShapeError: other sizes.
    """
    output, keys = worked.output, worked.Y
    if wanted is not None and not isinstance(wanted, str):
        vectors, words = as_tensor("wanted", wanted), "The vectors T that were given are wanted."
    else:
        name = _USUAL[kind] if wanted is None else wanted
        if name not in WISHES:
            raise InputError(
                f"wanted={name!r}; expected one of {', '.join(WISHES)}, or vectors as the output."
            )
        if len(output) > len(keys):
            raise InputError(
                f"wanted={name!r}: {len(output)} words look at {len(keys)}, and the later ones "
                "have no such place. Give wanted= as vectors."
            )
        step, words = WISHES[name]
        places = (torch.arange(len(output)) + step).clamp(0, len(keys) - 1)
        vectors, source = keys[places], " of the other text" * (kind == "cross")
        words = f"Each word is to give the vector of {words}{source}."
    if vectors.shape != output.shape:
        raise ShapeError(
            f"steps: wanted is {tuple(vectors.shape)}; expected {tuple(output.shape)}, as the "
            "output. Give wanted= as such vectors, or another W_O."
        )
    return vectors, words


def explain_learning(walk: Walk, learned: Learned) -> list[Step]:
    """The steps backward, one step of gradient descent, and what came of them all."""
    return [
        _loss(walk, learned), *_back(walk, learned), _descend(walk, learned),
        _after(walk, learned),
    ]  # fmt: skip


def _loss(walk: Walk, learned: Learned) -> Step:
    tokens = walk.queries.shown
    return Step(
        None, "Learning: how wrong is the output?", "L = 1/(2n) Σ_i |output_i − T_i|²", "",
        f"{walk.wish} Half the squared distance from it, over the n = {len(learned.wanted)} words, "
        "is the loss L. dO is short for dL/dO = (output − T) / n: how much the loss grows with "
        "each number of the output. What follows goes back from there, by the chain rule, "
        "to the matrices.",
        (
            (Table("output", walk.output, tokens), Table("T, wanted", learned.wanted, tokens)),
            (Table("dO", learned.back.output, tokens),),
        ),
        result=f"Loss: {number(learned.losses[0], 4)}",
    )  # fmt: skip


def _back(walk: Walk, learned: Learned) -> list[Step]:
    """From the output back to the projections."""
    back, p = learned.back, learned.back.projections
    queries, keys, names = walk.queries.shown, walk.keys.shown, walk.names
    source = "Y" if walk.kind == "cross" else "X"
    join: list[Row] = [(Table("dW_O", p.W_O), Table("dJ", back.joined, queries))]
    if p.b_O is not None:
        join.append((Table("db_O", p.b_O[None]),))
    biases = [
        Table(name, bias[:, None])
        for name, bias in (("db_Q", p.b_Q), ("db_K", p.b_K), ("db_V", p.b_V))
        if bias is not None
    ]
    matrices = Table("dW_Q", p.W_Q), Table("dW_K", p.W_K), Table("dW_V", p.W_V)
    return [
        Step(
            None, "Back through the join", "dW_O = Jᵀ dO,  dJ = dO W_Oᵀ",
            f"{shape_of(walk.joined.T)} {shape_of(back.output)} = {shape_of(p.W_O)}",
            "J are the heads side by side. Each number of W_O is to blame for what it let through; "
            "each head takes its part of dJ as its dZ.",
            tuple(join),
        ),
        Step(
            None, "Back through the weighted sum", "dA = dZ Vᵀ,  dV = Aᵀ dZ", "",
            "A weight is to blame by how well the value that it took fits dZ; a value by how much "
            "it was looked at.",
            walk.by_head(Table("dA", back.weights, *names), Table("dV", back.V, keys)),
        ),
        Step(
            None, "Back through the softmax", "ds_ij = A_ij (dA_ij − Σ_k A_ik dA_ik)", "",
            "The weights of a row add up to 1: what one key gains, the others lose. So each row of "
            "ds adds up to 0; a key that is hidden, or has no weight, is not to blame.",
            walk.side_by_side(
                Table("ds", back.scaled, *names),
                Table("", back.scaled.sum(-1, keepdim=True), queries, ("sum",)),
            ),
        ),
        Step(
            None, "Back through scale and score",
            f"dS = ds / √{walk.projections.depth},  dQ = dS K,  dK = dSᵀ Q", "",
            "Where a score should grow, query and key move towards each other; where it should "
            "fall, apart.",
            walk.by_head(
                Table("dS", back.scores, *names), Table("dQ", back.Q, queries),
                Table("dK", back.K, keys),
            ),
        ),
        Step(
            None, "Back through the projections",
            f"dW_Q = Xᵀ dQ,  dW_K = {source}ᵀ dK,  dW_V = {source}ᵀ dV",
            f"{shape_of(walk.X.T)} {shape_of(walk.Q[0])} = {shape_of(p.W_Q[0])}",
            "Every word says how the matrices should change for it, and the sum is what all want.",
            walk.by_head(*matrices) + (walk.by_head(*biases) if biases else ()),
        ),
    ]  # fmt: skip


def _descend(walk: Walk, learned: Learned) -> Step:
    head, rate, losses = walk.shown[0], f"{learned.rate:g}", learned.losses
    before, after = walk.projections, learned.next.projections
    gradients = learned.back.projections
    rows = tuple(
        (
            Table(walk.named(name, head), getattr(before, name)[head]),
            Table(f"{rate} d{name}", learned.rate * getattr(gradients, name)[head], before="−"),
            Table("new", getattr(after, name)[head], before="="),
        )
        for name in ("W_Q", "W_K", "W_V")
    )
    return Step(
        None, "One step down", f"W := W − {rate} dW", "",
        f"Each matrix goes a step of rate {rate} against its gradient, W_O and biases likewise. "
        "Embeddings stay as they are here.",
        rows, result=f"Loss: {number(losses[0], 4)} → {number(losses[1], 4)}",
    )  # fmt: skip


def _after(walk: Walk, learned: Learned) -> Step:
    losses, steps, tokens = learned.losses, learned.steps, walk.queries.shown
    shown = [step for step in _SHOWN if step < steps] + [steps]
    lines = tuple((str(step), number(losses[step], 4)) for step in shown)
    outcome = (
        "the loss falls. Weights move where that helps; where W_V and W_O can do it alone, they "
        "hardly do."
        if losses[-1] < losses[0]
        else "the loss has not fallen: the steps are too long. A smaller rate, or more of them, "
        "may help."
    )
    rows = walk.by_head(
        Table("A before", walk.weights, *walk.names, "weights"),
        Table("A after", learned.last.weights, *walk.names, "weights", "→"),
    )
    outputs = (
        Table("output after", learned.last.output, tokens),
        Table("T, wanted", learned.wanted, tokens),
    )
    return Step(
        None, f"After {steps:,} step{'s' * (steps != 1)}", "again and again", "",
        f"The same, over and over: {outcome}", (*rows, outputs),
        (Ledger(("step", "loss"), lines, 1),),
    )  # fmt: skip
