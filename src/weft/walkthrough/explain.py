"""What is said and shown of a walk, step by step; text, HTML and tests take it from here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.analysis import six_steps
from weft.analysis.six_steps import Wording
from weft.mechanism.positions import Buckets
from weft.mechanism.worked import row_of
from weft.walkthrough.learning import explain_learning
from weft.walkthrough.parts import Ledger, Product, Row, Step, Table, TableKind, number
from weft.walkthrough.walk import Walk, head_suffix, named, of_head, shape_of

__all__ = ["SOURCES", "explain", "is_lower_triangle"]

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
    shown = [
        _inputs(walk), _project(walk), _turn(walk), _score(walk), _scale(walk), _mask(walk),
        _softmax(walk), _weigh(walk), _join(walk), _alone(walk), _equal(walk),
    ]  # fmt: skip
    steps = [step for step in shown if step is not None]
    return steps if walk.learned is None else steps + explain_learning(walk, walk.learned)


def is_lower_triangle(allowed: Tensor) -> bool:
    """Whether every query looks at itself and at all before it, and at nothing else."""
    return bool((allowed == torch.ones_like(allowed).tril()).all())


def _step(words: Wording, shapes: str = "", rows: tuple[Row, ...] = ()) -> Step:
    """A step with its words, and what it shows."""
    return Step(words.number, words.name, words.formula, shapes, words.sentence, rows)


def _inputs(walk: Walk) -> Step:
    rows: list[Row] = []
    sides = [("X", walk.queries)] + ([("Y", walk.keys)] if walk.kind == "cross" else [])
    for name, words in sides:
        tokens = named(words.tokens)
        last = Table(name, words.X, tokens)
        if words.E is not None and words.P is not None:
            rows.append(
                (
                    Table("E, embeddings", words.E, tokens),
                    Table("P, positions", words.P, tokens, before="+"),
                    Table(name, words.X, tokens, before="="),
                )
            )
        else:
            rows.append((last,))
    embedded, placed = walk.queries.E is not None, walk.queries.P is not None
    said = six_steps.inputs(walk.kind, embedded=embedded, placed=placed)
    return _step(said, shape_of(walk.X), (*rows,))


def _project(walk: Walk) -> Step:
    worked, p = walk.worked, walk.worked.projections
    biases = p.b_Q is not None or p.b_K is not None or p.b_V is not None
    rows: list[Row] = []
    for head in walk.shown:
        matrices = (("W_Q", p.W_Q), ("W_K", p.W_K), ("W_V", p.W_V))
        rows.append(tuple(Table(of_head(name, walk, head), each[head]) for name, each in matrices))
        if biases:
            vectors = (("b_Q", p.b_Q), ("b_K", p.b_K), ("b_V", p.b_V))
            rows.append(
                tuple(
                    Table(of_head(name, walk, head), each[head][None])
                    for name, each in vectors
                    if each is not None
                )
            )
        queries, keys = named(walk.queries.tokens), named(walk.keys.tokens)
        source = "Y" if walk.kind == "cross" else "X"
        rows.append(
            tuple(
                Table(
                    of_head(name, walk, head), made[head], tokens,
                    made=Product(
                        origin, of_head(f"W_{name}", walk, head), inputs, matrix[head],
                        added=None if bias is None else bias[head],
                    ),
                )
                for name, made, tokens, origin, inputs, matrix, bias in (
                    ("Q", worked.Q, queries, "X", walk.X, p.W_Q, p.b_Q),
                    ("K", worked.K, keys, source, walk.Y, p.W_K, p.b_K),
                    ("V", worked.V, keys, source, walk.Y, p.W_V, p.b_V),
                )
            )
        )  # fmt: skip
    shapes = f"{shape_of(walk.X)} {shape_of(p.W_Q[0])} = {shape_of(worked.Q[0])}"
    return _step(six_steps.project(walk.kind, biases=biases), shapes, (*rows,))


def _turn(walk: Walk) -> Step | None:
    worked = walk.worked
    if worked.Q_turned is None or worked.K_turned is None:
        return None
    tokens = named(walk.queries.tokens)
    rows = tuple(
        (
            Table(of_head("R Q", walk, head), worked.Q_turned[head], tokens),
            Table(of_head("R K", walk, head), worked.K_turned[head], tokens),
        )
        for head in walk.shown
    )
    return _step(six_steps.turn(), "", rows)


def _score(walk: Walk) -> Step:
    worked = walk.worked
    columns = named(walk.keys.tokens)
    if worked.by_position is None:
        turned = worked.Q_turned is not None and worked.K_turned is not None
        Q = worked.Q_turned if worked.Q_turned is not None else worked.Q
        K = worked.K_turned if worked.K_turned is not None else worked.K
        left, right = ("R Q", "R K") if turned else ("Q", "K")
        made = [
            Product(
                of_head(left, walk, head), of_head(right, walk, head), Q[head], K[head].T,
                across=True,
            )
            for head in walk.shown
        ]  # fmt: skip
        rows = _by_heads(walk, "S", worked.scores, "scores", made=made)
    else:
        tokens = named(walk.queries.tokens)
        rows = tuple(
            (
                Table(of_head("Q Kᵀ", walk, head), worked.content[head], tokens, columns, "scores"),
                Table("Q Aᵀ", worked.by_position[head], tokens, columns, "scores", "+"),
                Table("S", worked.scores[head], tokens, columns, "scores", "="),
            )
            for head in walk.shown
        )
    keys = f"({walk.K.shape[2]}×{walk.K.shape[1]})"
    shapes = f"{shape_of(walk.Q[0])} {keys} = {shape_of(walk.scores[0])}"
    words = six_steps.score(shaw=worked.by_position is not None)
    return _step(words, shapes, rows)


def _scale(walk: Walk) -> Step:
    depth = walk.worked.projections.depth
    root = f"√{depth}"
    bias = walk.worked.bias
    learned = isinstance(walk.worked.relative, Buckets)
    alibi = bias is not None and not learned
    words = six_steps.scale(depth, walk.digits, alibi=alibi, buckets=learned)
    if bias is None:
        rows = _by_heads(walk, f"S / {root}", walk.scaled, "scores")
        return _step(words, "", rows)
    tokens, columns = named(walk.queries.tokens), named(walk.keys.tokens)
    rows = tuple(
        (
            Table(of_head(f"S / {root}", walk, head), walk.scaled[head], tokens, columns, "scores"),
            Table("B", bias[head], tokens, columns, "scores", "+"),
            Table("sum", walk.scaled[head] + bias[head], tokens, columns, "scores", "="),
        )
        for head in walk.shown
    )
    return _step(words, "", rows)


def _mask(walk: Walk) -> Step:
    allowed = walk.worked.allowed
    if bool(allowed.all()):
        return _step(six_steps.mask("nothing"))
    words = six_steps.mask("later" if is_lower_triangle(allowed) else "some")
    return _step(words, "", _by_heads(walk, "masked", walk.masked, "scores"))


def _softmax(walk: Walk) -> Step:
    rows = []
    for head in walk.shown:
        weights = walk.weights[head]
        names = named(walk.queries.tokens), named(walk.keys.tokens)
        rows.append(
            (
                Table(of_head("A", walk, head), weights, *names, "weights"),
                Table("", weights.sum(-1, keepdim=True), names[0], ("sum",)),
            )
        )
    joined = (tuple(table for row in rows for table in row),) if len(rows) == 2 else (*rows,)
    return _step(six_steps.softmax(), "", joined)


def _weigh(walk: Walk) -> Step:
    worked = walk.worked
    if worked.values_by_position is not None:
        tokens = named(walk.queries.tokens)
        rows: tuple[Row, ...] = tuple(
            (
                Table(of_head("A V", walk, head), walk.Z[head] - worked.values_by_position[head],
                      tokens),
                Table("Σ A a", worked.values_by_position[head], tokens, before="+"),
                Table("Z", walk.Z[head], tokens, before="="),
            )
            for head in walk.shown
        )  # fmt: skip
    else:
        made = [
            Product(
                of_head("A", walk, head), of_head("V", walk, head), walk.weights[head], walk.V[head]
            )
            for head in walk.shown
        ]
        rows = _by_heads(walk, "Z", walk.Z, "numbers", labelled=False, made=made)
    shapes = f"{shape_of(walk.weights[0])} {shape_of(walk.V[0])} = {shape_of(walk.Z[0])}"
    words = six_steps.weigh(shaw=worked.values_by_position is not None)
    return _step(words, shapes, rows)


def _join(walk: Walk) -> Step:
    p, heads = walk.worked.projections, len(walk.Z)
    parts = "Z" if heads == 1 else "[Z_0 Z_1]" if heads == 2 else f"[Z_0 … Z_{heads - 1}]"
    tokens = named(walk.queries.tokens)
    rows: list[Row] = [(Table(parts, walk.joined, tokens), Table("W_O", p.W_O))]
    if p.b_O is not None:
        rows.append((Table("b_O", p.b_O[None]),))
    made = Product(parts, "W_O", walk.joined, p.W_O, added=p.b_O)
    rows.append((Table("output", walk.output, tokens, made=made),))
    shapes = f"{shape_of(walk.joined)} {shape_of(p.W_O)} = {shape_of(walk.output)}"
    return _step(six_steps.join(heads, bias=p.b_O is not None), shapes, (*rows,))


def _alone(walk: Walk) -> Step:
    worked, digits = walk.worked, walk.digits
    row = row_of(worked, walk.head, walk.query)
    tokens = named(walk.keys.tokens)
    root = f"√{worked.projections.depth}"
    plus = "" if worked.bias is None else " + B"
    power = "e^x" if not row.lowered else "e^(x−max)"
    lines: list[tuple[str, ...]] = []
    for j, token in enumerate(tokens):
        if not row.allowed[j]:
            lines.append((token, "hidden by the mask", "", "", number(0, digits),
                          number(0, digits)))  # fmt: skip
            continue
        factors = _factors(walk, row.products[j], j)
        cells = (row.dots[j], row.scaled[j], row.exponentials[j], row.weights[j])
        lines.append((token, factors, *(number(cell, digits) for cell in cells)))
    weights = number(sum(row.weights), digits)
    lines.append(("sum", "", "", "", number(row.total, digits), weights))
    product = "q · (k + a)" if worked.by_position is not None else "q · k, written out"
    dots = Ledger(("key", product, "q · k", f"/ {root}{plus}", power, "weight"), (*lines,))
    taken: list[tuple[str, ...]] = [
        (token, number(row.weights[j], digits), "×", _values(walk, j), "=",
         _vector(row.parts[j], digits))
        for j, token in enumerate(tokens) if row.allowed[j]
    ]  # fmt: skip
    taken.append(("z", "", "", "", "=", _vector(row.output, digits)))
    sums = Ledger(("key", "weight", "", "value", "", "taken"), (*taken,), 1, 4)
    word = named(walk.queries.tokens)[walk.query]
    q = worked.Q if worked.Q_turned is None else worked.Q_turned
    table = Table(f"q of “{word}”{head_suffix(walk, walk.head)}", q[walk.head, walk.query][None])
    return Step(
        None, "One word at a time", "z = Σ_j (e^(q·k_j/√d) / Σ_l e^(q·k_l/√d)) v_j", "",
        f"The same for “{word}” alone, without any matrix: its query meets one key after the "
        "other." + (" The largest score is taken off all, which changes no weight."
                    if row.lowered else ""),
        ((table,),), (dots, sums),
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


def _factors(walk: Walk, products: tuple[float, ...], key: int) -> str:
    """The products of a dot product, written out where they are few."""
    worked, digits = walk.worked, walk.digits
    q = worked.Q if worked.Q_turned is None else worked.Q_turned
    k = worked.K if worked.K_turned is None else worked.K_turned
    if worked.by_position is not None:
        shown = [number(product, digits) for product in products]
    else:
        shown = [
            f"{number(a, digits)}×{number(b, digits)}"
            for a, b in zip(
                q[walk.head, walk.query].tolist(), k[walk.head, key].tolist(), strict=True
            )
        ]
    if len(shown) > _PRODUCTS:
        shown = [*shown[: _PRODUCTS - 2], f"… {len(shown) - _PRODUCTS + 1} more …", shown[-1]]
    return " + ".join(shown)


def _values(walk: Walk, key: int) -> str:
    value = walk.V[walk.head, key].tolist()
    return _vector(value, walk.digits) + (
        " + a" if walk.worked.values_by_position is not None else ""
    )


def _vector(numbers: list[float] | tuple[float, ...], digits: int) -> str:
    cells = [number(value, digits) for value in numbers]
    if len(cells) > _NUMBERS:
        cells = [*cells[: _NUMBERS - 2], "…", cells[-1]]
    return f"({' '.join(cells)})"


def _by_heads(
    walk: Walk,
    name: str,
    matrices: Tensor,
    kind: TableKind,
    *,
    labelled: bool = True,
    made: Sequence[Product] = (),
) -> tuple[Row, ...]:
    """A table for each head that is shown, side by side. made: what each is the product of."""
    columns = named(walk.keys.tokens) if labelled else ()
    tokens = named(walk.queries.tokens)
    tables = [
        Table(
            of_head(name, walk, head), matrices[head], tokens, columns, kind,
            made=made[place] if made else None,
        )
        for place, head in enumerate(walk.shown)
    ]  # fmt: skip
    return (tuple(tables),)
