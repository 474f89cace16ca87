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

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headloom.analysis.effects.ablation import (
    Ablation,
    Group,
    HeadEffect,
    HeadSums,
    RanLayer,
    groups_of,
    outputs_of,
)
from headloom.analysis.effects.gradients import Layer, backward
from headloom.analysis.effects.head_outputs import Reached
from headloom.analysis.effects.interventions import Kind, editing_heads, uniform
from headloom.errors import InputError, ShapeError
from headloom.mechanism.shapes import chosen, describe, place_of

__all__ = ["estimate"]


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
        kind: what heads would give: see `headloom.analysis.effects.ablation.ablate`; "patch": what
        they
            give in the run of `source`.
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
    patched = {} if source is None else outputs_of(model, source)
    sums = HeadSums()
    with editing_heads(model, sums):
        baseline = float(measure())
    layers = sums.layers()
    added = _Added(layers, kind, sums, patched, positions)

    def run(seen: Sequence[Layer]) -> Tensor:
        added.ran = seen
        return measure()

    backward(model, run, added.receive, operation="estimate")
    effects = []
    for group in groups_of(layers, heads):
        change, at = added.of(group)
        effects.append(HeadEffect(group, baseline + change, change, at))
    return Ablation(kind, baseline, tuple(layers), tuple(effects), estimated=True)


class _Added:
    """Takes the gradients of all calls, and adds up what replacing each head would change."""

    def __init__(
        self,
        layers: Sequence[RanLayer],
        kind: Kind,
        sums: HeadSums,
        patched: dict[str, Tensor],
        positions: Sequence[int] | None,
    ) -> None:
        self._layers, self._kind, self._sums = layers, kind, sums
        self._patched, self._positions = patched, positions
        #: By path, what each head and position adds, (batch, heads, queries), of each call.
        self._found: dict[str, list[Tensor]] = {}
        self.ran: Sequence[Layer] = ()

    def receive(self, _: int, reached: Reached, gradient: Tensor) -> None:
        """One call: what its heads gave, and dm/do."""
        output = reached.heads.output
        added = (gradient.double() * (self._instead(reached) - output).double()).sum(-1)
        if self._positions is not None:
            count = output.shape[2]
            wanted = [
                place_of("input", "estimate", "position", at, count) for at in self._positions
            ]
            only = torch.zeros_like(added)
            only[..., wanted] = added[..., wanted]
            added = only
        self._found.setdefault(reached.path, []).append(added)

    def _instead(self, reached: Reached) -> Tensor:
        """What the heads of a call would give."""
        output, path = reached.heads.output, reached.path
        if self._kind == "zero":
            return torch.zeros_like(output)
        if self._kind == "uniform":
            return uniform(reached.heads)
        if self._kind == "mean":
            return self._sums.means(path).to(output)[:, None].expand_as(output)
        given = self._patched.get(path)
        if given is None or given.shape != output.shape:
            there = "none" if given is None else describe(given)
            raise ShapeError(
                f"estimate: on the other input {path} gives {there}; expected {describe(output)}. "
                "Inputs that are patched into each other need as many tokens."
            )
        return given

    def of(self, group: Sequence[tuple[int, int]]) -> tuple[float, tuple[float, ...]]:
        """What replacing some heads would change, and what each position adds to it."""
        parts = [
            call[:, head]
            for layer, head in group
            for call in self._found.get(self._layers[layer].name, ())
        ]
        change = float(sum(part.sum() for part in parts))
        # One input, whose layers have the same queries: positions are the same everywhere.
        if len({part.shape for part in parts}) != 1 or parts[0].shape[0] != 1:
            return change, ()
        once = len({layer.name for layer in self.ran}) == len(self.ran)
        return change, tuple(torch.stack(parts).sum((0, 1)).tolist()) if once else ()
