"""Next command to type after a mistake: the nearest word, or an example."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headloom.errors import DataError
from headloom.tracing.locating import PACKAGED

#: Errors of a value that is not among the choices, and of a missing path or model.
_CHOICE = re.compile("'([^']*)' is not one of (.*)")
_MISSING = re.compile(r": (no such|cannot load this model)\b(?!.*interrupted)")
#: Example of each verb; it runs in a clone after the examples above it.
EXAMPLES = {
    "demo": "headloom demo",
    "train": "headloom train examples/dates.toml",
    "evaluate": "headloom evaluate runs/demo",
    "predict": 'echo "24. Dezember 2024" | headloom predict runs/demo',
    "trace": 'headloom trace minilm --text "The cat slept because it was tired."',
    "import": "headloom import edges.parquet --mask all",
    "ablate": 'headloom ablate runs/demo --text "24. Dezember 2024"',
    "relevance": 'headloom relevance runs/demo --text "24. Dezember 2024"',
    "steps": 'headloom steps "the cat sat"',
    "heads": "headloom heads minilm.loom",
    "measure": "headloom measure rollout minilm.loom",
    "query": 'headloom query minilm.loom "FROM edges ORDER BY weight DESC LIMIT 5"',
    "compare": "headloom compare minilm.loom minilm-2.loom",
    "align": "headloom align runs/demo --sources a.txt --targets b.txt -o links.txt",
    "evict": "headloom evict demo.loom",
    "view": "headloom view minilm",
    "export": "headloom export minilm.loom --html minilm.html",
    "map": "headloom map image.loom --layer 0 --token cat -o map.png",
    "doctor": "headloom doctor",
}


def newest(name: str) -> list[str]:
    """Return folders here, and one level below, that hold a file of this name; newest first."""
    with suppress(OSError):
        files = [path for depth in ("*", "*/*") for path in Path().glob(f"{depth}/{name}")]
        return [str(path.parent) for path in sorted(files, key=lambda p: -p.stat().st_mtime)]
    return []


def example(verb: str) -> str:
    """Return an example of a verb with existing runs and traces, or a command that makes one."""
    command = EXAMPLES[verb]
    runs, traces = newest("run.json"), newest("trace.json")
    if "runs/demo" in command and not runs:
        return EXAMPLES["demo"]
    if len(re.findall(r"\S+\.loom", command)) > len(traces):
        return EXAMPLES["trace"]
    left = iter(map(shlex.quote, traces))
    command = re.sub(r"\S+\.loom", lambda _: next(left), command)
    command = command.replace("runs/demo", shlex.quote(runs[0]) if runs else "")
    more = [f"headloom view {shlex.quote(paths[0])}" for paths in (runs, traces) if paths]
    return ", ".join([command, *more]) if verb == "view" else command


def _try(words: Sequence[str]) -> str:
    return f"Try: {shlex.join(['headloom', *words])}"


def _nearest(word: str, known: Iterable[str]) -> str | None:
    return next(iter(get_close_matches(word[:200], [*known], 1)), None)


def for_verb(words: list[str], verbs: Iterable[str]) -> str:
    """Return the command to type where the first word is not a verb."""
    word, path = words[0], Path(words[0])
    if near := _nearest(word.lower(), verbs):
        return _try([near, *words[1:]])
    if path.is_file():
        return _try(["trace", "minilm", "--file", word])
    if path.is_dir() or word in PACKAGED:
        return _try(["view", *words])
    return _try([*(verb for verb in words[1:2] if verb in EXAMPLES), "--help"])


def with_advice(line: str, words: list[str], error: Any) -> str:
    """Append the command to type, with the wrong word corrected, to the line of an error."""
    verb = next((word for word in words if word in EXAMPLES), "")
    if context := getattr(error, "ctx", None):
        line = line.partition(" (Possible")[0].rstrip(".")
        options = [name for param in context.command.params for name in param.opts]
        mistakes = [(getattr(error, "option_name", None), options)]
        mistakes += [
            (word, re.findall("'([^']+)'", choices)) for word, choices in _CHOICE.findall(line)
        ]
        for wrong, known in mistakes:
            if wrong and wrong not in known and (near := _nearest(wrong, known)):
                right = [re.sub(f"^{re.escape(wrong)}(?==|$)", near, word) for word in words]
                return f"{line}. {_try(right)}"
        extra = next((word for word in words if f"({word})" in line), None)
        if extra is not None and "--text" in options:
            at, option = words.index(extra), "--file" if Path(extra).is_file() else "--text"
            return f"{line}. {_try([*words[:at], option, *words[at:]])}"
        if verb and (hasattr(error, "param_type") or "extra argument" in line):
            return f"{line}. For example: {example(verb)}"
        return f"{line}. See {context.command_path} --help"
    starts = [str(error).startswith((f"{word}: ", f"{Path(word)}: ")) for word in words]
    if True not in starts[1:] or not isinstance(error, DataError) or not _MISSING.search(line):
        return line
    at = starts.index(True, 1)
    missing, problem = words[at], line.rpartition(". ")[0]
    known = [*map(str, Path(missing).parent.glob("*")), *newest("run.json"), *newest("trace.json")]
    if near := _nearest(missing, [*known, *PACKAGED]):
        return f"{problem}. {_try([*words[:at], near, *words[at + 1 :]])}"
    if words[at - 1].startswith("-") or ("cannot load" in line and "/" in missing):
        return line
    if " " in missing and "--text" in EXAMPLES[verb]:
        return f"{problem}. {_try([verb, 'minilm', '--text', *words[at:]])}"
    return f"{problem}. Try: {example(verb)}"
