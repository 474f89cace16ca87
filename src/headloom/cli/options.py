"""Arguments and options of the verbs, and the texts that they name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from typer import Argument, BadParameter, Option

from headloom.errors import InputError

#: Maximum of generated tokens: the key/value caches grow with each.
MOST_TOKENS = 100_000
_Paths = TypeVar("_Paths", Path, list[Path])


def is_there(paths: _Paths) -> _Paths:
    """Raise a DataError where a path is missing, before the slow import of torch."""
    from headloom.formats.folders import check_there

    for path in [paths] if isinstance(paths, Path) else paths:
        check_there(path, "trace or run")
    return paths


def is_model(name: str) -> str:
    """Raise a DataError where a model's path is missing; see `is_there`."""
    from headloom.tracing.locating import check_model_path

    check_model_path(name)
    return name


def is_picture(path: Path | None) -> Path | None:
    """Raise an InputError where the picture's format is unknown, before anything is printed."""
    if path is not None:
        from headloom.studio.pictures.canvas import picture_format

        picture_format(path)
    return path


def _some_text(text: str) -> str:
    if not text.strip():
        raise BadParameter("it is empty; give at least one character that is not a space.")
    return text


# What is read.

_trace = partial(Argument, metavar="TRACE", callback=is_there)
TracePath = Annotated[Path, _trace(help="A trace, made by headloom trace.")]
SecondTrace = Annotated[Path, _trace(help="Another trace, with the same number of tokens.")]
TraceOrModel = Annotated[
    str,
    _trace(callback=is_model, help="A trace; with --to a training run, with --live a model."),
]
TraceOrFolder = Annotated[Path, _trace(help="A trace, or a folder of traces.")]
TracePaths = Annotated[
    list[Path],
    _trace(metavar="TRACE", help="Traces of one model, or a folder of them; or a training run."),
]
model_argument = partial(Argument, metavar="MODEL", callback=is_model)
ModelName = Annotated[
    str,
    model_argument(help="minilm, a training run, or a model of Hugging Face, by folder or name."),
]
Text = Annotated[str | None, Option(help="The text to read.")]
TextFile = Annotated[Path | None, Option("--file", help="A file with the text; -: standard input.")]
Target = Annotated[
    str | None,
    Option(
        parser=_some_text,
        metavar="TEXT",
        help="For an encoder-decoder: the text it writes. Default for a run: its own translation.",
    ),
]

# What is done with it, by several verbs.


def _use_threads(threads: int | None) -> int | None:
    """Set the number of torch's threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    return threads


Threads = Annotated[
    int | None,
    Option(min=1, max=4_096, callback=_use_threads, help="Processor threads; default: all cores."),
]
Seed = Annotated[int, Option(min=0, help="The seed of the random numbers.")]
Beam = Annotated[int, Option(min=1, max=1_000, help="Beam size of decoding; 1: greedy.")]
Exact = Annotated[
    bool | None,
    Option(
        "--exact/--kept",
        help="From all weights, or from the kept edges. Default: all weights, if the trace "
        "has queries and keys.",
    ),
]
Logit = Annotated[str | None, Option(help="The predicted token or, for a classifier, the label.")]
Against = Annotated[str | None, Option(help="With --logit: subtract the logit of this token.")]
LayerName = partial(Option, "--layer", metavar="LAYER")
Layer = Annotated[str | None, LayerName(help="Only this layer, by number or path.")]
Head = Annotated[int | None, Option(min=0, help="Only this head of the layer.")]

# What is written.

Output = Annotated[Path, Option("-o", "--output", help="Where to write.")]
Keep = Annotated[int, Option(min=0, max=1_000_000, help="Number of edges kept per query.")]
Overwrite = Annotated[bool, Option(help="Replace an existing trace.")]
ForProgram = Annotated[
    Literal["huggingface", "ctranslate2", "onnx"] | None,
    Option(help="Export the model of a training run for this program; needs --output."),
]
ModelOutput = Annotated[
    Path | None, Option("-o", "--output", help="The folder to write the model to.")
]
PictureToo = Annotated[
    Path | None,
    Option("--picture", callback=is_picture, help="Also draw a picture: .png, .svg or .pdf."),
]

# What is printed.

AsJson = Annotated[bool, Option("--json", help="Print one JSON object only.")]
AsCsv = Annotated[bool, Option("--csv", help="Print comma-separated values.")]
Rows = Annotated[int, Option("--limit", min=0, help="Print at most this many rows. JSON has all.")]
AllRows = Annotated[
    int | None, Option("--limit", min=0, show_default="all", help="Print at most this many rows.")
]
#: Limit of a sorted table; see `rows_of`.
FewRows = Annotated[
    int | None,
    Option(
        "--limit", min=0, show_default="20; with --csv all",
        help="Print at most this many rows. JSON has all.",
    ),
]  # fmt: skip


def rows_of(limit: int | None, as_csv: bool, count: int, usual: int = 20) -> int:
    """Return the rows to print: all for a program, the usual number for a person."""
    return min(count if as_csv else usual, count) if limit is None else min(limit, count)


# The texts that options name.


def given_text(text: str | None, file: Path | None) -> str | None:
    """Return the text of --text or --file; None: neither is given."""
    if text is not None and file is not None:
        raise InputError("give the text by --text or by --file, not both.")
    if file is not None:
        from headloom.formats.files import read_text

        text = "\n".join(input_lines()) if str(file) == "-" else read_text(file, "text file")
    if text is not None and not text.strip():
        raise InputError("the text is empty; give at least one character that is not a space.")
    return text


def new_folder(source: Path, suffix: str, replace: bool) -> Path:
    """Return a new path here, named after a source: minilm.loom, or minilm-2.loom if it exists."""
    stem = source.stem if source.is_file() else source.resolve().name
    numbers = ("", *(f"-{number}" for number in range(2, 10_000)))
    paths = (Path(f"{stem}{number}{suffix}") for number in numbers)
    return next(path for path in paths if replace or not path.exists())


def is_image(path: Path) -> bool:
    """Return whether a file name is that of an image.

    >>> is_image(Path("dog.png")), is_image(Path("far/test.npz:4")), is_image(Path("dog.txt"))
    (True, True, False)
    """
    suffix = path.suffix.lower().partition(":")[0]
    return suffix in (".png", ".jpg", ".jpeg", ".npz")


def several(names: str | None) -> list[int | str] | None:
    """Split a comma-separated list of layers into numbers and paths.

    >>> several("0, *cross*")
    [0, '*cross*']
    """
    if names is None:
        return None
    parts = [name.strip() for name in names.split(",") if name.strip()]
    if not parts:
        raise InputError("--layers is empty. Give layers, such as 0,3, or leave it out for all.")
    return [int(name) if name.isascii() and name.isdigit() else name for name in parts]


def input_lines(file: Path | None = None) -> Iterator[str]:
    """Yield the lines of a file, also .gz, or of standard input, as they arrive."""
    from headloom.formats.files import decoded_lines, file_lines

    if file is not None:
        return file_lines(file)
    if sys.stdin is None:
        raise InputError("standard input is closed; use a file or a pipe.")
    if sys.stdin.isatty():
        print("headloom: type a line, then Enter; Ctrl-D ends.", file=sys.stderr)
    return decoded_lines(sys.stdin.buffer, "standard input")
