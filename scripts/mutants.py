"""Plant small faults in a module, one at a time, and see whether its tests notice each.

    python scripts/mutants.py src/headloom/mechanism/masks.py tests/mechanism/test_mask.py ...
    python scripts/mutants.py MODULE TESTS... --sample 30   # so many, drawn by a fixed seed
    python scripts/mutants.py MODULE TESTS... --only 12 35  # some of them, with what pytest says

A fault is a comparison, a sign, a number, a condition or a word of logic made another one, or an
error that is not raised. No file is changed: this process collects the tests, and forks a child for
each fault, which changes the module where it stands and runs the tests until one fails. Prints a
line for each fault that no test noticed: read them, since some change nothing that anybody could
see. Exit status 1 where there are such.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import math
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: A child that takes so many times the processor time of the tests without a fault hangs: noticed
#: too; so does one that takes so many times as long as that on the clock, on a busy machine.
PATIENCE, BUSY = 4, 40
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
PLUGINS = ("-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin")
#: Parts of the syntax that do nothing when a program runs.
SILENT = {"annotation", "returns", "decorator_list", "type_params"}


class Fault:
    """One place of a module, and how it is changed there."""

    def __init__(self, node: ast.AST, said: str, change: Callable[[Any], ast.AST | None]) -> None:
        self.node, self.said, self.change = node, said, change

    def planted(self, tree: ast.Module) -> ast.Module:
        """Return a copy of the module with the fault."""
        kept = {id(self.node): copy.deepcopy(self.node)}
        made = copy.deepcopy(tree, {id(self.node): kept[id(self.node)]})
        place, change = kept[id(self.node)], self.change

        class Planter(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                return change(node) if node is place else self.generic_visit(node)

        return ast.fix_missing_locations(Planter().visit(made))


def faults(node: ast.AST) -> Iterator[Fault]:
    """All faults that can be planted below a node, from the top of the file to its end."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name in SILENT or not isinstance(child, ast.AST) or _is_words(child):
                continue
            yield from _faults_of(child)
            yield from faults(child)


def _is_words(node: ast.AST) -> bool:
    """Docstrings, messages, the list of public names."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.Assign):
        return any(getattr(target, "id", "") == "__all__" for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _faults_of(node: ast.AST) -> Iterator[Fault]:
    match node:
        case ast.Compare(ops=[operator, *_]):
            other = COMPARISONS[type(operator)]
            yield Fault(
                node,
                f"{_name(operator)} is {other.__name__}",
                lambda old: ast.Compare(old.left, [other(), *old.ops[1:]], old.comparators),
            )
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            instead = OPERATORS[type(operator)]
            yield Fault(
                node, f"{_name(operator)} is {instead.__name__}", lambda old: _with(old, instead())
            )
        case ast.BoolOp(op=operator):
            word = ast.Or if isinstance(operator, ast.And) else ast.And
            yield Fault(
                node, f"{_name(operator)} is {word.__name__}", lambda old: _with(old, word())
            )
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield Fault(node, f"without {_name(node.op)}", lambda old: old.operand)
        case ast.Constant(value=bool(value)):
            yield Fault(node, f"{value} is {not value}", lambda old: ast.Constant(not old.value))
        case ast.Constant(value=int(value) | float(value)):
            yield Fault(node, f"{value} is {value + 1}", lambda old: ast.Constant(old.value + 1))
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Compare):
            yield Fault(node.test, "the condition is its contrary", _contrary)
        case ast.Raise():
            yield Fault(node, "no error", lambda old: ast.Pass())


def _with(node: Any, operator: ast.AST) -> ast.AST:
    node.op = operator
    return node


def _contrary(test: ast.expr) -> ast.AST:
    return ast.UnaryOp(ast.Not(), test)


def _name(node: ast.AST) -> str:
    return type(node).__name__


class Planter:
    """Plants faults in a module that is loaded: the code of its functions changes where they stand.

    So whoever holds a function, under whatever name, runs the changed one, and nothing is loaded
    anew. A fault outside of functions is executed aside; its constants and defaults are taken over.
    """

    def __init__(self, module: Path, tree: ast.Module) -> None:
        self.path, self.tree = str(module), tree
        name = ".".join(module.relative_to(ROOT / "src").with_suffix("").parts)
        self.module = importlib.import_module(name.removesuffix(".__init__"))
        gc.unfreeze()  # tests/conftest.py hides what is loaded from the collector
        self.functions = [
            thing
            for thing in gc.get_objects()
            if type(thing) is FunctionType and thing.__code__.co_filename == self.path
        ]
        self.bodies = {
            id(inside)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.Lambda)
            for part in (node.body if isinstance(node.body, list) else [node.body])
            for inside in ast.walk(part)
        }

    def plant(self, fault: Fault) -> None:
        """Change the module of this process, for good."""
        planted = fault.planted(self.tree)
        before, after = (compile(tree, self.path, "exec") for tree in (self.tree, planted))
        if id(fault.node) in self.bodies:
            changed = dict(_pairs(before, after))
            for function in self.functions:
                function.__code__ = changed[function.__code__]
            return
        aside = dict(vars(self.module))
        exec(after, aside)
        everybody = [vars(module) for module in list(sys.modules.values()) if module is not None]
        for name, there in list(vars(self.module).items()):
            instead = aside[name]
            if getattr(there, "__module__", None) == self.module.__name__:
                _take_over(there, instead)
            elif type(there) in (bool, int, float, str, tuple, dict) and there != instead:
                for names in everybody:
                    if names.get(name) is there:
                        names[name] = instead
        aside.clear()
        gc.collect()  # classes made aside are no subclasses of anybody


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code of each function of a module, and what it is with the fault."""
    inner = [
        [one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after)
    ]
    yield before, after
    for old, new in zip(*inner, strict=False):
        yield from _pairs(old, new)


