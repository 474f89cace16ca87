"""What a head is needed for: take it away, or give it another input's output, and see what changes.

A role says where a head looks. Whether the model uses that is another question, and one that only
an experiment answers: the model runs again with the output of the head replaced, and the change in
its loss, or in a logit, is what the head was worth.

Source: Michel et al. 2019 (ablation); Vig et al. 2020, Wang et al. 2022 (patching).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, cast

from torch import Tensor, nn

from headloom.analysis.effects.interventions import Intervention, Kind, editing_heads, intervening
from headloom.errors import InputError, ShapeError, optional_package
from headloom.mechanism.attention_layer import HeadOutputs
from headloom.mechanism.shapes import chosen, describe, in_words

if TYPE_CHECKING:
    import pandas

__all__ = [
    "Ablation",
    "Group",
    "HeadEffect",
    "HeadSums",
    "Measure",
    "RanLayer",
    "ablate",
    "attention_layers",
    "chosen_logit",
    "groups_of",
    "next_token_loss",
    "outputs_of",
    "patch",
]


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
        if not self.at:
            return None
        return max(range(len(self.at)), key=lambda position: abs(self.at[position]))


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
        rows = [
            {
                "layer": effect.heads[0][0],
                "head": effect.heads[0][1],
                "heads": effect.name,
                "value": effect.value,
                "change": effect.change,
                "name": self.layers[effect.heads[0][0]].name,
                "most_at": effect.most_at,
                "there": None if effect.most_at is None else effect.at[effect.most_at],
            }
            for effect in self.effects
        ]
        columns = ["layer", "head", "heads", "value", "change", "name"]
        if any(effect.at for effect in self.effects):
            columns += ["most_at", "there"]
        return pandas.DataFrame(rows, columns=columns)


def attention_layers(model: nn.Module, run: Callable[[], object]) -> list[RanLayer]:
    """The attention layers of a model in the order of a run, each once."""
    found: dict[str, RanLayer] = {}

    def see(path: str, heads: HeadOutputs) -> Tensor:
        found.setdefault(path, RanLayer(path, heads.output.shape[1]))
        return heads.output

    with editing_heads(model, see):
        run()
    return list(found.values())


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
    sums = HeadSums()
    with editing_heads(model, sums):
        baseline = float(measure())

    def instead(path: str, head: int) -> Tensor | None:
        return sums.means(path)[head] if kind == "mean" else None

    effects = _effects(
        model, measure, kind, instead, sums.layers(), baseline, heads, positions, progress
    )
    return Ablation(kind, baseline, tuple(sums.layers()), effects)


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
    outputs = outputs_of(model, source)
    layers = [RanLayer(path, output.shape[1]) for path, output in outputs.items()]
    with editing_heads(model, lambda path, heads: heads.output):
        baseline = float(measure())

    def instead(path: str, head: int) -> Tensor | None:
        return outputs[path][:, head]

    effects = _effects(
        model, measure, "patch", instead, layers, baseline, heads, positions, progress
    )
    return Ablation("patch", baseline, tuple(layers), effects)


def _effects(
    model: nn.Module,
    measure: Measure,
    kind: Kind,
    instead: Callable[[str, int], Tensor | None],
    layers: Sequence[RanLayer],
    baseline: float,
    heads: Sequence[Group] | None,
    positions: Sequence[int] | None,
    progress: Callable[[int, int], None],
) -> tuple[HeadEffect, ...]:
    """A run for each group of heads. instead: what a head of a layer gives."""
    effects = []
    groups = groups_of(layers, heads)
    for done, group in enumerate(groups, 1):
        places = [(layers[layer].name, head) for layer, head in group]
        interventions = [
            Intervention(path, head, kind, instead(path, head), positions) for path, head in places
        ]
        with intervening(model, interventions):
            value = float(measure())
        effects.append(HeadEffect(group, value, value - baseline))
        progress(done, len(groups))
    return tuple(effects)


def outputs_of(model: nn.Module, source: Callable[[], object]) -> dict[str, Tensor]:
    """What the heads of each layer give in a run, by the layer's path."""
    outputs: dict[str, Tensor] = {}

    def keep(path: str, heads: HeadOutputs) -> Tensor:
        outputs[path] = heads.output
        return heads.output

    with editing_heads(model, keep):
        source()
    return outputs


