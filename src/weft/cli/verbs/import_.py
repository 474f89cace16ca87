"""`weft import`."""

from weft.cli import options as option
from weft.cli.output import print_json, say

PLACE = ("Trace", 2)


def import_(
    files: option.ArrayFiles, output: option.ImportOutput, tokens: option.TokensFile = None,
    tokenizer: option.TokenizerFile = None, mask: option.MaskName = None,
    window: option.MaskWindow = None, scale: option.Scale = None, softcap: option.Softcap = None,
    layout: option.Layout = "HND", heads: option.SplitHeads = None,
    queries: option.QueriesNames = None, keys: option.KeysNames = None,
    values: option.ValuesNames = None, weights: option.WeightsNames = None,
    kind: option.ImportKind = None, normalise: option.Normalise = False,
    partial: option.Partial = False, strongest: option.Strongest = False,
    keep: option.Keep = 32, dtype: option.Dtype = None, queries_keys: option.QueriesKeys = True,
    overwrite: option.Overwrite = False, as_json: option.AsJson = False,
) -> None:  # fmt: skip
    """Make a trace of queries and keys, weights or edges that other programs saved."""
    from weft.jobs.importing import ImportOptions, import_files

    named = {"queries": queries, "keys": keys, "values": values, "weights": weights}
    options = ImportOptions(
        {role: pattern for role, pattern in named.items() if pattern is not None},
        tokens, tokenizer, mask, window, scale, softcap, layout, heads, kind, normalise, partial,
        strongest, keep, dtype and dtype.value, queries_keys, overwrite,
    )  # fmt: skip
    report = import_files(files, output, options)
    for line in report.lines:
        say(line)
    if as_json:
        print_json(report.content)
