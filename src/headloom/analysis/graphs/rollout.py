"""Rollout: how much of each input position is in each output position, through all layers.

    R = (r W_L + (1 - r) I) ... (r W_1 + (1 - r) I),    r = 1/2

W_l: the weights of layer l averaged over heads; rows are positions of the last layer, columns of
the input. Half of what a position holds comes past the layer, by the residual connection.

Between two sequences the same holds for each layer's update of what a position holds: a
cross-attention layer gives half of the target's positions what W mixes of the source's,

    C <- 1/2 C + 1/2 W E,    D <- 1/2 D

where E is the encoder's rollout, C what the target holds of the source and D what it holds of
itself. Each row of [C D] sums to 1, as those of R.

Layers that are not in the trace, and those over other positions, are passed over, with a warning;
`passed_over` says which. Two layers that read
their input in parts, as windows of an image, are not multiplied: they may be other parts.

Source: Abnar and Zuidema 2020, section 3, equation 1; theirs reads one sequence.

A row is one product with a transposed matrix a layer, from the last layer down; a column one
product a layer, from the first up: exact at any length, in memory linear in it. From kept edges
alone, everything is a lower bound: weights are not negative, and each kept one is exact. What row
i lacks in all is known, from the mass m that the rows of each layer left out:

    0 <= R_ij - kept R_ij,    sum_j (R_ij - kept R_ij) <= bound_i,
    bound <- r bound + (1 - r) (kept W bound + m),    0 at the input

with equality where no head has a sink, which may have some of what was left out. So no entry of row
i is more than bound_i too low.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.analysis.arguments import check_trace, places_of, real_number
from headloom.analysis.graphs.head_average import Averaged, averaged
from headloom.analysis.heads.pattern_mass import only_edges_exact, rounded_to
from headloom.errors import InputError
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.shapes import check_flag, in_words

__all__ = [
    "Rollout",
    "chosen_layers",
    "ends",
    "of_half_precision",
    "of_own",
    "of_rounded",
    "passed_over",
    "rollout",
    "rollout_columns",
    "rollout_rows",
    "whole_rollout",
]

#: Cells above which the whole rollout asks to be forced: 1 GiB of float32.
LIMIT = 2**28

#: What float32 rounds in a product with a matrix whose rows sum to 1, as a share of the whole.
ROUNDING = 2.0**-20

#: Columns that are taken through all layers at once.
COLUMNS = 128


@dataclass(frozen=True, eq=False)
class Rollout:
    """Rows or columns of a rollout, and how far below the true ones they can be.

    values: (rows, keys), (queries, columns) or (queries, keys).
    bound: (rows,) or (queries,): no entry of that row is more than this too low, and all of them
    together are not; what float32 rounds where weights are exact.
    own: of rows, (rows,): what they hold of the sequence that they are in themselves, where they
    are of a target and the columns of its source; None: of columns, or of all.
    """

    values: Tensor
    bound: Tensor
    own: Tensor | None = None


@dataclass(frozen=True)
class _Step:
    """One layer's update: ``held[queries] = keep held[queries] + (1 - keep) W held[keys]``."""

    weights: Averaged
    queries: str
    keys: str

    def rounding(self, residual: float) -> float:
        """What float32 rounds of a row in all: in the product, and of the weights themselves."""
        return ROUNDING + (1 - residual) * self.weights.rounding


def rollout(
    trace: TraceData,
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
    force: bool = False,
) -> Tensor:
    """The whole rollout of a trace, (queries, keys).

    Args:
        trace: of any model.
        kind: "encoder" or "decoder": the product over the layers of that kind; "cross": what the
            target holds of the source, through all layers. None: "cross" where such layers look
            from the sequence of the last layer, else the kind of the last layer.
        exact: True: from all weights; False: from the kept edges; None: the former where the
            trace has them.
        residual: what comes past a layer, 0 to 1.
        force: compute it even where it takes more than 1 GiB.

    Returns: (queries, keys), float32: row i is what position i holds of each input position.

    Raises: InputError: no such layers; no exact weights; too large. A row or a column of a long
    one: `rollout_rows`, `rollout_columns`.

    The time is that of a product of dense matrices a layer. See also `whole_rollout`, with bounds.
    """
    return whole_rollout(trace, kind=kind, exact=exact, residual=residual, force=force).values


