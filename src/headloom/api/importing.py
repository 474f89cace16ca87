"""Arrays and edge lists of other programs, from their files to a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headloom.api.dump_names import layers_of_names
from headloom.api.tracing import Report, check_output, report_of
from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats.edge_lists import SUFFIXES, read_edges
from headloom.formats.files import check_file, in_brief, is_there, read_json, read_text
from headloom.formats.lines import text_lines
from headloom.formats.stored_arrays import read_arrays
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Top
from headloom.mechanism.masks import Mask, causal, window
from headloom.tracing.given import from_queries_keys, from_weights
from headloom.tracing.given_edges import from_edges

__all__ = ["ImportOptions", "import_files"]

_TOKENS = ("tokens", "input_ids", "token_ids")


@dataclass(frozen=True)
class ImportOptions:
    """How files become a trace: see `headloom import --help`.

    patterns: of the names of arrays, by what they are: see `headloom.api.dump_names`.
    mask: "causal", "all", or "window:N" for a causal window of N keys.
    """

    patterns: dict[str, str]
    tokens: Path | None
    tokenizer: Path | None
    mask: str | None
    layout: str
    strongest: bool
    keep: int
    overwrite: bool


def import_files(path: Path, output: Path, options: ImportOptions) -> Report:
    """Make a trace of queries and keys, of weights or of edges, and write it.

    Args:
        path: a Parquet or CSV table of edges; or a file of arrays, or a folder of them.
        output: the trace folder to write, whole or not at all.
        options: see ImportOptions.

    Returns: what is said of it, with the arrays that were left out.

    Raises: InputError, DataError: files that are missing, damaged, or not what they should be.
    """
    check_output(output, options.overwrite)
    if not is_there(path, "file of arrays"):
        raise DataError(f"{path}: no such file or folder. Check the path.")
    tokens = None if options.tokens is None else _read_tokens(options.tokens)
    tokenizer = None if options.tokenizer is None else _read_tokenizer(options.tokenizer)
    model = path.stem or str(path)
    mask = _mask(options.mask)
    if path.suffix.lower() in SUFFIXES:
        _check_mask(options.mask, "edges")
        trace = from_edges(
            read_edges(path), mask=mask, tokens=tokens, tokenizer=tokenizer,
            strongest=options.strongest, model=model, save=output, overwrite=options.overwrite,
        )  # fmt: skip
        return report_of(trace, output)
    arrays = read_arrays(path)
    of_tokens = next((name for name in arrays if name.split("/")[-1].lower() in _TOKENS), None)
    if of_tokens is not None:
        found = np.asarray(arrays.pop(of_tokens)).reshape(-1)
        tokens = found.tolist() if tokens is None else tokens
    layers = layers_of_names(list(arrays), options.patterns)
    # One array without a name of its layer may be a stack of them all.
    whole = list(layers) == [""]

    def stack(role: str) -> NDArray[np.generic] | Tensor | list[NDArray[np.generic] | Tensor]:
        own = [arrays[layer[role]] for layer in layers.values()]
        return own[0] if whole else own

    names = None if whole else list(layers)
    roles = next(iter(layers.values()))
    keep, overwrite = Top(options.keep), options.overwrite
    if "weights" in roles:
        made = from_weights(
            stack("weights"), mask=mask, tokens=tokens, tokenizer=tokenizer, names=names,
            model=model, keep=keep, save=output, overwrite=overwrite,
        )  # fmt: skip
    else:
        _check_mask(options.mask, "queries and keys")
        made = from_queries_keys(
            stack("queries"), stack("keys"), stack("values") if "values" in roles else None,
            mask=mask, layout=options.layout, tokens=tokens, tokenizer=tokenizer, names=names,
            model=model, keep=keep, save=output, overwrite=overwrite,
        )  # fmt: skip
    assert isinstance(made, TraceData)  # a batch cannot be saved
    taken = {name for layer in layers.values() for name in layer.values()}
    return _with_left_out(report_of(made, output), [name for name in arrays if name not in taken])


def _with_left_out(report: Report, names: Sequence[str]) -> Report:
    lines = list(report.lines)
    if names:
        shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        lines.insert(-1, f"left out: {len(names)} arrays, which are not queries or keys: {shown}")
    return Report(lines, {**report.content, "left_out": list(names)})


def _check_mask(mask: str | None, what: str) -> None:
    if mask is None:
        raise InputError(
            f"import: {what} do not say who may look at whom. Give --mask causal for a decoder, "
            "as a language model is, or --mask all."
        )


def _mask(mask: str | None) -> Mask | None:
    kind, _, keys = (mask or "all").partition(":")
    if kind == "window" and keys.isdecimal() and int(keys) > 0:
        return window(int(keys) - 1, 0)
    if mask not in (None, "causal", "all"):
        raise InputError(f"--mask {mask}: expected causal, all, or window:N for the last N keys.")
    return causal() if kind == "causal" else None


def _read_tokens(path: Path) -> list[str] | list[int] | dict[str, list[str] | list[int]]:
    """Tokens from a JSON file, or one from each line of a text."""
    if path.suffix.lower() != ".json":
        return text_lines(read_text(path, "file of tokens"))
    content = read_json(path, "file of tokens")
    lists = content.values() if isinstance(content, dict) else [content]
    for tokens in lists:
        if not isinstance(tokens, list) or not all(type(one) in (str, int) for one in tokens):
            raise DataError(
                f"{path}: expected a list of texts or ids, or an object with such lists for "
                '"source" and "target".'
            )
    tokens_of: list[str] | list[int] | dict[str, list[str] | list[int]] = content
    return tokens_of


def _read_tokenizer(path: Path) -> object:
    """A tokenizer of Hugging Face, from its file, or the file in a folder."""
    path = path / "tokenizer.json" if path.is_dir() else path
    check_file(path, "tokenizer")
    with optional_package("import", installing("hf")):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"{path}: cannot be read as a tokenizer ({in_brief(error)}). Give a tokenizer.json."
        ) from error
