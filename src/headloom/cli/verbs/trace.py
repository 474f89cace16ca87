"""`headloom trace`."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import print_json, print_trace, progress_bar, say
from headloom.errors import InputError

Output = Annotated[
    Path | None,
    Option(
        "-o", "--output",
        help="The trace to write; with --window or --corpus, a folder. Default: in this "
"folder, named after the file or the model.",
    ),
]  # fmt: skip
Read = Annotated[
    Path | None,
    Option(
        "--file",
        help="A text file (-: standard input), or an image: PNG, JPEG or FILE.npz:NUMBER. "
        "An image may come with a --text.",
    ),
]
Corpus = Annotated[
    Path | None,
    Option(
        help="A file with one text per line, or a folder of .txt files: one trace per "
        "text. Run it again to continue."
    ),
]
Generate = Annotated[
    int | None,
    Option(
        min=1,
        max=option.MOST_TOKENS,
        help="Generate this many tokens; each adds a row to the trace.",
    ),
]
Window = Annotated[
    int | None,
    Option(
        min=2,
        help="Split a long text into windows of this many tokens that overlap by a "
        "quarter: one trace per window. Run it again to continue.",
    ),
]
Layers = Annotated[
    str | None, Option(help="Only these layers, by number or path: 0,3 or '*cross*'.")
]
Workers = Annotated[
    str,
    Option(
        metavar="N|HOST:PORT",
        help="With --corpus or --window: number of processes, each with its own model; or "
        "the address of a Ray cluster, auto, or local (a cluster on this machine).",
    ),
]
Engine = Annotated[
    Literal["llama.cpp"] | None,
    Option(help="Run a GGUF file by llama.cpp, as it is. Default: by torch."),
]
#: What is report of a corpus as JSON.
COUNTS = ("traced", "there", "empty", "failed")


def trace(
    model: option.ModelName, output: Output = None, text: option.Text = None, file: Read = None,
    corpus: Corpus = None, target: option.Target = None, generate: Generate = None,
    window: Window = None, keep: option.Keep = 32, layers: Layers = None,
    overwrite: option.Overwrite = False, workers: Workers = "1", engine: Engine = None,
    as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Run a model on a text, and keep the attention of every layer."""
    image = file if file is not None and option.is_image(file) else None
    read, chosen = option.given_text(text, None if image else file), option.several(layers)
    source = Path(model) if file is None or str(file) == "-" else file
    if corpus is not None or window is not None:
        output = output or option.new_folder(corpus or source, "-traces", replace=True)
        if image is not None or target is not None or engine is not None:
            raise InputError("--corpus and --window read texts alone: leave out the others.")
        with progress_bar("opening the model") as show:
            done = headloom.trace_corpus(
                model, corpus, output=output, text=read, window=window, generate=generate,
                keep=keep, layers=chosen, workers=workers, progress=show,
            )  # fmt: skip
        say(str(done))
        if as_json:
            print_json({"folder": str(output), **{name: getattr(done, name) for name in COUNTS}})
        if done.problem:
            raise InputError(done.problem)
        return
    output = output or option.new_folder(source, ".loom", overwrite)
    with progress_bar("opening the model") as show:

        def report(path: str, number: int, total: int | None) -> None:
            show(number + 1, total, f"layer {path}" if generate is None else "tokens read")

        made = headloom.trace(
            model, read, target=target, image=image, generate=generate, keep=keep, layers=chosen,
            save=output, overwrite=overwrite, engine=engine, progress=report,
        )  # fmt: skip
    of_graph = read is None and image is None
    first = made[0] if isinstance(made, list) else made
    print_trace(first, output, as_json, unit="nodes" if of_graph else "tokens")
