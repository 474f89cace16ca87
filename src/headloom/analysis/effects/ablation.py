"""Ablation and patching of heads: the change of a loss or a logit when their output is replaced.

A role describes a head's attention. Whether the model uses it needs an experiment: the model runs
again with the output of the head replaced, by nothing, a mean, or the output on another input.

Source: Michel et al. 2019 (ablation); Vig et al. 2020, Wang et al. 2022 (patching).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import SupportsIndex, cast

import pandas
from torch import Tensor, nn

from headloom.analysis.effects.interventions import Intervention, Kind, editing_heads, intervening
from headloom.errors import InputError
from headloom.mechanism.shapes import chosen
from headloom.tracing.recording.layer_call import LayerCall


@dataclass(frozen=True)
class RanLayer:
    """Attention layer of a model's run: its path in the model, and its number of heads."""

    name: str
    heads: int


@dataclass(frozen=True)
class HeadEffect:
    """Effect of replacing some heads.

    heads: (layer, head), both from 0; usually one pair.
    value: the measure without them; change: value - the measure of the whole model.
    at: for an estimate on one input, the part of the change at each query.
    """

    heads: tuple[tuple[int, int], ...]
    value: float
    change: float
    at: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """Heads as "layer.head", separated by spaces."""
        return " ".join(f"{layer}.{head}" for layer, head in self.heads)

    @property
    def most_at(self) -> int | None:
        """Position with the largest part of the change; None: unknown."""
        return max(range(len(self.at)), key=lambda place: abs(self.at[place]), default=None)


