"""`headloom ablate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headloom.cli import head_options as head
from headloom.cli import options as option
from headloom.cli.input import given_text
from headloom.cli.output import print_json, progress_bar
from headloom.cli.tables import print_frame, print_table
from headloom.formats.files import JsonObject
from headloom.formats.tokens import shown, visible

if TYPE_CHECKING:
    from headloom.analysis.effects.ablation import Ablation
    from headloom.api.model import Measure

PLACE = ("Trace", 3)


def ablate(
    model: option.ModelName, text: option.TextOrData = None, file: option.TextFile = None,
    target: option.Target = None, replacement: head.HeadReplacement = head.Replacement.zero,
    patch: head.Patch = None, logit: option.MeasuredLogit = None, against: option.Against = None,
    layer: head.Layer = None, together: head.Together = False, at: head.At = None,
    estimate: head.Estimate = False, data_tokens: head.ValidationTokens = 4_096,
    limit: option.Limit = None, threads: option.Threads = None, as_csv: option.AsCsv = False,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head in turn, and print how the loss of the model changes."""
    from headloom.api.ablation import HeadQuestion, effects_of_heads

    question = HeadQuestion(
        given_text(text, file), target, patch, logit, against, layer, together, data_tokens,
        at or None, estimate,
    )  # fmt: skip
    with progress_bar("runs") as progress:
        result, measure = effects_of_heads(model, question, replacement.value, progress)
    result = result.by_change(limit)
    if as_csv:
        print_frame(result.to_pandas(), as_csv)
        return
    _print(result, measure)
    if as_json:
        print_json(_content(model, result, measure))


def _print(result: Ablation, measure: Measure) -> None:
    """The effects as a table; of estimates also the position that adds most, and how much."""
    tokens = [visible(token) for token in shown(measure.tokens)]
    columns = ["heads", measure.name, "change"]
    places = any(effect.at for effect in result.effects)
    rows = []
    for effect in result.effects:
        row = [effect.name, f"{effect.value:.4f}", f"{effect.change:+.4f}"]
        place = effect.most_at
        if place is not None:
            token = f" {tokens[place]}" if len(tokens) == len(effect.at) else ""
            row += [f"{place}{token}", f"{effect.at[place]:+.4f}"]
        elif places:
            row += ["-", "-"]
        rows.append(row)
    print_table(columns + ["most at", "there"] * places, rows, left=("heads",))
    how = f"{result.kind}, estimated by one gradient" if result.estimated else result.kind
    print(f"Whole model: {measure.name} {result.baseline:.4f}. Heads replaced: {how}.")


def _content(model: str, result: Ablation, measure: Measure) -> JsonObject:
    """The same for `--json`."""
    return {
        "model": model,
        "measure": measure.name,
        "kind": result.kind,
        "estimated": result.estimated,
        "baseline": result.baseline,
        "layers": [layer.name for layer in result.layers],
        "heads": [
            {"heads": effect.heads, "value": effect.value, "change": effect.change}
            | ({"at": effect.at} if effect.at else {})
            for effect in result.effects
        ],
    }
