"""Lesson of learning: back-propagation from the loss to the matrices, and a step down."""

from __future__ import annotations

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.mechanism.attention_layer import LayerKind as Kind
from headloom.studio.steps.lesson import Ledger, Step, Table, Walk, number, shape_of
from headloom.studio.steps.worked import Learned, Worked

#: Offset from a word to its target word, and that in words.
TARGETS = {
    "previous": (-1, "the word before it, the first word its own"),
    "next": (1, "the word after it, the last word its own"),
    "same": (0, "the word at its own place"),
}
#: Default targets: for a decoder the next word, as for a language model.
_USUAL: dict[Kind, str] = {"encoder": "previous", "decoder": "next", "cross": "same"}
#: Steps whose loss is shown, besides the last.
_SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


def target_of(wanted: str | None, kind: Kind, worked: Worked) -> tuple[Tensor, str]:
    """Return the target of the output, and its description.

    Args:
        wanted: one of `TARGETS`; None: by the kind.
        kind: of attention.
        worked: before learning; its Y are the vectors of the keys' words.

    Raises: InputError: no such target, too few words, or vectors of another width than the output.
    """
    output, keys = worked.output, worked.Y
    name = _USUAL[kind] if wanted is None else wanted
    if name not in TARGETS:
        raise InputError(f"wanted={name!r}; expected one of {', '.join(TARGETS)}.")
    if len(output) > len(keys) or output.shape[1] != keys.shape[1]:
        raise InputError(
            f"learn: the output is {tuple(output.shape)}, but the target vectors of its words come "
            f"from {tuple(keys.shape)}. Give as many words, and a W_O of their width."
        )
    step, words = TARGETS[name]
    places = (torch.arange(len(output)) + step).clamp(0, len(keys) - 1)
    source = " of the other text" * (kind == "cross")
    return keys[places], f"Each word should give the vector of {words}{source}."


def explain_learning(walk: Walk, learned: Learned) -> list[Step]:
    """Return the steps backward, one step of gradient descent, and the result of all steps."""
    back, rate, losses, steps = learned.back, f"{learned.rate:g}", learned.losses, learned.steps
    (queries, keys), head, depth = walk.names, walk.shown[0], walk.Q.shape[-1]
    p, names, source = back.projections, walk.names, "Y" if walk.kind == "cross" else "X"
    first, second = (number(loss, 4) for loss in losses[:2])
    bias = [(Table("db_O", p["b_O"][None]),)] if "b_O" in p else []
    target = Table("T, target", learned.wanted, queries)
    #: Tables of the matrices: before, step, after.
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
        "the loss falls. Weights change where that helps; where W_V and W_O suffice, they hardly "
        "change."
        if losses[-1] < losses[0]
        else "the loss has not fallen: the steps are too long. A smaller rate, or more of them, "
        "may help."
    )
    return [
        Step(
            None, "Learning: how wrong is the output?", "L = 1/(2n) Σ_i |output_i − T_i|²", "",
            f"{walk.goal} Half the squared distance from it, over the n = {len(learned.wanted)} "
            "words, is the loss L. dO is short for dL/dO = (output − T) / n: how much the loss "
            "grows with each number of the output. The next steps go back from there, by the "
            "chain rule, to the matrices.",
            ((Table("output", walk.output, queries), target),
             (Table("dO", back.output, queries),)),
            result=f"Loss: {first}",
        ),
        Step(
            None, "Back through the join", "dW_O = Jᵀ dO,  dJ = dO W_Oᵀ",
            f"{shape_of(walk.joined.T)} {shape_of(back.output)} = {shape_of(p['W_O'])}",
            "J holds the heads side by side. The gradient of W_O is its input times the output's "
            "gradient; each head takes its part of dJ as its dZ.",
            ((Table("dW_O", p["W_O"]), Table("dJ", back.joined, queries)), *bias),
        ),
        Step(
            None, "Back through the weighted sum", "dA = dZ Vᵀ,  dV = Aᵀ dZ", "",
            "The gradient of a weight is how well its value matches dZ; that of a value grows with "
            "how much it was looked at.",
            walk.by_head(Table("dA", back.weights, *names), Table("dV", back.V, keys)),
        ),
        Step(
            None, "Back through the softmax", "ds_ij = A_ij (dA_ij − Σ_k A_ik dA_ik)", "",
            "The weights of a row add up to 1: what one key gains, the others lose. So each row of "
            "ds adds up to 0; a key that is masked, or has no weight, has gradient 0.",
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
            "Every word has its own gradient of the matrices; they are added up.",
            walk.of_projections(p, "d"),
        ),
        Step(
            None, "One step down", f"W := W − {rate} dW", "",
            f"Each matrix moves a step of rate {rate} against its gradient; so do W_O and biases. "
            "Embeddings stay fixed here.",
            moved, result=f"Loss: {first} → {second}",
        ),
        Step(
            None, f"After {steps:,} step{'s' * (steps != 1)}", "again and again", "",
            f"The same, repeated: {outcome}",
            (
                *walk.by_head(
                    Table("A before", walk.weights, *names, "weights"),
                    Table("A after", learned.last.weights, *names, "weights", "→"),
                ),
                (Table("output after", learned.last.output, queries), target),
            ),
            (Ledger(("step", "loss"), tuple((str(n), number(losses[n], 4)) for n in shown), 1),),
        ),
    ]  # fmt: skip
