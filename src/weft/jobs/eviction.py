"""What `weft evict` was asked: policies by name or from a file of Python, and a picture."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from weft.analysis.eviction.evict import Eviction, Rule, evict, named_policies
from weft.analysis.eviction.policies import Policy
from weft.errors import InputError, WeftError
from weft.formats.files import check_file
from weft.formats.trace import TraceData

__all__ = ["EvictionRequest", "budget_of", "policy_of", "run_evict"]


@dataclass(frozen=True)
class EvictionRequest:
    """Which policies, at which budgets, on which part of a trace.

    budgets: as words: 20%, 0.2, or a number of keys. policies: names, file.py:function or
    module:function; where no name is given, all that have one are there besides the functions.
    picture: the file to draw to, or None.
    """

    budgets: Sequence[str]
    policies: Sequence[str]
    prompt: int | None
    each_step: bool
    layer: int | None
    picture: Path | None = None


def run_evict(
    path: Path, request: EvictionRequest, progress: Callable[[int, int], None]
) -> Eviction:
    """Measure what is asked for, and draw it where a picture is.

    The middle budget is drawn: what is thrown away, and what is lost by it.

    Raises: InputError, DataError: see `weft.analysis.eviction.evict.evict`, and `policy_of`.
    """
    if request.picture is not None:
        from weft.pictures.canvas import picture_format, save_picture
        from weft.pictures.eviction import eviction

        # Before the work, not after it.
        picture_format(request.picture)
    budgets = [budget_of(word) for word in request.budgets]
    rules = [policy_of(word) for word in request.policies]
    if rules and not any(isinstance(rule, str) for rule in rules):
        rules = [*named_policies(request.each_step), *rules]
    found = evict(
        TraceData.open(path),
        budgets=budgets,
        policies=rules or None,
        prompt=request.prompt,
        each_step=request.each_step,
        layers=None if request.layer is None else [request.layer],
        progress=progress,
    )
    if request.picture is not None:
        save_picture(eviction(found, len(found.budgets) // 2), request.picture)
    return found


def budget_of(word: str) -> float:
    """A budget from a word.

    >>> budget_of("20%"), budget_of("0.2"), budget_of("512")
    (0.2, 0.2, 512)

    Raises: InputError: it is no number, a share that is not above 0 %, up to 100 %, or no whole
    number of keys, 1 or more.
    """
    try:
        if word.endswith("%"):
            share = float(word[:-1]) / 100
            if not 0 < share <= 1:
                raise ValueError
            return share
        budget = int(word) if word.isascii() and word.isdigit() else float(word)
        if not (budget > 0 and (budget <= 1 or budget == int(budget))):
            raise ValueError
        return budget if budget <= 1 else int(budget)
    except (ValueError, OverflowError):
        raise InputError(
            f"--budget {word}: expected a share of the prompt, as 20% or 0.2, up to 100%, or a "
            "number of keys."
        ) from None


def policy_of(word: str) -> Rule:
    """A policy from a word: a name, or a function (or `Policy`) in a file or a module of Python.

    The code that the word names is run.

    Args:
        word: "h2o", "rules.py:mine", "package.rules:mine".

    Raises: DataError: no such file; InputError: it cannot be imported, or there is no such
    function.
    """
    place, colon, name = word.rpartition(":")
    if not colon:
        return word
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    rule: Any = getattr(module, name, None)
    if isinstance(rule, Policy):
        step = rule.step
        return Policy(
            rule.name,
            _in_one_line(rule.prompt, rule.name),
            None if step is None else _in_one_line(step, rule.name),
        )
    if not callable(rule):
        found = "there is none" if rule is None else f"it is of type {type(rule).__name__}"
        raise InputError(
            f"--policy {word}: expected {name} to be a function of a prompt and a budget, or a "
            f"Policy; {found}."
        )
    return Policy(name, _in_one_line(rule, name))


def _from_file(path: Path) -> ModuleType:
    check_file(path, "policy")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: cannot be imported. Give a file of Python, as rules.py:mine.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(str(path), "cannot be imported", error) from error
    return module


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _failed(f"module {name}", "cannot be imported", error) from error


def _in_one_line(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function, whose errors name it."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except WeftError:
            raise
        except Exception as error:
            raise _failed(f"policy {name}", "failed", error) from error

    return called


def _failed(what: str, how: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:200].rstrip(".")
    return InputError(
        f"{what}: {how} ({type(error).__name__}: {reason}). weft --debug evict ... shows where."
    )
