"""The projections of a model, W_Q, W_K, W_V and W_O, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headloom.analysis.matrices.composition import composition_table
from headloom.analysis.matrices.projections import matrices_of
from headloom.analysis.matrices.table import history_measures, weight_measures
from headloom.api.opening import open_model
from headloom.errors import InputError
from headloom.mechanism.shapes import chosen

if TYPE_CHECKING:
    import pandas

__all__ = ["measures_of_projections"]


def measures_of_projections(name: str, *, by: str, history: bool) -> pandas.DataFrame:
    """A row for each layer, head, or pair of heads of a model.

    Args:
        name: of a run, or of a model of Hugging Face.
        by: "layer", "head", or "pair": how much a head reads of what an earlier one writes.
        history: of a run, each snapshot of its training.
    """
    chosen("projections", "by", by, ("layer", "head", "pair"))
    if by == "pair" and history:
        raise InputError(
            "projections: pairs of heads are those of a model as it is. Leave out --history, or "
            "--by pair."
        )
    model = open_model(name)
    if history:
        return history_measures(model.history(), by=by)
    layers = matrices_of(model.network)
    return composition_table(layers) if by == "pair" else weight_measures(layers, by=by)
