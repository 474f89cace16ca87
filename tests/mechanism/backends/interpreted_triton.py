"""Random legal calls by the Triton kernel against a formula in float64; Triton interprets it.

A program of its own, which test_triton.py runs: Triton asks the environment once, when it is
imported, whether it interprets kernels. Prints the problems, then what was met.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "random_calls"))

from comparing import FAULTS, problems
from drawing import Case, draw
from formula import last_queries

#: Tiles of scores of a call, at most: the interpreter takes its time.
TILES = 8
#: Calls that are refused before one is served, at most.
REFUSED = 200


def small(case: Case) -> bool:
    """Whether a call has few tiles, but for that of some graph."""
    (*outer, rows, _), keys = case.queries.shape, case.keys.shape[-2]
    tiles = -(-rows // 16) * -(-keys // 32)
    for size in outer:
        tiles *= size
    return case.keep in ("output", "top") and tiles <= TILES


def reduce_by_numpy() -> None:
    """Let the interpreter take exclusive ors, which its sort is made of, from NumPy.

    It does so with sums and maxima; of these it calls a Python function for each number, and nine
    tenths of a call's time are spent there.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    one_by_one = interpreter.ReduceOps.generic_reduce

    def reduce(self: Any, given: Any) -> Any:
        if self.combine_fn is not tl.standard._xor_combine or self.axis is None:
            return one_by_one(self, given)
        (tensor,) = given
        data = np.bitwise_xor.reduce(tensor.handle.data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(data, tensor.dtype)]

    interpreter.ReduceOps.generic_reduce = reduce


def patch_once() -> None:
    """Let the interpreter put its functions in the place of the language's once, not at each call.

    Looking for them takes a third of a call's time. Nothing here is compiled, so they may stay.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch, patched = interpreter._patch_lang, set()

    def patch_if_new(function: Any) -> SimpleNamespace:
        seen = [of for of in function.__globals__.values() if isinstance(of, ModuleType)]
        languages = tl in seen, tl.core in seen
        if languages not in patched:
            patched.add(languages)
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch_if_new


def no_difference() -> None:
    """Leave out what a device is asked first, which takes longer than a call."""
    from headloom.mechanism.backends import triton

    triton._difference = lambda *of: None  # type: ignore[assignment]


def main(seed: int, wanted: int, fault: str | None) -> None:
    """Check so many calls that the kernel serves."""
    assert fault is None or fault in FAULTS
    met: dict[str, int] = {}
    number = calls = wrong = 0
    while calls < wanted:
        case = draw(seed, number, [])
        number += 1
        if not small(case):
            continue
        case.backend = "triton"
        said = problems(case, fault)
        if any("BackendError" in line for line in said):
            met["refused"] = met.get("refused", 0) + 1
            if not calls and met["refused"] == REFUSED:
                sys.exit(f"no call of {REFUSED} is served: {said[0]}")
            continue
        calls += 1
        wrong += bool(said)
        if said and fault is None:
            print(f"seed {seed} call {number - 1}: {'; '.join(said)} | {case}")
        features = {
            "bfloat16": case.dtype == torch.bfloat16,
            "float32": case.dtype == torch.float32, "mask": case.mask is not None,
            "bias": case.bias is not None, "softcap": case.softcap is not None,
            "sinks": case.sinks is not None, "edges": case.keep == "top" and case.k > 0,
            "received": last_queries(case) > 0,
            "relative": case.relative != "none", "gradients": case.gradients,
            "grouped heads": case.queries.shape[-3] != case.keys.shape[-3],
            "several tiles": case.keys.shape[-2] > 32,
        }  # fmt: skip
        for name, there in features.items():
            met[name] = met.get(name, 0) + there
    print(json.dumps({"calls": calls, "wrong": wrong, **met}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    reduce_by_numpy()
    patch_once()
    no_difference()
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
