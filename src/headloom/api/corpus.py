"""Many texts, or the windows of a long one: a trace each, in one folder, resumable.

    FOLDER/corpus.json     the model, the options, and the SHA-256 of each text
    FOLDER/NAME.loom       the trace of each text

A trace is there whole or not at all, so what is there is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headloom.api.model import Model
from headloom.api.opening import load, open_model
from headloom.api.processes import results
from headloom.api.questions import Inputs, TraceChoices, check_text, tell_unknown
from headloom.errors import DataError, HeadloomError, InputError, is_out_of_memory
from headloom.formats.files import (
    JsonObject,
    read_json,
    read_text,
    remove_leftovers,
    text_lines,
    write_json,
)
from headloom.formats.folders import own_folder
from headloom.formats.verification import ON_ANOTHER_TEXT

_LIST, _FORMAT = "corpus.json", "headloom-corpus"
_Told = Callable[[int, int], None]


@dataclass
class CorpusTraces:
    """How many texts were traced now, were there already, and which failed and why.

    empty: names of those without a character but spaces, which have no trace.
    """

    traced: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()


def read_corpus(path: Path) -> dict[str, str]:
    """The texts of a corpus by their names: lines of a file, or the .txt files of a folder.

    Empty lines are counted too: the trace of line 7 is 000007. Raises: DataError: no such file,
    not UTF-8, or no text in it.
    """
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
    if not any(text.strip() for text in texts.values()):
        raise DataError(f"{path}: no text in it; expected a text on each line, or .txt files.")
    return texts


def trace_corpus(
    name: str,
    corpus: Path,
    output: Path,
    options: TraceChoices,
    *,
    workers: str = "1",
    progress: _Told = lambda done, total: None,
) -> CorpusTraces:
    """Trace every text of a corpus that has no trace yet.

    Args:
        name: a run's folder; a folder or a name of a model of Hugging Face.
        corpus: a file with a text a line, or a folder of .txt files.
        output: the folder for the traces; one that an earlier call left is gone on with.
        options: as for one text.
        workers: processes, each of which opens the model: see `headloom.api.processes.results`.
        progress: told how many texts of how many are done.

    A text that cannot be traced is counted, and the others are traced.

    Raises: DataError: the folder holds another corpus; workers were killed.
    """
    texts = read_corpus(corpus)
    empty = tuple(title for title, text in texts.items() if not text.strip())
    full = {title: text for title, text in texts.items() if text.strip()}
    done = _trace_all(TracingWork(name, output, options), full, workers, progress)
    done.empty = empty
    return done


def trace_windows(
    name: str,
    text: str,
    output: Path,
    options: TraceChoices,
    *,
    window: int,
    workers: str = "1",
    progress: _Told = lambda done, total: None,
) -> CorpusTraces:
    """Split a text into windows that share a quarter, and trace each that has no trace yet.

    window: tokens that the model reads at once, special ones included. See `trace_corpus`.

    Raises: InputError: a translator, or a window that does not fit; DataError: the folder holds
    something else.
    """
    check_text(text)
    count = len(open_model(name)._windows(text, window))
    work = TracingWork(name, output, options, window, text)
    return _trace_all(work, {f"{n:06d}": "" for n in range(count)}, workers, progress)


@dataclass(frozen=True)
class TracingWork:
    """What a process needs to trace texts: it opens the model by its name.

    window, whole: tokens of the windows of a whole text, whose numbers are then the names; None:
    the texts come one by one.
    """

    name: str
    folder: Path
    options: TraceChoices
    window: int | None = None
    whole: str = ""

    def start(self, model: Model | None = None) -> Callable[[tuple[str, str]], str | None]:
        """A function that traces a text by its name; it returns why it could not, or None."""
        if model is None:
            model = open_model(self.name)
        parts = [] if self.window is None else model._windows(self.whole, self.window)
        asked, generate = self.options, self.options.generate
        verified = asked.verify is False

        def do(task: tuple[str, str]) -> str | None:
            nonlocal verified
            title, text = task
            path = self.folder / f"{title}.loom"
            try:
                inputs: Inputs = (
                    parts[int(title)]
                    if parts
                    else model._inputs(text, asked.target, generates=generate is not None)
                )
                options = asked.as_asked(model.tokenizer, path)
                if not verified:
                    # Once; which text that is depends on the traces that are there already, so
                    # every trace says the same of it.
                    model._verify(inputs, options, generates=generate is not None)
                    verified = True
                known = None if asked.verify is False else ON_ANOTHER_TEXT
                about: JsonObject = {}
                if parts:
                    place = {"number": int(title), "of": len(parts), "tokens": self.window}
                    about = {"window": place}
                model._traced(inputs, options, generate, verification=known, description=about)
            except InputError as error:
                return str(error)
            except DataError:
                # A worker of an earlier call that was killed may have ended it meanwhile.
                if not path.exists():
                    raise
            except HeadloomError:
                raise  # of the model, not of this text
            except (MemoryError, RuntimeError) as error:
                if is_out_of_memory(error):
                    return "not enough memory. Give a smaller text, or use a larger machine."
                return " ".join(f"{type(error).__name__}: {error}".split())
            return None

        return do


def _trace_all(
    work: TracingWork, texts: Mapping[str, str], workers: str, progress: _Told
) -> CorpusTraces:
    folder = work.folder
    with own_folder(folder, "traces there"):
        content = _listed(folder, work, texts)
        missing = {
            title: text for title, text in texts.items() if not (folder / f"{title}.loom").exists()
        }
        done = CorpusTraces(there=len(texts) - len(missing))
        progress(done.there, len(texts))
        if not missing:
            return done
        # Also where workers open it, so that an error of the model is one line, not one of each.
        model = load(work.name)
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


def _listed(folder: Path, work: TracingWork, texts: Mapping[str, str]) -> JsonObject:
    """The list of what is traced here; it fits the traces that are there."""
    # Of the windows of a text, that of the whole text.
    digests = {
        title: hashlib.sha256((work.whole or text).encode()).hexdigest()
        for title, text in texts.items()
    }
    options = work.options.decisive | ({"window": work.window} if work.window else {})
    content: JsonObject = {
        "format": _FORMAT, "version": 1, "model": work.name, "options": options, "texts": digests,
    }  # fmt: skip
    path = folder / _LIST
    remove_leftovers(folder)
    if not path.exists():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise DataError(
                f"{folder}: not empty, and no corpus was traced here. Choose another folder."
            )
        return content
    before = read_json(path, "list of a corpus")
    known = before.get("texts") if isinstance(before, dict) else None
    if not isinstance(before, dict) or before.get("format") != _FORMAT or type(known) is not dict:
        raise DataError(f"{path}: not a list that headloom wrote. Choose another folder.")
    if any(folder.glob("*.loom")):
        for name in ("model", "options"):
            if before.get(name) != content[name]:
                raise DataError(
                    f"{folder}: its traces were made with another {name.removesuffix('s')}. Give "
                    "the same command again, or choose another folder."
                )
        for title, digest in digests.items():
            if known.get(title, digest) != digest and (folder / f"{title}.loom").exists():
                raise DataError(
                    f"{folder}: the text {title} is not what it was when it was traced. Choose "
                    "another folder, or remove its trace and the list."
                )
    return {**content, "texts": {**known, **digests}}
