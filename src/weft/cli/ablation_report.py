"""What `weft ablate` prints: a row an effect, the largest first."""

from __future__ import annotations

from weft.cli.tables import print_table
from weft.experiments.ablation import Ablation
from weft.formats.files import JsonObject
from weft.formats.tokens import shown, visible
from weft.jobs.model import Measure

__all__ = ["ablation_json", "print_ablation"]


def print_ablation(result: Ablation, measure: Measure) -> None:
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


def ablation_json(model: str, result: Ablation, measure: Measure) -> JsonObject:
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
