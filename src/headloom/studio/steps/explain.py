"""What is said and shown of a walk, step by step; text and pictures render it."""

from __future__ import annotations

import torch

from headloom.analysis import six_steps
from headloom.analysis.six_steps import Wording
from headloom.mechanism.positions import Buckets
from headloom.studio.steps.lesson import Ledger, Row, Step, Table, number
from headloom.studio.steps.walk import Walk, shape_of
from headloom.studio.steps.worked import row_of

__all__ = ["SOURCES", "explain"]

#: Who gives what, by the kind of attention: Q; K and V; the mask.
SOURCES = {
    "encoder": ("the sentence", "the same sentence", "every word may look at every word"),
    "decoder": (
        "the text written so far", "the same text", "no word looks at words after it",
    ),
    "cross": (
        "the decoder's text (X)", "the encoder's text (Y)",
        "every word of X may look at every word of Y",
    ),
}  # fmt: skip
#: Numbers of a vector, and products of a sum, that are written out; the rest is an ellipsis.
_NUMBERS, _PRODUCTS = 4, 3


def explain(walk: Walk) -> list[Step]:
    """The steps of a walk, in order."""
    turned = [] if walk.Q_turned is None else [_turn(walk)]
    return [
        _inputs(walk), _project(walk), *turned, _score(walk), _scale(walk), _mask(walk),
        _softmax(walk), _weigh(walk), _join(walk), _alone(walk), _equal(walk),
    ]  # fmt: skip


def _step(words: Wording, shapes: str = "", rows: tuple[Row, ...] = ()) -> Step:
    """A step with its words, and what it shows."""
    return Step(words.number, words.name, words.formula, shapes, words.sentence, rows)


def _inputs(walk: Walk) -> Step:
    rows: list[Row] = []
    for name, words in [("X", walk.queries), ("Y", walk.keys)][: 1 + (walk.kind == "cross")]:
        if words.E is None or words.P is None:
            rows.append((Table(name, words.X, words.shown),))
            continue
        rows.append(
            (
                Table("E, embeddings", words.E, words.shown),
                Table("P, positions", words.P, words.shown, before="+"),
                Table(name, words.X, words.shown, before="="),
            )
        )
    embedded, placed = walk.queries.E is not None, walk.queries.P is not None
    wording = six_steps.inputs(walk.kind, embedded=embedded, placed=placed)
    return _step(wording, shape_of(walk.X), (*rows,))


def _project(walk: Walk) -> Step:
    p, queries, keys = walk.projections, walk.queries.shown, walk.keys.shown
    matrices = walk.by_head(Table("W_Q", p.W_Q), Table("W_K", p.W_K), Table("W_V", p.W_V))
    added = [
        Table(name, bias[:, None])
        for name, bias in (("b_Q", p.b_Q), ("b_K", p.b_K), ("b_V", p.b_V))
        if bias is not None
    ]
    made = walk.by_head(
        Table("Q", walk.Q, queries), Table("K", walk.K, keys), Table("V", walk.V, keys)
    )
    rows = tuple(
        row
        for rows in zip(matrices, walk.by_head(*added), made, strict=True)
        for row in rows
        if row
    )
    shapes = f"{shape_of(walk.X)} {shape_of(p.W_Q[0])} = {shape_of(walk.Q[0])}"
    return _step(six_steps.project(walk.kind, biases=bool(added)), shapes, rows)


def _turn(walk: Walk) -> Step:
    Q, K = walk.scored
    tables = Table("R Q", Q, walk.queries.shown), Table("R K", K, walk.keys.shown)
    return _step(six_steps.turn(), "", walk.by_head(*tables))


def _score(walk: Walk) -> Step:
    Q, K = walk.scored
    table = Table("S", walk.scores, *walk.names, "scores")
    shapes = f"{shape_of(Q[0])} {shape_of(K[0].T)} = {shape_of(walk.scores[0])}"
    return _step(six_steps.score(shaw=False), shapes, walk.side_by_side(table))


def _scale(walk: Walk) -> Step:
    depth, bias, names = walk.projections.depth, walk.bias, walk.names
    tables = [Table(f"S / √{depth}", walk.scaled, *names, "scores")]
    if bias is not None:
        tables.append(Table("B", bias, *names, "scores", "+"))
        tables.append(Table("sum", walk.scaled + bias, *names, "scores", "="))
    buckets = isinstance(walk.relative, Buckets)
    alibi = bias is not None and not buckets
    words = six_steps.scale(depth, walk.digits, alibi=alibi, buckets=buckets)
    return _step(words, "", walk.side_by_side(*tables) if bias is None else walk.by_head(*tables))


