"""`headloom align`."""

from headloom.cli import align_options as option
from headloom.cli.alignment_report import draw_first, print_alignment, report_of
from headloom.cli.options import AsJson, RowsOfTable, Threads
from headloom.cli.output import print_json, progress_bar

PLACE = ("Read", 8)


def align(
    source: option.Aligned, output: option.LinksOutput, source_file: option.SourceFile = None,
    target_file: option.TargetFile = None, gold: option.Gold = None,
    heads: option.AligningHeads = None,
    method: option.AlignMethod = option.AligningMethod.mutual,
    step: option.AlignStep = None, norms: option.Norms = False, most: option.MostHeads = 8,
    picture: option.LinksPicture = None, limit: RowsOfTable = 8, threads: Threads = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Align the words of sources and targets by the heads that look from one at the other."""
    from headloom.analysis.alignment.align import AlignmentOptions
    from headloom.api.word_alignment import AlignmentRequest, align_files

    options = AlignmentOptions(heads, method.value, step and step.value, norms, most)
    request = AlignmentRequest(source, source_file, target_file, gold)
    with progress_bar("pairs read", lines=True) as show:
        result = align_files(request, options, show)
    result.save(output)
    if picture is not None:
        draw_first(result, picture)
    print_alignment(result, output, limit)
    if as_json:
        print_json(report_of(result, output))
