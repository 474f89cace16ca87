"""Verified capture: what was caught, held against the model's own attention on a few rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.errors import VerificationError
from weft.mechanism.function import attend
from weft.mechanism.graph import All, AttentionGraph
from weft.tracing.comparison import REMEDY, largest_difference, tolerance, warn_of_nan
from weft.tracing.interface import InterfaceCall

__all__ = ["SAMPLE", "deviation", "sampled_rows"]

#: How many rows of a layer are compared.
SAMPLE = 4


def sampled_rows(queries: int) -> list[int]:
    """The rows that are compared, spread over all.

    >>> sampled_rows(10), sampled_rows(2), sampled_rows(0)
    ([0, 3, 6, 9], [0, 1], [])
    """
    if not queries:
        return []
    return sorted({round(i * (queries - 1) / (SAMPLE - 1)) for i in range(SAMPLE)})


@torch.no_grad()
def deviation(
    call: InterfaceCall, output: Tensor, graph: AttentionGraph, *, strict: bool = False
) -> float | None:
    """How far a caught layer is from what the model's own attention gives, on a sample of rows.

    The weights of the sampled rows are computed once more, whole, from the queries and keys that
    were caught. The deviation is the largest of three differences:

        the model's own output - the one recomputed from these weights
        the model's own output - the output that the model went on with
        these weights - the weights of the edges that were kept

    Args:
        call: the attention call.
        output: (batch, heads, queries, value_depth), as given to the model.
        graph: what was caught of it, with a batch.
        strict: whether more than rounding explains is an error: `weft.tracing.comparison.tolerance`
            of the largest value for outputs, of 1 for weights.

    Returns: the largest absolute difference; None where the model has no attention function that
    could be asked, or no row that may look anywhere.

    Raises: VerificationError: `strict`, and the layer differs.
    """
    queries = call.queries.shape[2]
    if call.own_function is None or not queries:
        return None
    rows = torch.tensor(sampled_rows(queries), device=call.queries.device)

    def of_rows(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None or tensor.shape[-2] == 1 else tensor[..., rows, :]

    allowed = None
    if call.mask is not None:
        dense = [call.mask.block(range(row, row + 1), call.keys.shape[2], rows.device)
                 for row in rows.tolist()]  # fmt: skip
        allowed = torch.cat(dense, 2)
    bias = call.bias if call.bias is None or call.bias.shape[-2] == 1 else of_rows(call.bias)
    sampled = call.queries[:, :, rows]
    recomputed, weights = attend(
        sampled.float(),
        call.keys.float(),
        call.values.float(),
        mask=allowed,
        bias=bias,
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks,
        keep=All(),
    )
    own = _own_output(call, sampled, rows, allowed, bias)
    # A query that may look nowhere has the output 0 here; implementations differ on it.
    looks = (graph.count[:, :, rows] > 0)[..., None]
    if not bool(looks.any()):
        return None
    kept = graph.keys[:, :, rows].long()
    caught = graph.weights[:, :, rows]
    again = weights.gather(-1, kept.clamp(min=0))
    own, recomputed, went_on = (
        torch.where(looks, tensor.float(), 0) for tensor in (own, recomputed, output[:, :, rows])
    )
    warn_of_nan(f"the output of layer {call.path}", own, went_on)
    outputs = max(largest_difference(own, recomputed), largest_difference(own, went_on))
    again, caught = (torch.where(kept >= 0, weights, 0) for weights in (again, caught))
    edges = largest_difference(again, caught)
    share = tolerance(call.values.dtype)
    values = call.values.detach().nan_to_num(0, 0, 0)
    largest = float(values.abs().max()) if values.numel() else 0.0
    if strict and (outputs > share * largest or edges > share):
        what, size = ("output", outputs) if edges <= share else ("weights", edges)
        raise VerificationError(
            f"trace: the {what} of layer {call.path} differ{'s' * (what == 'output')} by "
            f"{size:.1e} from what the model's own attention gives, on {len(rows)} of its rows. "
            f"{REMEDY}"
        )
    return max(outputs, edges)


def _own_output(
    call: InterfaceCall,
    queries: Tensor,
    rows: Tensor,
    allowed: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """The model's own output for some rows, (batch, heads, rows, value_depth).

    By the mask that the model itself made, where it made one, not by the rule read from it.
    """
    added = None
    if call.own_mask is not None and call.own_mask.dtype == torch.bool:
        allowed = call.own_mask
        allowed = allowed if allowed.shape[2] == 1 else allowed[:, :, rows]
    if allowed is not None or bias is not None:
        added = queries.new_zeros(1, 1, queries.shape[2], call.keys.shape[2])
        if bias is not None:
            added = added + bias.to(queries.dtype)
        if allowed is not None:
            added = added.masked_fill(~allowed, torch.finfo(queries.dtype).min)
    options: dict[str, Any] = dict(call.options)
    options.pop("output_attentions", None)
    if call.softcap is not None:
        options["softcap"] = call.softcap
    if call.sinks is not None:
        options["s_aux"] = call.sinks
    assert call.own_function is not None
    output: Tensor = call.own_function(
        call.module,
        queries,
        call.keys,
        call.values,
        added,
        dropout=0.0,
        scaling=call.queries.shape[-1] ** -0.5 if call.scale is None else call.scale,
        is_causal=False,
        **options,
    )[0]
    return output.transpose(1, 2)
