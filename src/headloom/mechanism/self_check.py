"""The attention of this installation held against float64.

Every instruction set that this processor runs answers the same small calls, forward and backward,
and so does torch; the formula in float64 answers them too. The tests hold far more; this finds a
build, a processor or a torch that computes something else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.backends import compiled, native, torch_ops
from headloom.mechanism.call import AttentionCall, checked_call
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import causal
from headloom.mechanism.reference import call as reference

__all__ = ["Check", "check_attention"]

#: How many edges of each row are compared.
KEPT = 8
#: Name; batch, heads, key/value heads, queries, keys and depth; type; whether it has further rules.
_CASES = (
    ("plain", (1, 2, 2, 70, 80, 16), torch.float32, False),
    ("causal, shared heads, soft cap, bias, sinks", (2, 4, 2, 90, 90, 24), torch.float32, True),
    ("long rows", (1, 1, 1, 40, 1500, 32), torch.float32, False),
    ("bfloat16", (1, 2, 1, 130, 300, 32), torch.bfloat16, False),
)
#: Heads, tokens and depth of the call that is timed: some milliseconds on a vector unit.
_SIZES = (4, 512, 64)


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


def check_attention(backends: Iterable[str] | None = None) -> Iterator[Check]:
    """Hold backends against the reference, one call after the other.

    backends: instruction sets, "torch"; None: all that this machine has.
    """
    chosen = [*compiled.instruction_sets(), "torch"] if backends is None else list(backends)
    for number, (name, sizes, dtype, rules) in enumerate(_CASES):
        call = _call(sizes, dtype, rules, torch.Generator().manual_seed(number))
        exact = _exact(call)
        for backend in chosen:
            start = time.perf_counter()
            got = _results(*_attend(call, backend), call)
            seconds = time.perf_counter() - start
            # Numbers of size 1 that are rounded some times; a sum of hundreds of them in a
            # gradient.
            bound = 3e-5 if dtype == torch.float32 else 2e-2
            shares = {
                part: float((_found(part, tensor, exact) - exact[part]).abs().max())
                / (bound * max(1.0, float(exact[part].abs().max())))
                for part, tensor in got.items()
            }
            worst = max(shares, key=lambda part: (math.isnan(shares[part]), shares[part]))
            yield Check(backend, name, shares[worst], worst, seconds)


def _call(
    sizes: tuple[int, ...], dtype: torch.dtype, rules: bool, generator: torch.Generator
) -> AttentionCall:
    batch, heads, shared, rows, length, depth = sizes

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    queries, keys = draw(batch, heads, rows, depth), draw(batch, shared, length, depth)
    values, keep = draw(batch, shared, length, depth), Top(KEPT)
    if not rules:
        return checked_call("self-check", queries, keys, values, keep=keep)
    return checked_call(
        "self-check", queries, keys, values, mask=causal(), softcap=5.0, keep=keep,
        bias=draw(1, heads, rows, length), sinks=draw(heads),
    )  # fmt: skip


def _attend(call: AttentionCall, backend: str) -> tuple[Tensor, AttentionGraph]:
    if backend == "torch":
        output, graph = torch_ops.attend(call)
    else:
        output, graph = native.attend(call, backend)
    assert isinstance(graph, AttentionGraph)
    return output, graph


def _results(output: Tensor, graph: AttentionGraph, call: AttentionCall) -> dict[str, Tensor]:
    found = {
        "output": output, "log-sum-exp": graph.lse, "entropy": graph.entropy, "rest": graph.rest,
        "keys": graph.keys, "weights": graph.weights,
    }  # fmt: skip
    return found | _gradients(call, output, graph.lse)


def _found(part: str, tensor: Tensor, exact: dict[str, Tensor]) -> Tensor:
    """What is compared; of kept keys what they weigh: which of two equal ones is free."""
    if part != "keys":
        return tensor.detach().double()
    return exact["every weight"].gather(-1, tensor.clamp(min=0).long()) * (tensor >= 0)


def _exact(call: AttentionCall) -> dict[str, Tensor]:
    """The same by the formula in float64."""
    given = {name: leaf.double() for name, leaf in _leaves(call).items()}
    raw = reference.scores_of_heads(given["queries"], given["keys"], lambda q, k, head: q @ k.T)
    attended = reference.attend(
        raw, given["values"], scale=1 / math.sqrt(call.queries.shape[3]), softcap=call.softcap,
        allowed=None if call.mask is None else torch.ones(raw.shape[2:]).tril().bool(),
        bias=given.get("bias"), sinks=given.get("sinks"), k=KEPT,
    )  # fmt: skip
    found = {
        "output": attended.output, "log-sum-exp": attended.lse, "entropy": attended.entropy,
        "rest": attended.rest, "keys": attended.kept_weights, "weights": attended.kept_weights,
        "every weight": attended.weights,
    }  # fmt: skip
    found |= _gradients(call, attended.output, attended.lse)
    return {name: tensor.detach() for name, tensor in found.items()}


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
