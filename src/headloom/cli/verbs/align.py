"""`headloom align`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from headloom.cli import options as option
from headloom.cli.output import cell, print_json, print_table, progress_bar

Aligned = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        callback=option.is_model,
        help="A run of a translator, an encoder-decoder of Hugging Face, or traces in a folder.",
    ),
]
SourceFile = Annotated[
    Path | None, typer.Option("--source-file", help="For a model: a file with a source a line.")
]
TargetFile = Annotated[
    Path | None,
    typer.Option("--target-file", help="The targets, in lines of the same order."),
]
Gold = Annotated[
    Path | None,
    typer.Option(help="The right links, in the Pharaoh format: 0-0 1-2, 1?2 for a possible one."),
]
Heads = Annotated[
    str | None,
    typer.Option(
        help="best: chosen on half of the gold links; agreement: whose two directions agree; or "
        "names, as 3.1,5.2:write. Default: best with --gold, else agreement."
    ),
]
Method = Annotated[
    Literal["mutual", "argmax"],
    typer.Option(help="mutual: words that are each other's best; argmax: each target word's best."),
]
Step = Annotated[
    Literal["read", "write"] | None,
    typer.Option(
        help="The query of a target word: of the step that reads it, or that writes it. Default: "
        "the better of each head, by gold, or by words that occur together."
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", help="Draw the first pair, its links outlined: a .png, .svg or .pdf file."
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="The links to write.")]


def align(
    source: Aligned, output: Output, source_file: SourceFile = None,
    target_file: TargetFile = None, gold: Gold = None, heads: Heads = None,
    method: Method = "mutual", step: Step = None, picture: Picture = None,
    limit: option.Rows = 8, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Align the words of sources and targets by the heads that look from one at the other."""
    from headloom.analysis.alignment.align import AlignmentOptions
    from headloom.api.word_alignment import align_files

    options = AlignmentOptions(heads, method, step)
    with progress_bar("pairs read", lines=True) as show:
        result = align_files(
            source, options, sources=source_file, targets=target_file, gold=gold, progress=show
        )
    result.save(output)
    names = ", ".join(map(str, result.heads))
    if picture is not None:
        from headloom.studio.pictures.alignment import alignment
        from headloom.studio.pictures.canvas import save_picture

        figure = alignment(
            result.first.weights[0], query_tokens=result.first.target,
            key_tokens=result.first.source, links=result.links[0],
            title=f"links of words by head{'s' * (len(result.heads) > 1)} {names}",
        )  # fmt: skip
        save_picture(figure, picture)
    rows = [[str(head), cell("score", value)] for head, value in result.table[:limit]]
    print_table(["head", result.measure], rows, left=("head",))
    chosen = f", chosen on {result.chosen_on:,} pairs" if result.chosen_on else ""
    print(f"Links by the mean of the heads {names}{chosen}.")
    if result.note:
        print(result.note[:1].upper() + result.note[1:])
    rate, links = result.error_rate, sum(map(len, result.links))
    if rate is not None:
        print(f"On {'the other ' * bool(result.chosen_on)}{result.measured_on:,} pairs: {rate}.")
    print(f"{links:,} links of {len(result.links):,} pairs: {output}")
    if as_json:
        content: dict[str, object] = {"alignment": str(output), "pairs": len(result.links)}
        content["links"] = links
        for name in ("chosen_on", "note", "measured_on", "measure"):
            content[name] = getattr(result, name)
        for name in ("aer", "precision", "recall"):
            content[name] = getattr(rate, name, None)
        content["heads"] = [str(head) for head in result.heads]
        content["table"] = [{"head": str(head), "measure": value} for head, value in result.table]
        print_json(content)