def whole_rollout(
    trace: TraceData,
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
    force: bool = False,
) -> Rollout:
    """The whole rollout with the bound of each row. Takes what `rollout` takes."""
    layers, queries, keys, sizes = chosen_layers(trace, kind, "rollout")
    residual = _checked("rollout", exact, residual)
    check_flag("rollout", "force", force)
    if sizes[queries] * sizes[keys] > LIMIT and not force:
        raise InputError(
            f"rollout: the whole of it is {sizes[queries]:,} x {sizes[keys]:,}. Take some rows or "
            "columns (rollout_rows, rollout_columns), or force=True."
        )
    held: dict[str, Tensor] = {
        name: torch.eye(sizes[keys]) if name == keys else torch.zeros(size, sizes[keys])
        for name, size in sizes.items()
    }
    unknown = {name: torch.zeros(size, 1) for name, size in sizes.items()}
    rounded = 0.0
    ahead = all(layer.mask == "causal" for layer in layers)
    for layer in layers:
        step = _step(layer, exact)
        unknown = _forward(step, unknown, residual)
        rounded += step.rounding(residual)
        dense = step.weights.dense() if not _sparse(step.weights) else None
        past, mixed = held[step.queries], held[step.keys]
        for start in range(0, sizes[keys], COLUMNS):
            block = slice(start, start + COLUMNS)
            # Nothing that is causal leads from a column to the rows above it.
            first = start if ahead else 0
            if dense is not None:
                passed = dense[first:, first:] @ mixed[first:, block]
            else:
                passed = (step.weights @ mixed[:, block].contiguous())[first:]
            new = past[first:, block].mul_(residual).add_(passed, alpha=1 - residual)
            past[first:, block] = new
    return Rollout(held[queries].clamp_(max=1), unknown[queries][:, 0] + rounded)


