"""Random legal attention calls: inputs, and options for headloom and for the formula.

Every mask is drawn twice from the same numbers: as a headloom mask and, cell by cell, as a bool
array. What headloom is handed is rounded to the type of the call first; the formula takes the same
numbers in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

import headloom
from headloom.mechanism.masks import packed

#: No sum of products of a call exceeds this, before and after its scale: float32 holds it.
LARGEST = 1e36


@dataclass
class Case:
    """One call. Arrays are float64, rounded to `dtype`; the names are those of the formulas."""

    dtype: torch.dtype
    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    score: str
    parameters: dict[str, np.ndarray]
    scale: float | None
    visible: np.ndarray
    mask: headloom.Mask | Tensor | None = None
    relative: str = "none"
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    relative_options: dict[str, Any] = field(default_factory=dict)
    bias: np.ndarray | None = None
    softcap: float | None = None
    sinks: np.ndarray | None = None
    keep: str = "output"
    k: int = 0
    backend: str | None = None
    device: str = "cpu"
    instruction_set: str = ""
    threads: int = 1
    batched: bool = True
    gradients: bool = False
    style: str = "normal"
    words: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        sizes = " ".join(str(array.shape) for array in (self.queries, self.keys, self.values))
        options = {
            "score": self.score,
            "scale": self.scale,
            "mask": " ".join(self.words) or None,
            "relative": self.relative,
            "bias": None if self.bias is None else self.bias.shape,
            "softcap": self.softcap,
            "sinks": self.sinks is not None,
            "keep": f"{self.keep} {self.k}",
            "backend": self.backend,
            "device": self.device,
            "instruction set": self.instruction_set,
            "threads": self.threads,
            "gradients": self.gradients,
            "style": self.style,
        }
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        return f"{str(self.dtype)[6:]} {sizes} {said}"


def rounded(array: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return the array as its type holds it, in float64."""
    return torch.as_tensor(array).to(dtype).double().numpy()


def _length(random: Generator) -> int:
    kind = random.random()
    if kind < 0.02:
        return 0
    if kind < 0.79:
        return int(random.integers(1, 17))
    if kind < 0.94:
        return int(random.integers(17, 70))
    if kind < 0.993:
        return int(random.integers(70, 180))
    return int(random.integers(180, 301))


def _depth(random: Generator) -> int:
    kind = random.random()
    if kind < 0.6:
        return int(random.integers(1, 17))
    if kind < 0.95:
        return int(random.choice([17, 24, 32, 40, 64]))
    return int(random.choice([96, 100, 128, 200, 256]))


def _numbers(random: Generator, style: str, shape: tuple[int, ...]) -> np.ndarray:
    if style == "whole":
        return random.integers(-2, 3, shape).astype(float)
    array = random.standard_normal(shape)
    if style == "wide":  # a few rows are far larger than the others
        rows = random.random(shape[:-1]) < 0.2
        array[rows] *= 10.0 ** random.uniform(0, 6)
    return array


def _one_mask(
    random: Generator, sizes: tuple[int, int, int, int], words: list[str]
) -> tuple[headloom.Mask | Tensor, np.ndarray]:
    batch, heads, queries, keys = sizes
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    kind = str(
        random.choice(
            ["causal", "window", "lengths", "real", "neighbours", "edges", "cells", "packed"]
        )
    )
    words.append(kind)
    if kind == "causal":
        offset = int(random.choice([0, keys - queries, int(random.integers(-5, 6)), 2**52]))
        return headloom.causal(offset), j <= i + offset
    if kind == "window":
        sides: list[Any] = [None, 0, 1, int(random.integers(0, 40)), 2**63 - 1, 2**64]
        left, right = (sides[int(random.integers(len(sides)))] for _ in range(2))
        offset = int(random.integers(-6, 7))
        far = 10**6  # beyond every key
        before = far if left is None else min(left, far)
        after = far if right is None else min(right, far)
        allowed = (i + offset - j <= before) & (j - i - offset <= after)
        return headloom.window(left, right, offset), allowed
    if kind == "lengths":
        lengths = random.integers(0, keys + 1, batch)
        return headloom.padding(lengths.tolist()), (j[None] < lengths[:, None, None])[:, None]
    if kind == "real":
        real = random.random((batch, keys)) < random.choice([0.3, 0.9])
        return headloom.padding(torch.as_tensor(real)), real[:, None, None, :]
    if kind == "packed" and queries == keys:
        cuts = np.sort(random.integers(0, queries + 1, int(random.integers(0, 4))))
        lengths = np.diff(np.concatenate(([0], cuts, [queries])))
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        return packed(lengths.tolist()), sequence[:, None] == sequence[None, :]
    share = random.choice([0.05, 0.5, 0.95])
    cells = random.random((queries, keys)) < share
    if kind == "neighbours":
        import scipy.sparse

        return headloom.neighbours(scipy.sparse.csr_array(cells)), cells
    if kind == "edges" and queries == keys:
        targets, sources = cells.nonzero()
        edges = torch.as_tensor(np.stack((sources, targets)))
        return headloom.neighbours(edges, nodes=queries), cells
    shape = (*(int(random.choice([1, size])) for size in (batch, heads, queries)), keys)
    cells = random.random(shape) < share
    return torch.as_tensor(cells), cells


