"""A table of the learned matrices: of a model, or of each snapshot of a run's history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headloom.analysis.matrices.circuits import Circuit, ov_circuit, qk_circuit
from headloom.analysis.matrices.projections import (
    LayerMatrices,
    check_finite,
    checked_matrices,
    matrices_of_snapshot,
)
from headloom.errors import InputError, optional_package
from headloom.formats.files import JsonObject
from headloom.formats.history import History
from headloom.mechanism.shapes import check_type, in_words

if TYPE_CHECKING:
    import pandas

__all__ = ["history_measures", "weight_measures"]


def weight_measures(layers: Sequence[LayerMatrices], *, by: str = "layer") -> pandas.DataFrame:
    """Measures of W_Q W_K^T and W_V W_O, a row for each layer, or for each head.

    Columns: layer, name, kind, (head); symmetry, directionality (of W_Q W_K^T, by layer of all
    heads side by side: Saponati et al. 2025), qk_norm, qk_rank, ov_norm, ov_rank, copying (of
    W_V W_O), norm_W_Q, norm_W_K, norm_W_V, norm_W_O. By layer, ranks and copying are means over
    heads. Ranks are effective ones (Roy and Vetterli 2007).

    Args: layers: as `headloom.analysis.matrices.projections.matrices_of` gives them; by: "layer" or
    "head".

    Raises: InputError: a matrix holds an infinite number or NaN, or pandas is not installed.
    """
    with optional_package("weights"):
        import pandas
    _check_by(by)
    layers = checked_matrices("weights", layers)
    check_finite("weights", layers)
    rows: list[JsonObject] = []
    for number, layer in enumerate(layers):
        labels = {"layer": number, "name": layer.name, "kind": layer.kind}
        measures = _by_head(layer)
        if by == "head":
            rows += [
                labels
                | {"head": head}
                | {name: float(of_head[head]) for name, of_head in measures.items()}
                for head in range(layer.heads)
            ]
        else:
            rows.append(labels | _by_layer(layer, measures))
    return pandas.DataFrame(rows)


def history_measures(
    history: History, *, by: str = "layer", steps: Iterable[int] | None = None
) -> pandas.DataFrame:
    """`weight_measures` of each snapshot of a run, with a first column `step`.

    steps: which; None: all of them.
    """
    import pandas

    _check_by(by)
    check_type(
        "weights", "the history", history, History, "that of a run, headloom.History(folder)"
    )
    if steps is not None and not isinstance(steps, Iterable):
        raise InputError(
            f"projections: steps={in_words(steps)}; expected a list of steps, or None."
        )
    tables = []
    for step in history.steps if steps is None else steps:
        if step not in history.steps:
            raise InputError(
                f"projections: no snapshot of step {in_words(step)}; the history has those of "
                f"{history.steps[0] if history.steps else 'none'} to "
                f"{history.steps[-1] if history.steps else 'none'}."
            )
        table = weight_measures(matrices_of_snapshot(history[step]), by=by)
        table.insert(0, "step", step)
        tables.append(table)
    if not tables:
        raise InputError("projections: the history has no snapshot. Train with a history.")
    return pandas.concat(tables, ignore_index=True)


def _check_by(by: object) -> None:
    if not isinstance(by, str) or by not in ("head", "layer"):
        raise InputError(f'weights: by={in_words(by)}; expected "head" or "layer".')


def _by_head(layer: LayerMatrices) -> JsonObject:
    qk = qk_circuit(layer)
    measures: JsonObject = {}
    if _is_square(qk):
        measures["symmetry"] = qk.symmetry()
    measures |= {
        "directionality": qk.directionality(),
        "qk_norm": qk.norm(),
        "qk_rank": qk.effective_rank(),
    }
    if layer.W_O is not None:
        ov = ov_circuit(layer)
        measures |= {"ov_norm": ov.norm(), "ov_rank": ov.effective_rank()}
        if _is_square(ov):
            measures["copying"] = ov.copying()
    repeated = layer.repeated()
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        matrix = getattr(repeated, name)
        if matrix is not None:
            measures[f"norm_{name}"] = matrix.norm(dim=(1, 2))
    return measures


def _by_layer(layer: LayerMatrices, of_heads: JsonObject) -> dict[str, float]:
    qk = qk_circuit(layer).together()
    measures = {name: float(of_head.mean()) for name, of_head in of_heads.items()}
    if "symmetry" in measures:
        measures["symmetry"] = float(qk.symmetry()[0])
    measures["directionality"] = float(qk.directionality()[0])
    measures["qk_norm"] = float(qk.norm()[0])
    if layer.W_O is not None:
        measures["ov_norm"] = float(ov_circuit(layer).together().norm()[0])
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        matrix = getattr(layer, name)
        if matrix is not None:
            measures[f"norm_{name}"] = float(matrix.norm())
    return measures


def _is_square(circuit: Circuit) -> bool:
    return circuit.shape[1] == circuit.shape[2]
