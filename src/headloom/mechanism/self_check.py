"""Self-check: the attention of this installation compared with float64.

Every instruction set of this processor, and torch, computes the same small calls, forward and
backward; the results are compared with the formula in float64. The tests cover far more; this finds
a broken build, processor or torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headloom.mechanism.backends import compiled, native, torch_ops
from headloom.mechanism.call import AttentionCall, checked_call
from headloom.mechanism.graph import AttentionGraph, Top
from headloom.mechanism.masks import causal
from headloom.mechanism.reference import call as reference

#: Number of edges compared in each row.
KEPT = 8
#: Name; batch, heads, key/value heads, queries, keys and depth; type; whether it has further rules.
_CASES = (
    ("plain", (1, 2, 2, 70, 80, 16), torch.float32, False),
    ("causal, shared heads, soft cap, bias, sinks", (2, 4, 2, 90, 90, 24), torch.float32, True),
    ("long rows", (1, 1, 1, 40, 1500, 32), torch.float32, False),
    ("bfloat16", (1, 2, 1, 130, 300, 32), torch.bfloat16, False),
)


@dataclass(frozen=True)
class Check:
    """Result of one backend (an instruction set, or "torch") on one call.

    error: the largest difference from float64, as a fraction of the allowed rounding error: 1 at
        most. worst: the result that has it.
    """

    backend: str
    call: str
    error: float
    worst: str


def check_attention() -> Iterator[Check]:
    """Compare all backends of this machine with the reference, call by call."""
    for number, (name, sizes, dtype, rules) in enumerate(_CASES):
        call = _call(sizes, dtype, rules, torch.Generator().manual_seed(number))
        exact, every_weight = _exact(call)
        # For numbers about 1 that are rounded several times, and gradients that sum hundreds.
        bound = 3e-5 if dtype == torch.float32 else 2e-2
        for backend in (*compiled.instruction_sets(), "torch"):
            output, graph = _attend(call, backend)
            results = {
                "output": output, "log-sum-exp": graph.lse, "entropy": graph.entropy,
                "rest": graph.rest, "weights": graph.weights,
                # The weights of the kept keys: in a tie the choice of the key is free.
                "keys": every_weight.gather(-1, graph.keys.clamp(min=0).long()) * (graph.keys >= 0),
            }  # fmt: skip
            shares = {
                part: float((tensor.detach().double() - exact[part]).abs().max())
                / (bound * max(1.0, float(exact[part].abs().max())))
                for part, tensor in (results | _gradients(call, output, graph.lse)).items()
            }
            worst = max(shares, key=lambda part: (math.isnan(shares[part]), shares[part]))
            yield Check(backend, name, shares[worst], worst)


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
    by_torch = backend == "torch"
    output, graph = torch_ops.attend(call) if by_torch else native.attend(call, backend)
    assert isinstance(graph, AttentionGraph)
    return output, graph


def _exact(call: AttentionCall) -> tuple[dict[str, Tensor], Tensor]:
    """Return the results by the formula in float64, and the weights of all edges."""
    leaves = {name: leaf.double() for name, leaf in _leaves(call).items()}
    raw = reference.scores_of_heads(leaves["queries"], leaves["keys"], lambda q, k, head: q @ k.T)
    attended = reference.attend(
        raw, leaves["values"], scale=1 / math.sqrt(call.queries.shape[3]), softcap=call.softcap,
        allowed=None if call.mask is None else torch.ones(raw.shape[2:]).tril().bool(),
        bias=leaves.get("bias"), sinks=leaves.get("sinks"), k=KEPT,
    )  # fmt: skip
    kept = attended.kept_weights
    results = {
        "output": attended.output, "log-sum-exp": attended.lse, "entropy": attended.entropy,
        "rest": attended.rest, "keys": kept, "weights": kept,
    }  # fmt: skip
    results |= _gradients(call, attended.output, attended.lse)
    return {name: tensor.detach() for name, tensor in results.items()}, attended.weights.detach()


def _leaves(call: AttentionCall) -> dict[str, Tensor]:
    names = ("queries", "keys", "values", "bias", "sinks")
    tensors = {name: getattr(call, name) for name in names}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _gradients(call: AttentionCall, output: Tensor, lse: Tensor) -> dict[str, Tensor]:
    """Return the gradients of sum(output * a) + sum(lse * b); every call draws the same a and b."""
    generator = torch.Generator().manual_seed(7)
    by_output = torch.randn(output.shape, generator=generator).to(output)
    by_lse = torch.randn(lse.shape, generator=generator).to(lse)
    leaves = _leaves(call)
    total = (output * by_output).sum() + (lse * by_lse).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return {f"gradient of {name}": part for name, part in zip(leaves, gradients, strict=True)}
