"""The projections of a model, W_Q, W_K, W_V and W_O, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.analysis.matrices.projections import matrices_of
from weft.analysis.matrices.table import history_measures, weight_measures
from weft.jobs.opening import open_model

if TYPE_CHECKING:
    import pandas

__all__ = ["measures_of_projections"]


def measures_of_projections(name: str, *, by: str, history: bool) -> pandas.DataFrame:
    """A row for each layer or head of a model.

    Args:
        name: of a run, or of a model of Hugging Face.
        by: "layer" or "head".
        history: of a run, each snapshot of its training.
    """
    model = open_model(name)
    if history:
        return history_measures(model.history(), by=by)
    return weight_measures(matrices_of(model.network), by=by)
