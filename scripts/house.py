"""The state of the code in figures: sizes, cycles, walks, types, long lines.

    python scripts/house.py            # a table
    python scripts/house.py --json     # one JSON object, as the last line
    python scripts/house.py --names    # and the files and functions behind each count
    python scripts/house.py --walks    # the two walks alone, as CONTRIBUTING.md shows them
    python scripts/house.py --budget   # what is beyond its budget in pyproject.toml

Counts are read from the files that git tracks. The two walks are not drawn by hand: a training
step, a trace and a request of the studio run, and the files on the call stack are counted where
the kernel is called, edges are written, and edges are read.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import textwrap
import tokenize
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headloom"
LONG_FUNCTION, LONG_FILE, LONG_LINE = 60, 400, 100
LANGUAGES = {
    "py": (".py",),
    "C++": (".cpp", ".h"),
    "ts": (".ts", ".mts", ".js", ".mjs"),
    "svelte": (".svelte",),
    "css": (".css",),
    "md": (".md",),
}


def tracked() -> list[Path]:
    """The files that git tracks and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def lines_of(path: Path) -> list[str]:
    """The lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()


def module_name(path: Path) -> str:
    """The dotted name of a module of the package, wherever that lies."""
    parts = path.with_suffix("").parts
    parts = parts[len(parts) - 1 - parts[::-1].index("headloom") :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """The modules of headloom that a module imports, inside functions too; not for types alone."""
    targets: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                targets.add(submodule if submodule in modules else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    name = module_name(path)
    # A module is imported after the packages that it is in; those that both are in are there.
    packages = {
        target.rsplit(".", depth)[0] for target in targets for depth in range(1, target.count("."))
    }
    targets |= {package for package in packages if not name.startswith(f"{package}.")}
    return (targets & modules) - {name}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected sets of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    knots: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            knot = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(knot) > 1:
                knots.append(sorted(knot))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return knots


def long_functions(path: Path) -> Iterator[str]:
    """Functions of more than 60 lines, their docstring not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0]
        docstring = 0
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            docstring = (first.end_lineno or 0) - first.lineno + 1
        length = (node.end_lineno or 0) - node.lineno + 1 - docstring
        if length > LONG_FUNCTION:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({length})"


def words_in(path: Path) -> dict[str, int]:
    """How often a module names `Any`, asserts, and silences a checker."""
    counts = dict.fromkeys(("Any", "assert", "type: ignore", "noqa", "fmt: skip"), 0)
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string in ("Any", "assert"):
            counts[token.string] += 1
        elif token.type == tokenize.COMMENT:
            for word in ("type: ignore", "noqa", "fmt: skip"):
                counts[word] += word in token.string
    return counts


def stack_files() -> list[str]:
    """The files of the package on the call stack, the outermost first."""
    import headloom

    package = Path(headloom.__file__).parent  # that of the sources, or an installed one
    names = (frame.filename for frame in traceback.extract_stack())
    inside = (Path(name) for name in names if name.startswith(str(package)))
    return list(dict.fromkeys(str(path.relative_to(package)) for path in inside))


def note_stack(owner: Any, name: str, seen: list[list[str]]) -> Callable[[], None]:
    """Note the call stack of each call of a function; returns what puts the function back."""
    before = getattr(owner, name)

    def noting(*arguments: Any, **keywords: Any) -> Any:
        seen.append(stack_files())
        return before(*arguments, **keywords)

    setattr(owner, name, noting)
    return lambda: setattr(owner, name, before)


CONFIG = """
[task]
kind = "language"
file = "text.txt"
tokens = "characters"
block = 128
[model]
width = 32
heads = 2
feed_forward = 32
decoder_layers = 1
[training]
max_steps = 1
batch_tokens = 256
validate_every = 1
checkpoint_every = 1
"""


def walks() -> dict[str, list[str]]:
    """The files on the call stack on two ways through the house.

    query: from `headloom train` to the native kernel.
    edge: from the kernel, through the file of edges, to the studio's answer to a browser. The
        files of the model and of the command, which only stand above, are left out.
    """
    import os

    import pyarrow.parquet
    from fastapi.testclient import TestClient

    from headloom import _native
    from headloom.cli import app
    from headloom.studio.runs import open_collection
    from headloom.studio.server import create_app

    def headloom(*words: str) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            app(list(words), standalone_mode=False)

    calls: list[list[str]] = []
    writes: list[list[str]] = []
    reads: list[list[str]] = []
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = "to be or not to be, that is the question. " * 300
        Path("text.txt").write_text(text, encoding="utf-8")
        Path("config.toml").write_text(CONFIG, encoding="utf-8")
        undo = [note_stack(_native, "forward", calls)]
        headloom("train", "config.toml", "--run", "run")
        query = calls[0]
        calls.clear()
        undo.append(note_stack(pyarrow.parquet.ParquetWriter, "write_table", writes))
        headloom("trace", "run", "--text", text[:100], "-o", "t.loom")
        undo.append(note_stack(pyarrow.parquet.ParquetFile, "read_row_groups", reads))
        application = create_app(open_collection(Path("t.loom")))
        with TestClient(application, base_url="http://127.0.0.1:8137") as client:
            reads.clear()
            client.get("/api/examples/0/layers/0/heads/0/edges/0").raise_for_status()
        for put_back in undo:
            put_back()
        os.chdir(before)
    passed = dict.fromkeys((*reversed(calls[-1]), *writes[0], *reads[0]))
    edge = [name for name in passed if not name.startswith(("cli/", "jobs/", "models/"))]
    return {"query": query, "edge": edge}


