"""Eviction policies: which keys a cache keeps when it may not keep all.

A policy gives each key of each key head a score; the highest are kept, as many as the budget says,
and of equal ones the later. With grouped heads a key serves several heads, and is kept or thrown
away for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from weft.analysis.arguments import real_number
from weft.analysis.eviction.prompt import Prompt
from weft.errors import InputError
from weft.mechanism.shapes import check_type, real_tensor, whole_number

__all__ = [
    "POLICIES",
    "Policy",
    "Step",
    "chosen",
    "h2o",
    "kept",
    "observed",
    "snapkv",
    "streaming",
    "tova",
]


@dataclass(frozen=True, eq=False)
class Step:
    """One query of a generation, after which one key must go.

    query: its position. Its own key is there, the keys of later positions are not.
    budget: keys that stay.
    weights: (heads, query + 1), what the softmax gives this query over the keys that the cache
        holds and its own: 0 where a key was thrown away.
    received: (kv_heads, query + 1): the sum of such weights over all queries so far, those of the
        prompt among them, in the mean of the heads that share keys.
    """

    query: int
    budget: int
    weights: Tensor
    received: Tensor


@dataclass(frozen=True)
class Policy:
    """A rule of which keys are kept.

    name: what tables call it.
    prompt: from a prompt that was read, and how many keys are to stay, to the score of each key,
        (kv_heads, prompt.length).
    step: from a query of a generation to the score of each key, (kv_heads, query + 1), of which the
        lowest that the cache holds goes; None: the policy chooses once, after the prompt.
    """

    name: str
    prompt: Callable[[Prompt, int], Tensor]
    step: Callable[[Step], Tensor] | None = None


def kept(scores: Tensor, budget: int) -> Tensor:
    """The positions of the highest scores, of equal ones the later: (..., budget), ascending.

    >>> kept(torch.tensor([[0.5, 0.1, 0.1, 0.3]]), 3).tolist()
    [[0, 2, 3]]
    """
    real_tensor("kept", "the tensor of scores", scores)
    budget = whole_number("kept", "budget", budget, 0)
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices
    return (scores.shape[-1] - 1 - order[..., :budget]).sort(-1).values


def snapkv(prompt: Prompt, budget: int, *, window: int = 64, kernel: int = 5) -> Tensor:
    """SnapKV: what the last queries of the prompt look at, and the neighbours of that.

        score_j = mean over the window's queries i of P_ij,
        then the mean over the ``kernel`` keys around j (0 beyond the ends), and over the group

    The window's own keys are always kept.

    Args:
        prompt: that was read. budget: keys that stay; not used.
        window: its last queries; of a prompt that has no more, half of it.
        kernel: keys that are pooled, an odd number.

    Returns: (kv_heads, length); infinite for the window.
    Raises: InputError: no window, or an even kernel.
    Source: Li et al. 2024, SnapKV, listing 1, with the pooling by means and the mean over a group
    that NVIDIA's kvpress has (window 64, kernel 5).
    """
    _check("snapkv", prompt)
    window = whole_number("snapkv", "window", window)
    kernel = whole_number("snapkv", "kernel", kernel)
    if window < 1 or kernel < 1 or kernel % 2 == 0:
        raise InputError(
            f"snapkv: window={window}, kernel={kernel}; expected 1 query or more, and an odd "
            "number of keys."
        )
    rows = window if prompt.length > window else prompt.length // 2
    if rows < 1:
        return prompt.keys.new_zeros(prompt.kv_heads, prompt.length)
    means = prompt.last(rows)[..., :-rows].mean(1)
    pooled = avg_pool1d(means[:, None], kernel, 1, kernel // 2)[:, 0]
    return pad(prompt.by_kv_head(pooled), (0, rows), value=torch.inf)


def h2o(prompt: Prompt, budget: int, *, recent: float = 0.5) -> Tensor:
    """H2O: the heavy hitters, keys that got most from all queries so far; and the latest ones.

        score_j = sum_i P_ij

    Args:
        prompt: that was read. budget: keys that stay.
        recent: the share of the budget that the latest keys have for certain.

    Returns: (kv_heads, length); infinite for the latest.
    Source: Zhang et al. 2023, H2O, algorithm 1; half of the budget for the latest as in its
    experiments. With grouped heads: the mean over the heads that share keys.
    """
    budget = _check("h2o", prompt, budget)
    recent = real_number("h2o", "recent", recent)
    return _latest_kept(prompt.by_kv_head(prompt.received), int(recent * budget))


def observed(prompt: Prompt, budget: int) -> Tensor:
    """The mean weight that each key got from the queries that came after it, or its own.

        score_j = sum_i P_ij / (length - j)

    Returns: (kv_heads, length).
    Source: ObservedAttentionPress of NVIDIA's kvpress, related to H2O: early keys, which more
    queries have seen, have no advantage, and the latest are not kept for certain.
    """
    _check("observed", prompt)
    seen_by = torch.arange(prompt.length, 0, -1).to(prompt.received)
    return prompt.by_kv_head(prompt.received / seen_by)


def tova(prompt: Prompt, budget: int) -> Tensor:
    """TOVA: what the last query looks at, in the mean of all heads of the layer.

        score_j = mean over heads of P_nj, n the last query

    The last key is always kept.

    Returns: (kv_heads, length), the same for each.
    Source: Oren et al. 2024, Transformers are Multi-State RNNs, section 4.
    """
    _check("tova", prompt)
    return _of_last_query(prompt.last(1)[:, 0], prompt.kv_heads)


def streaming(prompt: Prompt, budget: int, *, sinks: int = 4) -> Tensor:
    """StreamingLLM: the first keys, which are attention sinks, and the latest.

    Returns: (kv_heads, length), the same for each; it looks at no weights.
    Source: Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks, with its 4
    sinks. Positions are not turned anew, as there: weights are those of the trace.
    """
    _check("streaming", prompt)
    sinks = whole_number("streaming", "sinks", sinks, 0)
    return _sinks_and_latest(prompt.length, sinks).expand(prompt.kv_heads, -1)


def _check(policy: str, prompt: Prompt, budget: int = 0) -> int:
    """The budget; an InputError where something is no prompt, or no number of keys."""
    check_type(policy, "the prompt", prompt, Prompt, "a Prompt, as weft.Trace.evict gives policies")
    return whole_number(policy, "budget", budget, 0)


def _latest_kept(scores: Tensor, latest: int) -> Tensor:
    scores = scores.clone()
    scores[:, scores.shape[1] - latest :] = torch.inf
    return scores


def _of_last_query(weights: Tensor, kv_heads: int) -> Tensor:
    return _latest_kept(weights.mean(0).expand(kv_heads, -1), 1)


def _sinks_and_latest(length: int, sinks: int) -> Tensor:
    scores = torch.arange(length, dtype=torch.float32)
    scores[:sinks] = 2.0 * length - scores[:sinks]
    return scores


def _h2o_step(step: Step, *, recent: float = 0.5) -> Tensor:
    return _latest_kept(step.received, int(recent * step.budget))


def _tova_step(step: Step) -> Tensor:
    return _of_last_query(step.weights, len(step.received))


def _streaming_step(step: Step, *, sinks: int = 4) -> Tensor:
    return _sinks_and_latest(step.query + 1, sinks).expand(len(step.received), -1)


#: The policies that have a name, in the order of their papers.
POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("h2o", h2o, _h2o_step),
        Policy("observed", observed),
        Policy("streaming", streaming, _streaming_step),
        Policy("tova", tova, _tova_step),
        Policy("snapkv", snapkv),
    )
}


def chosen(policy: Policy, scores: object, shape: tuple[int, int]) -> Tensor:
    """The scores that a policy gave, checked.

    Raises: InputError: no tensor of this shape, or scores that are no numbers.
    """
    wanted = f"expected a tensor of scores, (kv_heads, keys) = {shape}, the highest kept"
    if not isinstance(scores, Tensor) or scores.shape != shape:
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InputError(f"policy {policy.name}: it gave {found}; {wanted}.")
    if scores.dtype.is_complex or bool(scores.isnan().any()):
        raise InputError(f"policy {policy.name}: some scores are not real numbers; {wanted}.")
    return scores if scores.is_floating_point() else scores.double()
