"""`headloom align`."""

from pathlib import Path
from typing import Annotated, Literal
from warnings import catch_warnings

from typer import Option

import headloom
from headloom.cli import options as option
from headloom.cli.output import cell, print_json, print_table, progress_bar, records

Aligned = Annotated[
    str,
    option.model_argument(
        help="A run that translates, an encoder-decoder of Hugging Face, or a folder of traces."
    ),
]
SourceFile = Annotated[
    Path | None, Option("--sources", help="For a model: a file with one source per line.")
]
TargetFile = Annotated[
    Path | None, Option("--targets", help="A file with the target of each source, line by line.")
]
Gold = Annotated[
    Path | None,
    Option(help="The correct links, in the Pharaoh format: 0-0 1-2; 1?2 for a possible link."),
]
Heads = Annotated[
    str | None,
    Option(
        help="best: chosen on half of the gold links; agreement: heads whose two directions "
        "agree; or names: 3.1,5.2:write. Default: best with --gold, else agreement."
    ),
]
Method = Annotated[
    Literal["mutual", "argmax"],
    Option(
        help="mutual: pairs of words that are each other's best; argmax: the best source "
        "of each target word."
    ),
]
Step = Annotated[
    Literal["read", "write"] | None,
    Option(
        help="The query of a target word: the step that reads it, or the step that writes "
        "it. Default: the better one for each head."
    ),
]
Output = Annotated[Path, Option("-o", "--output", help="The file of links to write.")]


def align(
    source: Aligned, output: Output, sources: SourceFile = None, targets: TargetFile = None,
    gold: Gold = None, heads: Heads = None, method: Method = "mutual", step: Step = None,
    picture: option.PictureToo = None, limit: option.Rows = 8, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Align the words of sources and their translations by attention."""
    with progress_bar("pairs read", lines=True) as show, catch_warnings(action="ignore"):
        result = headloom.align(
            source, sources, targets, gold=gold, heads=heads, method=method, step=step,
            progress=show,
        )  # fmt: skip
    result.save(output)
    if picture is not None:
        result.draw(picture)
    rows = [[str(head), cell("score", value)] for head, value in result.table[:limit]]
    print_table(["head", result.measure], rows, left=("head",))
    print(*result.notes, sep="\n")
    print(f"Links: {output}")
    if as_json:
        content: dict[str, object] = {"alignment": str(output), "pairs": len(result.links)}
        content["links"] = sum(map(len, result.links))
        for name in ("chosen_on", "note", "measured_on", "measure"):
            content[name] = getattr(result, name)
        for name in ("aer", "precision", "recall"):
            content[name] = getattr(result.error_rate, name, None)
        content["heads"] = [str(head) for head in result.heads]
        content["table"] = records(result.to_pandas())
        print_json(content)
