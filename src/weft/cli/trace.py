"""`weft trace`: run a model and keep the attention graph of every layer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.terminal import (
    AsJson,
    Threads,
    console,
    print_json,
    progress_bar,
    standard_input_lines,
    use_threads,
)
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.formats.trace import TraceData

__all__ = ["trace"]


class StoredType(StrEnum):
    """The number types of stored queries and keys."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def trace(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A training run; or a model of Hugging Face: a folder, or a name."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The trace to write; of --window, --corpus: a folder."),
    ],
    text: Annotated[str | None, typer.Option(help="What the model reads.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the text from there.")] = False,
    image: Annotated[
        Path | None, typer.Option(help="A picture that the model sees; with --text, both.")
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(help="A text a line, or a folder of .txt files: a trace each, resumable."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="A translation to trace; default: the run's own.")
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(min=1, help="Let the model write so many tokens; each adds its row."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=2, help="Split a long text into windows of so many tokens, a trace each; resumable."
        ),
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(min=0, help="Tokens that windows share; default: a quarter.")
    ] = None,
    keep: Annotated[int, typer.Option(min=0, max=1_000_000, help="Edges kept of each query.")] = 32,
    layers: Annotated[
        str | None, typer.Option(help="Which, by number or path, as 0,3 or '*cross*'.")
    ] = None,
    dtype: Annotated[
        StoredType | None, typer.Option(help="Of kept queries and keys; default: the model's.")
    ] = None,
    queries_keys: Annotated[
        bool, typer.Option(help="Keep queries and keys, from which the whole matrix comes back.")
    ] = True,
    verify: Annotated[
        str | None,
        typer.Option(
            help="Tokens that the model reads without weft too, to compare: a number, all or no; "
            "default: 64. Of --corpus and --window: of the first text."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace a trace that is there.")] = False,
    workers: Annotated[
        int, typer.Option(min=1, max=256, help="Of --corpus: processes, each with the model.")
    ] = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Run a model on a text and keep the attention graph of every layer."""
    from weft.cli.tracing import Options, trace_model

    use_threads(threads)
    options = Options(
        target=target,
        generate=generate,
        keep=keep,
        layers=layers,
        dtype=dtype.value if dtype else None,
        queries_keys=queries_keys,
        overwrite=overwrite,
        verify=_verify(verify),
    )
    if overlap is not None and window is None:
        raise InputError("--overlap is for --window: the tokens that windows share.")
    if workers != 1 and corpus is None:
        raise InputError("--workers is for --corpus, which has a text for each.")
    if corpus is not None:
        _corpus(model, corpus, output, options, workers, threads, (text, file, stdin, image,
                window, overwrite), as_json)  # fmt: skip
        return
    words = None if image is not None and not (text or file or stdin) else _text(text, file, stdin)
    if window is not None:
        if image is not None or generate is not None or target is not None:
            raise InputError("--window splits one text: leave --image, --generate, --target out.")
        assert words is not None
        _windows(model, words, output, window, overlap, options, as_json)
        return
    with progress_bar() as bar:
        task = bar.add_task("opening the model", total=None)

        def progress(path: str, number: int, total: int | None) -> None:
            what = f"layer {path}" if generate is None else "tokens read"
            bar.update(task, description=what, completed=number + 1, total=total)

        caught = trace_model(model, words, output, options, image=image, progress=progress)
    _say(caught, output)
    if as_json:
        sequences = {name: list(tokens) for name, tokens in caught.sequences.items()}
        print_json(
            {
                "trace": str(output),
                "layers": len(caught.layers),
                "deviation": caught.deviation,
                "verification": caught.verification,
                "sequences": sequences,
            }
        )


def _verify(asked: str | None) -> Any:
    """How much is verified, as `weft.trace` takes it."""
    if asked is None or asked == "all":
        return asked
    if asked == "no":
        return False
    if asked.isascii() and asked.isdigit() and int(asked[:9]) > 0:
        return int(asked[:9])
    raise InputError(f"--verify {asked}: expected a number of tokens, 1 or more, all or no.")


def _say(caught: TraceData, output: Path) -> None:
    from weft.formats.tokens import shown, visible
    from weft.formats.verification import in_words

    out = console()
    for name, tokens in caught.sequences.items():
        first = " ".join(map(visible, shown(tokens)[:50])) + (" ..." if len(tokens) > 50 else "")
        out.print(f"{name}: {len(tokens)} tokens: {first}", markup=False, soft_wrap=True)
    verified = "" if caught.deviation is None else f" Deviation: {caught.deviation:.1e}."
    if caught.verification is not None:
        verified += f" {in_words(caught.verification).capitalize()}."
    count = len(caught.layers)
    out.print(
        f"{count} attention layer{'s' if count != 1 else ''}.{verified} Trace: {output}",
        markup=False,
        soft_wrap=True,
    )


def _windows(
    model: str,
    text: str,
    output: Path,
    window: int,
    overlap: int | None,
    options: Any,
    as_json: bool,
) -> None:
    from weft.cli.windows import trace_windows

    with progress_bar() as bar:
        task = bar.add_task("windows", total=None)
        found = trace_windows(
            model,
            text,
            output,
            options,
            window=window,
            overlap=overlap,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    there = f" {found.there} were there already." if found.there else ""
    console().print(
        f"{len(found.paths)} windows of at most {window} tokens, a trace each.{there} No token "
        f"looks from one window into another. Traces: {output}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        paths = [str(path) for path in found.paths]
        print_json({"traces": paths, "window": window, "there": found.there})


def _corpus(
    model: str,
    corpus: Path,
    output: Path,
    options: Any,
    workers: int,
    threads: int | None,
    others: tuple[Any, ...],
    as_json: bool,
) -> None:
    from weft.cli.corpus import trace_corpus

    if any(other not in (None, False) for other in others):
        raise InputError(
            "--corpus has its own texts: leave --text, --file, --stdin, --image, --window and "
            "--overwrite out."
        )
    with progress_bar() as bar:
        task = bar.add_task("texts", total=None)
        done = trace_corpus(
            model,
            corpus,
            output,
            options,
            workers=workers,
            threads=threads,
            progress=lambda count, total: bar.update(task, completed=count, total=total),
        )
    out = console()
    for name, reason in done.failed.items():
        out.print(f"{name}: {reason}", markup=False, soft_wrap=True)
    out.print(
        f"{done.traced} texts traced, {done.there} were there already. Traces: {output}",
        markup=False,
        soft_wrap=True,
    )
    if as_json:
        print_json(
            {
                "folder": str(output),
                "traced": done.traced,
                "there": done.there,
                "failed": done.failed,
            }
        )
    if done.failed:
        raise InputError(
            f"{len(done.failed)} of {done.traced + done.there + len(done.failed)} texts could not "
            "be traced; the lines above say why. The others are there."
        )


def _text(text: str | None, file: Path | None, stdin: bool) -> str:
    """The text, from one of three places."""
    if (text is not None) + (file is not None) + stdin != 1:
        raise InputError("trace: give the text by one of --text, --file and --stdin.")
    if file is not None:
        from weft.formats.files import read_text

        return read_text(file, "text file")
    return "\n".join(standard_input_lines()) if text is None else text
