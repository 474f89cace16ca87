"""`evict`: keys that policies evict on a trace, and the lost attention mass.

Each layer is measured alone, with the queries and keys of the full cache: the effect of losses in
earlier layers is not included.
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

#: Names of the best single set of keys for a prompt, and of the best set at every step.
BEST_SET, BEST_SETS = "oracle", "oracle-step"
#: Default share of the prompt in a text.
_PROMPT = 7 / 8
#: Columns that identify the rows of a policy and budget, for each kind of row.
_LABELS = {"policy": (), "layer": ("layer",), "head": ("layer", "head"), "step": ("step",)}
#: Cells of all heads in a block: 16 MiB of float32.
_BLOCK_CELLS = 2**22

_Rule = Callable[[Prompt, int], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Eviction(Drawn):
    """Attention mass that policies lose on a trace.

    policies: their names; then "oracle", the best single set of keys; and "oracle-step", the best
        set at every step.
    budgets: number of kept keys of each head.
    prompt: number of its positions.
    lost: by the number of the layer in the trace, (policies, budgets, heads, steps): the mass of
        each query after the prompt on evicted keys.
    kept: by layer, (policies without "oracle-step", budgets, kv_heads, prompt), bool.
    note: a sentence about queries and keys in half precision; "": none.
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
        """Draw the keys that each policy keeps, and the loss of every head.

        budget: its number; None: the middle one. ax, width: see `headloom.TraceLayer.plot`.

        Returns: the axes of the losses, by step and by budget.
        Raises: InputError: no such budget.
        """
        return self._plot("eviction", self, budget, ax=ax, width=width)

    @property
    def steps(self) -> int:
        """Number of queries after the prompt."""
        return next(iter(self.lost.values())).shape[-1]

    @property
    def lost_by_heads(self) -> Tensor:
        """Losses of the heads of all layers, (policies, budgets, heads, steps), float64."""
        return torch.cat(list(self.lost.values()), 2).double()

    def __str__(self) -> str:
        """Return a summary in one line."""
        heads = sum(lost.shape[2] for lost in self.lost.values())
        return (
            f"{len(self.lost)} layers, {heads} heads; prompt of {self.prompt:,} tokens, then "
            f"{self.steps:,} steps; keys are evicted once, after the prompt"
        )

    def __repr__(self) -> str:
        table = self.to_pandas().to_string(index=False)
        return f"{table}\n{self}.\nlost: attention mass on keys that are gone"

    def to_pandas(self, by: str = "policy") -> pandas.DataFrame:
        """Return the losses: a row for each policy and budget.

        by: "policy"; or a row for each of these and each "layer", "head" (of each layer) or "step".

        Returns: a DataFrame with the columns

            policy, budget, kept    number of kept keys, and their share of the prompt
            layer, head, step       depending on `by`; step: the position of the query
            lost                    mass on evicted keys, the mean over all other dimensions
            above                   lost less the loss of the best set at every step for the heads
                                    that share keys: for a single head it may be below 0
            worst_lost, worst_layer, worst_head    by policy and layer: the head with the largest
                                    loss, mean over steps

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
        # The last policy is the best set at every step.
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
    """Measure the attention mass lost by eviction from a smaller key cache.

        lost_i = sum of P_ij over the keys j that are evicted before query i

    for every head and every query after the prompt, from the exact weights P of the trace, with all
    its keys. Each causal self-attention layer is measured alone. Keys are evicted once, after the
    prompt; all later ones stay. With grouped heads, a key is kept or evicted for all heads that
    share it.

    Args:
        trace: of a decoder, with its queries and keys; or its path.
        budget: kept keys of each head, one number or several: a share of the prompt (0.2, "20%"),
            or a number of keys (512); 1.0 is the whole prompt, 1 one key.
        policy: "h2o", "observed", "streaming", "tova", "snapkv"; or functions from a `Prompt` and a
            budget to scores, (kv_heads, prompt.length), the highest of which are kept; or the place
            of such a function, "file.py:function" or "module:function", which is run. If only
            functions are given, all named policies are measured too. None: all named ones.
        prompt_tokens: length of the prompt. None: up to the first generated token, or 7/8 of the
            text.
        progress: called with the number of layers done and their total.

    Raises: InputError: a layer without exact weights; an impossible budget or prompt; an unknown
    policy, or one whose scores are not valid.

    Source: policies: see `headloom.analysis.eviction.policies`.
    """
    trace = trace_of("evict", trace)
    rules = [
        _named(rule)
        for rule in ([policy] if isinstance(policy, str) or callable(policy) else policy or ())
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
            "evict: the trace has no causal self-attention layer, as in a decoder; other layers "
            "have no growing key cache. Trace a language model."
        )
    first = trace.layers[numbers[0]]
    prompt = prompt_tokens
    if prompt is None:
        generated = trace.positions.get(first.keys_from, {}).get("generated", [])
        is_generated = True in generated
        prompt = generated.index(True) if is_generated else int(_PROMPT * first.shape[1])
    tokens = f"the prompt, of {first.shape[1]:,} tokens,"
    length = whole_number("evict", tokens, prompt, 1, first.shape[1] - 1)
    shares = [budget] if isinstance(budget, str | float | int) else budget
    sizes = list(dict.fromkeys(_keys_of(size, length) for size in shares))
    lost, stays = {}, {}
    for done, number in enumerate(numbers, 1):
        # A copy, so that the tensors it reads are freed with it.
        layer = replace(trace.layers[number])
        matrix = layer.normalised_matrix
        if matrix is None:
            raise InputError(
                f"evict: layer {layer.name} has no exact weights: {layer.no_matrix}. Trace again "
                "with queries and keys."
            )
        check_numbers(matrix, f"evict: layer {layer.name}")
        read = Prompt(matrix, length, layer.name)
        lost[number], stays[number] = _after_prompt(matrix, read, rules, sizes)
        progress(done, len(numbers))
    names = *(name for name, _ in rules), BEST_SET, BEST_SETS
    return Eviction(names, tuple(sizes), length, lost, stays, in_half_precision(trace.layers))


def _named(policy: Rule) -> tuple[str, _Rule]:
    """Return the name of a policy, and its function."""
    if not isinstance(policy, str):
        return getattr(policy, "__name__", "custom"), policy
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
    """Return a budget as a number of keys: a share is rounded down, to at least one key.

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
        # Not one key less if the product is slightly too small.
        return max(1, int(share * prompt + 1e-9))
    raise InputError(
        f"evict: budget {in_words(budget)}; expected a share of the prompt, such as 20% or 0.2, up "
        f"to 1.0, or a number of keys, 1 to {prompt:,}."
    )


