"""The attention of this installation held against the reference, in float64: a few seconds.

Every instruction set that this processor runs answers the same small calls, forward and backward,
and so does torch. `headloom.mechanism.reference` answers them in float64, by other code. The tests
hold far more; this finds a build, a processor or a torch that computes something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.backends import native, torch_ops
from headloom.mechanism.call import AttentionCall
from headloom.mechanism.checked import checked_call
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import causal
from headloom.mechanism.reference import call as reference

__all__ = ["Check", "check_attention"]

#: How many edges of each row are compared.
KEPT = 8


@dataclass(frozen=True)
class Check:
    """What one backend made of one call.

    backend: an instruction set of the kernels, or "torch".
    call: what was asked.
    error: the largest difference from float64, as a share of what rounding may cause: 1 at most.
    worst: in which result.
    seconds: that the backend took, forward and backward.
    """

    backend: str
    call: str
    error: float
    worst: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all differences are those of rounding; False where one is NaN."""
        return self.error <= 1


@dataclass(frozen=True)
class _Case:
    name: str
    #: (batch, heads, key/value heads, queries, keys, depth)
    sizes: tuple[int, int, int, int, int, int]
    dtype: torch.dtype = torch.float32
    rules: bool = False


_CASES = (
    _Case("plain", (1, 2, 2, 70, 80, 16)),
    _Case("causal, shared heads, soft cap, bias, sinks", (2, 4, 2, 90, 90, 24), rules=True),
    _Case("long rows", (1, 1, 1, 40, 1500, 32)),
    _Case("bfloat16", (1, 2, 1, 130, 300, 32), torch.bfloat16),
)


def check_attention(backends: Iterable[str] | None = None) -> Iterator[Check]:
    """Hold backends against the reference, one call after the other.

    backends: instruction sets, "torch"; None: all that this machine has.
    """
    chosen = [*native.instruction_sets(), "torch"] if backends is None else list(backends)
    for number, case in enumerate(_CASES):
        call = _call(case, torch.Generator().manual_seed(number))
        exact = _exact(call)
        for backend in chosen:
            start = time.perf_counter()
            got = _results(*_attend(call, backend), call)
            seconds = time.perf_counter() - start
            error, worst = _largest(got, exact, case.dtype)
            yield Check(backend, case.name, error, worst, seconds)


def _call(case: _Case, generator: torch.Generator) -> AttentionCall:
    batch, heads, shared, rows, length, depth = case.sizes

    def draw(*shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=generator).to(case.dtype)
        return numbers.requires_grad_()

    queries = draw(batch, heads, rows, depth)
    keys, values = draw(batch, shared, length, depth), draw(batch, shared, length, depth)
    bias, sinks, cap = None, None, None
    if case.rules:
        bias, sinks, cap = draw(1, heads, rows, length), draw(heads), 5.0
    mask = causal() if case.rules else None
    return checked_call(
        "self-check", queries, keys, values, mask, None, None, bias, None, cap, sinks, 0.0
    )


def _attend(call: AttentionCall, backend: str) -> tuple[Tensor, AttentionGraph]:
    if backend == "torch":
        return torch_ops.attend(call, Top(KEPT))
    return native.attend(call, Top(KEPT), backend)


def _results(output: Tensor, graph: AttentionGraph, call: AttentionCall) -> dict[str, Tensor]:
    found = {
        "output": output, "log-sum-exp": graph.lse, "entropy": graph.entropy, "rest": graph.rest,
        "keys": graph.keys, "weights": graph.weights,
    }  # fmt: skip
    return found | _gradients(call, output, graph.lse)


def _exact(call: AttentionCall) -> dict[str, Tensor]:
    """The same by the formula in float64; instead of kept keys, the weight of every key."""
    given = _leaves(call)
    queries, keys, values = (given[name].double() for name in ("queries", "keys", "values"))
    raw = reference.scores_of_heads(queries, keys, lambda q, k, head: q @ k.T)
    rows, columns = raw.shape[2:]
    allowed = None if call.mask is None else torch.ones(rows, columns).tril().bool()
    attended = reference.attend(
        raw, values, scale=1 / math.sqrt(queries.shape[3]), softcap=call.softcap, allowed=allowed,
        bias=given["bias"].double() if "bias" in given else None,
        sinks=given["sinks"].double() if "sinks" in given else None, k=KEPT,
    )  # fmt: skip
    found = {
        "output": attended.output, "log-sum-exp": attended.lse, "entropy": attended.entropy,
        "rest": attended.rest, "keys": attended.weights, "weights": attended.kept_weights,
    }  # fmt: skip
    return found | _gradients(call, attended.output, attended.lse)


def _leaves(call: AttentionCall) -> dict[str, Tensor]:
    names = ("queries", "keys", "values", "bias", "sinks")
    given = {name: getattr(call, name) for name in names}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def _gradients(call: AttentionCall, output: Tensor, lse: Tensor) -> dict[str, Tensor]:
    """Of sum(output * a) + sum(lse * b), with a and b that are the same for everyone."""
    generator = torch.Generator().manual_seed(7)
    by_output = torch.randn(output.shape, generator=generator).to(output)
    by_lse = torch.randn(lse.shape, generator=generator).to(lse)
    leaves = _leaves(call)
    total = (output * by_output).sum() + (lse * by_lse).sum()
    found = torch.autograd.grad(total, list(leaves.values()))
    return {f"gradient of {name}": part for name, part in zip(leaves, found, strict=True)}


def _largest(
    got: dict[str, Tensor], exact: dict[str, Tensor], dtype: torch.dtype
) -> tuple[float, str]:
    """The largest difference as a share of what it may be, and where; NaN is larger than all."""
    # Numbers of size 1 that are rounded some times; a sum of hundreds of them in a gradient.
    bound = 3e-5 if dtype == torch.float32 else 2e-2
    shares = {}
    for name, tensor in got.items():
        wanted = exact[name].detach()
        if name == "keys":
            # Which of two equal keys is kept is a matter of rounding, what it weighs is not.
            found = tensor.long()
            present = wanted.gather(-1, found.clamp(min=0).long()) * (found >= 0)
            difference = present - exact["weights"].detach()
        else:
            difference = tensor.detach().double() - wanted
        size = max(1.0, float(wanted.abs().max()))
        shares[name] = float(difference.abs().max()) / (bound * size)
    worst = max(shares, key=lambda name: math.inf if math.isnan(shares[name]) else shares[name])
    return shares[worst], worst
