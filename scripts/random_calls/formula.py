"""The formula of a call in float64, cell by cell, and how far float32 may be from it.

Nothing here is of headloom. Beside every score stands a bound of its rounding error: the sum of the
sizes of its terms times the precision of the type; what a softmax makes of it follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from drawing import Case
from torch import Tensor

#: Half the distance from 1 to the next number: of the arithmetic, and of what is stored.
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-24, torch.float64: 2.0**-53}
STORED = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}


@dataclass
class Answer:
    """What a call comes to; scores are minus infinity where hidden."""

    output: Tensor
    scores: Tensor
    weights: Tensor
    lse: Tensor
    entropy: Tensor
    mass: Tensor


def last_queries(case: Case) -> int:
    """Of how many last queries keys are asked what they receive; 0: they are not asked at all."""
    asked = case.keep == "top" and (case.queries.shape[2] + case.keys.shape[2]) % 2
    return case.k + 1 if asked else 0


def columns(cells: Tensor, last: int) -> dict[str, Tensor]:
    """Return the sum, the maximum and the last queries' sum of each key, where requested."""
    if not last:
        return {}
    queries = cells.shape[2]
    most = cells.detach().amax(2) if queries else cells.sum(2)
    window = cells[:, :, max(queries - last, 0) :].sum(2)
    return {"received": cells.sum(2), "received_most": most, "received_last": window}


def leaves(case: Case) -> dict[str, Tensor]:
    """Every tensor of a call that may want a gradient, in float64."""
    arrays = {"queries": case.queries, "keys": case.keys, "values": case.values}
    arrays |= case.parameters | case.tables
    if case.bias is not None:
        arrays["bias"] = case.bias
    if case.sinks is not None:
        arrays["sinks"] = case.sinks
    return {name: torch.tensor(array, dtype=torch.float64) for name, array in arrays.items()}


def _scale(case: Case) -> float:
    if case.scale is not None:
        return case.scale
    return 1 / math.sqrt(case.queries.shape[-1]) if case.score in ("default", "scaled") else 1.0


