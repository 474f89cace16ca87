"""A recorded call held, on a few of its rows, against the model's own attention or the formula."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from headloom.errors import VerificationError
from headloom.formats.files import JsonObject
from headloom.mechanism.function import attend
from headloom.mechanism.graph import All, AttentionGraph
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.positions import ALiBi, Buckets, Relative, Shaw
from headloom.mechanism.reference.call import attend as attend_by_formula
from headloom.mechanism.reference.call import scores_of_heads
from headloom.mechanism.reference.positions import alibi_bias, bucket_bias, shaw_embeddings
from headloom.mechanism.scores import Score
from headloom.tracing.recording.comparison import REMEDY, largest_difference, tolerance, warn_of_nan
from headloom.tracing.recording.layer_call import LayerCall

__all__ = ["SAMPLE", "deviation", "reference_deviation", "sampled_rows"]

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
    call: LayerCall, output: Tensor, graph: AttentionGraph, *, strict: bool = False
) -> float | None:
    """How far a recorded call is from what the model's own attention gives, on a sample of rows.

    The weights of the sampled rows are computed once more, whole, from the queries and keys of
    the call. The deviation is the largest of three differences:

        the model's own output - the one recomputed from these weights
        the model's own output - the output that the model went on with
        these weights - the weights of the edges that were kept

    Args:
        call: the attention call.
        output: (batch, heads, queries, value_depth), as given to the model.
        graph: its edges, with a batch.
        strict: whether more than rounding explains is an error: the
            `headloom.tracing.recording.comparison.tolerance` of the largest value for outputs, of 1
            for weights.

    Returns: the largest absolute difference; None where nothing could be compared: the model has
    no attention function that could be asked, no row may look anywhere, or the scores of all rows
    are not numbers (NaN).

    Raises: VerificationError: `strict`, and the call differs.
    """
    queries = call.queries.shape[2]
    if call.own_output is None or not queries:
        return None
    rows = torch.tensor(sampled_rows(queries), device=call.queries.device)
    again, weights = _computed_again(call, rows)
    went_on, count, kept, kept_weights = (
        tensor if queries <= SAMPLE else tensor[:, :, rows]
        for tensor in (output, graph.count, graph.keys, graph.weights)
    )
    own, again, went_on = call.own_output(rows).float(), again, went_on.float()
    # A query that may look nowhere has the output 0 here; implementations differ on it.
    looks = (count > 0)[..., None]
    if not bool(looks.all()):
        if not bool(looks.any()):
            return None
        own, again, went_on = (torch.where(looks, part, 0) for part in (own, again, went_on))
    # Queries or keys that are no numbers make weights that are none; torch's attention on the CPU
    # takes such scores for hidden keys, and gives 0.
    unknown = weights.isnan().any(-1, keepdim=True) & again.isnan().any(-1, keepdim=True)
    if bool(unknown.any()):
        warnings.warn(
            f"trace: the scores of layer {call.path} are not numbers (NaN) in "
            f"{int(unknown.sum())} of the {unknown.numel()} rows that are held against its own "
            "attention: there it cannot be verified.",
            stacklevel=2,
        )
        if not bool((looks & ~unknown).any()):
            return None
        own, again, went_on = (part.masked_fill(unknown, 0) for part in (own, again, went_on))
        weights, kept_weights = (part.masked_fill(unknown, 0) for part in (weights, kept_weights))
    outputs = max(largest_difference(own, again), largest_difference(own, went_on))
    if not math.isfinite(float(own.sum())):
        warn_of_nan(f"the output of layer {call.path}", own, went_on)
    there = kept >= 0
    edges = largest_difference(
        torch.where(there, weights.gather(-1, kept.clamp(min=0).long()), 0),
        torch.where(there, kept_weights, 0),
    )
    share = tolerance(call.values.dtype)
    # An output is no larger than the largest value, which costs reading them all.
    near = edges <= share and outputs <= share * _largest(own)
    if strict and not near and (outputs > share * _largest(call.values) or edges > share):
        what, size = ("output", outputs) if edges <= share else ("weights", edges)
        raise VerificationError(
            f"trace: the {what} of layer {call.path} differ{'s' * (what == 'output')} by "
            f"{size:.1e} from what the model's own attention gives, on {len(rows)} of its rows. "
            f"{REMEDY}"
        )
    return max(outputs, edges)


def _computed_again(call: LayerCall, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Output and whole weights of some rows of a call, from its queries and keys."""
    queries = call.queries if len(rows) == call.queries.shape[2] else call.queries[:, :, rows]
    queries, keys, values = queries.float(), call.keys.float(), call.values.float()
    mask, bias = call.mask_of(rows), call.bias_of(rows)
    if any(rule is not None for rule in (call.relative, call.sinks, call.softcap)):
        options = {**call.arguments(), "mask": mask, "bias": bias}
        return attend(queries, keys, values, **options, keep=All())
    shape = queries.shape
    # Heads that share keys as rows of one head: else all keys would be copied for each.
    of_keys = shape[0], keys.shape[1], shape[1] // keys.shape[1] * shape[2]
    scores = (queries.reshape(*of_keys, -1) @ keys.mT).reshape(*shape[:3], -1) * call.scale
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    output = weights.reshape(*of_keys, -1) @ values
    return output.reshape(*shape[:3], -1), weights


def _largest(values: Tensor) -> float:
    """The largest magnitude of the numbers that are finite."""
    if not values.numel():
        return 0.0
    low, high = values.detach().aminmax()
    largest = max(-float(low), float(high))
    # Without a copy where all are finite, as they are but for a fault.
    return largest if math.isfinite(largest) else float(values.nan_to_num(0, 0, 0).abs().max())


