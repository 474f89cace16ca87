"""What is said and shown of learning: from the loss back to the matrices, and a step down."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.mechanism.worked import Projections, Worked
from weft.mechanism.worked_back import Learned
from weft.walkthrough.parts import Ledger, Row, Step, Table, number
from weft.walkthrough.walk import Walk, named, of_head, shape_of

__all__ = ["explain_learning"]

#: Steps whose loss is shown, and the last one.
_SHOWN = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)


def explain_learning(walk: Walk, learned: Learned) -> list[Step]:
    """The steps backward, one step of gradient descent, and what came of them all."""
    return [
        _loss(walk, learned), _join(walk, learned), _weigh(walk, learned), _softmax(walk, learned),
        _score(walk, learned), _project(walk, learned), _descend(walk, learned),
        _after(walk, learned), _checked(walk, learned),
    ]  # fmt: skip


def _loss(walk: Walk, learned: Learned) -> Step:
    tokens = named(walk.queries.tokens)
    rows: tuple[Row, ...] = (
        (Table("output", walk.output, tokens), Table("T, wanted", learned.wanted, tokens)),
        (Table("dO", learned.back.output, tokens),),
    )
    return Step(
        None, "Learning: how wrong is the output?", "L = 1/(2n) Σ_i |output_i − T_i|²", "",
        f"{walk.wish} Half the squared distance from it, over the n = {len(learned.wanted)} words, "
        "is the loss L. dO is short for dL/dO = (output − T) / n: how much the loss grows with "
        "each number of the output. What follows goes back from there, by the chain rule, "
        "to the matrices.",
        rows, result=f"Loss: {number(learned.losses[0], 4)}",
    )  # fmt: skip


def _join(walk: Walk, learned: Learned) -> Step:
    back, tokens = learned.back, named(walk.queries.tokens)
    rows: list[Row] = [(Table("dW_O", back.projections.W_O), Table("dJ", back.joined, tokens))]
    if back.projections.b_O is not None:
        rows.append((Table("db_O", back.projections.b_O[None]),))
    return Step(
        None, "Back through the join", "dW_O = Jᵀ dO,  dJ = dO W_Oᵀ",
        f"{shape_of(walk.joined.T)} {shape_of(back.output)} = {shape_of(back.projections.W_O)}",
        "J are the heads side by side. Each number of W_O is to blame for what it let through; "
        "each head takes its part of dJ as its dZ.",
        (*rows,),
    )  # fmt: skip


def _weigh(walk: Walk, learned: Learned) -> Step:
    back, queries, keys = learned.back, named(walk.queries.tokens), named(walk.keys.tokens)
    rows = tuple(
        (
            Table(of_head("dA", walk, head), back.weights[head], queries, keys),
            Table(of_head("dV", walk, head), back.V[head], keys),
        )
        for head in walk.shown
    )
    return Step(
        None, "Back through the weighted sum", "dA = dZ Vᵀ,  dV = Aᵀ dZ", "",
        "A weight is to blame by how well the value that it took fits dZ; a value by how much it "
        "was looked at.",
        rows,
    )  # fmt: skip


def _softmax(walk: Walk, learned: Learned) -> Step:
    back, queries, keys = learned.back, named(walk.queries.tokens), named(walk.keys.tokens)
    rows = []
    for head in walk.shown:
        by_scaled = back.scaled[head]
        rows.append(
            (
                Table(of_head("ds", walk, head), by_scaled, queries, keys),
                Table("", by_scaled.sum(-1, keepdim=True), queries, ("sum",)),
            )
        )
    joined = (tuple(table for row in rows for table in row),) if len(rows) == 2 else (*rows,)
    return Step(
        None, "Back through the softmax", "ds_ij = A_ij (dA_ij − Σ_k A_ik dA_ik)", "",
        "The weights of a row add up to 1: what one key gains, the others lose. So each row of ds "
        "adds up to 0; a key that is hidden, or has no weight, is not to blame.",
        joined,
    )  # fmt: skip


def _score(walk: Walk, learned: Learned) -> Step:
    back, depth = learned.back, walk.worked.projections.depth
    queries, keys = named(walk.queries.tokens), named(walk.keys.tokens)
    rows = tuple(
        (
            Table(of_head("dS", walk, head), back.scores[head], queries, keys),
            Table(of_head("dQ", walk, head), back.Q[head], queries),
            Table(of_head("dK", walk, head), back.K[head], keys),
        )
        for head in walk.shown
    )
    return Step(
        None, "Back through scale and score", f"dS = ds / √{depth},  dQ = dS K,  dK = dSᵀ Q", "",
        "Where a score should grow, query and key move towards each other; where it should fall, "
        "apart.",
        rows,
    )  # fmt: skip


def _project(walk: Walk, learned: Learned) -> Step:
    source = "Y" if walk.kind == "cross" else "X"
    gradients = learned.back.projections
    rows: list[Row] = []
    for head in walk.shown:
        rows.append(
            tuple(
                Table(of_head(f"d{name}", walk, head), getattr(gradients, name)[head])
                for name in ("W_Q", "W_K", "W_V")
            )
        )
        biases = tuple(
            Table(of_head(f"d{name}", walk, head), bias[head][None])
            for name in ("b_Q", "b_K", "b_V")
            if (bias := getattr(gradients, name)) is not None
        )
        rows += [biases] if biases else []
    return Step(
        None, "Back through the projections",
        f"dW_Q = Xᵀ dQ,  dW_K = {source}ᵀ dK,  dW_V = {source}ᵀ dV",
        f"{shape_of(walk.X.T)} {shape_of(walk.Q[0])} = {shape_of(gradients.W_Q[0])}",
        "Every word says how the matrices should change for it, and the sum is what all want.",
        (*rows,),
    )  # fmt: skip


def _descend(walk: Walk, learned: Learned) -> Step:
    before, gradients = walk.worked.projections, learned.back.projections
    after = learned.next.projections
    rate = f"{learned.rate:g}"
    rows: tuple[Row, ...] = tuple(
        (
            Table(of_head(name, walk, head), getattr(before, name)[head]),
            Table(f"{rate} d{name}", learned.rate * getattr(gradients, name)[head], before="−"),
            Table("new", getattr(after, name)[head], before="="),
        )
        for head in walk.shown[:1]
        for name in ("W_Q", "W_K", "W_V")
    )
    losses = learned.losses
    return Step(
        None, "One step down", f"W := W − {rate} dW", "",
        f"Each matrix goes a step of rate {rate} against its gradient, W_O and biases likewise. "
        "Embeddings stay as they are here.",
        rows, result=f"Loss: {number(losses[0], 4)} → {number(losses[1], 4)}",
    )  # fmt: skip


def _after(walk: Walk, learned: Learned) -> Step:
    losses, steps = learned.losses, learned.steps
    shown = [step for step in _SHOWN if step < steps] + [steps]
    ledger = Ledger(
        ("step", "loss"), tuple((str(step), number(losses[step], 4)) for step in shown), 1, 2
    )
    queries, keys = named(walk.queries.tokens), named(walk.keys.tokens)
    rows = tuple(
        (
            Table(of_head("A before", walk, head), walk.weights[head], queries, keys, "weights"),
            Table("A after", learned.last.weights[head], queries, keys, "weights"),
        )
        for head in walk.shown
    )
    said = (
        "The same, over and over, and the loss falls. Weights move where that helps; where W_V and "
        "W_O can do it alone, they hardly do."
        if losses[-1] < losses[0]
        else "The same, over and over. The loss has not fallen: the steps are too long. A smaller "
        "rate, or more of them, may help."
    )
    return Step(
        None, f"After {steps:,} step{'s' * (steps != 1)}", "again and again", "",
        said,
        (*rows, (Table("output after", learned.last.output, queries),
                 Table("T, wanted", learned.wanted, queries))),
        (ledger,),
    )  # fmt: skip


def _checked(walk: Walk, learned: Learned) -> Step:
    return Step(
        None, "Both are equal", "dW = ∂L/∂W", "",
        "The gradients above, by their formulas, and those that torch's automatic differentiation "
        "makes of the loss alone.",
        result=f"Largest difference over all matrices: {_difference(walk.worked, learned):.1e}",
    )  # fmt: skip


def _difference(worked: Worked, learned: Learned) -> float:
    """The largest difference of a gradient of a matrix or bias, by `work_back` and by torch."""
    p = worked.projections
    names = [name for name in vars(p) if getattr(p, name) is not None]
    leaves = {name: getattr(p, name).clone().requires_grad_() for name in names}
    output = _output(worked, leaves)
    loss = (output - learned.wanted).square().sum() / (2 * len(output))
    gradients: Projections = learned.back.projections
    found = torch.autograd.grad(loss, list(leaves.values()))
    return max(
        float((gradient - getattr(gradients, name)).abs().max())
        for name, gradient in zip(names, found, strict=True)
    )


def _output(worked: Worked, p: dict[str, Tensor]) -> Tensor:
    """The output by torch's own attention, of matrices that want gradients."""
    queries, keys, values = (
        inputs @ p[f"W_{name}"] + (p[f"b_{name}"][:, None] if f"b_{name}" in p else 0)
        for name, inputs in (("Q", worked.X), ("K", worked.Y), ("V", worked.Y))
    )
    attended = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, worked.allowed
    )
    joined = attended.transpose(0, 1).flatten(1)
    return joined @ p["W_O"] + p.get("b_O", 0)