def drawn(ways: dict[str, list[str]]) -> str:
    """The walks as CONTRIBUTING.md shows them."""
    titles = {"query": "headloom train", "edge": "the kernel"}
    ends = {"query": "the kernel", "edge": "the browser"}
    lines = []
    for name, passed in ways.items():
        text = " > ".join((titles[name], *passed, ends[name]))
        lines += textwrap.wrap(
            f"{name}: {text}", 96, subsequent_indent="    ", break_on_hyphens=False
        )
    return "\n".join(lines)


def sizes(names: Iterable[str]) -> dict[str, int]:
    """What the budget in pyproject.toml counts: lines of a folder, or a figure by its name."""
    from typer.main import get_command

    from headloom.cli import app

    files = [path for path in tracked() if path.suffix in sum(LANGUAGES.values(), ())]
    source = [path for path in files if path.suffix == ".py" and path.is_relative_to(PACKAGE)]
    command: Any = get_command(app)
    verbs = {name: command.get_command(None, name) for name in command.list_commands(None)}
    options = [[one for one in verb.params if one.param_type_name == "option" and not one.hidden]
               for verb in verbs.values()]  # fmt: skip
    figures = {
        "files in src/headloom": len(source),
        "Any in src/headloom": sum(words_in(path)["Any"] for path in source),
        "verbs": len(verbs),
        "options of a verb": max(map(len, options)),
        "options": sum(map(len, options)),
    }
    code = [path for path in files if path.suffix != ".md"]
    return {
        name: figures[name] if name in figures else sum(
            len(lines_of(path)) for path in code if path.is_relative_to(ROOT / name)
        )
        for name in names
    }  # fmt: skip


def check_budget() -> int:
    """Print what is beyond its budget; returns how many are."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        budget = tomllib.load(file)["tool"]["house"]["budget"]
    beyond = {name: size for name, size in sizes(budget).items() if size > budget[name]}
    for name, size in beyond.items():
        print(
            f"{name}: {size:,}, over its budget of {budget[name]:,}. Take away what can go; to "
            "raise a budget in pyproject.toml is a decision with a reason (docs/decisions)."
        )
    return len(beyond)


def examined() -> dict[str, list[str] | int]:
    """Every count, or the names behind it."""
    files = tracked()
    source = [path for path in files if path.suffix == ".py" and path.is_relative_to(PACKAGE)]
    graph = {module_name(path): path for path in source}
    imports = {name: imports_of(path, set(graph)) for name, path in graph.items()}
    written = [path for path in files if path.suffix in sum(LANGUAGES.values(), ())]
    state: dict[str, list[str] | int] = {
        "files tracked": len(files),
        "files in src/headloom": len(source),
        "folders in src/headloom": len({path.parent for path in source}),
        "lines in src/headloom": sum(len(lines_of(path)) for path in source),
        "cycles": [" ".join(knot) for knot in cycles(imports)],
        "functions over 60 lines": [name for path in source for name in long_functions(path)],
        "files over 400 lines": [
            f"{path.relative_to(ROOT)} ({len(lines_of(path))})"
            for path in written
            if path.suffix != ".md" and len(lines_of(path)) > LONG_FILE
        ],
    }
    for name, suffixes in LANGUAGES.items():
        state[f"lines over 100 columns, {name}"] = [
            f"{path.relative_to(ROOT)}:{number}"
            for path in written
            if path.suffix in suffixes
            for number, line in enumerate(lines_of(path), 1)
            # A row of a Markdown table is one line, however long.
            if len(line) > LONG_LINE and not (name == "md" and line.startswith("|"))
        ]
    words = [words_in(path) for path in source]
    for word in words[0]:
        state[f"{word}, src"] = sum(counts[word] for counts in words)
    for name, passed in walks().items():
        state[f"walk of {'a query' if name == 'query' else 'an edge'}"] = passed
    return state


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object, as the last line")
    parser.add_argument("--names", action="store_true", help="what is behind each count")
    parser.add_argument("--walks", action="store_true", help="the two walks alone")
    parser.add_argument("--budget", action="store_true", help="what is beyond its budget")
    asked = parser.parse_args()
    if asked.budget:
        sys.exit(1 if check_budget() else 0)
    if asked.walks:
        print(drawn(walks()))
        return
    state = examined()
    counts = {name: of if isinstance(of, int) else len(of) for name, of in state.items()}
    for name, count in counts.items():
        print(f"{name:32} {count:6}")
        behind = state[name]
        if asked.names and not isinstance(behind, int):
            print(*(f"    {line}" for line in behind), sep="\n")
    if asked.json:
        print(json.dumps(counts))


if __name__ == "__main__":
    main()