def _masks(random: Generator, case: Case, sizes: tuple[int, int, int, int]) -> None:
    if random.random() < 0.3:
        return
    mask, visible = _one_mask(random, sizes, case.words)
    while random.random() < 0.35:
        both = random.random() < 0.6
        case.words.append("&" if both else "|")
        other, seen = _one_mask(random, sizes, case.words)
        if isinstance(mask, Tensor):
            mask = headloom.causal(2**52) & mask  # hides no more; two tensors would make a tensor
        mask = (mask & other) if both else (mask | other)
        visible = (visible & seen) if both else (visible | seen)
    case.mask, case.visible = mask, np.broadcast_to(visible, sizes)


def _score(random: Generator, case: Case, heads: int) -> None:
    depth, key_depth = case.queries.shape[-1], case.keys.shape[-1]
    hidden = int(random.integers(1, 9))

    def some(*shape: int) -> np.ndarray:
        return rounded(random.standard_normal(shape) / np.sqrt(max(shape[-1], 1)), case.dtype)

    if case.score == "bilinear":
        shape = (depth, key_depth) if random.random() < 0.5 else (heads, depth, key_depth)
        case.parameters = {"matrix": some(*shape)}
    elif case.score == "additive":
        case.parameters = {
            "query_matrix": some(hidden, depth),
            "key_matrix": some(hidden, key_depth),
            "vector": some(hidden),
        }
    elif case.score == "graph":
        lead = () if random.random() < 0.5 else (heads,)
        case.parameters = {
            "query_vector": some(*lead, depth),
            "key_vector": some(*lead, key_depth),
        }
    elif case.score == "graph 2":
        case.parameters = {"vector": some(*(() if random.random() < 0.5 else (heads,)), depth)}


def _relative(random: Generator, case: Case, heads: int) -> None:
    case.relative = str(random.choice(["none", "shaw", "alibi", "buckets"], p=[0.7, 0.1, 0.1, 0.1]))
    offset = int(random.choice([0, 0, int(random.integers(-9, 10)), 300]))
    if case.relative == "shaw":
        clip = int(random.integers(0, 7))
        lead = [() if random.random() < 0.5 else (heads,) for _ in range(2)]
        depth, value_depth = case.queries.shape[-1], case.values.shape[-1]
        case.tables["key_table"] = random.standard_normal((*lead[0], 2 * clip + 1, depth)) / 2
        if random.random() < 0.6:
            shape = (*lead[1], 2 * clip + 1, value_depth)
            case.tables["value_table"] = random.standard_normal(shape)
    elif case.relative == "alibi":
        case.tables["slopes"] = random.uniform(0, 1, heads)
    elif case.relative == "buckets":
        bidirectional = bool(random.random() < 0.5)
        buckets = int(random.choice([4, 8, 32]))
        case.tables["table"] = random.standard_normal((buckets, heads))
        case.relative_options = {
            "bidirectional": bidirectional,
            "max_distance": int(random.choice([20, 128])),
        }
    case.tables = {name: rounded(table, case.dtype) for name, table in case.tables.items()}
    if case.relative != "none":
        case.relative_options["offset"] = offset


def _fit(case: Case, factor: float) -> None:
    """Make the queries smaller where a score would leave the range of float32 on its way."""
    widest = np.abs(case.queries).max(initial=0) * max(1.0, abs(factor))
    others = [np.abs(case.keys).max(initial=0)]
    others += [np.abs(array).max(initial=0) for array in case.parameters.values()]
    others += [np.abs(array).max(initial=0) for array in case.tables.values()]
    product = float(widest) * max(1.0, *(float(other) for other in others)) * 300.0
    product *= 300.0 * max(1.0, float(others[0])) if case.parameters else 1.0
    if product > LARGEST:
        case.queries = rounded(case.queries * (LARGEST / product), case.dtype)


