"""A call made by headloom."""

from __future__ import annotations

from typing import Any

import torch
from drawing import Case
from formula import last_queries
from torch import Tensor

import headloom
from headloom.mechanism.backends import native

_prepare = native.prepare


def _options(case: Case, of: dict[str, Tensor]) -> dict[str, Any]:
    mask = case.mask
    parameters = {name: of[name] for name in case.parameters}
    scores = {
        "default": lambda: None,
        "scaled": headloom.ScaledDot,
        "dot": headloom.Dot,
        "bilinear": headloom.Bilinear,
        "additive": headloom.Additive,
        "graph": headloom.GraphAttention,
        "graph 2": headloom.GraphAttentionV2,
    }
    relatives: dict[str, Any] = {
        "shaw": headloom.Shaw,
        "alibi": headloom.ALiBi,
        "buckets": headloom.Buckets,
    }
    tables = {name: of[name] for name in case.tables}
    return {
        "mask": mask.to(case.device) if isinstance(mask, Tensor) else mask,
        "score": scores[case.score](**parameters),
        "relative": relatives[case.relative](**tables, **case.relative_options)
        if case.relative != "none"
        else None,
        "bias": of.get("bias"),
        "scale": case.scale,
        "softcap": case.softcap,
        "sinks": of.get("sinks"),
        "backend": case.backend,
    }


def called(case: Case, of: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return headloom's results by name, with a batch dimension, on the CPU."""
    of = {name: tensor.to(case.device) for name, tensor in of.items()}
    inputs = [of[name] if case.batched else of[name][0] for name in ("queries", "keys", "values")]
    options = _options(case, of)

    def prepared(call: Any) -> Any:
        return _prepare(call)._replace(instruction_set=case.instruction_set)

    native.prepare = prepared
    torch.set_num_threads(case.threads)
    try:
        if case.keep == "output":
            results = {"output": headloom.attention(*inputs, **options)}
        elif case.keep == "all":
            output, weights = headloom.attend(*inputs, keep=headloom.All(), **options)
            results = {"output": output, "dense": weights}
        else:
            last = last_queries(case)
            received = headloom.LastQueries(last) if last else False
            output, graph = headloom.attend(
                *inputs, keep=headloom.Top(case.k), received=received, **options
            )
            names = ["keys", "scores", "weights", "lse", "entropy", "rest", "count"]
            names += ["received", "received_most", "received_last"] if last else []
            results = {"output": output} | {name: getattr(graph, name) for name in names}
    finally:
        native.prepare = _prepare
    results = {name: part.cpu() for name, part in results.items()}
    return results if case.batched else {name: part[None] for name, part in results.items()}