def rollout_rows(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Some rows of the rollout: what these positions of the last layer hold of the input.

    Takes what `rollout` takes, and the positions. One product with a transposed matrix a layer.

    Returns: values (rows, keys) and bound (rows,).
    """
    layers, queries, keys, sizes = chosen_layers(trace, kind, "rollout_rows")
    residual = _checked("rollout", exact, residual)
    wanted = _positions(positions, sizes[queries])
    held = {name: torch.zeros(size, len(wanted)) for name, size in sizes.items()}
    held[queries][wanted, torch.arange(len(wanted))] = 1
    unknown = torch.zeros(len(wanted))
    for layer in reversed(layers):
        step = _step(layer, exact)
        unknown += step.rounding(residual)
        passed = step.weights.transposed(held[step.queries])
        unknown += (1 - residual) * (step.weights.missing @ held[step.queries])
        held[step.queries] = residual * held[step.queries]
        held[step.keys] = held[step.keys] + (1 - residual) * passed
    own = None if queries == keys else held[queries].sum(0)
    return Rollout(held[keys].T.contiguous().clamp_(max=1), unknown, own)


def rollout_columns(
    trace: TraceData,
    positions: int | Sequence[int],
    *,
    kind: str | None = None,
    exact: bool | None = None,
    residual: float = 0.5,
) -> Rollout:
    """Some columns of the rollout: where these positions of the input went.

    Takes what `rollout` takes, and the positions. One product a layer.

    Returns: values (queries, columns) and bound (queries,).
    """
    layers, queries, keys, sizes = chosen_layers(trace, kind, "rollout_columns")
    residual = _checked("rollout", exact, residual)
    wanted = _positions(positions, sizes[keys])
    # The last vector is what is unknown of each row.
    held = {name: torch.zeros(size, len(wanted) + 1) for name, size in sizes.items()}
    held[keys][wanted, torch.arange(len(wanted))] = 1
    rounded = 0.0
    for layer in layers:
        step = _step(layer, exact)
        held = _forward(step, held, residual)
        rounded += step.rounding(residual)
    values = held[queries]
    return Rollout(values[:, :-1].clamp(max=1), values[:, -1] + rounded)


def ends(trace: TraceData, kind: str | None = None) -> tuple[str, str]:
    """The sequences that the rows and the columns of a rollout are of."""
    _, queries, keys, _ = chosen_layers(trace, kind)
    return queries, keys


def _forward(step: _Step, held: dict[str, Tensor], residual: float) -> dict[str, Tensor]:
    """What positions hold after a layer; the last vector is what is unknown."""
    passed = step.weights @ held[step.keys]
    passed[:, -1] += step.weights.missing
    return {**held, step.queries: residual * held[step.queries] + (1 - residual) * passed}


def _sparse(weights: Averaged) -> bool:
    """Whether the product with many columns is faster by the edges than by cells."""
    edges = getattr(weights, "edges", None)
    return edges is not None and edges.nnz * 16 < edges.shape[0] * edges.shape[1]


def _step(layer: TraceLayer, exact: bool | None) -> _Step:
    return _Step(averaged(layer, exact), layer.queries_from, layer.keys_from)


def chosen_layers(
    trace: TraceData, kind: str | None, operation: str | None = None
) -> tuple[list[TraceLayer], str, str, dict[str, int]]:
    """The layers of a kind, the sequences at both ends, and the lengths of all that take part.

    operation: what is to be computed through them; then what it passes over is warned of.
    """
    check_trace("rollout", trace)
    asked = kind
    if kind is not None and not isinstance(kind, str):
        raise InputError(
            f'rollout: kind={in_words(kind)}; expected "encoder", "decoder", "cross" or None.'
        )
    kinds = [layer.kind for layer in trace.layers]
    if kind is None:
        crossing = {layer.queries_from for layer in trace.layers if layer.kind == "cross"}
        kind = trace.layers[-1].kind if trace.layers else None
        if trace.layers and trace.layers[-1].queries_from in crossing:
            kind = "cross"
    layers = [layer for layer in trace.layers if kind in ("cross", layer.kind)]
    last = next((layer for layer in reversed(layers) if layer.kind == kind), None)
    if last is None:
        there = ", ".join(sorted(set(kinds))) or "no layer at all"
        raise InputError(f"the trace has no {kind} layer; it has {there}.")
    if kind != "cross":
        # A model of text and images has layers of one kind for both.
        layers = [layer for layer in layers if layer.queries_from == last.queries_from]
    else:
        layers = _leading_to(last.queries_from, layers)
    _check_parts(trace, layers)
    _check_order(layers)
    sizes: dict[str, int] = {}
    for layer in layers:
        sizes[layer.queries_from], sizes[layer.keys_from] = layer.shape[1], layer.shape[2]
    if operation is not None and (left := passed_over(trace, asked)) is not None:
        warnings.warn(f"{operation}: {left}", stacklevel=_levels_to_caller())
    return layers, last.queries_from, last.keys_from, sizes


def _leading_to(sequence: str, layers: Sequence[TraceLayer]) -> list[TraceLayer]:
    """The layers that have an effect on what a sequence holds at the end."""
    reached = {sequence}
    leading: list[TraceLayer] = []
    for layer in reversed(layers):
        if layer.queries_from in reached:
            reached.add(layer.keys_from)
            leading.append(layer)
    return leading[::-1]


def _levels_to_caller() -> int:
    """Number of frames from the function that warns to the first one outside headloom."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("headloom."):
        frame, levels = frame.f_back, levels + 1
    return levels


def _check_parts(trace: TraceData, layers: Sequence[TraceLayer]) -> None:
    """Raise an InputError where two layers may have cut what they read into other parts."""
    for name in {layer.keys_from: None for layer in layers}:
        over = [layer.name for layer in layers if name in (layer.queries_from, layer.keys_from)]
        if len(over) > 1 and "parts" in trace.positions.get(name, {}):
            raise InputError(
                f"{len(over)} layers read {name} in parts, as windows of an image, and nothing "
                f"says that they cut it alike: {over[0]} ... {over[-1]}. Trace one of them alone, "
                f"by layers=[{over[0]!r}]."
            )


def _check_order(layers: Sequence[TraceLayer]) -> None:
    """Raise an InputError where two sequences look at each other."""
    across = {(layer.queries_from, layer.keys_from) for layer in layers}
    for queries, keys in across:
        if queries != keys and (keys, queries) in across:
            raise InputError(
                f"Layers look from {queries} at {keys}, and back: nothing says which is updated "
                'first. Trace some of them alone, by layers=, or take kind="encoder".'
            )


def of_own(trace: TraceData, rows: Rollout, kind: str | None = None) -> str | None:
    """What a row holds of the sequence that it is in itself, in words; None: all is of that one.

    Of several rows, what the first holds.
    """
    if rows.own is None:
        return None
    queries, keys = ends(trace, kind)
    taken, own = float(rows.values[0].sum()), float(rows.own[0])
    rest = 1 - taken - own
    # Rows that sum to less hand less on; of kept edges that is what they lack.
    lost = f", {rest:.4f} from nowhere that is known" if rest > 1e-3 else ""
    return f"In all {taken:.4f} of it from the {keys}, {own:.4f} of the {queries} itself{lost}."


def passed_over(trace: TraceData, kind: str | None = None) -> str | None:
    """What a rollout or a flow leaves out, in words; None: nothing that is known.

    Layers that are not in the trace, and those over other sequences: of all kinds if none is asked.
    """
    layers, queries, _, _ = chosen_layers(trace, kind)
    left = [layer for layer in trace.layers if layer not in layers]
    names = {
        "that ran and are not in the trace": [entry["name"] for entry in trace.not_traced],
        "of another kind": [layer.name for layer in left if layer.queries_from == queries],
        f"over other positions than {queries}": [
            layer.name
            for layer in left
            if layer.queries_from != queries and kind in (None, "cross", layer.kind)
        ],
    }
    parts = [
        f"{len(some)} {what}: {', '.join(some[:3])}{f' and {len(some) - 3} more' * (len(some) > 3)}"
        for what, some in names.items()
        if some
    ]
    if not parts:
        return None
    plural = "s" * (len(layers) != 1)
    return f"Through {len(layers)} layer{plural}, not through {' and '.join(parts)}."


def of_rounded(trace: TraceData, kind: str | None = None, exact: bool | None = None) -> str | None:
    """That a rollout is that of queries and keys in half precision, in words; None: it is not.

    Takes what `rollout` takes; kept edges are those of the model.
    """
    chosen, *_ = chosen_layers(trace, kind)
    return None if exact is False else of_half_precision(chosen)


def of_half_precision(layers: Iterable[TraceLayer]) -> str | None:
    """That numbers from all weights of some layers are of rounded queries and keys, in words.

    None: none of the layers stores them in half precision, or its kept edges are all there are.
    """
    rounded = [layer for layer in layers if not only_edges_exact(layer)]
    types = sorted({of for layer in rounded if (of := rounded_to(layer)) is not None})
    if not types:
        return None
    return (
        f"All of this is of queries and keys rounded to {' and '.join(types)}, as the trace stores "
        "them. What the model's own weights give, between bounds: --kept."
    )


def _checked(operation: str, exact: object, residual: object) -> float:
    """What comes past a layer, from 0 to 1; an InputError for what cannot be asked."""
    check_flag(operation, "exact", exact, optional=True)
    return real_number(operation, "residual", residual)


def _positions(positions: int | Sequence[int], length: int) -> Tensor:
    """Positions as indices; negative ones count from the end."""
    return torch.tensor(places_of("rollout", "position", positions, length), dtype=torch.long)