def draw(seed: int, number: int, instruction_sets: list[str]) -> Case:
    """Call `number` of a seed: always the same."""
    random = np.random.default_rng([seed, number])
    dtype = [torch.float32, torch.bfloat16, torch.float64][
        int(random.choice(3, p=[0.55, 0.25, 0.2]))
    ]
    style = str(
        random.choice(["normal", "whole", "wide", "huge", "tiny"], p=[0.5, 0.15, 0.1, 0.2, 0.05])
    )
    batch, kv_heads = int(random.choice([1, 1, 2])), int(random.choice([1, 1, 2]))
    heads = kv_heads * int(random.choice([1, 1, 2, 3]))
    queries, keys = _length(random), _length(random)
    if random.random() < 0.5:
        queries = keys
    score = str(
        random.choice(
            ["default", "scaled", "dot", "bilinear", "additive", "graph", "graph 2"],
            p=[0.6, 0.05, 0.15, 0.08, 0.04, 0.04, 0.04],
        )
    )
    if score in ("additive", "graph 2"):
        queries, keys = min(queries, 40), min(keys, 40)
    depth = _depth(random)
    key_depth = _depth(random) if score in ("bilinear", "additive", "graph") else depth
    value_depth = 0 if random.random() < 0.01 else _depth(random)
    case = Case(
        dtype,
        _numbers(random, style, (batch, heads, queries, depth)),
        _numbers(random, style, (batch, kv_heads, keys, key_depth)),
        _numbers(
            random, "whole" if style == "whole" else "normal", (batch, kv_heads, keys, value_depth)
        ),
        score,
        {},
        None,
        np.ones((batch, heads, queries, keys), bool),
        style=style,
    )
    if style == "huge":
        case.queries *= 10.0 ** random.uniform(0, 18)
        case.keys *= 10.0 ** random.uniform(0, 18)
        case.values *= 10.0 ** random.uniform(0, 30)
    if style == "tiny":
        case.queries *= 10.0 ** random.uniform(-12, 0)
        case.keys *= 10.0 ** random.uniform(-12, 0)
        case.values *= 10.0 ** random.uniform(-25, 0)
    for name in ("queries", "keys", "values"):
        setattr(case, name, rounded(getattr(case, name), dtype))
    if random.random() < 0.4:
        scales = [-1.0, 0.0, 1.0, 0.5, -0.3, 1e-3, 30.0, 1e6, -1e9, 1e-20]
        case.scale = float(random.choice(scales))
    _score(random, case, heads)
    _relative(random, case, heads)
    sizes = (batch, heads, queries, keys)
    _masks(random, case, sizes)
    if random.random() < 0.2:
        shape = tuple(int(random.choice([1, size])) for size in sizes)
        case.bias = random.standard_normal(shape) * 10.0 ** random.choice([0, 0, 4, 20])
        if random.random() < 0.3:
            case.bias[random.random(shape) < 0.3] = -np.inf
        case.bias = rounded(case.bias, dtype)
    if random.random() < 0.15:
        case.softcap = float(random.choice([1e-3, 0.5, 5.0, 30.0, 1e4]))
    if random.random() < 0.15:
        case.sinks = rounded(
            random.standard_normal(heads) * 10.0 ** random.choice([0, 0, 3]), dtype
        )
    _fit(case, 1.0 if case.scale is None else case.scale)
    case.keep = str(random.choice(["output", "top", "all"], p=[0.4, 0.5, 0.1]))
    case.k = int(random.choice([0, 1, 2, 3, 8, 32, 1100])) if case.keep == "top" else 0
    served = (
        bool(instruction_sets)
        and dtype != torch.float64
        and score in ("default", "scaled", "dot", "bilinear")
        and not (score == "bilinear" and case.relative == "shaw")
        and case.keep != "all"
    )
    backends = [None, "torch", "native"] if served else [None, "torch"]
    case.backend = backends[int(random.integers(len(backends)))]
    if served:
        case.instruction_set = str(random.choice(instruction_sets))
    case.threads = int(random.choice([1, 1, 1, 2]))
    case.batched = bool(batch > 1 or random.random() < 0.5)
    case.gradients = bool(random.random() < 0.2)
    return case