def _mask(walk: Walk) -> Step:
    allowed = walk.allowed
    if bool(allowed.all()):
        return _step(six_steps.mask("nothing"))
    later = torch.equal(allowed, torch.ones_like(allowed).tril())
    rows = walk.side_by_side(Table("masked", walk.masked, *walk.names, "scores"))
    return _step(six_steps.mask("later" if later else "some"), "", rows)


def _softmax(walk: Walk) -> Step:
    weights = walk.weights
    rows = walk.side_by_side(
        Table("A", weights, *walk.names, "weights"),
        Table("", weights.sum(-1, keepdim=True), walk.queries.shown, ("sum",)),
    )
    return _step(six_steps.softmax(), "", rows)


def _weigh(walk: Walk) -> Step:
    table = Table("Z", walk.Z, walk.queries.shown)
    shapes = f"{shape_of(walk.weights[0])} {shape_of(walk.V[0])} = {shape_of(walk.Z[0])}"
    return _step(six_steps.weigh(shaw=False), shapes, walk.side_by_side(table))


def _join(walk: Walk) -> Step:
    p, heads, tokens = walk.projections, len(walk.Z), walk.queries.shown
    words = six_steps.join(heads, bias=p.b_O is not None)
    parts = words.formula.split(" = ")[1].split(" W_O")[0]
    rows: list[Row] = [(Table(parts, walk.joined, tokens), Table("W_O", p.W_O))]
    if p.b_O is not None:
        rows.append((Table("b_O", p.b_O[None]),))
    rows.append((Table("output", walk.output, tokens),))
    shapes = f"{shape_of(walk.joined)} {shape_of(p.W_O)} = {shape_of(walk.output)}"
    return _step(words, shapes, (*rows,))


def _alone(walk: Walk) -> Step:
    """One query of one head against one key after the other, every sum written out."""
    digits, head = walk.digits, walk.shown[0]
    row, (Q, K) = row_of(walk, head, walk.query), walk.scored
    q = Q[head, walk.query]
    lines: list[tuple[str, ...]] = []
    taken: list[tuple[str, ...]] = []
    for j, token in enumerate(walk.keys.shown):
        weight = number(row.weights[j], digits)
        if not row.allowed[j]:
            lines.append((token, "hidden by the mask", "", "", number(0, digits), weight))
            continue
        factors = zip(q.tolist(), K[head, j].tolist(), strict=True)
        products = [f"{number(a, digits)}×{number(b, digits)}" for a, b in factors]
        if len(products) > _PRODUCTS:
            products[_PRODUCTS - 2 : -1] = [f"… {len(products) - _PRODUCTS + 1} more …"]
        cells = (row.dots[j], row.scaled[j], row.exponentials[j])
        lines.append(
            (token, " + ".join(products), *(number(cell, digits) for cell in cells), weight)
        )
        value, part = walk.V[head, j].tolist(), row.parts[j]
        taken.append((token, weight, "×", _vector(value, digits), "=", _vector(part, digits)))
    total, weights = number(row.total, digits), number(sum(row.weights), digits)
    lines.append(("sum", "", "", "", total, weights))
    taken.append(("z", "", "", "", "=", _vector(row.output, digits)))
    scaled = f"/ √{walk.projections.depth}{'' if walk.bias is None else ' + B'}"
    power = "e^(x−max)" if row.lowered else "e^x"
    word = walk.queries.shown[walk.query]
    lowered = " The largest score is taken off all, which changes no weight." * bool(row.lowered)
    return Step(
        None, "One word at a time", "z = Σ_j (e^(q·k_j/√d) / Σ_l e^(q·k_l/√d)) v_j", "",
        f"The same for “{word}” alone, without any matrix: its query meets one key after the "
        f"other.{lowered}",
        ((Table(walk.named(f"q of “{word}”", head), q[None]),),),
        (
            Ledger(("key", "q · k, written out", "q · k", scaled, power, "weight"), (*lines,)),
            Ledger(("key", "weight", "", "value", "", "taken"), (*taken,), 1, 4),
        ),
    )  # fmt: skip


def _equal(walk: Walk) -> Step:
    heads, queries, depth = walk.Z.shape
    count = " × ".join(
        f"{many} {what}{'s' * (many != 1)}"
        for many, what in ((heads, "head"), (queries, "word"), (depth, "number"))
    )
    return Step(
        None, "Both are equal", "A V = z, row by row", "",
        "All words at once, with matrices, or one word at a time, with sums: the same numbers.",
        result=f"Largest difference over {count} of Z: {walk.difference:.1e}",
    )  # fmt: skip


def _vector(numbers: list[float] | tuple[float, ...], digits: int) -> str:
    cells = [number(value, digits) for value in numbers]
    if len(cells) > _NUMBERS:
        cells[_NUMBERS - 2 : -1] = ["…"]
    return f"({' '.join(cells)})"
