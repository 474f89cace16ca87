"""Arrays and edge lists of other programs, from their files to a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headloom.api.dump_names import Dump, arrays_of
from headloom.api.trace_request import Report, report_of
from headloom.api.tracing import check_output
from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats import edge_lists
from headloom.formats.files import check_file, in_brief, is_there, read_json, read_text
from headloom.formats.lines import text_lines
from headloom.formats.stored_arrays import StoredArray, array_files, stored_arrays
from headloom.formats.trace import TraceData
from headloom.mechanism.graph import Top
from headloom.mechanism.masks import Mask, causal, window
from headloom.tracing.given import from_queries_keys, from_weights
from headloom.tracing.given_edges import from_edges

__all__ = ["ImportOptions", "import_files"]


@dataclass(frozen=True)
class ImportOptions:
    """How files become a trace: see `headloom import --help`.

    patterns: of the names of arrays, by what they are: see `headloom.api.dump_names`.
    mask: "causal" or "all"; window: keys that a query sees at most, itself among them.
    """

    patterns: dict[str, str]
    tokens: Path | None
    tokenizer: Path | None
    mask: str | None
    window: int | None
    scale: float | None
    softcap: float | None
    layout: str
    heads: int | None
    kind: str | None
    normalise: bool
    partial: bool
    strongest: bool
    keep: int
    dtype: str | None
    queries_keys: bool
    overwrite: bool


class _Stored(Sequence[Any]):
    """An array for each layer, which is read when it is asked for."""

    def __init__(self, arrays: list[StoredArray]) -> None:
        self._arrays = arrays
        #: What errors call them; and their shapes, which are known before they are read.
        self.labels = [array.place for array in arrays]
        self.shapes = [array.shape for array in arrays]

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, number: Any) -> Any:
        return self._arrays[number].read()


def import_files(paths: Sequence[Path], output: Path, options: ImportOptions) -> Report:
    """Make a trace of queries and keys, of weights or of edges, and write it.

    Args:
        paths: a Parquet or CSV table of edges; or files of arrays, and folders of them.
        output: the trace folder to write, whole or not at all.
        options: see ImportOptions.

    Returns: what is said of it.

    Raises: InputError, DataError: files that are missing, damaged, or not what they should be.
    """
    check_output(output, options.overwrite)
    tables = [path for path in paths if path.suffix.lower() in edge_lists.SUFFIXES]
    tokens = None if options.tokens is None else _read_tokens(options.tokens)
    tokenizer = None if options.tokenizer is None else _read_tokenizer(options.tokenizer)
    name = paths[0].stem or str(paths[0])
    if tables:
        if len(paths) > 1:
            raise InputError("import: give one table of edges, or files of arrays, not both.")
        _check_options(options, _EDGES, tables[0])
        return _of_table(tables[0], output, options, tokens, tokenizer, name)
    dump = arrays_of(_all_arrays(paths), options.patterns)
    if tokens is None and dump.tokens is not None:
        tokens = _tokens_in(dump.tokens)
    common: dict[str, Any] = {
        "tokens": tokens, "tokenizer": tokenizer, "kind": options.kind, "model": name,
        "names": _names(dump), "keep": Top(options.keep), "save": output,
        "overwrite": options.overwrite,
    }  # fmt: skip
    of_weights = "weights" in dump.layers[0].arrays
    _check_options(options, _WEIGHTS if of_weights else _QUERIES_KEYS, paths[0])
    if of_weights:
        made = from_weights(
            _stack(dump, "weights"), mask=_mask(options), normalise=options.normalise,
            partial=options.partial, **common,
        )  # fmt: skip
    else:
        made = from_queries_keys(
            _stack(dump, "queries"), _stack(dump, "keys"), _stack(dump, "values"),
            mask=_mask(options, needed="queries and keys"), scale=options.scale,
            softcap=options.softcap, layout=options.layout, heads=options.heads,
            queries_keys=options.queries_keys,
            dtype=None if options.dtype is None else getattr(torch, options.dtype), **common,
        )  # fmt: skip
    return _report(made if isinstance(made, TraceData) else made[0], output, dump.others)


_EDGES, _WEIGHTS, _QUERIES_KEYS = "a table of edges", "weights", "queries and keys"
#: Options that some inputs have no use for: the field, the option, and what it is for.
_FOR = (
    ("normalise", "--normalise", (_WEIGHTS,)),
    ("partial", "--partial", (_WEIGHTS,)),
    ("strongest", "--strongest", (_EDGES,)),
    ("keep", "--keep", (_WEIGHTS, _QUERIES_KEYS)),
    ("scale", "--scale", (_QUERIES_KEYS,)),
    ("softcap", "--softcap", (_QUERIES_KEYS,)),
    ("layout", "--layout", (_QUERIES_KEYS,)),
    ("heads", "--num-heads", (_QUERIES_KEYS,)),
    ("dtype", "--dtype", (_QUERIES_KEYS,)),
)
_UNUSED = {"keep": 32, "layout": "HND"}


def _check_options(options: ImportOptions, given: str, path: Path) -> None:
    """Raise an InputError for an option that would do nothing."""
    for field, option, uses in _FOR:
        asked = getattr(options, field) not in (None, False, _UNUSED.get(field))
        if asked and given not in uses:
            raise InputError(
                f"import: {option} is for {' and for '.join(uses)}; {path} holds {given}. "
                f"Leave {option} out."
            )


def _report(trace: TraceData, output: Path, others: Sequence[StoredArray] = ()) -> Report:
    """What is said of a trace that was made: how the arrays were read, and which were not."""
    said = report_of(trace, output)
    shapes = sorted({layer.shape for layer in trace.layers})
    sizes = [f"{heads} heads, {rows} x {columns}" for heads, rows, columns in shapes]
    lines = [f"queries x keys: {'; '.join(sizes[:5])}{'; ...' * (len(sizes) > 5)}"]
    if others:
        names = ", ".join(one.name for one in others[:5]) + ", ..." * (len(others) > 5)
        lines.append(f"left out: {len(others)} arrays, which are not queries or keys: {names}")
    content = {**said.content, "left_out": [one.name for one in others]}
    return Report([*said.lines[:-1], *lines, said.lines[-1]], content)


def _all_arrays(paths: Sequence[Path]) -> list[StoredArray]:
    """The arrays of all files; the names of those of several files begin with the file's."""
    files: list[tuple[str, Path]] = []
    for path in paths:
        if not is_there(path, "file of arrays"):
            raise DataError(f"{path}: no such file or folder. Check the path.")
        files += array_files(path)
    alone = len(files) == 1 and not paths[0].is_dir()
    found: list[StoredArray] = []
    for name, path in files:
        found += stored_arrays(path, "" if alone and path.suffix.lower() != ".npy" else name)
    return found


