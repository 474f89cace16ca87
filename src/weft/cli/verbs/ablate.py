"""`weft ablate`."""

from collections.abc import Sequence

from weft.cli import head_options as head
from weft.cli import options as option
from weft.cli.input import given_text
from weft.cli.output import print_json, progress_bar
from weft.cli.tables import print_frame, print_table

PLACE = ("Trace", 3)


def ablate(
    model: option.ModelName, text: option.TextOrData = None, file: option.TextFile = None,
    target: option.Target = None, replacement: head.HeadReplacement = head.Replacement.zero,
    patch: head.Patch = None, logit: option.MeasuredLogit = None, against: option.Against = None,
    layer: option.OnlyLayer = None, together: head.Together = False, at: head.At = None,
    estimate: head.Estimate = False,
    data_tokens: head.ValidationTokens = 4_096, limit: option.Limit = None,
    threads: option.Threads = None, as_csv: option.AsCsv = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head in turn, and print how the loss of the model changes."""
    from weft.formats.tokens import shown
    from weft.jobs.ablation import HeadQuestion, effects_of_heads

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
    effects = result.effects
    rows = [[effect.name, f"{effect.value:.4f}", f"{effect.change:+.4f}"] for effect in effects]
    columns = ["heads", measure.name, "change"]
    if any(effect.at for effect in effects):
        columns += ["most at", "there"]
        for row, effect in zip(rows, effects, strict=True):
            row += _most(effect.at, effect.most_at, shown(measure.tokens))
    print_table(columns, rows, left=("heads",))
    how = "estimated by the gradient" if estimate else "a run for each"
    print(
        f"Whole model: {measure.name} {result.baseline:.4f}. Heads replaced: {result.kind}, {how}."
    )
    if as_json:
        content = {
            "model": model, "measure": measure.name, "estimated": estimate, "kind": result.kind, "baseline": result.baseline,
            "layers": [layer.name for layer in result.layers],
            "heads": [
                {"heads": effect.heads, "value": effect.value, "change": effect.change}
                | ({"at": effect.at} if effect.at else {})
                for effect in effects
            ],
        }  # fmt: skip
        print_json(content)


def _most(at: Sequence[float], position: int | None, tokens: Sequence[str]) -> list[str]:
    """The position that adds most to a change, with its token where it is known, and how much."""
    if position is None:
        return ["-", "-"]
    token = f" {tokens[position]}" if len(tokens) == len(at) else ""
    return [f"{position}{token}", f"{at[position]:+.4f}"]
