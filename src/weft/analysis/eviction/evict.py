"""`evict`: what policies would have thrown away of a trace's keys, and what that loses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from weft.analysis.arguments import check_trace, whole_numbers
from weft.analysis.eviction.layer import Given, LayerEviction, after_prompt, at_each_step
from weft.analysis.eviction.policies import POLICIES, Policy
from weft.analysis.eviction.prompt import Prompt
from weft.analysis.interval import check_numbers
from weft.errors import InputError, ShapeError, optional_package
from weft.formats.files import JsonObject
from weft.formats.trace import TraceData, TraceLayer
from weft.mechanism.shapes import (
    check_flag,
    check_type,
    describe,
    in_words,
    place_of,
    real_tensor,
    whole_number,
)

if TYPE_CHECKING:
    import pandas

__all__ = [
    "BEST_SET",
    "BEST_SETS",
    "Eviction",
    "Rule",
    "evict",
    "keys_of",
    "named_policies",
    "prompt_of",
]

#: What tables call the best single set of keys for a prompt, and the best set anew at every step.
BEST_SET, BEST_SETS = "oracle", "oracle-step"
#: The share of a text that is taken for its prompt where nothing says where it ends.
_PROMPT = 7 / 8
#: A policy by its name, as an object, or as a function from a prompt and a budget to scores.
Rule = str | Policy | Callable[[Prompt, int], Tensor]


@dataclass(frozen=True, eq=False)
class Eviction:
    """What policies lose on a trace.

    policies: their names; the last is the best single set, where keys are chosen once.
    budgets: keys of each head that stay; shares: of the prompt, as they were asked for.
    prompt: its positions; steps: the queries after it.
    each_step: whether the budget holds at every step, or keys are chosen once, after the prompt.
    layers: by the number of the layer in the trace.
    kinds: the kind of each of them.
    passed_over: the layers that are not of a sequence that looks back at itself.
    """

    policies: tuple[str, ...]
    budgets: tuple[int, ...]
    shares: tuple[float, ...]
    prompt: int
    steps: int
    each_step: bool
    layers: Mapping[int, LayerEviction]
    passed_over: tuple[str, ...] = ()

    @property
    def shares_keys(self) -> bool:
        """Whether heads share keys, so that a key stays or goes for several of them."""
        return any(
            layer.evicted_after.shape[2] < layer.lost.shape[2] for layer in self.layers.values()
        )

    def lost(self, policy: str, budget: int) -> Tensor:
        """The mass lost with a policy and a budget, by its place: (layers, heads, steps).

        The name ``oracle-step`` gives the bound. Layers must have as many heads.
        """
        if policy == BEST_SETS:
            return torch.stack([layer.best[budget] for layer in self.layers.values()])
        number = self.policies.index(policy)
        return torch.stack([layer.lost[number, budget] for layer in self.layers.values()])

    def table(self, by: str = "policy") -> pandas.DataFrame:
        """The losses: a row for each policy and budget.

        by: "policy"; or a row for each of these and each "layer", "head" (of each layer) or "step".

        Returns: a DataFrame with the columns

            policy, budget, keys, kept    budget: the share of the prompt's keys that was asked for;
                                    keys, kept: how many stay, and what share that is
            layer, head, step       what is asked for; step: the position of the query
            lost                    mass on keys that are gone, the mean over what is not a column
            above                   lost less that of the best set chosen anew at every step for
                                    the heads that share keys: of one of these it may be below 0
            worst_lost, worst_layer, worst_head    by policy: the head that loses most, mean over
                                    steps; by layer without worst_layer
            output, layer_output    relative change of the outputs of heads and of layers, means;
                                    where values, and W_O, are known

        Raises: InputError: pandas is not installed; by is another word.
        """
        with optional_package("evict"):
            import pandas
        if by not in ("policy", "layer", "head", "step"):
            raise InputError(f"evict: by={by!r}; expected policy, layer, head or step.")
        rows: list[JsonObject] = []
        for place, (keys, share) in enumerate(zip(self.budgets, self.shares, strict=True)):
            for name in (*self.policies, BEST_SETS):
                kept = keys / self.prompt
                labels: JsonObject = {"policy": name, "budget": share, "keys": keys, "kept": kept}
                found = {n: self._of(layer, name, place) for n, layer in self.layers.items()}
                rows += [labels | row for row in _ROWS[by](found, self.prompt)]
        return pandas.DataFrame(rows)

    def _of(self, layer: LayerEviction, name: str, budget: int) -> _Part:
        best = layer.best[budget]
        if name == BEST_SETS:
            return _Part(best, best, None, None)
        number = self.policies.index(name)
        return _Part(
            layer.lost[number, budget],
            best,
            None if layer.output is None else layer.output[number, budget],
            None if layer.layer_output is None else layer.layer_output[number, budget],
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """A layer under one policy and budget: (heads, steps), and (steps,) of the layer's output."""

    lost: Tensor
    best: Tensor
    output: Tensor | None
    layer_output: Tensor | None