def _names(dump: Dump) -> list[str] | None:
    """The names of the layers; None: there is one array of all."""
    if len(dump.layers) == 1 and not dump.numbered:
        return None
    return [layer.name or f"layers.{number}" for number, layer in enumerate(dump.layers)]


def _stack(dump: Dump, role: str) -> Any:
    """The arrays of a role, one for each layer, or the only one, which may be a stack."""
    if role not in dump.layers[0].arrays:
        return None
    arrays = [layer.arrays[role] for layer in dump.layers]
    return arrays[0].read() if _names(dump) is None else _Stored(arrays)


def _mask(options: ImportOptions, needed: str | None = None) -> Mask | None:
    """Who may look at whom.

    needed: what does not say it.
    """
    if options.mask is None and needed:
        raise InputError(
            f"import: {needed} do not say who may look at whom. Give --mask causal for a decoder, "
            "as a language model is, or --mask all."
        )
    if options.mask not in (None, "causal", "all"):
        raise InputError(f"--mask {options.mask}: expected causal or all.")
    if options.window is not None:
        if options.mask != "causal":
            raise InputError(
                "--mask-window needs --mask causal: it says how far a query looks back."
            )
        return window(options.window - 1, 0)
    return causal() if options.mask == "causal" else None


def _of_table(
    path: Path, output: Path, options: ImportOptions, tokens: Any, tokenizer: Any, name: str
) -> Report:
    columns = edge_lists.read_edges(path)
    trace = from_edges(
        columns, mask=_mask(options, needed="edges"), tokens=tokens, tokenizer=tokenizer,
        strongest=options.strongest, kind=options.kind, model=name,
    )  # fmt: skip
    trace.save(output, overwrite=options.overwrite)
    return _report(TraceData.open(output), output)


def _read_tokens(path: Path) -> Any:
    """Tokens from a JSON file, or one from each line of a text."""
    if path.suffix.lower() != ".json":
        return text_lines(read_text(path, "file of tokens"))
    found = read_json(path, "file of tokens")
    lists = found.values() if isinstance(found, dict) else [found]
    for tokens in lists:
        if not isinstance(tokens, list) or not all(type(one) in (str, int) for one in tokens):
            raise DataError(
                f"{path}: expected a list of texts or ids, or an object with such lists for "
                '"source" and "target".'
            )
    return found


def _tokens_in(array: StoredArray) -> Any:
    """The tokens that a dump holds: texts, or ids."""
    numbers = array.read()
    tokens = numbers.reshape(-1).tolist()
    if not all(isinstance(token, (str, int)) and not isinstance(token, bool) for token in tokens):
        raise DataError(f"{array.place}: expected the ids of tokens, or their texts.")
    return tokens


def _read_tokenizer(path: Path) -> Any:
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
