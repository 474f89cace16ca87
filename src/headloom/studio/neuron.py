"""`Neurons`: one edge of a head number by number, and one token through the head.

Scores and weights are computed in float64 from what the trace keeps of a layer (queries, keys, all
that enters the scores): see `headloom.analysis.worked_row`. The layer's input, values and output
come from the open model, where there is one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from headloom.analysis import six_steps
from headloom.analysis.six_steps import Hidden, Wording
from headloom.analysis.worked_row import WorkedRow, remedy, worked_row
from headloom.errors import HeadloomError, InputError
from headloom.formats.files import JsonObject, finite
from headloom.formats.trace import TraceLayer
from headloom.studio.arrays import Layers
from headloom.studio.tiles import MatrixTiles

#: Listed keys of a row at most: the strongest, and the selected one.
LISTED = 48
_OPEN_THE_MODEL = "Open the model itself, headloom view MODEL, and type the text into its box."


@dataclass(frozen=True, eq=False)
class LayerNumbers:
    """Inputs and outputs of a layer on one text that a trace does not keep.

    queries_from: the input of the layer, (queries, width), after the model's norm.
    values: (kv_heads, keys, value_depth). output: sum_j w_ij v_j, (heads, queries, value_depth).
    W_O: (heads, value_depth, width); None: unknown. b_O: whether a bias follows it. biases:
        whether the projections have biases.
    turned: whether queries and keys are rotated by their positions after the projection.
    projected: the queries before that rotation, (heads, queries, depth); None: unknown.
    shifted: whether positions add to the values, as Shaw's do: then z is the model's own.
    """

    queries_from: Tensor
    values: Tensor
    output: Tensor
    W_O: Tensor | None
    b_O: bool = False
    biases: bool = False
    turned: bool = False
    projected: Tensor | None = None
    shifted: bool = False


#: Function from the path of a layer to its numbers. Raises: HeadloomError: not available.
Through = Callable[[str], LayerNumbers]


class Neurons:
    """Rows of a trace, computed step by step; thread-safe."""

    def __init__(self, layers: Layers, matrix: MatrixTiles) -> None:
        self._layers, self._matrix = layers, matrix
        self._remedy = remedy(layers.trace.model.get("given"))

    def edge(self, number: int, head: int, query: int, key: int) -> JsonObject:
        """Return one edge, and the row that it is in.

            missing     why queries and keys are missing, and the remedy; None: they are there
            q, k        (depth,); products: q_d k_d
            terms       from their sum to the score, each [name, how, value, result]
            listed      the strongest keys of the row, and this one: key, dot, score, exponential,
                        weight of each, and the keys themselves as `ks`
            softmax     largest, total, sink, lse, count of allowed keys, weight of those not listed
            weight, score   of the edge; trace: the same cell by `MatrixTiles.cell`

        Scores of hidden keys are None.
        """
        layer = self._layers.layer(number)
        shown = self._matrix.cell(number, head, query, key)
        try:
            row = worked_row(layer, head, query, instead=self._remedy)
        except InputError as error:
            return {"missing": str(error), "trace": shown, "depth": _depth(layer)}
        places = row.strongest(LISTED, key)
        others = math.fsum(row.weights.tolist()) - math.fsum(row.weights[places].tolist())
        columns = {
            "ks": row.k, "dots": row.dots, "scores": row.scores, "exponentials": row.exponentials,
            "weights": row.weights,
        }  # fmt: skip
        numbers = {
            "missing": None, "depth": row.depth, "scaling": row.scaling,
            "positions": layer.positions, "q": row.q.tolist(), "k": row.k[key].tolist(),
            "products": row.products(key),
            "terms": [dataclasses.astuple(term) for term in row.terms(key)],
            "listed": {
                "keys": places,
                **{name: column[places].tolist() for name, column in columns.items()},
            },
            "softmax": {
                "largest": row.largest, "total": row.total, "sink": row.sink,
                "sink_exponential": None if row.sink is None else math.exp(row.sink - row.largest),
                "lse": row.lse, "count": int(row.allowed.sum()), "others": max(others, 0.0),
            },
            "exponential": float(row.exponentials[key]),
            "weight": float(row.weights[key]),
            "score": float(row.scores[key]),
            "trace": shown,
        }  # fmt: skip
        cleaned: JsonObject = finite(numbers)
        return cleaned

    def through(
        self, number: int, head: int, query: int, key: int, model: Through | None
    ) -> JsonObject:
        """Return the steps of one token through the head, as far as trace and model have them.

        steps     [number, name, formula, sentence, missing]: missing is what is missing, with the
                  remedy, or None
        x         what enters the layer, (width,), or None
        q         the query before its rotary position embedding, (depth,), or None
        turned    whether there is one; then `edge` has the query after it
        values    of the keys that `edge` lists, or None
        z         sum_j w_j v_j, or None; z_difference: from the model's own
        part      z W_O of this head, its part of the layer's output, or None
        """
        layer = self._layers.layer(number)
        row, numbers, without = None, None, None
        closed = _OPEN_THE_MODEL
        try:
            row = worked_row(layer, head, query, instead=self._remedy)
        except InputError as error:
            without = str(error)
        if model is not None:
            try:
                numbers = model(layer.name)
            except HeadloomError as error:
                closed = str(error)
        result: JsonObject = {
            "steps": _steps(layer, row, numbers, without, closed if numbers is None else None),
            "x": None, "q": None, "turned": _turned(layer, numbers),
            "values": None, "z": None, "z_difference": None, "part": None,
        }  # fmt: skip
        if numbers is not None:
            result["x"] = numbers.queries_from[query].tolist()
            if numbers.projected is not None:
                result["q"] = numbers.projected[head, query].tolist()
            values = numbers.values[head // (layer.heads // len(numbers.values))].double()
            z = model_z = numbers.output[head, query].double()
            if row is not None:
                result["values"] = values[row.strongest(LISTED, key)].tolist()
                if not numbers.shifted:
                    z = row.weights @ values
                    result["z_difference"] = float((z - model_z).abs().max()) if len(z) else 0.0
            result["z"] = z.tolist()
            if numbers.W_O is not None:
                result["part"] = (z @ numbers.W_O[head].double()).tolist()
        cleaned: JsonObject = finite(result)
        return cleaned


def _depth(layer: TraceLayer) -> int | None:
    return None if layer.queries is None else int(layer.queries.shape[2])


def _steps(
    layer: TraceLayer, row: WorkedRow | None, numbers: LayerNumbers | None, without: str | None,
    closed: str | None,
) -> list[list[str | int | None]]:  # fmt: skip
    """Return the wording of each step, and what it lacks."""
    enters = closed and f"A trace does not keep the input of a layer. {closed}"
    values = closed and f"A trace keeps only the norms of the values. {closed}"
    after = values
    if numbers is not None and numbers.W_O is None:
        after = "The output matrix of this layer, W_O, is not known."
    shaw_scores = layer.positions == "shaw"
    shaw_values = numbers is not None and numbers.shifted
    depth, alibi = _depth(layer), layer.positions == "alibi"
    scale = six_steps.scale(depth, 2, alibi=alibi)
    if row is not None and row.scaling != f"/ √{depth}":
        formula = f"S {row.scaling}" if layer.scale != 1 else "S, not scaled"
        scale = dataclasses.replace(
            scale, formula=formula, sentence="This is how the model scales."
        )
    biases = None if numbers is None else numbers.biases
    steps: list[tuple[Wording, str | None]] = [
        (six_steps.inputs(layer.kind, embedded=False, placed=False), enters),
        (six_steps.project(layer.kind, biases=biases), without),
        *([(six_steps.turn(), None)] if _turned(layer, numbers) else []),
        (six_steps.score(shaw=shaw_scores), without),
        (scale, without),
        (six_steps.mask(_hidden(layer, row)), without),
        (six_steps.softmax(), without),
        (six_steps.weigh(shaw=shaw_values), values),
        (six_steps.join(layer.heads, bias=numbers is not None and numbers.b_O), after),
    ]
    return [
        [words.number, words.name, words.formula, words.sentence, missing]
        for words, missing in steps
    ]


def _turned(layer: TraceLayer, numbers: LayerNumbers | None) -> bool:
    return layer.positions == "rotary" or (numbers is not None and numbers.turned)


def _hidden(layer: TraceLayer, row: WorkedRow | None) -> Hidden:
    """Return what the mask hides from a query."""
    if layer.mask is None:
        return "unknown"
    if layer.mask == "causal":
        return "later"
    if row is None:
        return "nothing" if layer.mask == "all" else "some"
    return "nothing" if bool(row.allowed.all()) else "some"
