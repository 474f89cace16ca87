"""The page of the documentation that says what is caught of each family, from the results."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

_HEAD = """# Families

What headloom catches of every family (model type) of Transformers {version} that can be built small
here, with random weights, as `python scripts/survey_families.py --page` found it:
{summary}.

Each is run on a made batch of two, of different lengths where it takes a mask, and on the first of
them alone, with its default implementation and with eager attention. Every weight is held against
its own eager attention, its output against the output without headloom, and its weights and
configuration against what they were. See [tracing.md](tracing.md).

- **exact**: every weight of every layer to 2e-5, the largest difference beside it;
- **dense**: the same, from the dense weights that the model returns;
- **refused**: in one line, by headloom itself;
- *named*: layers that the trace names as not traced (`trace.not_traced`).
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
        notes.append("the model's own default attention is not its eager attention: as it is there")
    if any("in part refused" in note for note in result["notes"]):
        notes.append("one input at a time")
    return "; ".join(notes)


def _cell(text: str) -> str:
    # What is read on this page needs no pointer to the other one.
    text = text.removeprefix("trace: ").partition(" docs/tracing.md lists")[0]
    return textwrap.shorten(text, 160, placeholder=" ...").replace("|", "\\|")
