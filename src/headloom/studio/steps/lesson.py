"""Lesson as data, rendered as text or picture; and the lesson of a walk through attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from headloom.analysis import six_steps
from headloom.analysis.six_steps import Wording
from headloom.mechanism.attention_layer import LayerKind as Kind
from headloom.studio.steps.matrices import Words
from headloom.studio.steps.worked import Learned, Worked, row_of

#: Sources of Q and of K and V, and the mask, by the kind of attention.
SOURCES: dict[Kind, tuple[str, str, str]] = {
    "encoder": ("the sentence", "the same sentence", "every word can look at every word"),
    "decoder": ("the text written so far", "the same text", "no word looks at words after it"),
    "cross": (
        "the decoder's text (X)", "the encoder's text (Y)",
        "every word of X can look at every word of Y",
    ),
}  # fmt: skip
#: Numbers of a vector and products of a sum that are written out; the rest is an ellipsis.
_NUMBERS, _PRODUCTS = 4, 3


@dataclass(frozen=True, eq=False)
class Table:
    """Matrix with its name.

    name: above it. values: (rows, columns); (heads, rows, columns) of a table of every head.
    rows, columns: tokens beside and above; empty: the numbers have no names.
    kind: "numbers", "scores" (minus infinity is masked) or "weights" (0 to 1).
    before: the sign between the table before and this one, as "+" or "=".
    """

    name: str
    values: Tensor
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    kind: Literal["numbers", "scores", "weights"] = "numbers"
    before: str = ""


#: Tables side by side.
Row = tuple[Table, ...]


@dataclass(frozen=True)
class Ledger:
    """Sums written out, one per line; the last line is the result.

    header: names of the columns. lines: cells; the first one is a token.
    left: how many columns begin on the left.
    split: the column from which cells wrap to a second line, where a line is too narrow.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    left: int = 2
    split: int = 2