def _mean(tensors: Sequence[Tensor | None]) -> float:
    """Of all numbers; NaN where one tensor is not known."""
    known = [tensor.double().flatten() for tensor in tensors if tensor is not None]
    return float(torch.cat(known).mean()) if known and len(known) == len(tensors) else math.nan


def _measures(parts: Sequence[_Part]) -> JsonObject:
    lost = _mean([part.lost for part in parts])
    return {
        "lost": lost,
        "above": lost - _mean([part.best for part in parts]),
        "output": _mean([part.output for part in parts]),
        "layer_output": _mean([part.layer_output for part in parts]),
    }


def _by_policy(parts: Mapping[int, _Part], prompt: int) -> list[JsonObject]:
    heads = {
        (layer, head): float(lost)
        for layer, part in parts.items()
        for head, lost in enumerate(part.lost.double().mean(-1))
    }
    layer, head = max(heads, key=lambda place: heads[place])
    worst = {"worst_lost": heads[layer, head], "worst_layer": layer, "worst_head": head}
    return [_measures(list(parts.values())) | worst]


def _by_layer(parts: Mapping[int, _Part], prompt: int) -> list[JsonObject]:
    rows = []
    for layer, part in parts.items():
        heads = part.lost.double().mean(-1)
        worst = {"worst_lost": float(heads.max()), "worst_head": int(heads.argmax())}
        rows.append({"layer": layer} | _measures([part]) | worst)
    return rows


def _by_head(parts: Mapping[int, _Part], prompt: int) -> list[JsonObject]:
    return [
        {"layer": layer, "head": head}
        | _measures(
            [
                _Part(
                    part.lost[head],
                    part.best[head],
                    None if part.output is None else part.output[head],
                    None,
                )
            ]
        )
        for layer, part in parts.items()
        for head in range(len(part.lost))
    ]


def _by_step(parts: Mapping[int, _Part], prompt: int) -> list[JsonObject]:
    steps = next(iter(parts.values())).lost.shape[-1]
    return [
        {"step": prompt + step}
        | _measures(
            [
                _Part(
                    part.lost[:, step],
                    part.best[:, step],
                    None if part.output is None else part.output[:, step],
                    None if part.layer_output is None else part.layer_output[step],
                )
                for part in parts.values()
            ]
        )
        for step in range(steps)
    ]


_ROWS: Mapping[str, Callable[[Mapping[int, _Part], int], list[JsonObject]]] = {
    "policy": _by_policy, "layer": _by_layer, "head": _by_head, "step": _by_step,
}  # fmt: skip