def _after_prompt(
    matrix: AttentionMatrix,
    prompt: Prompt,
    rules: Sequence[tuple[str, _Rule]],
    budgets: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return `lost` and `kept` of a layer for eviction after the prompt.

    The best single set has, for each key head, the keys of the prompt with the largest mass from
    all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no other single set can beat in this sum.
    """
    (heads, queries, keys), length = matrix.shape, prompt.length

    def blocks() -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of steps, and the weights of all heads in them."""
        size = max(1, _BLOCK_CELLS // (heads * keys))
        for start in range(length, queries, size):
            rows = range(start, min(start + size, queries))
            yield slice(start - length, rows.stop - length), rows_of(matrix, rows, length)

    future = prompt.by_kv_head(torch.stack([weights.sum(1) for _, weights in blocks()]).sum(0))
    every: list[tuple[str, _Rule]] = [*rules, (BEST_SET, lambda prompt, budget: future)]
    keeps = torch.zeros(len(every), len(budgets), prompt.kv_heads, length, dtype=torch.bool)
    for number, (name, rule) in enumerate(every):
        for place, budget in enumerate(budgets):
            scores = rule(prompt, budget)
            if scores.shape != keeps.shape[2:] or bool(scores.isnan().any()):
                raise InputError(
                    f"evict: policy {name} returned scores {tuple(scores.shape)}, or NaN. Expected "
                    f"a tensor, (kv_heads, keys) = {tuple(keeps.shape[2:])}; the highest are kept."
                )
            keeps[number, place].scatter_(-1, kept(scores.double(), budget), True)
    lost = torch.zeros(len(every) + 1, len(budgets), heads, queries - length)
    for steps, weights in blocks():
        evicted = (~keeps).to(weights.dtype)
        shared = zip(weights.chunk(prompt.kv_heads), lost.chunk(prompt.kv_heads, 2), strict=True)
        for number, (group, of_group) in enumerate(shared):
            of_group[:-1, ..., steps] = torch.einsum("hrk,pbk->pbhr", group, evicted[:, :, number])
        lost[-1, ..., steps] = _best_sets_lost(weights, prompt.kv_heads, budgets)
    return lost, keeps


def _best_sets_lost(weights: Tensor, kv_heads: int, budgets: Sequence[int]) -> Tensor:
    """Return the loss of each query with its own best set of keys.

        S_i = the b keys with the largest sum of P_ij over the heads that share keys

    No cache of b keys for these heads has a smaller total loss: a lower bound for every policy.

    Args: weights: (heads, rows, keys), with at least as many keys as the largest budget.
    Returns: (budgets, heads, rows).
    """
    grouped = weights.reshape(kv_heads, -1, *weights.shape[1:])
    together = grouped.sum(1)
    # The smallest kept weight, by NumPy's selection, which is much faster than sorting.
    places = [weights.shape[-1] - budget for budget in budgets]
    selected = torch.from_numpy(np.partition(together.numpy(), sorted(set(places)), -1))
    losses = []
    for place in places:
        least = selected[..., place, None]
        below, tied = together < least, together == least
        # Keys tied with the smallest kept weight are evicted in equal shares.
        share = (place - below.sum(-1, keepdim=True)) / tied.sum(-1, keepdim=True)
        losses.append((grouped * (below + tied * share)[:, None]).sum(-1).flatten(0, 1))
    return torch.stack(losses)