class HeadSums:
    """What each head gives in the mean, over all positions of all runs."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, path: str, heads: HeadOutputs) -> Tensor:
        batch, _, queries, _ = heads.output.shape
        total = heads.output.double().sum((0, 2))
        self._sums[path] = self._sums[path] + total if path in self._sums else total
        self._counts[path] = self._counts.get(path, 0) + batch * queries
        return heads.output

    def layers(self) -> list[RanLayer]:
        """The layers that ran, in order, each once."""
        return [RanLayer(path, len(total)) for path, total in self._sums.items()]

    def means(self, path: str) -> Tensor:
        """Of the heads of a layer, (heads, value_depth)."""
        return self._sums[path] / self._counts[path]


def groups_of(
    layers: Sequence[RanLayer], heads: Sequence[Group] | None
) -> list[tuple[tuple[int, int], ...]]:
    """The heads to replace, those of a group together.

    Raises: InputError: no such head, or something else than heads.
    """
    if heads is None:
        heads = [(n, head) for n, layer in enumerate(layers) for head in range(layer.heads)]
    groups: list[tuple[tuple[int, int], ...]] = []
    for group in heads:
        try:
            alone = len(group) == 2 and isinstance(group[0], SupportsIndex)
            pairs = cast("Sequence[tuple[int, int]]", [group] if alone else group)
            places = tuple((index(layer), index(head)) for layer, head in pairs)
        except (TypeError, ValueError):
            raise InputError(
                f"heads={in_words(heads)}; expected [(layer, head), ...], both from 0, or several "
                "such pairs in the place of one."
            ) from None
        for layer, head in places:
            if not (0 <= layer < len(layers) and 0 <= head < layers[layer].heads):
                of_layer = layers[layer].heads if 0 <= layer < len(layers) else 0
                raise InputError(
                    f"no head {layer}.{head}: the model has layers 0 to {len(layers) - 1}"
                    + (f", this one heads 0 to {of_layer - 1}." if of_layer else ".")
                )
        if places:
            groups.append(places)
    return groups


def next_token_loss(logits: Tensor, tokens: Tensor, ignore: int | None = None) -> Tensor:
    """Mean cross-entropy of each token given those before it, in nats.

    Args:
        logits: (batch, length, vocabulary), of the model that read `tokens`.
        tokens: ids, (batch, length).
        ignore: an id that does not count, as of padding.

    >>> import torch
    >>> next_token_loss(torch.zeros(1, 3, 8), torch.tensor([[1, 2, 3]]))               # log 8
    tensor(2.0794)
    """
    if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        raise ShapeError(
            f"next_token_loss: logits {describe(logits)} for tokens {describe(tokens)}; expected "
            "(batch, length, vocabulary) and (batch, length)."
        )
    targets = tokens[:, 1:].flatten()
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(),
        targets,
        ignore_index=-100 if ignore is None else ignore,
    )


def chosen_logit(
    logits: Tensor, token: int, *, minus: int | None = None, position: int = -1
) -> Tensor:
    """The logit of a token at a position, less that of another; the mean over a batch.

    Args:
        logits: (batch, length, vocabulary).
        token: whose.
        minus: whose logit is taken off; None: nobody's.
        position: where; -1: the last.

    >>> import torch
    >>> chosen_logit(torch.tensor([[[0.5, 2.0, 1.0]]]), token=1, minus=0)
    tensor(1.5000)
    """
    for name, place, size in (
        ("position", position, logits.shape[1]),
        ("token", token, logits.shape[2]),
        ("minus", minus or 0, logits.shape[2]),
    ):
        if not -size <= place < size or (place < 0 and name != "position"):
            raise InputError(f"chosen_logit: {name} {place}; there are {size}, counted from 0.")
    there = logits[:, position].float()
    found = there[:, token] if minus is None else there[:, token] - there[:, minus]
    return found.mean()