@dataclass(frozen=True)
class Ablation:
    """Measure of the whole model, and the effect of each head, in the order of the request.

    estimated: by a gradient (`headloom.analysis.effects.estimates`), not measured.
    """

    kind: Kind
    baseline: float
    layers: tuple[RanLayer, ...]
    effects: tuple[HeadEffect, ...]
    estimated: bool = False

    def by_change(self, limit: int | None = None) -> Ablation:
        """Return a copy with the largest changes first, at most `limit`."""
        ordered = sorted(self.effects, key=lambda effect: -abs(effect.change))
        return replace(self, effects=tuple(ordered[:limit]))

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row for each effect: layer, head (the first of several), heads, value, change.

        Also the layer's name; and for estimates by position most_at, and its part of the change,
        there.
        """
        rows = []
        for effect in self.effects:
            layer, head = effect.heads[0]
            row = {
                "layer": layer, "head": head, "heads": effect.name, "value": effect.value,
                "change": effect.change, "name": self.layers[layer].name,
            }  # fmt: skip
            if (place := effect.most_at) is not None:
                row |= {"most_at": place, "there": effect.at[place]}
            rows.append(row)
        return pandas.DataFrame(rows)


Group = tuple[int, int] | Sequence[tuple[int, int]]
#: Runs a model, once or several times, and returns a number: a loss, a logit.
Measure = Callable[[], float | Tensor]


def ablate(
    model: nn.Module, measure: Measure, *, kind: Kind = "zero",
    heads: Sequence[Group] | None = None, positions: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:  # fmt: skip
    """Measure the change when heads are removed, one after the other.

        change = measure without the head - measure

    Args:
        model: of headloom's attention layers, or an unmodified model of Transformers.
        measure: runs the model, once or several times, and returns a number: a loss, a logit.
        kind: replacement of a head's output: "zero"; "mean": its mean over all positions of the
            runs of `measure`; "uniform": the mean of the visible values.
        heads: (layer, head), both from 0, layers in the order of the run; or lists of such pairs to
            remove together. None: each head.
        positions: queries at which the output is replaced; below 0 they count from the end. None:
            all.
        progress: called with the number done and the total.

    Returns: the measure of the whole model and the change for each head.

    Raises: InputError: no such head or position; a model whose heads cannot be replaced.

    >>> import torch
    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2)
    >>> inputs = torch.ones(1, 3, 4)
    >>> ablation = ablate(layer, lambda: float(layer(inputs).norm()), heads=[[(0, 0), (0, 1)]])
    >>> ablation.effects[0].value                        # without any head nothing is left
    0.0
    """
    chosen("ablate", "kind", kind, ("zero", "mean", "uniform"))
    baseline, means = whole_model(model, measure)
    return _measured(model, measure, kind, baseline, means, means, heads, positions, progress)


def patch(
    model: nn.Module, measure: Measure, source: Callable[[], object], *,
    heads: Sequence[Group] | None = None, positions: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:  # fmt: skip
    """Measure the change when heads have the outputs of another input.

    Args:
        model: as for `ablate`.
        measure: runs the model once, and returns a number.
        source: runs the model once on the other input, of as many tokens.
        heads: as for `ablate`.
        positions: as for `ablate`.
        progress: as for `ablate`.

    Raises: InputError: inputs of different lengths; no such head or position.
    """
    others = outputs_of(model, source)
    baseline, means = whole_model(model, measure)
    return _measured(model, measure, "patch", baseline, means, others, heads, positions, progress)


def _measured(
    model: nn.Module, measure: Measure, kind: Kind, baseline: float, layers: Mapping[str, Tensor],
    others: Mapping[str, Tensor], heads: Sequence[Group] | None, positions: Sequence[int] | None,
    progress: Callable[[int, int], None],
) -> Ablation:  # fmt: skip
    """Run each group of heads. others: by path, (..., heads, 1 or queries, value_depth)."""
    ran = [RanLayer(path, output.shape[-3]) for path, output in layers.items()]
    effects: list[HeadEffect] = []
    groups = groups_of(ran, heads)
    for group in groups:
        interventions = []
        for layer, head in group:
            path = ran[layer].name
            other = others[path][..., head, :, :] if kind in ("mean", "patch") else None
            interventions.append(Intervention(path, head, kind, other, positions))
        with intervening(model, interventions):
            value = float(measure())
        effects.append(HeadEffect(group, value, value - baseline))
        progress(len(effects), len(groups))
    return Ablation(kind, baseline, tuple(ran), tuple(effects))


def whole_model(model: nn.Module, measure: Measure) -> tuple[float, dict[str, Tensor]]:
    """Return the measure of the whole model, and the mean outputs of the heads of each layer.

    The means, (heads, 1, value_depth), are over all positions of all runs, by the layer's path.
    """
    sums: dict[str, Tensor] = {}
    counts = Counter[str]()

    def add(call: LayerCall, output: Tensor) -> Tensor:
        total = output.double().sum((0, 2))[:, None]
        sums[call.path] = sums[call.path] + total if call.path in sums else total
        counts[call.path] += output.shape[0] * output.shape[2]
        return output

    with editing_heads(model, add):
        baseline = float(measure())
    return baseline, {path: total / counts[path] for path, total in sums.items()}


def outputs_of(model: nn.Module, source: Callable[[], object]) -> dict[str, Tensor]:
    """Return the outputs of the heads of each layer in a run, in order, by the layer's path."""
    outputs: dict[str, Tensor] = {}

    def keep(call: LayerCall, output: Tensor) -> Tensor:
        outputs[call.path] = output
        return output

    with editing_heads(model, keep):
        source()
    return outputs


def attention_layers(model: nn.Module, run: Callable[[], object]) -> list[RanLayer]:
    """Return the attention layers of a model in the order of a run, each once."""
    outputs = outputs_of(model, run)
    return [RanLayer(path, output.shape[1]) for path, output in outputs.items()]


def groups_of(
    layers: Sequence[RanLayer], heads: Sequence[Group] | None
) -> list[tuple[tuple[int, int], ...]]:
    """Return the groups of heads to replace together.

    Raises: InputError: no such head.
    """
    if heads is None:
        heads = [(n, head) for n, layer in enumerate(layers) for head in range(layer.heads)]
    groups = []
    for group in heads:
        pairs = [group] if isinstance(group[0], SupportsIndex) else group
        places = tuple(
            (int(layer), int(head)) for layer, head in cast(list[tuple[int, int]], pairs)
        )
        for layer, head in places:
            if not 0 <= layer < len(layers) or not 0 <= head < layers[layer].heads:
                counts = ", ".join(f"{n} with {x.heads}" for n, x in enumerate(layers[:3]))
                raise InputError(
                    f"no head {layer}.{head}: the model has {len(layers)} layers, from 0, and "
                    f"these have heads, from 0: {counts}{', ...' * (len(layers) > 3)}."
                )
        groups.append(places)
    return groups
