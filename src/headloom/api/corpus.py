"""A corpus of many texts: a trace each, in one folder, by one or many processes, resumable.

    FOLDER/corpus.json     the model, the options, and the SHA-256 of each text
    FOLDER/NAME.loom       the trace of each text

A trace is there whole or not at all, so what is there is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headloom.api.engines import Do, Engine, Processes
from headloom.api.model import Model, TraceChoices, check_text
from headloom.api.notices import tell_unknown
from headloom.api.opening import open_model
from headloom.api.tracing import VerifiedOnce
from headloom.errors import DataError, HeadloomError, InputError, is_out_of_memory
from headloom.formats.files import JsonObject, read_json, read_text, remove_leftovers, write_json
from headloom.formats.folders import own_folder
from headloom.formats.lines import text_lines
from headloom.formats.trace_reader import open_folder

__all__ = ["Corpus", "CorpusTraces", "read_corpus", "trace_corpus"]

_LIST, _FORMAT = "corpus.json", "headloom-corpus"


@dataclass(frozen=True)
class Corpus:
    """Texts by their names, and the names of those that have no character but spaces."""

    texts: dict[str, str]
    empty: tuple[str, ...] = ()


@dataclass
class CorpusTraces:
    """How many texts were traced now, were there already, and which failed and why.

    empty: names of those without a character but spaces, which have no trace.
    """

    traced: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()


def read_corpus(path: Path) -> Corpus:
    """The texts of a corpus: lines of a file, or the .txt files of a folder.

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
    written = {name: text for name, text in texts.items() if text.strip()}
    if not written:
        raise DataError(f"{path}: no text in it; expected a text on each line, or .txt files.")
    return Corpus(written, tuple(name for name in texts if name not in written))


def trace_corpus(
    name: str,
    corpus: Path,
    output: Path,
    options: TraceChoices,
    *,
    engine: Engine | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CorpusTraces:
    """Trace every text of a corpus that has no trace yet.

    Args:
        name: a run's folder; a folder or a name of a model of Hugging Face.
        corpus: a file with a text a line, or a folder of .txt files.
        output: the folder for the traces; one that an earlier call left is gone on with.
        options: as for one text.
        engine: does the work by several processes, each of which opens the model; None: this one.
        progress: told how many texts of how many are done.

    A text that cannot be traced is counted, and the others are traced.

    Raises: DataError: the folder holds another corpus; workers were killed.
    """
    read = read_corpus(corpus)
    texts = read.texts
    with own_folder(output, "traces this corpus") as folder:
        content = _listed(folder, name, options, texts)
        done = CorpusTraces(empty=read.empty)
        missing = {}
        for title, text in texts.items():
            if _is_there(folder / f"{title}.loom"):
                done.there += 1
            else:
                missing[title] = text
        progress(done.there, len(texts))
        if not missing:
            return done
        # Also where workers open it, so that an error of the model is one line, not one of each.
        model = open_model(name, predicting=options.generate is not None)
        write_json(folder / _LIST, content)
        work = CorpusWork(name, folder, options)
        here = work.start(model)
        for title, reason in (engine or Processes()).results(folder, work, missing, here):
            if reason is None:
                done.traced += 1
            else:
                done.failed[title] = reason
            progress(done.there + done.traced + len(done.failed), len(texts))
    unknown = (part for text in missing.values() for part in model.unknown_parts(text))
    tell_unknown("the corpus", list(dict.fromkeys(unknown)))
    return done


def _listed(folder: Path, model: str, options: TraceChoices, texts: dict[str, str]) -> JsonObject:
    """The list of what is traced here; it fits the traces that are there.

    Raises: DataError: the folder holds another corpus, or something else.
    """
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    content: JsonObject = {
        "format": _FORMAT,
        "version": 1,
        "model": model,
        "options": options.decisive,
        "texts": digests,
    }
    path = folder / _LIST
    remove_leftovers(folder)
    if path.exists():
        before = read_json(path, "list of a corpus")
        if not isinstance(before, dict) or before.get("format") != _FORMAT:
            raise DataError(f"{path}: not a list that headloom wrote. Choose another folder.")
        traced = any(folder.glob("*.loom"))
        for name in ("model", "options"):
            if traced and before.get(name) != content[name]:
                raise DataError(
                    f"{folder}: its traces were made with another {name.removesuffix('s')}. Give "
                    "the same command again, or choose another folder."
                )
        known = before.get("texts")
        if not isinstance(known, dict):
            raise DataError(f"{path}: this list of a corpus is damaged. Choose another folder.")
        changed = [
            name
            for name in digests
            if known.get(name, digests[name]) != digests[name]
            and (folder / f"{name}.loom").exists()
        ]
        if changed:
            raise DataError(
                f"{folder}: the text {changed[0]} is not what it was when it was traced. Choose "
                "another folder, or remove its trace and the list."
            )
        content["texts"] = {**known, **digests}
    elif any(folder.iterdir()):
        raise DataError(
            f"{folder}: not empty, and no corpus was traced here. Choose another folder."
        )
    return content


def _is_there(path: Path) -> bool:
    """Whether a whole trace is at a path."""
    if not path.exists():
        return False
    open_folder(path)
    return True


@dataclass(frozen=True)
class CorpusWork:
    """What a process needs to trace texts of a corpus: it opens the model by its name."""

    name: str
    folder: Path
    options: TraceChoices

    @property
    def reads(self) -> Sequence[Path]:
        """The model, where its name is a path."""
        path = Path(self.name)
        return [path] if path.exists() else []

    def start(self, model: Model | None = None) -> Do:
        """A function that traces a text by its title; it returns why it could not, or None."""
        if model is None:
            generates = self.options.generate is not None
            model = open_model(self.name, predicting=generates, quiet=True)
        verified = VerifiedOnce(model, self.options)
        return lambda task: (task[0], self._trace(model, verified, *task))

    def _trace(self, model: Model, verified: VerifiedOnce, title: str, text: str) -> str | None:
        path = self.folder / f"{title}.loom"
        try:
            check_text(text)
            inputs = model.inputs(text, self.options)
            known = verified.check(inputs)
            model.trace(inputs, path, self.options, verification=known)
        except InputError as error:
            return str(error)
        except DataError:
            # A worker of an earlier call that was killed may have ended it meanwhile.
            if not _is_there(path):
                raise
        except HeadloomError:
            raise  # of the model, not of this text
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                return "not enough memory. Give a smaller text, or use a larger machine."
            return " ".join(f"{type(error).__name__}: {error}".split())
        return None
