"""One row of a head computed step by step in float64, from products to weights.

    r_j = q . k_j (+ q . a_ij)              raw score; a_ij with Shaw's positions
    s_j = softcap(scale r_j) (+ b_ij) (+ bias_ij)
    w_j = e^(s_j - m) / (sum_l e^(s_l - m) (+ e^(sink - m))),   m the largest score

over the visible keys. Every term is kept, so that each number of a weight can be shown and added
up. If a query or a key holds NaN, so do its scores and the weights of the row.

Source: Vaswani et al. 2017, equation 1; the terms as `headloom.formats.terms` has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.trace import TraceLayer
from headloom.mechanism.parts import with_tensors
from headloom.mechanism.shapes import place_of


@dataclass(frozen=True)
class Term:
    """Step from the raw score to the score of one key.

    name: of the step. how: its operation, as "/ √32". value: its operand. result: the new score.
    """

    name: str
    how: str
    value: float | None
    result: float


@dataclass(frozen=True, eq=False)
class WorkedRow:
    """One query of one head with every key, in float64; (keys,) by default.

    head, query   numbers
    q, k          the query, (depth,), and the keys, (keys, depth), as they were scored
    scaling       of raw scores, in words
    steps         to the score: name and operation, as in `Term`; operand, or None; and result
    allowed       whether the key is visible
    scores        minus infinity for hidden keys
    sink          logit of the sink, or None
    largest       of the scores and the sink: subtracted before e^x
    exponentials  e^(scores - largest), 0 of a hidden key
    total         their sum, the sink's among them
    weights       exponentials / total
    """

    head: int
    query: int
    q: Tensor
    k: Tensor
    scaling: str
    steps: list[tuple[str, str, Tensor | None, Tensor]]
    allowed: Tensor
    scores: Tensor
    sink: float | None
    largest: float
    exponentials: Tensor
    total: float
    weights: Tensor

    @property
    def depth(self) -> int:
        """Dimension of queries and keys."""
        return len(self.q)

    @property
    def dots(self) -> Tensor:
        """Dot products q . k_j."""
        return self.steps[0][3]

    @property
    def lse(self) -> float:
        """Log-sum-exp of the scores and the sink; minus infinity if no key is visible."""
        return -math.inf if self.total == 0 else self.largest + math.log(self.total)

    def products(self, key: int) -> list[float]:
        """Return the products q_d k_d, which add up to q . k."""
        return (self.q * self.k[key]).tolist()

    def terms(self, key: int) -> list[Term]:
        """Return the steps from the products to the score of a key, in order.

        A hidden key's last step gives minus infinity.
        """
        terms = [
            Term(name, how, None if value is None else float(value[key]), float(result[key]))
            for name, how, value, result in self.steps
        ]
        if not bool(self.allowed[key]):
            terms.append(Term("mask", "hidden: the query may not look there", None, -math.inf))
        return terms

    def strongest(self, count: int, *others: int) -> list[int]:
        """Return the visible keys of the `count` largest weights, and others, sorted by place."""
        best = self.scores.topk(min(count, len(self.scores)))
        strongest = {int(place) for place in best.indices if bool(self.allowed[place])}
        return sorted(strongest | set(others))


def remedy(given: str | None) -> str:
    """Return the remedy for missing queries and keys. given: source of the trace, if no model."""
    if given in ("weights", "edges"):
        return (
            f"The trace was made of {given}, which have none. Trace the model itself, or make the "
            "trace of its queries and keys: headloom.from_queries_keys."
        )
    return "Trace the model again, with its queries and keys."


def worked_row(
    layer: TraceLayer, head: int, query: int, *, instead: str | None = None
) -> WorkedRow:
    """Compute the row of a query step by step.

    Args: layer: of a trace with queries and keys; head, query: within its shape; instead: remedy in
    the error if there are none; None: `remedy`.

    Raises: InputError: queries and keys, or another term of the scores, were not kept.
    """
    head = place_of("layer", "worked_row", "head", head, layer.heads)
    query = place_of("layer", "worked_row", "query", query, layer.shape[1])
    queries, keys, terms = layer.queries, layer.keys, layer.terms
    if queries is None or keys is None:
        raise InputError(
            f"{layer.name}: its queries and keys were not kept. {instead or remedy(None)}"
        )
    if terms is None or terms.missing is not None:
        what = "the other terms of the scores" if terms is None else terms.missing
        raise InputError(
            f"{layer.name}: its queries and keys were kept, but not all other terms of its scores: "
            f"{what}. Its kept edges have their scores."
        )
    heads, _, length = layer.shape
    rows, device = range(query, query + 1), torch.device("cpu")
    of_all = queries[:, rows.start : rows.stop].detach().cpu().double()
    q = of_all[head, 0]
    k = keys[head // (heads // keys.shape[0])].detach().cpu().double()
    scores = k @ q
    steps: list[tuple[str, str, Tensor | None, Tensor]] = []
    steps.append(("q · k", f"the sum of its {len(q)} products", None, scores))

    def add(name: str, how: str, value: Tensor | None) -> Tensor:
        if value is None:
            return scores
        steps.append((name, how, value, scores + value))
        return scores + value

    by_position = by_distance = None
    if terms.relative is not None:
        positions = with_tensors(terms.relative, lambda tensor: tensor.detach().cpu().double())
        added = positions.key_scores(of_all[None], rows, length)
        by_position = None if added is None else added[0, head, 0]
        distance = positions.bias(rows, length, device)
        by_distance = None if distance is None else distance.expand(heads, 1, -1)[head, 0].double()
    scores = add("relative position", "+ q · a, a learned vector for the distance", by_position)
    root = len(q) ** 0.5
    scaling = "not scaled" if layer.scale == 1 else f"× {layer.scale:g}"
    scaling = f"/ √{len(q)}" if abs(layer.scale * root - 1) < 1e-6 else scaling
    scores = layer.scale * scores
    steps.append(("scaled", scaling, None, scores))
    if (cap := layer.softcap) is not None:
        scores = cap * torch.tanh(scores / cap)
        steps.append(("bounded", f"{cap:g} tanh(x / {cap:g})", None, scores))
    falls = "+ B, which falls with the distance (ALiBi)"
    how = falls if layer.positions == "alibi" else "+ B, a number for each distance"
    scores = add("position", how, by_distance)
    bias = None
    if terms.bias is not None:
        bias = terms.bias.detach().cpu().expand(layer.shape)[head, query].double()
    scores = add("bias", "+ a number that the model adds to this score", bias)
    allowed = torch.ones(length, dtype=torch.bool)
    if terms.mask is not None:
        cells = terms.mask.cells(rows, length, device)[0, :, 0]
        allowed = cells[head if len(cells) > 1 else 0].expand(length).clone()
    # A bias of minus infinity hides a key, as a mask does; NaN hides nothing.
    allowed &= scores != -math.inf
    scores = scores.masked_fill(~allowed, -math.inf)
    sink = None if terms.sinks is None else float(terms.sinks[head])
    candidates = [float(scores.max())] if bool(allowed.any()) else []
    largest = max(candidates + ([] if sink is None else [sink]), default=0.0)
    largest = 0.0 if largest == -math.inf else largest
    exponentials = (scores - largest).exp().masked_fill(~allowed, 0)
    total = math.fsum(exponentials.tolist())
    total += 0.0 if sink is None else math.exp(sink - largest)
    weights = torch.zeros_like(exponentials) if total == 0 else exponentials / total
    return WorkedRow(
        head, query, q, k, scaling, steps, allowed, scores, sink, largest, exponentials, total,
        weights,
    )  # fmt: skip
