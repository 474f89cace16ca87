"""`evict`: which keys of a trace policies throw away, and the attention mass lost by it.

All of one layer at a time: its queries and keys are those that the whole cache gave. What earlier
layers would have handed on after their own losses is not in it.
"""

from __future__ import annotations

import math
import pkgutil
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

from headloom.analysis.arguments import OneTrace, trace_of
from headloom.analysis.eviction.policies import POLICIES, Prompt, Rule, kept, rows_of
from headloom.analysis.weights import check_numbers, in_half_precision
from headloom.errors import InputError
from headloom.formats.files import in_brief
from headloom.mechanism.drawn import Drawn
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import chosen, in_words, whole_number

#: Names of the best single set of keys for a prompt, and of the best set anew at every step.
BEST_SET, BEST_SETS = "oracle", "oracle-step"
#: The share of a text that is taken for its prompt where nothing says where it ends.
_PROMPT = 7 / 8
#: Columns that tell the rows of a policy and budget apart, by what a row is.
_LABELS = {"policy": (), "layer": ("layer",), "head": ("layer", "head"), "step": ("step",)}
#: Cells of the weights of all heads that are formed at a time: 16 MiB of float32.
_BLOCK_CELLS = 2**22

_Rule = Callable[[Prompt, int], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Eviction(Drawn):
    """Attention mass that policies lose on a trace.

    policies: their names; then "oracle", the best single set; and "oracle-step", the best set of
        keys chosen anew at every step.
    budgets: keys of each head that stay.
    prompt: its positions.
    lost: by the number of the layer in the trace, (policies, budgets, heads, steps): the mass of
        each query after the prompt on keys that are gone.
    kept: likewise, (policies without "oracle-step", budgets, kv_heads, prompt), bool.
    note: that queries and keys are stored in half precision, in a sentence; "": they are not.
    """

    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    prompt: int
    lost: Mapping[int, Tensor]
    kept: Mapping[int, Tensor]
    note: str = ""

    def plot(
        self, budget: int | None = None, *, ax: object = None, width: float | None = None
    ) -> Any:
        """Draw which keys each policy keeps, and what every head loses.

        budget: its number; None: the middle one. ax, width: see `headloom.TraceLayer.plot`.

        Returns: the axes of the losses, from step to step and at every budget.
        Raises: InputError: no such budget.
        """
        return self._plot("eviction", self, budget, ax=ax, width=width)

    @property
    def steps(self) -> int:
        """Queries after the prompt."""
        return next(iter(self.lost.values())).shape[-1]

    @property
    def lost_by_heads(self) -> Tensor:
        """The losses of the heads of all layers, (policies, budgets, heads, steps), float64."""
        return torch.cat(list(self.lost.values()), 2).double()

    def __str__(self) -> str:
        """How much was measured, in a line."""
        heads = sum(lost.shape[2] for lost in self.lost.values())
        return (
            f"{len(self.lost)} layers, {heads} heads; prompt of {self.prompt:,} tokens, then "
            f"{self.steps:,} steps; keys go once, after the prompt"
        )

    def __repr__(self) -> str:
        table = self.to_pandas().to_string(index=False)
        return f"{table}\n{self}.\nlost: attention mass on keys that are gone"

    def to_pandas(self, by: str = "policy") -> pandas.DataFrame:
        """Return the losses: a row for each policy and budget.

        by: "policy"; or a row for each of these and each "layer", "head" (of each layer) or "step".

        Returns: a DataFrame with the columns

            policy, budget, kept    keys that stay, and their share of the prompt
            layer, head, step       what is asked for; step: the position of the query
            lost                    mass on keys that are gone, the mean over what is not a column
            above                   lost less that of the best set chosen anew at every step for
                                    the heads that share keys: of one of these it may be below 0
            worst_lost, worst_layer, worst_head    by policy and layer: the head that loses most,
                                    mean over steps

        Raises: InputError: by is another word.
        """
        chosen("evict", "by", by, tuple(_LABELS))
        lost = self.lost_by_heads.transpose(0, 1).mean(2 if by == "step" else 3)
        ranges = self.budgets, range(len(self.policies)), range(lost.shape[2])
        index = pandas.MultiIndex.from_product(ranges, names=["budget", "number", "place"])
        cells = pandas.DataFrame({"lost": lost.flatten().numpy()}, index).reset_index()
        places = [(layer, head) for layer, x in self.lost.items() for head in range(x.shape[2])]
        if by == "step":
            cells["step"] = self.prompt + cells["place"]
        else:
            cells[["layer", "head"]] = [places[place] for place in cells["place"]]
        labels = ["budget", *_LABELS[by]]
        groups = cells.groupby([*labels, "number"], sort=False)["lost"]
        rows = groups.mean().reset_index()
        rows.insert(0, "policy", [self.policies[number] for number in rows["number"]])
        rows.insert(2, "kept", rows["budget"] / self.prompt)
        # Of each budget and part, what the last policy, the best sets, loses.
        rows["above"] = rows["lost"] - rows.groupby(labels)["lost"].transform("last")
        if by in ("policy", "layer"):
            worst = cells.loc[groups.idxmax(), ["lost", "layer", "head"]]
            names = {"lost": "worst_lost", "layer": "worst_layer", "head": "worst_head"}
            for name, column in names.items():
                if name != by:
                    rows[column] = worst[name].to_numpy()
        return rows.drop(columns="number")


def evict(
    trace: OneTrace,
    *,
    budget: float | str | Sequence[float | str] = ("5%", "20%", "50%"),
    policy: Rule | Sequence[Rule] | None = None,
    prompt_tokens: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Eviction:
    """Measure what a cache of fewer keys would have thrown away, and the attention mass lost by it.

        lost_i = sum of P_ij over the keys j that are gone when query i comes

    for every head and every query after the prompt, from the exact weights P of the trace: those
    that the model had with all its keys. Each layer that looks back at its own sequence is looked
    at by itself. Keys go once, after the prompt; all later ones stay. With grouped heads, a key is
    kept or thrown away for all heads that share it.

    Args:
        trace: of a decoder, with its queries and keys; or its path.
        budget: keys of each head that stay, one number or several: a share of the prompt (0.2,
            "20%"), or a number of keys (512); 1.0 is the whole prompt, 1 one key.
        policy: "h2o", "observed", "streaming", "tova", "snapkv"; or functions from a `Prompt` and a
            budget to scores, (kv_heads, prompt.length), the highest of which stay; or where such a
            function is, as "file.py:function" or "module:function", which is run. Functions alone
            are measured beside all named ones. None: all named ones.
        prompt_tokens: positions of the prompt. None: those before the first that was generated, or
            else 7/8.
        progress: told how many layers are done, of how many.

    Raises: InputError: a layer without exact weights; a budget or a prompt that there is not; a
    policy that is not known, or whose scores are none.

    Source: policies: see `headloom.analysis.eviction.policies`.
    """
    trace = trace_of("evict", trace)
    rules = [
        _named(each)
        for each in ([policy] if isinstance(policy, str) or callable(policy) else policy or ())
    ]
    if not any(name in POLICIES for name, _ in rules):
        rules = [*POLICIES.items(), *rules]
    numbers = [
        number
        for number, layer in enumerate(trace.layers)
        if layer.kind == "decoder" and layer.keys_from == layer.queries_from
    ]
    if not numbers:
        raise InputError(
            "evict: the trace has no layer in which a sequence looks back at itself, as in a "
            "decoder: in others there is no cache of keys that grows. Trace a language model."
        )
    first = trace.layers[numbers[0]]
    prompt = prompt_tokens
    if prompt is None:
        generated = trace.positions.get(first.keys_from, {}).get("generated", [])
        is_generated = True in generated
        prompt = generated.index(True) if is_generated else int(_PROMPT * first.shape[1])
    tokens = f"the prompt, of {first.shape[1]:,} tokens,"
    length = whole_number("evict", tokens, prompt, 1, first.shape[1] - 1)
    several = [budget] if isinstance(budget, str | float | int) else budget
    sizes = list(dict.fromkeys(_keys_of(size, length) for size in several))
    lost, stays = {}, {}
    for done, number in enumerate(numbers, 1):
        # A copy, so that what it reads is freed with it.
        layer = replace(trace.layers[number])
        matrix = layer.normalised_matrix
        if matrix is None:
            raise InputError(
                f"evict: layer {layer.name} has no exact weights: {layer.no_matrix}. Eviction is "
                "measured exactly or not at all. Trace again with queries and keys."
            )
        check_numbers(matrix, f"evict: layer {layer.name}")
        read = Prompt(matrix, length, layer.name)
        lost[number], stays[number] = _after_prompt(matrix, read, rules, sizes)
        progress(done, len(numbers))
    names = *(name for name, _ in rules), BEST_SET, BEST_SETS
    return Eviction(names, tuple(sizes), length, lost, stays, in_half_precision(trace.layers))


def _named(policy: Rule) -> tuple[str, _Rule]:
    """A policy with its name."""
    if not isinstance(policy, str):
        return getattr(policy, "__name__", "of its own"), policy
    if policy in POLICIES:
        return policy, POLICIES[policy]
    place, colon, name = policy.rpartition(":")
    if not colon:
        raise InputError(
            f"evict: no policy {policy!r}; there are {', '.join(POLICIES)}, and functions, as "
            "file.py:function or module:function."
        )
    try:
        in_file = place.endswith(".py")
        rule: _Rule = runpy.run_path(place)[name] if in_file else pkgutil.resolve_name(policy)
    except Exception as error:
        raise InputError(
            f"policy {policy}: cannot be loaded ({type(error).__name__}: {in_brief(error)}). "
            "Expected a name, file.py:function or module:function; headloom --debug shows where."
        ) from error
    return _named(rule)


def _keys_of(budget: float | str, prompt: int) -> int:
    """A budget as a number of keys: a share is rounded down, to one key at least.

    >>> _keys_of(0.2, 3584), _keys_of("20%", 3584), _keys_of(64, 3584), _keys_of(0.001, 10)
    (716, 716, 64, 1)
    """
    words = str(budget)
    if words.isdecimal() and 1 <= int(words) <= prompt:
        return int(words)
    try:
        share = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if 0 < share <= 1 and not words.isdecimal():
        # Not one key less where the product is a little too small.
        return max(1, int(share * prompt + 1e-9))
    raise InputError(
        f"evict: budget {in_words(budget)}; expected a share of the prompt, as 20% or 0.2, up to "
        f"1.0, or a number of keys, 1 to {prompt:,}."
    )


def _after_prompt(
    matrix: AttentionMatrix,
    prompt: Prompt,
    rules: Sequence[tuple[str, _Rule]],
    budgets: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """`lost` and `kept` of a layer whose keys are chosen when the prompt was read.

    The best single set are for each head of keys the keys of the prompt with the largest mass from
    all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no single set beats in the sum over these.
    """
    (heads, queries, keys), length = matrix.shape, prompt.length

    def blocks() -> Iterator[tuple[slice, Tensor]]:
        """The steps, so many at a time that the weights of all heads stay small, with these."""
        size = max(1, _BLOCK_CELLS // (heads * keys))
        for start in range(length, queries, size):
            rows = range(start, min(start + size, queries))
            yield slice(start - length, rows.stop - length), rows_of(matrix, rows, length)

    future = prompt.by_kv_head(torch.stack([weights.sum(1) for _, weights in blocks()]).sum(0))
    every: list[tuple[str, _Rule]] = [*rules, (BEST_SET, lambda prompt, budget: future)]
    held = torch.zeros(len(every), len(budgets), prompt.kv_heads, length, dtype=torch.bool)
    for number, (name, rule) in enumerate(every):
        for place, budget in enumerate(budgets):
            scores = rule(prompt, budget)
            if scores.shape != held.shape[2:] or bool(scores.isnan().any()):
                raise InputError(
                    f"evict: policy {name} gave scores {tuple(scores.shape)}, or some that are not "
                    f"numbers. Expected a tensor, (kv_heads, keys) = {tuple(held.shape[2:])}, the "
                    "highest kept."
                )
            held[number, place].scatter_(-1, kept(scores.double(), budget), True)
    lost = torch.zeros(len(every) + 1, len(budgets), heads, queries - length)
    for steps, weights in blocks():
        gone = (~held).to(weights.dtype)
        shared = zip(weights.chunk(prompt.kv_heads), lost.chunk(prompt.kv_heads, 2), strict=True)
        for number, (group, of_group) in enumerate(shared):
            of_group[:-1, ..., steps] = torch.einsum("hrk,pbk->pbhr", group, gone[:, :, number])
        lost[-1, ..., steps] = _best_sets_lost(weights, prompt.kv_heads, budgets)
    return lost, held


def _best_sets_lost(weights: Tensor, kv_heads: int, budgets: Sequence[int]) -> Tensor:
    """What each query loses where it keeps its best set of keys, chosen anew for it alone.

        S_i = the b keys with the largest sum of P_ij over the heads that share keys

    No cache of b keys for these heads loses less in their sum: a bound for every policy.

    Args: weights: (heads, rows, keys), of at least as many keys as the largest budget.
    Returns: (budgets, heads, rows).
    """
    grouped = weights.reshape(kv_heads, -1, *weights.shape[1:])
    together = grouped.sum(1)
    # The least weight that stays, by selection: NumPy's is many times as fast as a sort.
    places = [weights.shape[-1] - budget for budget in budgets]
    selected = torch.from_numpy(np.partition(together.numpy(), sorted(set(places)), -1))
    losses = []
    for place in places:
        least = selected[..., place, None]
        below, tied = together < least, together == least
        # Keys of one weight with the last that stays go by the share of them that is too many.
        share = (place - below.sum(-1, keepdim=True)) / tied.sum(-1, keepdim=True)
        losses.append((grouped * (below + tied * share)[:, None]).sum(-1).flatten(0, 1))
    return torch.stack(losses)
