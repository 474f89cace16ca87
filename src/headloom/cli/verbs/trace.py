"""`headloom trace`."""

from headloom.cli import options as option
from headloom.cli.input import given_text
from headloom.cli.output import print_json, progress_bar, say
from headloom.errors import InputError

PLACE = ("Trace", 1)


def trace(
    model: option.ModelName, output: option.Output, text: option.Text = None,
    file: option.TextFile = None, stdin: option.Stdin = False, image: option.Image = None,
    corpus: option.Corpus = None, target: option.Target = None, generate: option.Generate = None,
    window: option.Window = None, overlap: option.Overlap = None, keep: option.Keep = 32,
    layers: option.Layers = None, dtype: option.Dtype = None,
    queries_keys: option.QueriesKeys = True, verify: option.Verify = None,
    received: option.Received = None,
    overwrite: option.Overwrite = False, workers: option.Workers = 1,
    ray_address: option.RayAddress = None, data: option.Data = None,
    threads: option.Threads = None, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Run a model on a text, and keep the attention graph of every layer."""
    from headloom.api.model import TraceChoices
    from headloom.api.trace_request import TraceRequest, run_trace, verify_of

    options = TraceChoices(
        target, generate, keep, layers, dtype and dtype.value, queries_keys, overwrite,
        verify_of(verify), received,
    )  # fmt: skip
    request = TraceRequest(
        model, output, given_text(text, file, stdin), image, window, overlap, corpus, workers,
        threads, ray_address, data,
    )  # fmt: skip
    with progress_bar("opening the model") as show:
        report = run_trace(request, options, show)
    for line in report.lines:
        say(line)
    if as_json:
        print_json(report.content)
    if report.failed:
        raise InputError(report.failed)
