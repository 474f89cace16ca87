"""`headloom.trace_corpus`: trace many texts, or the windows of a long one.

    FOLDER/corpus.json     the model, the options, and the SHA-256 of each text
    FOLDER/NAME.loom       the trace of each text

Traces are written atomically: existing ones are complete, and are skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from headloom.api.model import Model
from headloom.api.opening import load, open_model
from headloom.api.processes import results
from headloom.api.questions import Inputs, check_text, tell_unknown
from headloom.errors import DataError, HeadloomError, InputError, is_out_of_memory
from headloom.formats.files import (
    JsonObject,
    read_json,
    read_text,
    remove_leftovers,
    text_lines,
    write_json,
)
from headloom.formats.folders import locked_folder
from headloom.formats.verification import ON_ANOTHER_TEXT
from headloom.mechanism.graph import KeepLike, as_keep
from headloom.tracing.options import TraceOptions, Verify

_LIST, _FORMAT = "corpus.json", "headloom-corpus"
_Progress = Callable[[int, int], None]
#: Texts, in a list or by their names; or their path.
Corpus: TypeAlias = Mapping[str, str] | Sequence[str] | Path | str


@dataclass
class CorpusTraces:
    """Counts of texts that were traced, existed already, and failed, with the reasons.

    folder: of the traces; `headloom.open` opens them all.
    window: tokens of each part of one text; None: many texts.
    empty: names of blank texts, which have no trace.
    """

    folder: Path
    window: int | None = None
    traced: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()

    @property
    def problem(self) -> str | None:
        """Sentence about failed texts; None: none failed."""
        if not self.failed:
            return None
        every = self.traced + self.there + len(self.failed)
        return (
            f"{len(self.failed)} of {every} texts could not be traced; see the lines above. The "
            "others are complete."
        )

    def __str__(self) -> str:
        texts = "texts" if self.window is None else f"windows of at most {self.window} tokens"
        line = f"{self.traced} {texts} traced, {self.there} existed already."
        if self.window is not None:
            line += " No token attends to another window."
        if self.empty:
            more = f" and {len(self.empty) - 3} more" if len(self.empty) > 3 else ""
            line += f" Empty, skipped: {', '.join(self.empty[:3])}{more}."
        failed = [f"{name}: {reason}" for name, reason in self.failed.items()]
        return "\n".join([*failed, f"{line} Traces: {self.folder}"])


def _read_corpus(corpus: Corpus) -> dict[str, str]:
    """Read the texts of a corpus by name: line 7 is 000007, empty lines counted too."""
    if isinstance(corpus, Mapping):
        return {str(name): text for name, text in corpus.items()}
    if not isinstance(corpus, Path | str):
        return {f"{number:06d}": text for number, text in enumerate(corpus, 1)}
    path = Path(corpus)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        texts = {
            "-".join(file.relative_to(path).with_suffix("").parts): read_text(file, "text file")
            for file in files
        }
        if len(texts) < len(files):
            raise DataError(f"{path}: two texts have one name. Rename one of them.")
    else:
        lines = text_lines(read_text(path, "corpus"))
        texts = {f"{number:06d}": line for number, line in enumerate(lines, 1)}
    return texts


def trace_corpus(
    model: Model | Path | str,
    corpus: Corpus | None = None,
    *,
    output: Path | str,
    text: str | None = None,
    window: int | None = None,
    generate: int | None = None,
    keep: KeepLike = 32,
    layers: Sequence[int | str] | None = None,
    workers: int | str = "1",
    verify: Verify = None,
    progress: _Progress = lambda done, total: None,
) -> CorpusTraces:
    """Trace every text of a corpus, or every window of a long text; existing traces are skipped.

    Texts that fail are counted, and the others traced. The same call resumes an interrupted one.

    Args:
        model: a run, or a model of Hugging Face; or its folder or name.
        corpus: texts, in a list or by names; a file with one on each line; a folder of .txt files.
        output: the folder for the traces.
        text: instead of a corpus, one text, split into windows that overlap by a quarter.
        window: tokens of each window, special ones included.
        generate: as in `headloom.trace`.
        keep: likewise.
        layers: likewise.
        verify: likewise.
        workers: processes of this machine, each with its own model; or the address of a Ray
            cluster: HOST:PORT of its head, "auto" or "local".
        progress: called with the texts done and their total.

    Returns: the counts; ``headloom.open(output)`` opens the traces.

    Raises: InputError: windows of a translator, or a window size that does not fit; DataError: the
    folder holds another corpus; workers were killed.
    """
    opened = model if isinstance(model, Model) else None
    name = opened.name if opened else str(model)
    options = TraceOptions(keep=as_keep("trace", keep), layers=layers, verify=verify)
    folder = Path(output)
    several: Mapping[str, str | None]
    if corpus is not None:
        if text is not None or window is not None:
            raise InputError("corpus has the texts: leave text and window out.")
        several = _read_corpus(corpus)
        if not any(item and item.strip() for item in several.values()):
            raise DataError(f"{corpus}: no text; expected texts, one a line, or .txt files.")
        work = TracingWork(name, folder, options, generate)
    elif text is None or window is None or generate is not None:
        raise InputError("window splits one text: give both, or a corpus; without generate.")
    else:
        check_text(text)
        parts = (opened or open_model(name))._windows(text, window)
        several = dict.fromkeys(f"{n:06d}" for n in range(len(parts)))
        work = TracingWork(name, folder, options, None, window, text)
    full = {title: item or "" for title, item in several.items() if item is None or item.strip()}
    done = _trace_all(work, full, str(workers), progress, opened)
    done.empty = tuple(title for title in several if title not in full)
    return done


@dataclass(frozen=True)
class TracingWork:
    """Work of a process that traces texts, or windows of a text, by a model of this name."""

    name: str
    folder: Path
    options: TraceOptions
    generate: int | None = None
    window: int | None = None
    whole: str = ""

    def start(self, model: Model | None = None) -> Callable[[tuple[str, str]], str | None]:
        """Return a function that traces a text by name, and returns an error message or None."""
        if model is None:
            model = open_model(self.name)
        parts = [] if self.window is None else model._windows(self.whole, self.window)
        requested, generates = self.options, self.generate is not None
        verified = requested.verify is False

        def do(task: tuple[str, str]) -> str | None:
            nonlocal verified
            title, text = task
            path = self.folder / f"{title}.loom"
            try:
                inputs: Inputs = (
                    parts[int(title)] if parts else model._inputs(text, generates=generates)
                )
                options = replace(requested, tokenizer=model.tokenizer, save=path)
                if not verified:
                    # Once; the text used depends on the existing traces, so that every trace gets
                    # the same note.
                    model._verify(inputs, options, generates=generates)
                    verified = True
                known = None if requested.verify is False else ON_ANOTHER_TEXT
                about: JsonObject = {}
                if parts:
                    place = {"number": int(title), "of": len(parts), "tokens": self.window}
                    about = {"window": place}
                model._traced(inputs, options, self.generate, verification=known, description=about)
            except InputError as error:
                return str(error)
            except DataError:
                # A worker of an earlier, killed call may have finished it meanwhile.
                if not path.exists():
                    raise
            except HeadloomError:
                raise  # of the model, not of this text
            except (MemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    return "not enough memory. Use a shorter text or a larger machine."
                return " ".join(f"{type(error).__name__}: {error}".split())
            return None

        return do


def _trace_all(
    work: TracingWork, texts: Mapping[str, str], workers: str, progress: _Progress,
    model: Model | None,
) -> CorpusTraces:  # fmt: skip
    folder = work.folder
    with locked_folder(folder, "traces there"):
        content = _corpus_list(folder, work, texts)
        missing = {
            title: text for title, text in texts.items() if not (folder / f"{title}.loom").exists()
        }
        done = CorpusTraces(folder, work.window, there=len(texts) - len(missing))
        progress(done.there, len(texts))
        if not missing:
            return done
        # Opened here too, so that an error of the model is one line, not one per worker.
        model = model or load(work.name)
        write_json(folder / _LIST, content)
        for title, reason in results(work, missing, workers, model):
            if reason is None:
                done.traced += 1
            else:
                done.failed[title] = reason
            progress(done.there + done.traced + len(done.failed), len(texts))
    read = [work.whole] if work.window else missing.values()
    unknown = (part for text in read for part in model._unknown_parts(text))
    tell_unknown("the corpus", list(dict.fromkeys(unknown)))
    return done


def _corpus_list(folder: Path, work: TracingWork, texts: Mapping[str, str]) -> JsonObject:
    """Check the list of a corpus folder against its traces, and return the new list."""
    # Windows have the digest of the whole text.
    digests = {
        title: hashlib.sha256((work.whole or text).encode()).hexdigest()
        for title, text in texts.items()
    }
    requested, layers = work.options, work.options.layers
    options = {
        "target": None, "generate": work.generate, "keep": getattr(requested.keep, "k", "all"),
        "layers": layers and ",".join(map(str, layers)), "queries_keys": True,
    } | ({"window": work.window} if work.window else {})  # fmt: skip
    content: JsonObject = {
        "format": _FORMAT, "version": 1, "model": work.name, "options": options, "texts": digests,
    }  # fmt: skip
    path = folder / _LIST
    remove_leftovers(folder)
    if not path.exists():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise DataError(f"{folder}: not empty, and not a folder of a corpus. Choose another.")
        return content
    before = read_json(path, "list of a corpus")
    known = before.get("texts") if isinstance(before, dict) else None
    if not isinstance(before, dict) or before.get("format") != _FORMAT or type(known) is not dict:
        raise DataError(f"{path}: not written by headloom. Choose another folder.")
    if any(folder.glob("*.loom")):
        for name in ("model", "options"):
            if before.get(name) != content[name]:
                raise DataError(
                    f"{folder}: its traces were made with other {name.removesuffix('s')}s. Repeat "
                    "the same command, or choose another folder."
                )
        for title, digest in digests.items():
            if known.get(title, digest) != digest and (folder / f"{title}.loom").exists():
                raise DataError(
                    f"{folder}: the text {title} has changed since it was traced. Choose another "
                    "folder, or remove its trace and the list."
                )
    return {**content, "texts": {**known, **digests}}
