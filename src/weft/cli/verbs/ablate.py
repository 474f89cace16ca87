"""`weft ablate`."""

from weft.cli.input import given_text
from weft.cli.options import (
    Against,
    AsCsv,
    AsJson,
    KindOfReplacement,
    Limit,
    MeasuredLogit,
    ModelName,
    OnlyLayer,
    Patch,
    Replacement,
    Target,
    TextFile,
    TextOrData,
    Threads,
    Together,
    ValidationTokens,
)
from weft.cli.output import print_frame, print_json, print_table, progress_bar

PLACE = ("Trace", 3)


def ablate(
    model: ModelName, text: TextOrData = None, file: TextFile = None, target: Target = None,
    kind: KindOfReplacement = Replacement.zero, patch: Patch = None, logit: MeasuredLogit = None,
    against: Against = None, layer: OnlyLayer = None, together: Together = False,
    tokens: ValidationTokens = 4_096, limit: Limit = None, threads: Threads = None,
    as_csv: AsCsv = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head in turn, and print how the loss of the model changes."""
    from weft.jobs.ablation import HeadQuestion, effects_of_heads

    question = HeadQuestion(
        given_text(text, file), target, patch, logit, against, layer, together, tokens
    )
    with progress_bar("runs") as progress:
        result, measure = effects_of_heads(model, question, kind.value, progress)
    result = result.by_change(limit)
    if as_csv:
        print_frame(result.to_pandas(), as_csv)
        return
    effects = result.effects
    rows = [[effect.name, f"{effect.value:.4f}", f"{effect.change:+.4f}"] for effect in effects]
    print_table(("heads", measure, "change"), rows, left=("heads",))
    print(f"Whole model: {measure} {result.baseline:.4f}. Heads replaced: {result.kind}.")
    if as_json:
        content = {
            "model": model, "measure": measure, "kind": result.kind, "baseline": result.baseline,
            "layers": [layer.name for layer in result.layers],
            "heads": [
                {"heads": effect.heads, "value": effect.value, "change": effect.change}
                for effect in effects
            ],
        }  # fmt: skip
        print_json(content)
