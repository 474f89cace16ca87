"""`evict`: which keys of a trace policies throw away, and the attention mass lost by it.

All of one layer at a time: its queries and keys are those that the whole cache gave. What earlier
layers would have handed on after their own losses is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headloom.analysis.eviction.policies import POLICIES, Prompt, Rule, kept, rows_of
from headloom.analysis.weights import check_numbers
from headloom.errors import InputError, optional_package
from headloom.formats.files import JsonObject, in_brief
from headloom.formats.trace import TraceData
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import in_words, whole_number

if TYPE_CHECKING:
    import pandas

__all__ = ["BEST_SET", "BEST_SETS", "Eviction", "evict"]

#: Names of the best single set of keys for a prompt, and of the best set anew at every step.
BEST_SET, BEST_SETS = "oracle", "oracle-step"
#: The share of a text that is taken for its prompt where nothing says where it ends.
_PROMPT = 7 / 8
#: Columns that tell the rows of a policy and budget apart, by what a row is.
_LABELS = {"policy": (), "layer": ("layer",), "head": ("layer", "head"), "step": ("step",)}


#: A policy and its name.
NamedRule = tuple[str, Callable[[Prompt, int], Tensor]]
#: Cells of the weights of all heads that are formed at a time: 16 MiB of float32.
_BLOCK_CELLS = 2**22


@dataclass(frozen=True, eq=False)
class Eviction:
    """Attention mass that policies lose on a trace.

    policies: their names; then "oracle", the best single set; and "oracle-step", the best set of
        keys chosen anew at every step.
    budgets: keys of each head that stay.
    prompt: its positions.
    lost: by the number of the layer in the trace, (policies, budgets, heads, steps): the mass of
        each query after the prompt on keys that are gone.
    kept: likewise, (policies without "oracle-step", budgets, kv_heads, prompt), bool.
    """

    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    prompt: int
    lost: Mapping[int, Tensor]
    kept: Mapping[int, Tensor]

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

    def table(self, by: str = "policy") -> pandas.DataFrame:
        """The losses: a row for each policy and budget.

        by: "policy"; or a row for each of these and each "layer", "head" (of each layer) or "step".

        Returns: a DataFrame with the columns

            policy, budget, kept    keys that stay, and their share of the prompt
            layer, head, step       what is asked for; step: the position of the query
            lost                    mass on keys that are gone, the mean over what is not a column
            above                   lost less that of the best set chosen anew at every step for
                                    the heads that share keys: of one of these it may be below 0
            worst_lost, worst_layer, worst_head    by policy and layer: the head that loses most,
                                    mean over steps

        Raises: InputError: pandas is not installed; by is another word.
        """
        with optional_package("evict"):
            import pandas
        if by not in _LABELS:
            raise InputError(f"evict: by={by!r}; expected policy, layer, head or step.")
        labels = _LABELS[by]
        places = [
            (layer, head) for layer, lost in self.lost.items() for head in range(lost.shape[2])
        ]
        parts: dict[tuple[int, ...], Any] = {}
        if by == "step":
            parts = {(self.prompt + step,): (slice(None), step) for step in range(self.steps)}
        else:
            for number, place in enumerate(places):
                parts.setdefault(place[: len(labels)], []).append(number)
        lost, rows = self.lost_by_heads, []
        for budget, keys in enumerate(self.budgets):
            for name, of_heads in zip(self.policies, lost[:, budget], strict=True):
                for part, index in parts.items():
                    mean = float(of_heads[index].mean())
                    row: JsonObject = {"policy": name, "budget": keys, "kept": keys / self.prompt}
                    row |= dict(zip(labels, part, strict=True)) | {"lost": mean}
                    row["above"] = mean - float(lost[-1, budget][index].mean())
                    if by in ("policy", "layer"):
                        means = of_heads[index].mean(-1)
                        layer, head = places[index[int(means.argmax())]]
                        worst = {"worst_layer": layer} if by == "policy" else {}
                        row |= {"worst_lost": float(means.max())} | worst | {"worst_head": head}
                    rows.append(row)
        return pandas.DataFrame(rows)


def evict(
    trace: TraceData,
    *,
    budgets: Sequence[float | str] = (0.05, 0.2, 0.5),
    policies: Sequence[Rule] | None = None,
    prompt: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Eviction:
    """Measure what a cache of fewer keys would have thrown away, and the attention mass lost by it.

        lost_i = sum of P_ij over the keys j that are gone when query i comes

    for every head and every query after the prompt, from the exact weights P of the trace: those
    that the model had with all its keys. Each layer that looks back at its own sequence is looked
    at by itself. Keys go once, after the prompt; all later ones stay. With grouped heads, a key is
    kept or thrown away for all heads that share it.

    Args:
        trace: of a decoder, with its queries and keys.
        budgets: keys of each head that stay: a share of the prompt (0.2, "20%"), or a number of
            keys (512); 1.0 is the whole prompt, 1 one key.
        policies: names of `headloom.analysis.eviction.policies.POLICIES`; or functions from a
            `Prompt` and a budget to scores, (kv_heads, prompt.length), the highest of which stay.
            None: all named ones.
        prompt: its positions. None: those before the first that was generated, or else 7/8.
        progress: told how many layers are done, of how many.

    Raises: InputError: a layer without exact weights; a budget or a prompt that there is not; a
    policy that is not known, or fails.

    Source: policies: see `headloom.analysis.eviction.policies`.
    """
    rules = _rules(policies)
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
    length = _prompt_of(trace, numbers[0], prompt)
    sizes = list(dict.fromkeys(_keys_of(budget, length) for budget in budgets))
    if not sizes:
        raise InputError("evict: budgets=() asks for nothing; give shares or numbers, as (0.2,).")
    lost, stays = {}, {}
    for done, number in enumerate(numbers):
        progress(done, len(numbers))
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
        lost[number], stays[number] = after_prompt(matrix, read, rules, sizes)
    progress(len(numbers), len(numbers))
    names = [*(name for name, _ in rules), BEST_SET, BEST_SETS]
    return Eviction(tuple(names), tuple(sizes), length, lost, stays)


def _prompt_of(trace: TraceData, number: int, asked: int | None) -> int:
    """The length of the prompt, which leaves a query after it."""
    layer = trace.layers[number]
    length = layer.shape[1]
    if length < 2:
        raise InputError(
            "evict: a text of one token; expected 2 or more: losses are those of the queries "
            "after the prompt. Trace a longer text, or a generation."
        )
    if asked is None:
        generated = trace.positions.get(layer.keys_from, {}).get("generated", [])
        asked = generated.index(True) if True in generated else int(_PROMPT * length)
    return whole_number("evict", f"the prompt, of {length:,} tokens,", asked, 1, length - 1)


def _keys_of(budget: float | str, prompt: int) -> int:
    """A budget as a number of keys: a share is rounded down, to one key at least.

    >>> _keys_of(0.2, 3584), _keys_of("20%", 3584), _keys_of(64, 3584), _keys_of(0.001, 10)
    (716, 716, 64, 1)

    Raises: InputError: no key, or more than the prompt has.
    """
    words = str(budget)  # so that numbers of NumPy are taken too
    whole, percent = words.isdecimal(), words.endswith("%")
    try:
        number = int(words) if whole else float(words.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = math.nan
    if 0 < number <= 1 and not whole:
        # Not one key less where the product is a little too small.
        return max(1, int(number * prompt + 1e-9))
    if 1 <= number <= prompt and number == int(number) and not percent:
        return int(number)
    raise InputError(
        f"evict: budget {in_words(budget)}; expected a share of the prompt, as 20% or 0.2, up to "
        f"1.0, or a number of keys, 1 to {prompt:,}."
    )


def _rules(policies: Sequence[Rule] | None) -> list[NamedRule]:
    """Policies with their names."""
    rules = []
    for policy in POLICIES if policies is None else policies:
        name = policy if isinstance(policy, str) else getattr(policy, "__name__", "of its own")
        rule = POLICIES.get(name) if isinstance(policy, str) else policy
        if not callable(rule):
            raise InputError(
                f"evict: no policy {policy!r}; there are {', '.join(POLICIES)}, and functions: on "
                "the command line file.py:function or module:function."
            )
        rules.append((name, rule))
    return rules


def _held(rule: NamedRule, prompt: Prompt, budget: int) -> Tensor:
    """Which keys of the prompt a policy keeps, (kv_heads, length), bool."""
    name, function = rule
    try:
        scores = function(prompt, budget)
        if scores.shape != (prompt.kv_heads, prompt.length) or bool(scores.isnan().any()):
            raise ValueError(f"scores {tuple(scores.shape)}, or some that are not numbers")
    except Exception as error:
        raise InputError(
            f"evict: policy {name} failed ({type(error).__name__}: {in_brief(error)}). Expected a "
            f"tensor of scores, (kv_heads, keys) = {(prompt.kv_heads, prompt.length)}, the highest "
            "kept. headloom --debug evict ... shows where."
        ) from error
    scores = scores.double()
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, kept(scores, budget), True)


def _row_blocks(matrix: AttentionMatrix, rows: range) -> Iterator[range]:
    """Rows of a layer, so many at a time that the weights of all heads stay small."""
    heads, _, keys = matrix.shape
    size = max(1, _BLOCK_CELLS // (heads * keys))
    for start in range(rows.start, rows.stop, size):
        yield range(start, min(start + size, rows.stop))


def after_prompt(
    matrix: AttentionMatrix, prompt: Prompt, rules: Sequence[NamedRule], budgets: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return `lost` and `kept` of a layer whose keys are chosen when the prompt was read.

    The best single set are for each head of keys the keys of the prompt with the largest mass from
    all steps and all heads that share them,

        sum_{i >= prompt} P_ij

    which no single set beats in the sum over these.
    """
    (heads, queries, _), length = matrix.shape, prompt.length
    steps = range(length, queries)
    sums = [rows_of(matrix, rows, length).sum(1) for rows in _row_blocks(matrix, steps)]
    future = prompt.by_kv_head(torch.stack(sums).sum(0))
    rules = [*rules, ("the best set", lambda prompt, budget: future)]
    held = torch.stack(
        [torch.stack([_held(rule, prompt, budget) for budget in budgets]) for rule in rules]
    )
    lost = torch.zeros(len(held) + 1, len(budgets), heads, len(steps))
    for rows in _row_blocks(matrix, steps):
        weights = rows_of(matrix, rows, length)
        own = slice(rows.start - length, rows.stop - length)
        gone = (~held).to(weights.dtype)
        shared = zip(weights.chunk(prompt.kv_heads), lost.chunk(prompt.kv_heads, 2), strict=True)
        for number, (group, of_group) in enumerate(shared):
            of_group[:-1, ..., own] = torch.einsum("hrk,pbk->pbhr", group, gone[:, :, number])
        lost[-1, ..., own] = _best_sets_lost(weights, prompt.kv_heads, budgets)
    return lost, held


def _best_sets_lost(weights: Tensor, kv_heads: int, budgets: Sequence[int]) -> Tensor:
    """Return what each query loses where it keeps its best set of keys, chosen anew for it alone.

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
