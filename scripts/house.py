"""The state of the code in figures: sizes, cycles, walks, types.

    python scripts/house.py            # a table
    python scripts/house.py --names    # and the files behind each count
    python scripts/house.py --walks    # the walks alone, as CONTRIBUTING.md shows them
    python scripts/house.py --budget   # what is beyond its budget in pyproject.toml

Counts are read from the files that git tracks. The walks are not drawn by hand: programs run, and
the files on the call stack are counted where a kernel is called, edges are written and edges are
read; of `headloom.trace` the files whose functions are handed the model.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import textwrap
import tokenize
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "headloom"
LONG_FILE, SHORT_FILE = 400, 60
LANGUAGES = {
    "py": (".py",),
    "C++": (".cpp", ".h"),
    "ts": (".ts", ".mts", ".js", ".mjs"),
    "svelte": (".svelte",),
    "css": (".css",),
}


def tracked() -> list[Path]:
    """Return the files that git tracks and that are there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file."""
    return path.read_text(encoding="utf-8").splitlines()


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the package, wherever that lies."""
    parts = path.with_suffix("").parts
    parts = parts[len(parts) - 1 - parts[::-1].index("headloom") :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of headloom that a module imports, also in functions; not for types."""
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
    """Return the strongly connected sets of more than one module (Tarjan 1972)."""
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


def names_of_any(path: Path) -> int:
    """How often a module names `Any`."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return sum(token.type == tokenize.NAME and token.string == "Any" for token in tokens)


def stack_files() -> list[str]:
    """Return the files of the package on the call stack, the outermost first."""
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


TEXT = "to be or not to be, that is the question. " * 300
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


@contextlib.contextmanager
def in_new_folder() -> Iterator[None]:
    """Yield a folder of its own, with a text and a configuration."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text.txt").write_text(TEXT, encoding="utf-8")
        Path("config.toml").write_text(CONFIG, encoding="utf-8")
        try:
            yield
        finally:
            os.chdir(before)


def command(*words: str) -> None:
    """Run the command, its output on standard error."""
    from headloom.cli import app

    with contextlib.redirect_stdout(sys.stderr):
        app(list(words), standalone_mode=False)


def walks() -> dict[str, list[str]]:
    """Return the files on the call stack on three ways through the house.

    query: from `headloom train` to the native kernel.
    attend: from `headloom.attend` to it.
    edge: from the kernel, through the file of edges, to the studio's answer to a browser. The
        files of the model and of the command, which only stand above, are left out.
    """
    import pyarrow.parquet
    import torch
    from starlette.testclient import TestClient

    import headloom
    from headloom import _native
    from headloom.studio.runs import open_collection
    from headloom.studio.server import create_app

    calls: list[list[str]] = []
    writes: list[list[str]] = []
    reads: list[list[str]] = []
    with in_new_folder(), contextlib.ExitStack() as undo:
        undo.callback(note_stack(_native, "forward", calls))
        command("train", "config.toml", "--run", "run")
        query = calls[0]
        calls.clear()
        headloom.attend(*torch.randn(3, 2, 99, 16), keep=headloom.Top(4))
        attend = calls[0]
        calls.clear()
        undo.callback(note_stack(pyarrow.parquet.ParquetWriter, "write_table", writes))
        command("trace", "run", "--text", TEXT[:100], "-o", "t.loom")
        undo.callback(note_stack(pyarrow.parquet.ParquetFile, "read_row_groups", reads))
        application = create_app(open_collection(Path("t.loom")))
        with TestClient(application, base_url="http://127.0.0.1:8137") as client:
            reads.clear()
            client.get("/api/examples/0/layers/0/heads/0/edges/0").raise_for_status()
    passed = dict.fromkeys((*reversed(calls[-1]), *writes[0], *reads[0]))
    edge = [name for name in passed if not name.startswith(("cli/", "api/", "models/"))]
    return {"query": query, "attend": attend, "edge": edge}


def handed_on() -> list[str]:
    """Return the files that a model of Transformers passes through in `headloom.trace`."""
    import torch
    import transformers

    import headloom

    settings = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=99)
    model = transformers.GPT2LMHeadModel(settings).eval()
    stays: list[str] = []
    package = f"{Path(headloom.__file__).parent}/"

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(package):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(frame.f_locals.get(name) is model for name in names):
            name = code.co_filename.removeprefix(package)
            if stays[-1:] != [name]:
                stays.append(name)

    sys.setprofile(look)
    try:
        headloom.trace(model, torch.arange(9)[None])
    finally:
        sys.setprofile(None)
    return stays


def drawn(ways: dict[str, list[str]]) -> str:
    """Return the walks as CONTRIBUTING.md shows them."""
    titles = {"query": "headloom train", "attend": "headloom.attend", "edge": "the kernel"}
    lines = []
    for name, passed in ways.items():
        end = "the browser" if name == "edge" else "the kernel"
        text = " > ".join((titles[name], *passed, end))
        lines += textwrap.wrap(
            f"{name}: {text}", 96, subsequent_indent="    ", break_on_hyphens=False
        )
    return "\n".join(lines)


def sizes(names: Iterable[str]) -> dict[str, int]:
    """Return a count of the budget in pyproject.toml: lines of a folder, or a figure by name."""
    from typer.main import get_command

    from headloom.cli import app

    files = [path for path in tracked() if path.suffix in sum(LANGUAGES.values(), ())]
    source = [path for path in files if path.suffix == ".py" and path.is_relative_to(PACKAGE)]
    group: Any = get_command(app)
    verbs = [group.get_command(None, name) for name in group.list_commands(None)]
    options = [[one for one in verb.params if one.param_type_name == "option" and not one.hidden]
               for verb in verbs]  # fmt: skip
    figures = {
        "files in src/headloom": len(source),
        "Any in src/headloom": sum(map(names_of_any, source)),
        "verbs": len(verbs),
        "options of a verb": max(map(len, options)),
        "options": sum(map(len, options)),
    }
    return {
        name: figures[name] if name in figures else sum(
            len(lines_of(path)) for path in files if path.is_relative_to(ROOT / name)
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
    length = {path: len(lines_of(path)) for path in written}
    folders = ("src/headloom", "native", "studio/src", "tests", "scripts", "benchmarks")
    state: dict[str, list[str] | int] = {
        f"lines in {folder}": sum(
            lines for path, lines in length.items() if path.is_relative_to(ROOT / folder)
        )
        for folder in folders
    }
    state |= {
        "files in src/headloom": len(source),
        "cycles": [" ".join(knot) for knot in cycles(imports)],
        f"files over {LONG_FILE} lines": [
            f"{path.relative_to(ROOT)} ({lines})" for path, lines in length.items()
            if lines > LONG_FILE
        ],
        f"files under {SHORT_FILE}, src": [
            str(path.relative_to(ROOT)) for path in source
            if 1 < length[path] < SHORT_FILE and path.parent.name != "verbs"
        ],
        "Any, src": sum(map(names_of_any, source)),
    }  # fmt: skip
    for name, passed in walks().items():
        state[f"walk: {name}"] = passed
    stays = handed_on()
    state["walk: a model to trace, rooms"] = list(dict.fromkeys(stays))
    state["walk: a model to trace, returns"] = len(stays) - len(set(stays))
    return state


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--names", action="store_true", help="what is behind each count")
    parser.add_argument("--walks", action="store_true", help="the walks alone")
    parser.add_argument("--budget", action="store_true", help="what is beyond its budget")
    asked = parser.parse_args()
    if asked.budget:
        sys.exit(1 if check_budget() else 0)
    if asked.walks:
        print(drawn(walks()))
        return
    for name, of in examined().items():
        print(f"{name:32} {of if isinstance(of, int) else len(of):7,}")
        if asked.names and not isinstance(of, int):
            print(*(f"    {line}" for line in of), sep="\n")


if __name__ == "__main__":
    main()