@dataclass(frozen=True)
class Step:
    """Step of a lesson.

    number: of the six steps; None: before and after them.
    formula: as the paper writes it; shapes: of its parts.
    sentence: an explanation.
    rows, ledgers: tables and sums. result: the last line; "": none.
    """

    number: int | None
    name: str
    formula: str
    shapes: str
    sentence: str
    rows: tuple[Row, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    result: str = ""

    @property
    def title(self) -> str:
        """Name, after the number where it is one of the six."""
        return self.name if self.number is None else f"{self.number}. {self.name}"


@dataclass(frozen=True)
class Lesson:
    """Content of a lesson. about: lines below the title; digits: decimals of every number."""

    title: str
    about: tuple[str, ...]
    steps: tuple[Step, ...]
    digits: int = 2


@dataclass(frozen=True, eq=False)
class Walk(Worked):
    """Multi-head attention on a short sentence; every matrix is an attribute.

    kind        "encoder", "decoder" or "cross"
    queries     the words of the queries, with their vectors; keys: those of the keys
    origin      where the matrices come from, in words
    query       the position that is also computed alone
    shown       the heads whose tables are shown; query is computed in the first
    digits      decimals that are shown; everything is computed in float64
    learned     the result of gradient descent; None: no learning
    goal        the target of the output, as a sentence, where they did
    """

    kind: Kind
    queries: Words
    keys: Words
    origin: str
    query: int
    shown: tuple[int, ...]
    digits: int = 2
    learned: Learned | None = None
    goal: str = ""

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Displayed tokens of queries and of keys."""
        return self.queries.shown, self.keys.shown

    def by_head(self, *tables: Table) -> tuple[Row, ...]:
        """Return a row of tables for each head that is shown."""
        return tuple(
            tuple(
                replace(table, name=self.named(table.name, head), values=table.values[head])
                for table in tables
            )
            for head in self.shown
        )

    def side_by_side(self, *tables: Table) -> tuple[Row, ...]:
        """Return the tables of all heads that are shown in one row."""
        return (tuple(table for row in self.by_head(*tables) for table in row),)

    def named(self, name: str, head: int) -> str:
        """Return the name of a table, with its head where there are several."""
        return f"{name}, head {head}" if name and len(self.Z) > 1 else name

    def of_projections(self, values: dict[str, Tensor], prefix: str = "") -> tuple[Row, ...]:
        """Return tables of the projections, or of values in their shapes, then of biases."""
        matrices = [Table(f"{prefix}W_{name}", values[f"W_{name}"]) for name in "QKV"]
        biases = [
            Table(f"{prefix}b_{name}", values[f"b_{name}"][..., None])
            for name in "QKV"
            if f"b_{name}" in values
        ]
        return self.by_head(*matrices) + (self.by_head(*biases) if biases else ())


def explain(walk: Walk) -> list[Step]:
    """Return the steps of a walk, in order."""
    p, (queries, keys), names = walk.projections, walk.names, walk.names
    heads, _, depth = walk.Q.shape
    Q, K, V, A = walk.Q[0], walk.K[0], walk.V[0], walk.weights

    def step(words: Wording, shapes: str = "", *rows: Row) -> Step:
        return Step(words.number, words.name, words.formula, shapes, words.sentence, rows)

    inputs: list[Row] = []
    for name, words in [("X", walk.queries), ("Y", walk.keys)][: 1 + (walk.kind == "cross")]:
        row: Row = (Table(name, words.X, words.shown),)
        if words.E is not None and words.P is not None:
            row = (
                Table("E, embeddings", words.E, words.shown),
                Table("P, positions", words.P, words.shown, before="+"),
                replace(row[0], before="="),
            )
        inputs.append(row)
    embedded, placed = walk.queries.E is not None, walk.queries.P is not None
    made = Table("Q", walk.Q, queries), Table("K", walk.K, keys), Table("V", walk.V, keys)
    learned, of_heads = walk.of_projections(p), len(walk.shown)
    #: Of each head its matrices, its biases, and their results.
    projected = [
        row
        for head, last in enumerate(walk.by_head(*made))
        for row in (*learned[head::of_heads], last)
    ]
    allowed = walk.allowed
    later = torch.equal(allowed, torch.ones_like(allowed).tril())
    masked = step(
        six_steps.mask("later" if later else "some"),
        "",
        *walk.side_by_side(Table("masked", walk.masked, *names, "scores")),
    )
    joined = six_steps.join(heads, bias="b_O" in p)
    parts = joined.formula.split(" = ")[1].split(" W_O")[0]
    bias = [(Table("b_O", p["b_O"][None]),)] if "b_O" in p else []
    return [
        step(
            six_steps.inputs(walk.kind, embedded=embedded, placed=placed), shape_of(walk.X), *inputs
        ),
        step(
            six_steps.project(walk.kind, biases="b_Q" in p or "b_K" in p or "b_V" in p),
            f"{shape_of(walk.X)} {shape_of(p['W_Q'][0])} = {shape_of(Q)}",
            *projected,
        ),
        step(
            six_steps.score(shaw=False),
            f"{shape_of(Q)} {shape_of(K.T)} = {shape_of(A[0])}",
            *walk.side_by_side(Table("S", walk.scores, *names, "scores")),
        ),
        step(
            six_steps.scale(depth, walk.digits, alibi=False),
            "",
            *walk.side_by_side(Table(f"S / √{depth}", walk.scaled, *names, "scores")),
        ),
        step(six_steps.mask("nothing")) if bool(allowed.all()) else masked,
        step(
            six_steps.softmax(),
            "",
            *walk.side_by_side(
                Table("A", A, *names, "weights"),
                Table("", A.sum(-1, keepdim=True), queries, ("sum",)),
            ),
        ),
        step(
            six_steps.weigh(shaw=False),
            f"{shape_of(A[0])} {shape_of(V)} = {shape_of(walk.Z[0])}",
            *walk.side_by_side(Table("Z", walk.Z, queries)),
        ),
        step(
            joined,
            f"{shape_of(walk.joined)} {shape_of(p['W_O'])} = {shape_of(walk.output)}",
            (Table(parts, walk.joined, queries), Table("W_O", p["W_O"])),
            *bias,
            (Table("output", walk.output, queries),),
        ),
        _alone(walk),
        _equal(walk),
    ]


def _alone(walk: Walk) -> Step:
    """Compute one query of one head key by key, every sum written out."""
    digits, head = walk.digits, walk.shown[0]
    row, q = row_of(walk, head, walk.query), walk.Q[head, walk.query]
    lines: list[tuple[str, ...]] = []
    values: list[tuple[str, ...]] = []
    for j, token in enumerate(walk.keys.shown):
        weight = number(row.weights[j], digits)
        if not walk.allowed[walk.query, j]:
            lines.append((token, "hidden by the mask", "", "", number(0, digits), weight))
            continue
        factors = zip(q.tolist(), walk.K[head, j].tolist(), strict=True)
        products = [f"{number(a, digits)}×{number(b, digits)}" for a, b in factors]
        if len(products) > _PRODUCTS:
            products[_PRODUCTS - 2 : -1] = [f"… {len(products) - _PRODUCTS + 1} more …"]
        cells = (row.dots[j], row.scaled[j], row.exponentials[j])
        lines.append(
            (token, " + ".join(products), *(number(cell, digits) for cell in cells), weight)
        )
        value = _vector(walk.V[head, j].tolist(), digits)
        values.append((token, weight, "×", value, "=", _vector(row.parts[j], digits)))
    total, weights = number(row.total, digits), number(sum(row.weights), digits)
    lines.append(("sum", "", "", "", total, weights))
    values.append(("z", "", "", "", "=", _vector(row.output, digits)))
    power = "e^(x−max)" if row.lowered else "e^x"
    word = walk.queries.shown[walk.query]
    lowered = " The largest score is subtracted from all, which changes no weight." * bool(
        row.lowered
    )
    return Step(
        None, "One word at a time", "z = Σ_j (e^(q·k_j/√d) / Σ_l e^(q·k_l/√d)) v_j", "",
        f"The same for “{word}” alone, without any matrix: its query meets one key after "
        f"another.{lowered}",
        ((Table(walk.named(f"q of “{word}”", head), q[None]),),),
        (
            Ledger(
                ("key", "q · k, written out", "q · k", f"/ √{len(q)}", power, "weight"), (*lines,)
            ),
            Ledger(("key", "weight", "", "value", "", "taken"), (*values,), 1, 4),
        ),
    )  # fmt: skip


def _equal(walk: Walk) -> Step:
    count = " × ".join(
        f"{many} {what}{'s' * (many != 1)}"
        for many, what in zip(walk.Z.shape, ("head", "word", "number"), strict=True)
    )
    return Step(
        None, "Both are equal", "A V = z, row by row", "",
        "All words at once, with matrices, or one word at a time, with sums: the same numbers.",
        result=f"Largest difference over {count} of Z: {walk.difference:.1e}",
    )  # fmt: skip


def _vector(numbers: list[float], digits: int) -> str:
    cells = [number(value, digits) for value in numbers]
    if len(cells) > _NUMBERS:
        cells[_NUMBERS - 2 : -1] = ["…"]
    return f"({' '.join(cells)})"


def number(value: float, digits: int) -> str:
    """Format a number with `digits` decimals; never "-0.00".

    >>> number(-0.001, 2), number(2.5, 2), number(float("-inf"), 2)
    ('0.00', '2.50', '−∞')
    """
    if value == float("-inf"):
        return "−∞"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def shape_of(matrix: Tensor) -> str:
    """Format the shape of a matrix: (3×4)."""
    return f"({matrix.shape[0]}×{matrix.shape[1]})"
