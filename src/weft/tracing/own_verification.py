"""Weft's own models verified: against themselves unobserved, and against the formula in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.mechanism.graph import AttentionGraph, Keep, Top
from weft.mechanism.observe import Observation
from weft.mechanism.positions import ALiBi, Relative, Shaw
from weft.mechanism.reference.call import attend, scores_of_heads
from weft.mechanism.reference.positions import alibi_bias, shaw_embeddings
from weft.mechanism.watching import Recorder, layers_of, watching
from weft.tracing.comparison import Comparison, largest_difference
from weft.tracing.prefix import Verify
from weft.tracing.untouched import UntouchedRun, run_untouched, verify_prefix
from weft.tracing.verification import sampled_rows

__all__ = ["as_observed", "reference_deviation", "untouched_own", "verify_own"]


def verify_own(
    model: nn.Module, inputs: Mapping[str, Any], keep: Keep, verify: Verify
) -> dict[str, Any] | None:
    """Run a model of weft's layers observed and unobserved, on the beginning of its inputs.

    Observed, a layer computes with `weft.attend`, else with `weft.attention`.

    Returns, raises: as `weft.tracing.untouched.verify_run`.
    """
    untouched = untouched_own(model, inputs, verify)
    if untouched is None:
        return None
    verify_prefix(untouched, as_observed(model, keep))
    return untouched.says()


def untouched_own(
    model: nn.Module, inputs: Mapping[str, Any], verify: Verify
) -> UntouchedRun | None:
    """Let a model of weft's layers read its inputs unobserved; returns as `run_untouched`."""

    def cut(given: Mapping[str, Any], tokens: int | None) -> tuple[dict[str, Any], int]:
        part = {
            name: value[:, :tokens] if isinstance(value, Tensor) and value.ndim == 2 else value
            for name, value in given.items()
        }
        lengths = [v.shape[1] for v in part.values() if isinstance(v, Tensor) and v.ndim == 2]
        return part, max(lengths, default=0)

    with watching(model, None):
        return run_untouched(model, inputs, verify, dict(layers_of(model)), cut)


def as_observed(model: nn.Module, keep: Keep) -> Callable[[Mapping[str, Any], Comparison], None]:
    """What runs a model of weft's layers observed, for `verify_prefix`."""

    def traced(part: Mapping[str, Any], comparison: Comparison) -> None:
        with watching(model, Recorder(model, keep if isinstance(keep, Top) else Top(64))):
            model(**part)

    return traced


@torch.no_grad()
def reference_deviation(seen: Observation, sample: int) -> float | None:
    """How far the edges of some rows are from the formula as the papers write it, in float64.

    Args:
        seen: a call of a layer of weft.
        sample: which input of its batch.

    Returns: the largest difference of a weight, or of the mass that a row left over; None where
    there is no row, or positions of a kind that the models of weft do not have.
    """
    assert isinstance(seen.caught, AttentionGraph)
    graph = seen.caught[sample]
    queries, keys = seen.queries[sample : sample + 1], seen.keys[sample : sample + 1]
    length = keys.shape[2]
    nothing = keys.new_zeros(1, keys.shape[1], length, 1, dtype=torch.float64)
    largest = None
    for row in sampled_rows(queries.shape[2]):
        query = queries[:, :, row : row + 1].double()
        terms = _terms(seen.relative, query[0, :, 0], row, length)
        if terms is None:
            return None
        allowed = None
        if seen.mask is not None:
            cells = seen.mask.block(range(row, row + 1), length, keys.device)
            allowed = cells[min(sample, len(cells) - 1)][None]
        raw = scores_of_heads(query, keys.double(), lambda one, other, head: one @ other.mT)
        weights = attend(raw, nothing, scale=seen.scale, allowed=allowed, **terms).weights[0, :, 0]
        places = graph.keys[:, row].long()
        kept = torch.where(places >= 0, weights.gather(-1, places.clamp(min=0)), 0)
        rest = weights.sum(-1) - kept.sum(-1)
        largest = max(
            largest or 0.0,
            largest_difference(kept, graph.weights[:, row].double()),
            largest_difference(rest, graph.rest[:, row].double()),
        )
    return largest


def _terms(
    relative: Relative | None, query: Tensor, row: int, length: int
) -> dict[str, Any] | None:
    """What relative positions add to the scores of a row; query: (heads, depth)."""
    if relative is None:
        return {}
    if isinstance(relative, ALiBi):
        bias = alibi_bias(relative.slopes.double(), 1, length, relative.offset + row)
        return {"relative_bias": bias[None]}
    if isinstance(relative, Shaw) and relative.key_table.ndim == 2:
        table = relative.key_table.detach().double()
        places = shaw_embeddings(table, 1, length, relative.offset + row)[0]
        return {"relative_scores": (query @ places.mT)[None, :, None]}
    return None