def _take_over(there: Any, instead: Any) -> None:
    """Defaults of a function, or those and the constants of a class."""
    if isinstance(there, FunctionType):
        there.__defaults__, there.__kwdefaults__ = instead.__defaults__, instead.__kwdefaults__
    elif isinstance(there, type):
        for name, value in list(vars(there).items()):
            other = vars(instead)[name]
            if isinstance(value, FunctionType):
                _take_over(value, other)
            elif type(value) in (bool, int, float, str, tuple):
                setattr(there, name, other)


def tested(items: list[Any], change: Callable[[], None], seconds: float, loud: bool) -> bool:
    """Whether the tests pass after a change, in time, in a child of this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if not loud:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)
            change()
            code = int(not _pass(items, loud))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + BUSY * seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _pass(items: list[Any], loud: bool) -> bool:
    """Run tests until one fails."""
    from _pytest.runner import runtestprotocol
    from _pytest.warnings import catch_warnings_for_item

    for item, following in zip(items, [*items[1:], None], strict=True):
        # With the warnings that a test's marks pass over, as pytest's own loop has them.
        with catch_warnings_for_item(item.config, item.ihook, when="runtest", item=item):
            reports = runtestprotocol(item, log=False, nextitem=following)
        for report in reports:
            if report.failed:
                if loud:
                    print(report.nodeid, report.longreprtext, sep="\n")
                return False
    return True


class Session:
    """pytest's own session: it collects the tests once, then this runs them for each fault."""

    def __init__(self, module: Path, sample: int | None, only: list[int] | None) -> None:
        self.path, self.only, self.status = module, only, 0
        self.tree = ast.parse(module.read_text("utf-8"))
        self.faults = list(enumerate(faults(self.tree)))
        if only is not None:
            self.faults = [self.faults[number] for number in only]
        elif sample is not None and sample < len(self.faults):
            some = random.Random(0).sample(self.faults, sample)
            self.faults = sorted(some, key=lambda one: one[0])

    def pytest_runtestloop(self, session: Any) -> bool:
        """Instead of pytest's loop over the tests."""
        loud = self.only is not None
        planter = Planter(self.path, self.tree)
        if session.testsfailed or not tested(session.items, lambda: None, 3600, loud):
            print("the tests fail without any fault: mend that first", file=sys.stderr)
            self.status = 2
            return True
        seconds = PATIENCE * sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) + 2
        unnoticed = 0
        for number, fault in self.faults:
            if tested(session.items, partial(planter.plant, fault), seconds, loud):
                unnoticed += 1
                line = getattr(fault.node, "lineno", 0)
                code = ast.unparse(fault.node).partition("\n")[0]
                print(f"{number:4d}  line {line}: {fault.said}: {code}", flush=True)
        count = len(self.faults)
        print(f"{self.path.name}: {count} faults, {count - unnoticed} noticed", flush=True)
        self.status = int(unnoticed > 0)
        return True


def main() -> int:
    """Plant, test, print; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("module", type=Path)
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--sample", type=int, help="how many faults; all without it")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of some faults")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest
    import torch

    torch.set_num_threads(1)
    session = Session(options.module.resolve(), options.sample, options.only)
    # What a fault makes of a test may not depend on chance. Of pytest's plugins only those that the
    # tests use, and asserts as they stand, which is quicker.
    quiet = ["-qq", "-s", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    ended = pytest.main([*quiet, "--assert=plain", *PLUGINS, *options.tests], plugins=[session])
    return session.status or (2 if ended not in (0, 5) else 0)


if __name__ == "__main__":
    sys.exit(main())
