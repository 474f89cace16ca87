"""The page of the documentation that says what is caught of each family, from the results."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

_HEAD = """# Families

Every family (model type) of Transformers {version}, tested by
`python scripts/survey_families.py --page`:
{summary}.

Each model is small, with random weights. It reads two random inputs (of different lengths, if it
takes a mask), then the first input alone; with its default attention and with eager attention.
Every weight is compared with the model's eager attention, and the output with the output without
headloom. The model's parameters and configuration must be unchanged afterwards. See
[tracing.md](tracing.md).

- **exact**: every weight of every layer equals the model's to 2e-5; the table has the largest
  difference;
- **dense**: the same, but the trace is made of the dense weights that the model returns;
- **refused**: headloom raises an error that gives the reason;
- **not built**: the model could not be built small;
- *named*: number of layers that are not traced, and named in `trace.not_traced`.
"""


def page(results: Sequence[dict[str, Any]], version: str, summary: str) -> str:
    """Return the page, in Markdown."""
    parts = [_HEAD.format(version=version, summary=summary)]
    for outcome, title in (("exact", "Exact"), ("dense", "Dense"), ("wrong", "Wrong")):
        chosen = [r for r in results if r["outcome"] == outcome]
        if not chosen:
            continue
        parts.append(
            f"\n## {title}\n\n| family | class | largest difference | |\n|---|---|---|---|\n"
        )
        parts += [f"| {r['family']} | {r['model']} | {_number(r)} | {_note(r)} |\n" for r in chosen]
    for outcome, title in (("refused", "Refused"), ("not built", "Not built here")):
        chosen = [r for r in results if r["outcome"] == outcome]
        if chosen:
            parts.append(f"\n## {title}\n\n| family | class | why |\n|---|---|---|\n")
            parts += [f"| {r['family']} | {r['model']} | {_cell(r['reason'])} |\n" for r in chosen]
    return "".join(parts)


def _number(result: dict[str, Any]) -> str:
    return "" if result["difference"] is None else f"{result['difference']:.0e}"


def _note(result: dict[str, Any]) -> str:
    notes = [_cell(result["reason"])] if result["reason"] else []
    if result["not_traced"]:
        notes.append(f"*named*: {len(result['not_traced'])}")
    if any("is not its eager" in note for note in result["notes"]):
        notes.append("traced with its default attention, which differs from eager attention")
    if any("in part refused" in note for note in result["notes"]):
        notes.append("one input at a time")
    return "; ".join(notes)


def _cell(text: str) -> str:
    # What is read on this page needs no pointer to the other one.
    text = text.removeprefix("trace: ").partition(" docs/tracing.md lists")[0]
    return textwrap.shorten(text, 160, placeholder=" ...").replace("|", "\\|")
