"""`weft ablate`."""

from weft.cli import head_options as head
from weft.cli import options as option
from weft.cli.input import given_text
from weft.cli.output import print_json, progress_bar
from weft.cli.tables import print_frame

PLACE = ("Trace", 3)


def ablate(
    model: option.ModelName, text: option.TextOrData = None, file: option.TextFile = None,
    target: option.Target = None, replacement: head.HeadReplacement = head.Replacement.zero,
    patch: head.Patch = None, logit: option.MeasuredLogit = None, against: option.Against = None,
    layer: option.OnlyLayer = None, together: head.Together = False, at: head.At = None,
    estimate: head.Estimate = False, data_tokens: head.ValidationTokens = 4_096,
    limit: option.Limit = None, threads: option.Threads = None, as_csv: option.AsCsv = False,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Replace the output of each head in turn, and print how the loss of the model changes."""
    from weft.cli.ablation_report import ablation_json, print_ablation
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
    print_ablation(result, measure)
    if as_json:
        print_json(ablation_json(model, result, measure))