def _by_head(tensor: Tensor, heads: int) -> Tensor:
    """Head h of the queries takes head h // group."""
    group = heads // tensor.shape[1]
    return tensor[:, [h // group for h in range(heads)]]


def _leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x)


def _raw(case: Case, of: dict[str, Tensor], q: Tensor, k: Tensor, size: bool) -> Tensor:
    """Scores before the scale; or, of absolute values, the sum of the sizes of their terms."""
    if case.score in ("default", "scaled", "dot"):
        return torch.einsum("bhid,bhjd->bhij", q, k)
    if case.score == "bilinear":
        matrix = of["matrix"]
        kind = "bhid,de,bhje->bhij" if matrix.ndim == 2 else "bhid,hde,bhje->bhij"
        return torch.einsum(kind, q, matrix, k)
    if case.score == "additive":
        from_query = torch.einsum("bhid,ed->bhie", q, of["query_matrix"])
        from_key = torch.einsum("bhjd,ed->bhje", k, of["key_matrix"])
        both = from_query[:, :, :, None] + from_key[:, :, None]
        return torch.einsum("bhije,e->bhij", both if size else torch.tanh(both), of["vector"])
    lead = (None, slice(None), None) if next(iter(case.parameters.values())).ndim == 2 else ()
    if case.score == "graph":
        from_query = (q * of["query_vector"][lead]).sum(-1)[..., :, None]
        from_key = (k * of["key_vector"][lead]).sum(-1)[..., None, :]
        return from_query + from_key if size else _leaky(from_query + from_key)
    both = q[..., :, None, :] + k[..., None, :, :]
    vector = of["vector"][:, None, None] if of["vector"].ndim == 2 else of["vector"]
    return ((both if size else _leaky(both)) * vector).sum(-1)


def _distances(case: Case) -> np.ndarray:
    i, j = np.arange(case.queries.shape[2])[:, None], np.arange(case.keys.shape[2])[None, :]
    return j - i - case.relative_options.get("offset", 0)


def _bucket(distance: int, buckets: int, farthest: int, bidirectional: bool) -> int:
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    # In float32, as T5's own: at a whole logarithm the type decides.
    share = np.log(np.float32(distance) / np.float32(exact)) / np.float32(
        math.log(farthest / exact)
    )
    return first + min(exact + int(np.float32(share) * np.float32(buckets - exact)), buckets - 1)


def _table_rows(case: Case, table: Tensor) -> Tensor:
    """Return a relative table laid out: (heads or 1, queries, keys, depth)."""
    clip = (table.shape[-2] - 1) // 2
    index = torch.as_tensor(np.clip(_distances(case), -clip, clip) + clip)
    return (table if table.ndim == 3 else table[None])[:, index]


def _relative_bias(case: Case, of: dict[str, Tensor]) -> Tensor | float:
    distance = _distances(case)
    if case.relative == "alibi":
        return -of["slopes"][:, None, None] * torch.as_tensor(np.abs(distance)).double()
    if case.relative == "buckets":
        options = case.relative_options
        buckets = len(case.tables["table"])
        bucket_of = {
            d: _bucket(d, buckets, options["max_distance"], options["bidirectional"])
            for d in np.unique(distance).tolist()
        }
        index = np.array([[bucket_of[d] for d in row] for row in distance.tolist()], dtype=np.int64)
        cells = torch.as_tensor(index.reshape(distance.shape))
        return of["table"][cells].permute(2, 0, 1)
    return 0.0


def answer(case: Case, of: dict[str, Tensor]) -> Answer:
    """Return the formula; differentiable with respect to `of`."""
    heads = case.queries.shape[1]
    q = of["queries"]
    k, v = _by_head(of["keys"], heads), _by_head(of["values"], heads)
    scores = _raw(case, of, q, k, False)
    if case.relative == "shaw":
        scores = scores + torch.einsum(
            "bhid,hijd->bhij", q, _table_rows(case, of["key_table"]).expand(heads, -1, -1, -1)
        )
    scores = scores * _scale(case)
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores + _relative_bias(case, of)
    if case.bias is not None:
        scores = scores + of["bias"]
    visible = torch.tensor(case.visible)
    scores = torch.where(visible, scores, torch.tensor(-torch.inf, dtype=torch.float64))
    visible = scores > -torch.inf
    highest = (
        scores.detach().amax(-1, keepdim=True)
        if scores.shape[-1]
        else scores.new_full((*scores.shape[:3], 1), -torch.inf)
    )
    sinks = None
    if case.sinks is not None:
        sinks = of["sinks"][None, :, None, None]
        highest = torch.maximum(highest, sinks.detach())
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    powers = torch.where(visible, (torch.where(visible, scores, 0.0) - highest).exp(), 0.0)
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + (sinks - highest).exp()
    blind = total == 0
    safe = torch.where(blind, 1.0, total)
    weights = powers / safe
    lse = torch.where(blind, -torch.inf, safe.log() + highest)
    exponents = torch.where(visible, scores - torch.where(blind, 0.0, lse), 0.0)
    entropy = -(weights * exponents).sum(-1)
    output = weights @ v
    if "value_table" in of:
        table = _table_rows(case, of["value_table"]).expand(heads, -1, -1, -1)
        output = output + torch.einsum("bhij,hijd->bhid", weights, table)
    mass = torch.where(blind, 0.0, 1.0).squeeze(-1)
    return Answer(output, scores, weights, lse.squeeze(-1), entropy, mass)


def products_apart(case: Case, of: dict[str, Tensor]) -> Tensor:
    """How far each scaled product may be from the formula's, before it is capped and added to."""
    unit = ROUNDING[case.dtype]
    size = {name: tensor.abs() for name, tensor in of.items()}
    heads, depth = case.queries.shape[1], max(case.queries.shape[-1], case.keys.shape[-1])
    terms = _raw(case, size, size["queries"], _by_head(size["keys"], heads), True)
    if case.relative == "shaw":
        table = _table_rows(case, size["key_table"]).expand(heads, -1, -1, -1)
        terms = terms + torch.einsum("bhid,hijd->bhij", size["queries"], table)
    error = (8 + 2 * math.sqrt(depth)) * unit * terms * abs(_scale(case))
    if case.score == "bilinear" and case.dtype == torch.bfloat16:
        error = error + STORED[case.dtype] * terms * abs(_scale(case))  # q A is stored
    return error


def bounds(case: Case, of: dict[str, Tensor], found: Answer) -> Tensor:
    """How far each score may be from the formula's, (batch, heads, queries, keys)."""
    unit = ROUNDING[case.dtype]
    size = {name: tensor.abs() for name, tensor in of.items()}
    error = products_apart(case, of)
    if case.softcap is not None:
        error = error.clamp(max=2 * case.softcap) + 16 * unit * case.softcap
    error = error + 8 * unit * torch.as_tensor(_relative_bias(case, size)).abs()
    if case.bias is not None:
        bias = torch.where(of["bias"] > -torch.inf, size["bias"], 0.0)
        error = error + 8 * unit * bias
    finite = torch.where(found.scores > -torch.inf, found.scores.abs(), 0.0)
    # Numbers below this may be 0, or have lost digits: float32 holds them in part or not at all.
    return error + 8 * unit * finite + 1e-36