@torch.no_grad()
def reference_deviation(
    call: LayerCall, graph: AttentionGraph, sample: int, *, strict: bool = False
) -> float | None:
    """How far the edges of some rows are from the formula as the papers write it, in float64.

    Args:
        call: of a layer of headloom, or of `headloom.attention`.
        graph: its edges, with a batch.
        sample: which input of its batch.
        strict: whether more than rounding explains is an error: the
            `headloom.tracing.recording.comparison.tolerance` of the queries' type, and what float32
            rounds off the largest score, or off the products that it is the sum of.

    Returns: the largest difference of a weight, or of the mass that a row left over; None where
    there is no row, or positions of a kind that the models of headloom do not have. Rows that are
    no numbers (NaN) here and there are left out; None where all are.

    Raises: VerificationError: `strict`, and the edges differ.
    """
    # The papers' formulas, step by step, are for the CPU; not every GPU has float64.
    graph = graph[sample].cpu()
    queries, keys = (part[sample : sample + 1].cpu() for part in (call.queries, call.keys))
    relative = call.relative
    relative = None if relative is None else with_tensors(relative, Tensor.cpu)
    length, pair_scores = keys.shape[2], _pair_scores(call.score)
    nothing = keys.new_zeros(1, keys.shape[1], length, 1, dtype=torch.float64)
    largest, products = None, 0.0
    for row in sampled_rows(queries.shape[2]):
        query = queries[:, :, row : row + 1].double()
        terms = _terms(relative, query[0, :, 0], row, length)
        if terms is None:
            return None
        allowed = None
        if call.mask is not None:
            cells = call.mask.cells(range(row, row + 1), length, keys.device)
            allowed = cells[min(sample, len(cells) - 1)][None]
        bias = call.bias_of(torch.tensor([row]))
        if bias is not None:
            bias = bias[min(sample, len(bias) - 1)][None].cpu().double()
        raw = scores_of_heads(query, keys.double(), pair_scores)
        if call.score is None:
            # What float32 rounds is each product, also where their sum is small.
            every = scores_of_heads(query.abs(), keys.double().abs(), pair_scores)
            products = max(products, abs(call.scale) * float(every.max()) if length else 0.0)
        reference = attend_by_formula(
            raw, nothing, scale=call.scale, allowed=allowed, softcap=call.softcap, bias=bias,
            sinks=None if call.sinks is None else call.sinks.cpu().double(), **terms,
        )  # fmt: skip
        weights = reference.weights[0, :, 0]
        places = graph.keys[:, row].long()
        kept = torch.where(places >= 0, weights.gather(-1, places.clamp(min=0).long()), 0)
        lse, own_lse = reference.lse[0, :, 0], graph.lse[:, row]
        # The mass of a sink is on no kept edge either.
        rest = (lse > -torch.inf).double() - kept.sum(-1)
        unknown = lse.isnan() & own_lse.isnan()
        if bool(unknown.all()):
            continue
        largest = max(
            largest or 0.0,
            *(
                largest_difference(first.masked_fill(where, 0), second.masked_fill(where, 0))
                for first, second, where in (
                    (kept, graph.weights[:, row].double(), unknown[:, None]),
                    (rest, graph.rest[:, row].double(), unknown),
                )
            ),
        )
    if strict and largest is not None:
        scores = graph.scores[graph.keys >= 0]
        size = float(scores[scores.isfinite()].abs().max()) if scores.isfinite().any() else 0.0
        size = max(size, products if math.isfinite(products) else 0.0)
        explained = tolerance(call.queries.dtype) + 4 * size * torch.finfo(torch.float32).eps
        if largest > explained:
            raise VerificationError(
                f"trace: the weights of layer {call.path} differ by {largest:.1e} from the formula "
                f"in float64, where rounding explains {explained:.1e}. {REMEDY}"
            )
    return largest


def _pair_scores(score: Score | None) -> Callable[[Tensor, Tensor, int], Tensor]:
    """From queries and keys of one head in float64, and its number, to their scores."""
    if score is None:
        return lambda rows, columns, head: rows @ columns.mT
    if type(score).__module__ != Score.__module__:
        # Somebody's own: what it holds may be of one type alone.
        own = score
        return lambda rows, columns, head: own.of_head(head)(
            rows[None, None].float(), columns[None, None].float()
        )[0, 0].double()
    exact = with_tensors(score, lambda tensor: tensor.detach().cpu().double())
    return lambda rows, columns, head: exact.of_head(head)(rows[None, None], columns[None, None])[
        0, 0
    ]


def _terms(relative: Relative | None, query: Tensor, row: int, length: int) -> JsonObject | None:
    """What relative positions add to the scores of a row; query: (heads, depth)."""
    if relative is None:
        return {}
    if isinstance(relative, ALiBi):
        bias = alibi_bias(relative.slopes.double(), 1, length, relative.offset + row)
        return {"relative_bias": bias[None]}
    if isinstance(relative, Buckets):
        bias = bucket_bias(
            relative.table.detach().double(), 1, length, bidirectional=relative.bidirectional,
            max_distance=relative.max_distance, offset=relative.offset + row,
        )  # fmt: skip
        return {"relative_bias": bias[None]}
    if isinstance(relative, Shaw) and relative.key_table.ndim == 2:
        table = relative.key_table.detach().double()
        places = shaw_embeddings(table, 1, length, relative.offset + row)[0]
        return {"relative_scores": (query @ places.mT)[None, :, None]}
    return None
