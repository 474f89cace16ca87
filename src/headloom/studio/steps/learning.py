"""The lesson of learning: from the loss back to the matrices, and a step down."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.attention_layer import LayerKind as Kind
from headloom.studio.steps.lesson import Ledger, Step, Table, Walk, number, shape_of
from headloom.studio.steps.worked import Learned, Worked

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


def wanted_of(wanted: str | None, kind: Kind, worked: Worked) -> tuple[Tensor, str]:
    """What the output should be, and that in words.

    Args:
        wanted: one of `WISHES`; None: by the kind.
        kind: of attention.
        worked: before it learns; its Y are the vectors of the words that are looked at.

    Raises: InputError: no such wish, or no such word, or its vector has not the output's width.
    """
    output, keys = worked.output, worked.Y
    name = _USUAL[kind] if wanted is None else wanted
    if name not in WISHES:
        raise InputError(f"wanted={name!r}; expected one of {', '.join(WISHES)}.")
    if len(output) > len(keys) or output.shape[1] != keys.shape[1]:
        raise InputError(
            f"learn: the output is {tuple(output.shape)}, the words that are looked at "
            f"{tuple(keys.shape)}, one of which each word is to give. Give as many words, and a "
            "W_O of their width."
        )
    step, words = WISHES[name]
    places = (torch.arange(len(output)) + step).clamp(0, len(keys) - 1)
    source = " of the other text" * (kind == "cross")
    return keys[places], f"Each word is to give the vector of {words}{source}."


def explain_learning(walk: Walk, learned: Learned) -> list[Step]:
    """The steps backward, one step of gradient descent, and what came of them all."""
    back, rate, losses, steps = learned.back, f"{learned.rate:g}", learned.losses, learned.steps
    (queries, keys), head, depth = walk.names, walk.shown[0], walk.Q.shape[-1]
    p, names, source = back.projections, walk.names, "Y" if walk.kind == "cross" else "X"
    first, second = (number(loss, 4) for loss in losses[:2])
    bias = [(Table("db_O", p["b_O"][None]),)] if "b_O" in p else []
    wanted = Table("T, wanted", learned.wanted, queries)
    #: Of all heads their matrices, and then their biases.
    moved = tuple(
        (
            Table(walk.named(name, head), walk.projections[name][head]),
            Table(f"{rate} d{name}", learned.rate * p[name][head], before="−"),
            Table("new", learned.next.projections[name][head], before="="),
        )
        for name in ("W_Q", "W_K", "W_V")
    )
    shown = [step for step in _SHOWN if step < steps] + [steps]
    outcome = (
        "the loss falls. Weights move where that helps; where W_V and W_O can do it alone, they "
        "hardly do."
        if losses[-1] < losses[0]
        else "the loss has not fallen: the steps are too long. A smaller rate, or more of them, "
        "may help."
    )
    return [
        Step(
            None, "Learning: how wrong is the output?", "L = 1/(2n) Σ_i |output_i − T_i|²", "",
            f"{walk.wish} Half the squared distance from it, over the n = {len(learned.wanted)} "
            "words, is the loss L. dO is short for dL/dO = (output − T) / n: how much the loss "
            "grows with each number of the output. What follows goes back from there, by the "
            "chain rule, to the matrices.",
            ((Table("output", walk.output, queries), wanted),
             (Table("dO", back.output, queries),)),
            result=f"Loss: {first}",
        ),
        Step(
            None, "Back through the join", "dW_O = Jᵀ dO,  dJ = dO W_Oᵀ",
            f"{shape_of(walk.joined.T)} {shape_of(back.output)} = {shape_of(p['W_O'])}",
            "J are the heads side by side. Each number of W_O is to blame for what it let through; "
            "each head takes its part of dJ as its dZ.",
            ((Table("dW_O", p["W_O"]), Table("dJ", back.joined, queries)), *bias),
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
            None, "Back through scale and score", f"dS = ds / √{depth},  dQ = dS K,  dK = dSᵀ Q",
            "",
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
            f"{shape_of(walk.X.T)} {shape_of(walk.Q[0])} = {shape_of(p['W_Q'][0])}",
            "Every word says how the matrices should change for it, and the sum is what all want.",
            walk.of_projections(p, "d"),
        ),
        Step(
            None, "One step down", f"W := W − {rate} dW", "",
            f"Each matrix goes a step of rate {rate} against its gradient, W_O and biases "
            "likewise. Embeddings stay as they are here.",
            moved, result=f"Loss: {first} → {second}",
        ),
        Step(
            None, f"After {steps:,} step{'s' * (steps != 1)}", "again and again", "",
            f"The same, over and over: {outcome}",
            (
                *walk.by_head(
                    Table("A before", walk.weights, *names, "weights"),
                    Table("A after", learned.last.weights, *names, "weights", "→"),
                ),
                (Table("output after", learned.last.output, queries), wanted),
            ),
            (Ledger(("step", "loss"), tuple((str(n), number(losses[n], 4)) for n in shown), 1),),
        ),
    ]  # fmt: skip
