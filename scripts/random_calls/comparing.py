"""A call made by headloom, against the formula: what is wrong, in words, or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from calling import called
from drawing import Case
from formula import (
    ROUNDING,
    STORED,
    Answer,
    answer,
    bounds,
    columns,
    last_queries,
    leaves,
    products_apart,
)
from torch import Tensor

#: Faults that may be planted, to see that they are found.
FAULTS = ("mask", "scale", "edges", "gradient", "nan")

#: Scores that may be off by more than this leave the weights open.
OPEN = 0.25
#: Numbers below this may be 0 to the kernels, which skip what a float holds only in part.
SMALLEST = 1e-36


class _Tolerance:
    """What the errors of the scores may make of each result."""

    def __init__(self, case: Case, of: dict[str, Tensor], right: Answer) -> None:
        self.unit, self.stored = ROUNDING[case.dtype], STORED[case.dtype]
        length = case.keys.shape[2]
        #: Sums of so many terms; the kernels' exponentials of bfloat16 are within 3e-6.
        self.sums = (16 + 2 * math.sqrt(length)) * self.unit
        if case.dtype == torch.bfloat16:
            self.sums = max(self.sums, 1e-5)
        self.errors = bounds(case, of, right)
        seen = right.scores > -torch.inf
        if length == 0:
            zero = right.lse.new_zeros(right.lse.shape)
            self.row, self.plausible = zero, seen
        else:
            least = torch.where(seen, right.scores - self.errors, -torch.inf).amax(-1, keepdim=True)
            if case.sinks is not None:
                least = torch.maximum(least, of["sinks"][None, :, None, None])
            # Keys that may weigh anything.
            self.plausible = seen & (right.scores + self.errors >= least - 40)
            self.row = torch.where(self.plausible, self.errors, 0.0).amax(-1)
        # Exponentials are taken of differences from the highest score.
        level = torch.where(right.lse > -torch.inf, right.lse.abs(), 0.0)
        self.row = self.row + 8 * self.unit * level
        self.open = self.row > OPEN
        self.factor = torch.expm1(2 * self.row.clamp(max=OPEN))


def _exceeds(name: str, difference: Tensor, allowed: Tensor | float) -> Iterator[str]:
    difference, allowed = difference.detach(), torch.as_tensor(allowed).detach()
    wrong = ~(difference <= allowed)
    if bool(wrong.any()):
        excess = torch.where(wrong, difference - allowed, 0.0)
        place = int(excess.nan_to_num(math.inf).argmax())
        at = tuple(int(n) for n in torch.unravel_index(torch.tensor(place), difference.shape))
        limit = allowed.expand_as(difference)[at]
        yield (
            f"{name} at {at} is off by {float(difference[at]):.3g}, "
            f"{float(limit):.3g} allowed ({int(wrong.sum())} of {wrong.numel()})"
        )


def _check_output(
    case: Case, of: dict[str, Tensor], right: Answer, t: _Tolerance, output: Tensor
) -> Iterator[str]:
    group = case.queries.shape[1] // case.keys.shape[1]
    values = of["values"].repeat_interleave(group, 1)
    # By how much the output moves where weights do; relative values add theirs.
    size = right.weights @ values.abs()
    spread = size + right.output.abs()
    largest = values.abs().amax(2, keepdim=True) if case.keys.shape[2] else size
    if "value_table" in of:
        table = of["value_table"].abs().amax(-2)
        table = table[None, :, None] if table.ndim == 2 else table
        size, spread, largest = size + table, spread + 2 * table, largest + table
    moved = torch.where(t.open[..., None], 2 * largest, t.factor[..., None] * spread)
    allowed = moved + (t.sums + 2 * t.stored) * (size + right.output.abs()) + SMALLEST
    allowed = allowed + 1e-14 * largest  # of keys that are not plausible
    if case.dtype == torch.bfloat16:
        allowed = allowed + 2 * t.stored * size
    yield from _exceeds("output", (output.double() - right.output).abs(), allowed)


def _check_weights(right: Tensor, t: _Tolerance, weights: Tensor, stored: float) -> Tensor:
    """How far weights may be off."""
    allowed = (t.factor[..., None] + t.sums + 2 * stored) * right + t.sums
    return torch.where(t.open[..., None], 1.0 + t.sums, allowed)


def _check_graph(
    case: Case, right: Answer, t: _Tolerance, graph: dict[str, Tensor]
) -> Iterator[str]:
    length = case.keys.shape[2]
    keys, scores, weights = (
        graph["keys"].long(),
        graph["scores"].double(),
        graph["weights"].double(),
    )
    seen = right.scores > -torch.inf
    count = seen.sum(-1)
    if not torch.equal(graph["count"].long(), count):
        yield "the counts are not the numbers of keys seen"
        return
    places = keys.shape[-1]
    kept = count.clamp(max=case.k)
    if not torch.equal(keys >= 0, torch.arange(places) < kept[..., None]):
        yield "the places that hold edges are not the first min(k, count)"
        return
    there = keys >= 0
    if bool((there & (keys >= length)).any()):
        yield "a key past the last"
        return
    if places and length:
        at = keys.clamp(min=0)
        if bool((there & ~seen.gather(-1, at)).any()):
            yield "a hidden key is kept"
            return
        chosen = torch.zeros_like(seen).long().scatter_add(-1, at, there.long())
        if bool((chosen > 1).any()):
            yield "a key is kept twice"
            return
        error = t.errors.gather(-1, at)
        mine = right.scores.gather(-1, at)
        difference = torch.where(there, scores - mine, 0.0).abs()
        yield from _exceeds("score", difference, error)
        gap = torch.where(there[..., 1:], scores[..., :-1] - scores[..., 1:], 0.0)
        later = keys[..., 1:] > keys[..., :-1]
        if bool((gap < 0).any()) or bool(((gap == 0) & there[..., 1:] & ~later).any()):
            yield "edges out of order"
        lowest = torch.where(there, mine + error, torch.inf).amin(-1)
        left = torch.where(seen & (chosen == 0), right.scores - t.errors, -torch.inf).amax(-1)
        if case.k and bool((left > lowest).any()):
            yield "a stronger edge is left out"
        expected = torch.where(there, right.weights.gather(-1, at), 0.0)
        stored = t.stored if case.dtype == torch.bfloat16 else t.unit
        allowed = _check_weights(expected, t, weights, stored)
        yield from _exceeds("weight", (weights - expected).abs(), allowed)
        total = torch.where(chosen == 1, right.weights, 0.0).sum(-1)
    else:
        total = torch.zeros_like(right.mass)
    rest = (graph["rest"].double() - (right.mass - total)).abs()
    cells = columns(_check_weights(right.weights, t, right.weights, t.unit), last_queries(case))
    for name, wanted in columns(right.weights, last_queries(case)).items():
        yield from _exceeds(name, (graph[name].double() - wanted).abs(), cells[name] + SMALLEST)
    yield from _exceeds("rest", rest, torch.where(t.open, 1.0, t.factor + 4 * t.sums))
    level = torch.where(right.lse > -torch.inf, right.lse, 0.0)
    blind = right.lse == -torch.inf
    lse = graph["lse"].double()
    if not torch.equal(lse == -torch.inf, blind):
        yield "lse is minus infinity in other rows than those that see nothing"
        return
    off = torch.where(blind, 0.0, lse - level).abs()
    yield from _exceeds("lse", off, t.row + 4 * t.unit * level.abs() + t.sums)
    logarithms = torch.where(right.weights > 0, right.weights, 1.0).log().abs()
    slope = (right.weights * (logarithms + right.entropy[..., None])).sum(-1)
    allowed = (t.factor + 8 * t.sums) * (slope + right.entropy + 1) + 8 * t.sums
    allowed = torch.where(t.open, math.log(max(length, 2)) + 1.0, allowed)
    yield from _exceeds("entropy", (graph["entropy"].double() - right.entropy).abs(), allowed)


def _check_gradients(
    case: Case, fault: str | None, gave: dict[str, Tensor], tensors: dict[str, Tensor]
) -> Iterator[str]:
    """Yield the gradient of a random sum of all results, where the scores are well conditioned."""
    of = {name: tensor.requires_grad_() for name, tensor in leaves(case).items()}
    right = answer(case, of)
    with torch.no_grad():
        t = _Tolerance(case, of, right)
    results: dict[str, Tensor] = {"output": right.output}
    if case.keep == "all":
        results["dense"] = right.weights
    elif case.keep == "top":
        results |= {"lse": right.lse, "entropy": right.entropy}
        results |= columns(right.weights, last_queries(case))
        results.pop("received_most", None)
        places = gave["keys"].long()
        at, there = places.clamp(min=0), places >= 0
        if case.keys.shape[2]:
            results["weights"] = torch.where(there, right.weights.gather(-1, at), 0.0)
            results["rest"] = right.mass - results["weights"].sum(-1)
            results["scores"] = right.scores.gather(-1, at)
    random = torch.Generator().manual_seed(case.k + case.keys.shape[2])
    mine = theirs = torch.zeros((), dtype=torch.float64)
    by: dict[str, Tensor] = {}
    for name, result in results.items():
        finite = result.detach().isfinite() & gave[name].detach().isfinite()
        by[name] = torch.where(
            finite, torch.randn(result.shape, generator=random).bfloat16().double(), 0.0
        )
        mine = mine + (by[name] * torch.where(finite, result, 0.0)).sum()
        theirs = theirs + (by[name] * torch.where(finite, gave[name].double(), 0.0)).sum()
    if not mine.requires_grad or not theirs.requires_grad:
        return
    expected = torch.autograd.grad(mine, list(of.values()), allow_unused=True)
    found = torch.autograd.grad(theirs, list(tensors.values()), allow_unused=True)
    usual = case.style in ("normal", "whole") and float(t.row.max() if t.row.numel() else 0) < 0.05
    with torch.no_grad():
        if usual and case.softcap is not None:
            # A product that may be anywhere under its cap may have any slope.
            usual = bool((products_apart(case, of) < 0.05 * case.softcap).all())
        limits = _gradient_bounds(case, of, right, t, by) if usual else {}
    # A gradient of queries or keys is a sum of values times the others; beyond this its terms leave
    # the range of float32, whatever they come to.
    largest = {
        name: float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        for name, tensor in of.items()
    }
    widest = max(largest["queries"], largest["keys"], 1.0) * max(largest["values"], 1.0)
    if widest * max(1.0, abs(case.scale or 0.0)) > 1e32:
        return
    for name, want, got in zip(of, expected, found, strict=True):
        want = torch.zeros_like(of[name]) if want is None else want
        if not bool(want.isfinite().all()):
            continue
        got = torch.zeros_like(want) if got is None else got.double()
        if fault == "gradient":
            got = 1.1 * got
        if bool(got.isnan().any()):
            yield f"NaN in the gradient of {name}"
        elif name in limits:
            allowed = limits[name] + 4 * t.stored * want.abs() + 1e-30
            yield from _exceeds(f"gradient of {name}", (got - want).abs(), allowed)


def _gradient_bounds(
    case: Case, of: dict[str, Tensor], right: Answer, t: _Tolerance, by: dict[str, Tensor]
) -> dict[str, Tensor]:
    """How far gradients may be off: the sums of the sizes of their terms, times a row's error."""
    heads, kv_heads = case.queries.shape[1], case.keys.shape[1]
    group = heads // kv_heads
    size = {name: tensor.detach().abs() for name, tensor in of.items()}
    k, v = (size[name].repeat_interleave(group, 1) for name in ("keys", "values"))
    weights = right.weights.detach()
    by_weight = by["output"].abs() @ v.transpose(-1, -2)
    if "value_table" in of:
        table = size["value_table"].amax(-2)
        table = (table if table.ndim == 2 else table[None])[None, :, :, None]
        by_weight = by_weight + by["output"].abs() @ table
    for name in by.keys() & {"received", "received_last"}:
        by_weight = by_weight + by[name].abs()[:, :, None]
    if "dense" in by:
        by_weight = by_weight + by["dense"].abs()
    by_row = torch.zeros_like(right.lse)
    for name in ("weights", "rest", "lse"):
        if name in by:
            part = by[name].abs()
            by_row = by_row + (part.sum(-1) if name == "weights" else part)
    if "entropy" in by:
        logarithms = torch.where(weights > 0, weights, 1.0).log().abs()
        by_weight = by_weight + by["entropy"].abs()[..., None] * (
            logarithms + right.entropy.detach()[..., None] + 1
        )
    by_row = by_row + (weights * by_weight).sum(-1)
    rough = 2.0**-6 if case.dtype == torch.bfloat16 else 64 * t.sums
    share = (rough + 4 * t.factor)[..., None]
    cells = weights * (by_weight + by_row[..., None]) * share
    if "scores" in by:
        cells = cells + (by["scores"].abs().sum(-1) * 16 * t.unit)[..., None] * (
            right.scores > -torch.inf
        )
    limits = {"values": weights.transpose(-1, -2) @ (by["output"].abs() * share)}
    scale = case.scale
    if scale is None:
        scale = 1 / math.sqrt(max(case.queries.shape[-1], 1)) if case.score != "dot" else 1.0
    if case.score in ("default", "scaled", "dot"):
        seen_keys = k
        limits["queries"] = abs(scale) * (cells @ seen_keys)
        limits["keys"] = abs(scale) * (cells.transpose(-1, -2) @ size["queries"])
        if "key_table" in of:
            table = size["key_table"].amax(-2)
            table = table[None, :, None] if table.ndim == 2 else table
            limits["queries"] = limits["queries"] + abs(scale) * cells.sum(-1, keepdim=True) * table
            rows = (cells.sum(-1)[..., None] * size["queries"]).sum((0, 2))[:, None]
            rows = rows if of["key_table"].ndim == 3 else rows.sum(0)
            limits["key_table"] = abs(scale) * rows.expand_as(of["key_table"])
    for name in ("keys", "values"):
        if name in limits:
            batch, _, length, depth = limits[name].shape
            limits[name] = limits[name].reshape(batch, kv_heads, group, length, depth).sum(2)
    if "bias" in of:
        limits["bias"] = cells.sum_to_size(of["bias"].shape)
    return limits


