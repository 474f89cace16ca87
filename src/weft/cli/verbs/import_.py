"""`weft import`."""

from weft.cli import import_options as own
from weft.cli import options as option
from weft.cli.output import print_json, say, working

PLACE = ("Trace", 2)


def import_(
    files: own.ArrayFiles, output: own.ImportOutput, tokens: own.TokensFile = None,
    tokenizer: own.TokenizerFile = None, mask: own.MaskName = None,
    mask_window: own.MaskWindow = None, scale: own.Scale = None, softcap: own.Softcap = None,
    layout: own.Layout = "HND", num_heads: own.SplitHeads = None,
    queries: own.QueriesNames = None, keys: own.KeysNames = None,
    values: own.ValuesNames = None, weights: own.WeightsNames = None,
    kind: own.ImportKind = None, normalise: own.Normalise = False,
    partial: own.Partial = False, strongest: own.Strongest = False,
    keep: option.Keep = 32, dtype: option.Dtype = None, queries_keys: option.QueriesKeys = True,
    overwrite: option.Overwrite = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Make a trace of queries and keys, weights or edges that other programs saved."""
    from weft.jobs.importing import ImportOptions, import_files

    named = {"queries": queries, "keys": keys, "values": values, "weights": weights}
    options = ImportOptions(
        {role: pattern for role, pattern in named.items() if pattern is not None},
        tokens, tokenizer, mask, mask_window, scale, softcap, layout, num_heads, kind, normalise,
        partial, strongest, keep, dtype and dtype.value, queries_keys, overwrite,
    )  # fmt: skip
    with working("making the trace"):
        report = import_files(files, output, options)
    for line in report.lines:
        say(line)
    if as_json:
        print_json(report.content)
