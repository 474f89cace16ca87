"""`headloom classify`."""

from headloom.cli.input import standard_input_lines
from headloom.cli.options import AsJson, RunPath, Threads
from headloom.cli.output import print_json, working
from headloom.cli.safe_text import exact_output

PLACE = ("Make", 6)


def classify(run: RunPath, threads: Threads = None, as_json: AsJson = False) -> None:
    """Classify standard input, line by line: the likeliest class, a tab, its probability."""
    from headloom.api.notices import tell_unknown
    from headloom.training.inference import open_classifier
    from headloom.training.tasks.labels import classify as classify_texts

    trained = open_classifier(run)
    lines = standard_input_lines()
    with working("classifying"):
        predictions = classify_texts(trained.model, trained.data, lines)
    tell_unknown("standard input", trained.vocabulary.unknown_parts("\n".join(lines)))
    for prediction in predictions:
        line = "" if prediction is None else f"{prediction.label}\t{prediction.probability:.4f}"
        print(line, file=exact_output())
    if as_json:
        print_json(
            {
                "run": str(run),
                "predictions": [
                    None
                    if prediction is None
                    else {"label": prediction.label, "probabilities": dict(prediction)}
                    for prediction in predictions
                ],
            }
        )