def _planted(
    case: Case, of: dict[str, Tensor], fault: str | None
) -> tuple[Case, dict[str, Tensor]]:
    if fault == "scale":
        return replace(case, scale=1.05 * (1.0 if case.scale is None else case.scale)), of
    if fault == "mask" and case.visible.any():
        visible = torch.tensor(case.visible)
        best = (
            torch.where(visible, answer(case, leaves(case)).scores, -torch.inf).flatten().argmax()
        )
        visible.view(-1)[best] = False
        return replace(case, mask=visible), of
    return case, of


def problems(case: Case, fault: str | None = None) -> list[str]:
    """Return the problems of headloom's answer to a call; empty: none.

    fault: one of FAULTS, planted in the call or in its answer.
    """
    of = leaves(case)
    right = answer(case, of)
    tensors = {name: tensor.to(case.dtype) for name, tensor in of.items()}
    if case.gradients:
        tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    changed, tensors = _planted(case, tensors, fault)
    try:
        gave = called(changed, tensors)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    results = {name: result.detach() for name, result in gave.items()}
    if fault == "nan" and results["output"].numel():
        results["output"] = results["output"].clone().fill_(math.nan)
    if fault == "edges" and results.get("keys", torch.zeros(0)).shape[-1] > 1:
        results["keys"] = results["keys"].roll(1, -1)
    said = [f"NaN in {name}" for name, result in results.items() if bool(result.isnan().any())]
    if said:
        return said
    t = _Tolerance(case, of, right)
    said += _check_output(case, of, right, t, results["output"])
    if case.keep == "all":
        allowed = _check_weights(right.weights, t, results["dense"], t.stored)
        said += _exceeds("dense", (results["dense"].double() - right.weights).abs(), allowed)
    if case.keep == "top":
        said += _check_graph(case, right, t, results)
    if case.gradients and not said:
        said += _check_gradients(case, fault, gave, tensors)
    return said
