"""What replacing each head would do, estimated for all heads at once by one gradient.

    change  ~  sum over positions i and dimensions d of  dm/do_id (o'_id - o_id)

of a measure m, o what a head gives and o' what it would give instead: the first order of what
`headloom.analysis.effects.ablation` measures by a run for each head. It holds for small changes: a
softmax that is sure, or two heads that stand in for each other, are not seen. So it finds heads
worth measuring; what they are worth is measured.

Source: Molchanov et al. 2017 (by nothing); Michel et al. 2019 (of heads); Nanda 2023, "Attribution
patching", and Syed et al. 2023 (by the outputs of another input).
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
    model: nn.Module,
    measure: Callable[[], Tensor],
    *,
    kind: Kind = "zero",
    source: Callable[[], object] | None = None,
    heads: Sequence[Group] | None = None,
    positions: Sequence[int] | None = None,
) -> Ablation:
    """Estimate the change of a measure when heads are taken away, or patched, all in one run.

        change ~ sum of dm/do (o' - o)

    The model runs twice, the second time with gradients; its blocks keep their inputs alone and are
    computed once more on the way back, so that memory stays near that of a plain run.

    Args:
        model: as for `headloom.analysis.effects.ablation.ablate`.
        measure: runs the model, as often as it likes, and gives a number in a tensor, with its
            gradient.
        kind: what heads would give: as for `ablate`; "patch": what they give in the run of
            `source`.
        source: runs the model once on another input of as many tokens, for "patch".
        heads, positions: as for `ablate`.

    Returns: as `ablate`, estimated. Where each layer ran on one input, in ``at`` what each position
        adds.

    Raises: InputError: no such head, position or kind; a model whose heads cannot be reached; a
        measure without a gradient. ShapeError: inputs of different lengths.

    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2, bias=False)
    >>> inputs = torch.eye(4)[None]
    >>> found = estimate(layer, lambda: layer(inputs).sum())     # linear in what heads give, so
    >>> total = sum(effect.change for effect in found.effects)   # what is taken away is all
    >>> abs(total + found.baseline) < 1e-5
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
    #: By path, what each head and position adds, (batch, heads, queries), of each call.
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
        # Positions are the same where layers with as many queries ran once, on one input.
        once = all(len(added[layers[layer].name]) == 1 for layer, _ in group)
        one_input = once and len({part.shape for part in parts}) == 1 and len(parts[0]) == 1
        at = tuple(torch.stack(parts).sum((0, 1)).tolist()) if one_input else ()
        effects.append(HeadEffect(group, baseline + change, change, at))
    return Ablation(kind, baseline, tuple(layers), tuple(effects), estimated=True)
