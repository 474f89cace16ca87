"""Estimates of the effect of replacing each head, for all heads at once by one gradient.

    change  ~  sum over positions i and dimensions d of  dm/do_id (o'_id - o_id)

for a measure m, the output o of a head and its replacement o': the first-order approximation of
what `headloom.analysis.effects.ablation` measures by a run for each head. It holds for small
changes: it misses saturated softmaxes, and heads that replace each other. So use it to find heads
that are worth measuring.

Source: Molchanov et al. 2017 (zero); Michel et al. 2019 (heads); Nanda 2023, "Attribution
patching", and Syed et al. 2023 (outputs of another input).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from headloom.analysis.effects.ablation import (
    Ablation,
    Group,
    HeadEffect,
    RanLayer,
    groups_of,
    outputs_of,
    whole_model,
)
from headloom.analysis.effects.gradients import backward
from headloom.analysis.effects.interventions import Kind, substitute
from headloom.errors import InputError
from headloom.mechanism.shapes import chosen, place_of
from headloom.tracing.recording.layer_call import LayerCall


def estimate(
    model: nn.Module, measure: Callable[[], Tensor], *, kind: Kind = "zero",
    source: Callable[[], object] | None = None, heads: Sequence[Group] | None = None,
    positions: Sequence[int] | None = None,
) -> Ablation:  # fmt: skip
    """Estimate the change of a measure when heads are removed, or patched, all in one run.

        change ~ sum of dm/do (o' - o)

    The model runs twice, the second time with gradients and activation checkpointing (blocks keep
    only their inputs), so that memory stays close to a plain run.

    Args:
        model: as for `headloom.analysis.effects.ablation.ablate`.
        measure: runs the model, once or several times, and returns a number in a tensor, with its
            gradient.
        kind: replacement: as for `ablate`; "patch": the outputs in the run of `source`.
        source: runs the model once on another input of as many tokens, for "patch".
        heads: as for `ablate`.
        positions: as for `ablate`.

    Returns: as `ablate`, estimated. If each layer ran once on one input, ``at`` has the part of
        each position.

    Raises: InputError: no such head, position or kind; a model whose heads cannot be replaced; a
        measure without a gradient. ShapeError: inputs of different lengths.

    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2, bias=False)
    >>> inputs = torch.eye(4)[None]
    >>> result = estimate(layer, lambda: layer(inputs).sum())     # linear in the outputs of heads,
    >>> total = sum(effect.change for effect in result.effects)   # so their effects add up to all
    >>> abs(total + result.baseline) < 1e-5
    True
    """
    chosen("estimate", "kind", kind, ("zero", "mean", "uniform", "patch"))
    if (source is None) != (kind != "patch"):
        raise InputError(
            'estimate: kind="patch" needs source=, which runs the model on another input, and no '
            "other kind does."
        )
    baseline, means = whole_model(model, measure)
    others: Mapping[str, Tensor] = means if source is None else outputs_of(model, source)
    #: By path, the part of each head and position, (batch, heads, queries), for each call.
    added: dict[str, list[Tensor]] = defaultdict(list)

    def receive(call: LayerCall, output: Tensor, gradient: Tensor) -> None:
        instead = substitute(call, output, kind, others.get(call.path))
        adds = (gradient.double() * (instead.double() - output.double())).sum(-1)
        if positions is not None:
            length = adds.shape[2]
            places = [place_of("input", "estimate", "position", at, length) for at in positions]
            adds *= torch.isin(torch.arange(length), torch.tensor(places)).to(adds)
        added[call.path].append(adds)

    backward(model, lambda calls: measure(), receive, operation="estimate")
    layers = [RanLayer(path, len(mean)) for path, mean in means.items()]
    effects = []
    for group in groups_of(layers, heads):
        parts = [adds[:, head] for layer, head in group for adds in added[layers[layer].name]]
        change = float(sum(part.sum() for part in parts))
        # Positions match if layers with as many queries ran once, on one input.
        once = all(len(added[layers[layer].name]) == 1 for layer, _ in group)
        one_input = once and len({part.shape for part in parts}) == 1 and len(parts[0]) == 1
        at = tuple(torch.stack(parts).sum((0, 1)).tolist()) if one_input else ()
        effects.append(HeadEffect(group, baseline + change, change, at))
    return Ablation(kind, baseline, tuple(layers), tuple(effects), estimated=True)
