"""The rules of the house that a program can check."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import headloom

ROOT = Path(__file__).parents[1]
PACKAGE = Path(headloom.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text("utf-8")) for path in MODULES}
#: Functions of the face that stand over tracing's.
OVER_TRACING = ("watch", "from_queries_keys", "from_weights", "from_edges")
#: Names that say nothing of what is inside.
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}


def module_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


def test_imports_keep_to_the_contracts() -> None:
    """Imports point down only, the wings never meet."""
    code = "from importlinter.cli import lint_imports_command as check; check()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_names_of_modules_say_something() -> None:
    for path in MODULES:
        parts = set(path.relative_to(PACKAGE).with_suffix("").parts)
        assert not parts & EMPTY_NAMES, path


def test_the_reference_uses_nothing_of_headloom() -> None:
    """A second opinion that shares code with the first is none."""
    for path in sorted((PACKAGE / "mechanism" / "reference").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                ours = name == "headloom" or name.startswith("headloom.")
                assert not ours or name.startswith(
                    ("headloom.mechanism.reference", "headloom.errors")
                )


def public_without_docstring(tree: ast.Module) -> list[str]:
    """Public functions and classes at the top of a module, and methods of such classes.

    A method that replaces one of a parent is documented there; an __init__ by its class.
    """
    documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    missing = [] if ast.get_docstring(tree) else ["the module"]
    for node in tree.body:
        if isinstance(node, documented) and not node.name.startswith("_"):
            overload = any("overload" in ast.unparse(d) for d in node.decorator_list)
            if not overload and not ast.get_docstring(node):
                missing.append(node.name)
            if isinstance(node, ast.ClassDef) and not node.bases:
                missing += [
                    f"{node.name}.{method.name}"
                    for method in node.body
                    if isinstance(method, ast.FunctionDef)
                    and not method.name.startswith("_")
                    and not ast.get_docstring(method)
                ]
    return missing


def test_what_is_public_has_a_docstring() -> None:
    missing = {module_name(path): public_without_docstring(tree) for path, tree in TREES.items()}
    assert {name: names for name, names in missing.items() if names} == {}


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    riddle = re.compile(r'^ *r?"""(?:What|How|Where|Which|Who|Of|As|Those|Likewise)\b.*', re.M)
    riddles = {module_name(path): riddle.findall(path.read_text("utf-8")) for path in MODULES}
    assert {name: lines for name, lines in riddles.items() if lines} == {}


def test_what_is_a_modules_own_stays_in_it() -> None:
    """A name that begins with an underscore is not imported from its module by another."""
    taken = {
        f"{module_name(path)}: {node.module}.{alias.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headloom.")
        for alias in node.names
        if alias.name.startswith("_") and alias.name not in ("_native", "__version__")
    }
    assert taken == set()


def test_the_face_is_one_list() -> None:
    """Each name of the stub is the object that its module defines under this name."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    names = {}
    for node in stub.body[1:]:
        assert isinstance(node, ast.ImportFrom)
        (alias,) = node.names
        assert alias.asname == alias.name  # without it a type checker takes the name for private
        names[alias.name] = f"headloom.{node.module}" if node.module else ""
    assert sorted(names) == headloom.__all__ == dir(headloom)
    for name, module in names.items():
        value = getattr(headloom, name)
        if not module:  # a module of functions
            assert value is importlib.import_module(f"headloom.{name}")
            continue
        assert value is getattr(importlib.import_module(module), name)
        if name not in OVER_TRACING and name != "__version__":
            assert value.__module__ == module, name


def test_the_face_is_small_and_the_reference_has_all_of_it_and_nothing_else() -> None:
    pages = [path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")]
    named = re.findall(r"^::: (.*)$", "\n".join(pages), re.MULTILINE)
    names = [name for name in headloom.__all__ if name != "__version__"]
    assert sorted(named) == sorted(f"headloom.{name}" for name in names)
    assert len(headloom.__all__) <= 90
    assert [name for name in names if not inspect.unwrap(getattr(headloom, name)).__doc__] == []


def test_a_name_of_the_face_loads_no_more_than_it_needs() -> None:
    code = "import sys, headloom; headloom.DataError; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


EACH_ALONE = """
import importlib, os, sys, traceback
# What takes long, and is not of headloom, once.
for name in sys.argv[1].split():
    importlib.import_module(name)

failed = []
for name in sys.argv[2:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(" ".join(failed))
"""


@pytest.mark.parametrize(
    ("floor", "others"),
    [
        pytest.param("mechanism", "numpy torch", id="mechanism", marks=pytest.mark.slow),
        pytest.param(
            "",
            "duckdb starlette matplotlib.figure networkx numpy pandas pyarrow.parquet pydantic "
            "rich.console safetensors.torch scipy.sparse tokenizers torch transformers typer",
            marks=pytest.mark.slow,
            id="everything",
        ),
    ],
)
def test_every_module_can_be_imported_first(floor: str, others: str) -> None:
    """Two modules that need each other are seen only where the right one of them comes first."""
    names = [
        ".".join(("headloom", *path.relative_to(PACKAGE).with_suffix("").parts))
        for path in MODULES
        if path.is_relative_to(PACKAGE / floor)
        and (not path.stem.startswith("triton_") or find_spec("triton") is not None)
    ]
    names = [name.removesuffix(".__init__") for name in names]
    done = subprocess.run(
        [sys.executable, "-c", EACH_ALONE, others, *names],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_no_import_goes_round_in_a_circle() -> None:
    """Wherever a program begins: imports inside functions and those of packages are counted."""
    house = runpy.run_path(str(ROOT / "scripts" / "house.py"))
    names = {house["module_name"](path): path for path in MODULES}
    graph = {name: house["imports_of"](path, set(names)) for name, path in names.items()}
    assert sum(map(len, graph.values())) > 500
    assert house["cycles"](graph) == []
    assert house["cycles"]({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