def evict(
    trace: TraceData,
    *,
    budgets: Sequence[float] = (0.05, 0.2, 0.5),
    policies: Sequence[Rule] | None = None,
    prompt: int | None = None,
    each_step: bool = False,
    layers: Sequence[int] | None = None,
    values: Mapping[int, Tensor] | None = None,
    projections: Mapping[int, Tensor] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Eviction:
    """What a cache of fewer keys would have thrown away, and the attention mass lost by it.

        lost_i = sum of P_ij over the keys j that are gone when query i comes

    for every head and every query after the prompt, from the exact weights P of the trace: those
    that the model had with all its keys. Each layer is looked at by itself. With grouped heads, a
    key is kept or thrown away for all heads that share it.

    Args:
        trace: of a decoder, with its queries and keys.
        budgets: keys of each head that stay: below 1 a share of the prompt, else a number (1.0 is
            the whole prompt, 1 one key).
        policies: names of `weft.analysis.eviction.policies.POLICIES`; `Policy` objects; or
            functions from a `Prompt` and a budget to scores, (kv_heads, prompt.length), the highest
            of which stay. None: all named ones.
        prompt: its positions. None: those before the first that was generated, or else 7/8.
        each_step: whether one key goes after every step, so that the budget holds throughout; else
            keys are chosen once, after the prompt, and all later ones stay.
        layers: their numbers; None: all that look back at their own sequence.
        values: (kv_heads, keys, value_depth) of layers by number, for the change of the output.
        projections: W_O of layers, (heads, value_depth, width), for that of the layer's output.
        progress: told how many layers are done, of how many.

    Raises: InputError: a layer without exact weights; a budget or a prompt that there is not; a
    policy that is not known, fails, or cannot choose step by step.

    Source: policies: see `weft.analysis.eviction.policies`. The bounds are in
    `weft.analysis.eviction.layer.after_prompt` and `.losses.best_sets_lost`.
    """
    check_trace("evict", trace)
    check_flag("evict", "each_step", each_step)
    if not callable(progress):
        raise InputError(f"evict: progress is {in_words(progress)}; expected a function.")
    rules = [_policy(rule, each_step) for rule in _wanted(policies, each_step)]
    numbers, passed_over = _layers(trace, layers)
    length = prompt_of(trace, trace.layers[numbers[0]], prompt)
    if isinstance(budgets, str | bytes | Mapping) or not isinstance(budgets, Iterable):
        raise InputError(
            f"evict: budgets={in_words(budgets)}; expected a list of shares or numbers, as (0.2,)."
        )
    # NumPy's numbers become Python's.
    budgets = [budget.item() if isinstance(budget, np.generic) else budget for budget in budgets]
    for name, tensors in (("values", values), ("projections", projections)):
        _check_tensors(trace, name, tensors)
    sizes = [keys_of(budget, length) for budget in budgets]
    if not sizes:
        raise InputError("evict: budgets=() asks for nothing; give shares or numbers, as (0.2,).")
    measured = at_each_step if each_step else after_prompt
    found: dict[int, LayerEviction] = {}
    for done, number in enumerate(numbers):
        progress(done, len(numbers))
        # A copy, so that what it reads is freed with it.
        layer = replace(trace.layers[number])
        matrix = layer.normalised_matrix
        if matrix is None:
            raise InputError(
                f"evict: layer {layer.name} has no exact weights: {layer.no_matrix}. Eviction is "
                "measured exactly or not at all. Trace again with queries and keys: weft trace "
                "without --no-queries-keys; in Python queries_keys=True."
            )
        check_numbers(matrix, f"evict: layer {layer.name}")
        sinks = None if layer.terms is None else layer.terms.sinks
        given = Given(
            matrix, length, layer.name, (values or {}).get(number), (projections or {}).get(number),
            None if sinks is None else (sinks.to(matrix.lse)[:, None] - matrix.lse).exp(),
        )  # fmt: skip
        found[number] = measured(given, rules, sizes)
    progress(len(numbers), len(numbers))
    return Eviction(
        (*(rule.name for rule in rules), *(() if each_step else (BEST_SET,))),
        tuple(sizes),
        tuple(
            budget if isinstance(budget, float) and budget <= 1 else size / length
            for budget, size in zip(budgets, sizes, strict=True)
        ),
        length,
        trace.layers[numbers[0]].shape[1] - length,
        each_step,
        found,
        passed_over,
    )


def _check_tensors(trace: TraceData, name: str, tensors: object) -> None:
    """Raise an InputError where tensors of layers are none, or do not fit their layers."""
    if tensors is None:
        return
    check_type("evict", name, tensors, Mapping, "a dict from the numbers of layers to tensors")
    for number, tensor in dict(tensors).items():  # type: ignore[call-overload]
        place_of("trace", "evict", "layer", number, len(trace.layers))
        given = real_tensor("evict", f"{name} of layer {number}", tensor)
        heads, _, keys = trace.layers[number].shape
        fits = given.ndim == 3 and len(given) and not heads % len(given)
        if name == "values" and not (fits and given.shape[1] == keys):
            raise ShapeError(
                f"evict: values of layer {number} are {describe(given)}; expected (kv_heads, "
                f"{keys}, value_depth), the kv_heads a divisor of {heads}."
            )
        if name == "projections" and not (fits and len(given) == heads):
            raise ShapeError(
                f"evict: the projection of layer {number} is {describe(given)}; expected "
                f"({heads}, value_depth, width)."
            )


def prompt_of(trace: TraceData, layer: TraceLayer, asked: int | None) -> int:
    """Where the prompt of a trace ends.

    Raises: InputError: it leaves no query after it.
    """
    length = layer.shape[1]
    if asked is not None:
        asked = whole_number("evict", "prompt", asked)
    if asked is None:
        generated = trace.positions.get(layer.keys_from, {}).get("generated", [])
        asked = generated.index(True) if True in generated else int(_PROMPT * length)
    if not 0 < asked < length:
        if length < 2:
            raise InputError(
                "evict: a text of one token; expected 2 or more: losses are those of the queries "
                "after the prompt. Trace a longer text, or a generation."
            )
        raise InputError(
            f"evict: a prompt of {asked:,} of {length:,} tokens; expected 1 to {length - 1:,}: "
            "losses are those of the queries after it. Trace a longer text, or a generation."
        )
    return asked


def keys_of(budget: float, prompt: int) -> int:
    """A budget as a number of keys: a share is rounded down, to one key at least.

    >>> keys_of(0.2, 3584), keys_of(0.29, 100), keys_of(64, 3584), keys_of(0.001, 10)
    (716, 29, 64, 1)

    Raises: InputError: no key, or more than the prompt has.
    """
    prompt = whole_number("evict", "prompt", prompt, 0)
    number = not isinstance(budget, bool) and isinstance(budget, int | float)
    if number and 0 < budget <= 1 and isinstance(budget, float):
        # Not one key less where the product is a little too small.
        return max(1, int(budget * prompt + 1e-9))
    if number and 1 <= budget <= prompt and int(budget) == budget:
        return int(budget)
    raise InputError(
        f"evict: budget {in_words(budget)}; expected a share of the prompt, above 0 and up to 1.0, "
        f"or a number of keys, 1 to {prompt:,}."
    )


def named_policies(each_step: bool) -> list[Policy]:
    """The policies that have a name, and where it is asked for, those that choose step by step."""
    return [policy for policy in POLICIES.values() if policy.step or not each_step]


def _wanted(policies: Sequence[Rule] | None, each_step: bool) -> Sequence[Rule]:
    if policies is None:
        return named_policies(each_step)
    if isinstance(policies, str) or not isinstance(policies, Sequence) or not policies:
        raise InputError(
            f"evict: policies={in_words(policies)}; expected a list of names "
            f"({', '.join(POLICIES)}), functions or Policy objects."
        )
    return policies


def _policy(rule: Rule, each_step: bool) -> Policy:
    if isinstance(rule, str):
        if rule not in POLICIES:
            raise InputError(
                f"evict: no policy {rule!r}; there are {', '.join(POLICIES)}, and functions: on "
                "the command line file.py:function or module:function."
            )
        policy = POLICIES[rule]
    elif isinstance(rule, Policy):
        policy = rule
    elif callable(rule):
        policy = Policy(getattr(rule, "__name__", type(rule).__name__), rule)
    else:
        raise InputError(
            f"evict: {in_words(rule)} is no policy; expected a name, function or Policy."
        )
    if each_step and policy.step is None:
        raise InputError(
            f"evict: {policy.name} chooses once, after the prompt, and not at each step. Leave it "
            "out, or give a weft.analysis.eviction.policies.Policy with a step."
        )
    return policy


def _layers(trace: TraceData, asked: Sequence[int] | None) -> tuple[list[int], tuple[str, ...]]:
    """The numbers of layers that look back at their own sequence, and the names of the others."""
    fits = [
        number
        for number, layer in enumerate(trace.layers)
        if layer.kind == "decoder" and layer.keys_from == layer.queries_from
    ]
    if not fits:
        raise InputError(
            "evict: the trace has no layer in which a sequence looks back at itself, as in a "
            "decoder: in others there is no cache of keys that grows. Trace a language model."
        )
    if asked is not None:
        asked = [
            number % len(trace.layers) if -len(trace.layers) <= number < 0 else number
            for number in whole_numbers("evict", "layers", asked)
        ]
    for number in asked or ():
        if number not in fits:
            raise InputError(
                f"evict: no layer {number} among those that look back at their own sequence: "
                f"{', '.join(map(str, fits))}."
            )
    others = [trace.layers[n].name for n in range(len(trace.layers)) if n not in fits]
    return list(asked or fits), tuple(others)
