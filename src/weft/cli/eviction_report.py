"""The table that `weft evict` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import print_json
from weft.cli.tables import print_frame, print_table, records

if TYPE_CHECKING:
    from weft.analysis.eviction.evict import Eviction

__all__ = ["print_eviction"]

#: What stands in a column, by its name in the DataFrame.
_HEADINGS = {
    "policy": "policy", "budget": "budget", "keys": "keys", "kept": "kept", "layer": "layer",
    "head": "head", "step": "step", "lost": "lost", "above": "above best",
    "worst_lost": "worst head", "worst_layer": "layer", "worst_head": "head", "output": "output",
    "layer_output": "layer out",
}  # fmt: skip
#: What `lost` is a mean over, by what a row is.
_OVER = {
    "policy": "heads and steps", "layer": "the heads of the layer and steps", "head": "steps",
    "step": "heads",
}  # fmt: skip
_PERCENT = ("lost", "above", "worst_lost", "output", "layer_output")


def print_eviction(
    path: Path, found: Eviction, by: str, as_csv: bool, as_json: bool, note: str = ""
) -> None:
    """Print a row for each policy and budget, or for its layers, heads or steps."""
    table = found.table(by)
    if as_csv:
        print_frame(table, as_csv)
        return
    names = [name for name in table.columns if not bool(table[name].isna().all())]
    rows = records(table)
    print_table(
        [_HEADINGS[name] for name in names],
        [[_cell(name, row[name]) for name in names] for row in rows],
        left=("policy",),
    )
    heads = sum(layer.lost.shape[2] for layer in found.layers.values())
    how = "a key goes after every step" if found.each_step else "keys go once, after the prompt"
    print(
        f"{len(found.layers)} layers, {heads} heads; prompt of {found.prompt:,} tokens, then "
        f"{found.steps:,} steps; {how}."
    )
    print(
        f"lost: attention mass on keys that are gone, mean over {_OVER[by]}. above best: more than "
        "with the best keys for each step."
    )
    if by in ("policy", "layer"):
        print("worst head: lost by the head that loses most, mean over steps.")
    if by == "head" and found.shares_keys:
        print(
            "Heads share keys, and the best keys are those of the heads that share them, together: "
            "one of these alone may lose less, below 0 %."
        )
    for line in _same_budgets(found):
        print(line)
    if note:
        print(note)
    if found.passed_over:
        print(f"Without {len(found.passed_over)} layers that do not look back at their sequence.")
    if as_json:
        print_json(
            {
                "trace": str(path),
                "prompt": found.prompt,
                "steps": found.steps,
                "each_step": found.each_step,
                "passed_over": list(found.passed_over),
                "rows": rows,
            }
        )


def _same_budgets(found: Eviction) -> list[str]:
    """A line for each number of keys that several budgets come to."""
    asked: dict[int, list[str]] = {}
    for keys, share in zip(found.budgets, found.shares, strict=True):
        asked.setdefault(keys, []).append(_cell("budget", share))
    return [
        f"Budgets {', '.join(shares[:-1])} and {shares[-1]} are one: {keys:,} of {found.prompt:,} "
        f"key{'s' if found.prompt != 1 else ''}."
        for keys, shares in asked.items()
        if len(shares) > 1
    ]


def _cell(name: str, value: Any) -> str:
    if name in ("budget", "kept"):
        return f"{100 * value:.3g} %"
    if name in _PERCENT:
        return "-" if value != value else f"{100 * value:.2f} %"
    return f"{value:,}" if name == "keys" else str(value)
