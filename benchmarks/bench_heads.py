"""Claim: the roles of all heads cost seconds from the kept edges, and less than 5 forwards exactly.

A model of GPT-2 small's shape (12 layers of 12 heads, random weights) reads tokens that repeat as
words do (Zipf), is traced with Top(32) and queries and keys, and its trace read again from disk by
`headloom.analysis.heads.roles.head_roles`: from the kept edges alone, by default (masses on
patterns exact), and exactly to the last measure. Each in a process of its own, reading included;
seconds and peak memory. The model's own plain forward (sdpa) stands beside them. At N = 1,024 the
same measures come from the dense matrices too, and the largest differences are printed.

    python benchmarks/bench_heads.py                        # N = 1024
    python benchmarks/bench_heads.py --length 8192          # the claim
    python benchmarks/bench_heads.py --length 8192 --similarity    # of every pair of heads too
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

WAYS = {"kept": False, "default": None, "exact": True}


def model_and_tokens(length: int) -> tuple[Any, torch.Tensor]:
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(n_positions=max(length, 1024))
    model = transformers.GPT2Model._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for layer in model.h:
            # Sharper than at birth, where every row is nearly uniform.
            layer.attn.c_attn.weight.mul_(4)
    chance = 1 / torch.arange(1.0, config.vocab_size + 1)
    return model, torch.multinomial(chance, length, replacement=True)[None]


def forward(length: int) -> dict[str, Any]:
    model, ids = model_and_tokens(length)
    with torch.no_grad():
        model(ids[:, :64], use_cache=False)
        start = time.perf_counter()
        model(ids, use_cache=False)
    return {"seconds": time.perf_counter() - start}


def trace(length: int, path: Path) -> dict[str, Any]:
    import headloom

    model, ids = model_and_tokens(length)
    start = time.perf_counter()
    headloom.trace(model, ids, save=path)
    return {"seconds": time.perf_counter() - start}


def roles(way: str, path: Path) -> dict[str, Any]:
    import headloom
    from headloom.analysis.heads.roles import head_roles

    start = time.perf_counter()
    found = head_roles(headloom.open(path), exact=WAYS[way])
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "roles": [head.role for head in found],
        "scores": [head.scores for head in found],
        "uppers": [head.uppers for head in found],
    }


def alike(way: str, path: Path) -> dict[str, Any]:
    import headloom
    from headloom.analysis.heads.similarity import similarity

    start = time.perf_counter()
    found = similarity(headloom.open(path), exact=way == "similarity-exact")
    return {"seconds": time.perf_counter() - start, "mean": float(found.affinity.mean())}


def dense(length: int) -> dict[str, Any]:
    """The same measures, with every weight in memory, as one would write them down."""
    model, ids = model_and_tokens(length)
    model.set_attn_implementation("eager")
    tokens = ids[0]
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    before = torch.cat((tokens.new_tensor([-1]), tokens[:-1]))
    sets = {
        "previous": j == i - 1,
        "same": j == i,
        "first": (j == 0).expand(length, length),
        "local": (i - j).abs() <= 4,
        "duplicate": (tokens[:, None] == tokens) & (j < i),
        "induction": (tokens[:, None] == before) & (j <= i),
    }
    start = time.perf_counter()
    with torch.no_grad():
        attentions = model(ids, use_cache=False, output_attentions=True).attentions
    scores = []
    for (weights,) in attentions:
        found = {
            name: ((weights * keys).sum(-1)[:, keys.tril().any(-1)]).mean(-1)
            for name, keys in sets.items()
        }
        entropy = torch.special.entr(weights).sum(-1)
        found["entropy"] = entropy.mean(-1)
        found["broad"] = (entropy.exp() / torch.arange(1, length + 1))[:, 1:].mean(-1)
        scores += [{name: one[head].item() for name, one in found.items()} for head in range(12)]
    return {"seconds": time.perf_counter() - start, "scores": scores}


def largest_difference(first: dict[str, Any], second: dict[str, Any], sign: int = 0) -> float:
    """Between two tables of scores; of bounds only where they are on the wrong side."""
    apart = [
        sign * (a[name] - b[name]) if sign else abs(a[name] - b[name])
        for a, b in zip(first["scores"], second["scores"], strict=True)
        for name in a
        if name in b and a[name] == a[name] and b[name] == b[name] and name != "distance"
    ]
    return max(0.0, *apart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--trace", type=Path, help="where the trace goes or is")
    parser.add_argument("--similarity", action="store_true", help="of every pair of heads too")
    parser.add_argument("--only", help="one measurement, in this process")
    given = parser.parse_args()
    if given.only:
        one = {
            "forward": lambda: forward(given.length),
            "trace": lambda: trace(given.length, given.trace),
            "dense": lambda: dense(given.length),
        }
        if given.only in one:
            found = one[given.only]()
        else:
            measure = alike if given.only.startswith("similarity") else roles
            found = measure(given.only, given.trace)
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = given.trace or Path(folder) / "t.loom"
        whats = ["forward", *([] if path.exists() else ["trace"]), *WAYS]
        whats += ["similarity-kept", "similarity-exact"] if given.similarity else []
        whats += ["dense"] if given.length <= 1024 else []
        results: dict[str, dict[str, Any]] = {}
        for what in whats:
            command = [sys.executable, __file__, "--length", str(given.length)]
            done = subprocess.run(
                [*command, "--trace", str(path), "--only", what],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            results[what] = json.loads(done.stdout.splitlines()[-1])
            print(f"{what}: {results[what]['seconds']:.2f} s, {results[what]['memory']:,.0f} MB")
    if "dense" in results:
        print(f"exact - dense: {largest_difference(results['exact'], results['dense']):.1e}")
        below = largest_difference(results["kept"], results["dense"], 1)
        print(f"kept edges above dense (a lower bound, so 0 but for rounding): {below:.1e}")
    for way in ("default", "kept"):
        same = sum(
            a == b for a, b in zip(results[way]["roles"], results["exact"]["roles"], strict=True)
        )
        print(f"roles as exact, {way}: {same} of {len(results['exact']['roles'])}")
    for way in WAYS:
        ratio = results[way]["seconds"] / results["forward"]["seconds"]
        print(f"ratio, {way} / forward, at N = {given.length:,}: {ratio:.2f}")


if __name__ == "__main__":
    main()
