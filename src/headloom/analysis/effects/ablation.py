"""What a head is needed for: take it away, or give it another input's output, and see what changes.

A role says where a head looks. Whether the model uses that only an experiment answers: the model
runs again with the output of the head replaced, and the change in its loss, or in a logit, is what
the head was worth.

Source: Michel et al. 2019 (ablation); Vig et al. 2020, Wang et al. 2022 (patching).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, SupportsIndex, cast

from torch import Tensor, nn

from headloom.analysis.effects.interventions import Intervention, Kind, editing_heads, intervening
from headloom.errors import InputError, optional_package
from headloom.mechanism.shapes import chosen
from headloom.tracing.recording.layer_call import LayerCall

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RanLayer:
    """An attention layer that a model ran: its path in the model, and how many heads it has."""

    name: str
    heads: int


@dataclass(frozen=True)
class HeadEffect:
    """What replacing some heads did.

    heads: (layer, head), both from 0; usually one.
    value: the measure without them; change: less the measure of the whole model.
    at: of an estimate on one input, what each position of the queries adds to the change.
    """

    heads: tuple[tuple[int, int], ...]
    value: float
    change: float
    at: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """The heads as "layer.head", with spaces between them."""
        return " ".join(f"{layer}.{head}" for layer, head in self.heads)

    @property
    def most_at(self) -> int | None:
        """The position that adds most to the change, up or down; None: they are not told apart."""
        return max(range(len(self.at)), key=lambda place: abs(self.at[place]), default=None)


@dataclass(frozen=True)
class Ablation:
    """The measure of the whole model, and the effect of each head, in the order asked.

    estimated: by a gradient (`headloom.analysis.effects.estimates`), not measured.
    """

    kind: Kind
    baseline: float
    layers: tuple[RanLayer, ...]
    effects: tuple[HeadEffect, ...]
    estimated: bool = False

    def by_change(self, limit: int | None = None) -> Ablation:
        """The same with the largest changes first, so many at most."""
        ordered = sorted(self.effects, key=lambda effect: -abs(effect.change))
        return replace(self, effects=tuple(ordered[:limit]))

    def to_pandas(self) -> pandas.DataFrame:
        """A row an effect: layer, head (of several heads: the first), heads, value, change, name.

        Of estimates that tell positions apart also most_at, and what that position adds, there.

        Raises: InputError: pandas is not installed.
        """
        with optional_package("to_pandas"):
            import pandas
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
#: Runs a model, as often as it likes, and gives a number: a loss, a logit.
Measure = Callable[[], float | Tensor]


def ablate(
    model: nn.Module,
    measure: Measure,
    *,
    kind: Kind = "zero",
    heads: Sequence[Group] | None = None,
    positions: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:
    """The change of a measure when heads are taken away, one after the other.

        change = measure without the head - measure

    Args:
        model: of headloom's attention layers, or an unmodified model of Transformers.
        measure: runs the model, as often as it likes, and gives a number: a loss, a logit.
        kind: what a head gives instead: "zero": nothing; "mean": its mean over all positions of
            the runs of `measure`; "uniform": the mean of the values it may look at.
        heads: (layer, head), both from 0, layers in the order of the run; or several such pairs
            that are taken away together. None: each head.
        positions: of queries, at which alone heads give something else; below 0 they count from
            the end. None: at all.
        progress: told how many of how many are done.

    Returns: the measure of the whole model and the change for each head.

    Raises: InputError: no such head or position; a model whose heads cannot be reached.

    >>> import torch
    >>> from headloom.mechanism.multihead import MultiHeadAttention
    >>> layer = MultiHeadAttention(4, heads=2)
    >>> inputs = torch.ones(1, 3, 4)
    >>> found = ablate(layer, lambda: float(layer(inputs).norm()), heads=[[(0, 0), (0, 1)]])
    >>> found.effects[0].value                           # without any head nothing is left
    0.0
    """
    chosen("ablate", "kind", kind, ("zero", "mean", "uniform"))
    baseline, means = whole_model(model, measure)
    return _measured(model, measure, kind, baseline, means, means, heads, positions, progress)


def patch(
    model: nn.Module,
    measure: Measure,
    source: Callable[[], object],
    *,
    heads: Sequence[Group] | None = None,
    positions: Sequence[int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ablation:
    """The change of a measure when heads give what they gave on another input.

    Args:
        model: as for `ablate`.
        measure: runs the model once, and gives a number.
        source: runs the model once on the other input, of as many tokens.
        heads, positions: as for `ablate`.
        progress: likewise.

    Returns: as `ablate`.

    Raises: InputError: inputs of different lengths; no such head or position.
    """
    others = outputs_of(model, source)
    baseline, means = whole_model(model, measure)
    return _measured(model, measure, "patch", baseline, means, others, heads, positions, progress)


def _measured(
    model: nn.Module,
    measure: Measure,
    kind: Kind,
    baseline: float,
    layers: Mapping[str, Tensor],
    others: Mapping[str, Tensor],
    heads: Sequence[Group] | None,
    positions: Sequence[int] | None,
    progress: Callable[[int, int], None],
) -> Ablation:
    """A run for each group of heads. others: by path, (..., heads, 1 or queries, value_depth)."""
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
    """The measure of a whole model; and by layer, in order, what each head gives in the mean.

    Returns: beside it (heads, 1, value_depth), over all positions of all runs, by the layer's path.
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
    """What the heads of each layer give in a run, in order, by the layer's path."""
    outputs: dict[str, Tensor] = {}

    def keep(call: LayerCall, output: Tensor) -> Tensor:
        outputs[call.path] = output
        return output

    with editing_heads(model, keep):
        source()
    return outputs


def attention_layers(model: nn.Module, run: Callable[[], object]) -> list[RanLayer]:
    """The attention layers of a model in the order of a run, each once."""
    outputs = outputs_of(model, run)
    return [RanLayer(path, output.shape[1]) for path, output in outputs.items()]


def groups_of(
    layers: Sequence[RanLayer], heads: Sequence[Group] | None
) -> list[tuple[tuple[int, int], ...]]:
    """The heads to replace, those of a group together.

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
                there = ", ".join(f"{n} with {x.heads}" for n, x in enumerate(layers[:3]))
                raise InputError(
                    f"no head {layer}.{head}: the model has {len(layers)} layers, from 0, and "
                    f"these have heads, from 0: {there}{', ...' * (len(layers) > 3)}."
                )
        groups.append(places)
    return groups
