"""Every error of the mechanism: raised, one line, names the operation and the remedy.

The last test reads the source: a `raise` that no case reaches fails it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.mechanism.error_cases import CASES, call, graph, zeros

import headloom
from headloom import mechanism
from headloom.mechanism import matrix
from headloom.mechanism.backends import triton

FOLDER = Path(mechanism.__file__).parent


def line_of_raise(error: BaseException) -> tuple[str, int]:
    """File and line of the `raise` that an error came from."""
    traceback = error.__traceback__
    assert traceback is not None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno


@pytest.mark.parametrize(("run", "operation", "remedy"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_an_error_is_one_line_with_operation_and_remedy(
    run: Callable[[], object], operation: str, remedy: str
) -> None:
    with pytest.raises(headloom.InputError) as caught:
        run()
    message = str(caught.value)
    assert message.startswith(operation + ":")
    assert remedy in message
    assert "\n" not in message
    assert message == message.strip()


TABLE = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "wrong", [TABLE, TABLE.numpy(), {"a": TABLE}], ids=["tensor", "array", "dict"]
)
def test_a_table_in_place_of_any_other_argument_is_said_in_one_line(wrong: Any) -> None:
    tokens, untyped = zeros(2, 5, 8), cast(Any, headloom)
    matrix = untyped.AttentionMatrix(tokens, tokens)
    words = ("score", "relative", "scale", "softcap", "dropout", "backend")
    calls: dict[str, Callable[[], object]] = {
        **{
            f"{name} {word}": partial(function, tokens, tokens, tokens, **{word: wrong})
            for name, function in (("attention", untyped.attention), ("attend", untyped.attend))
            for word in words
        },
        **{
            f"attend {word}": partial(untyped.attend, tokens, tokens, tokens, **{word: wrong})
            for word in ("keep", "received")
        },
        "window": partial(untyped.window, wrong, 1),
        "neighbours": partial(untyped.neighbours, torch.eye(3), nodes=wrong),
        "block_means": partial(matrix.block_means, wrong),
        "adjacency": partial(graph().adjacency, 0, of=wrong),
        "matrix[]": partial(matrix.__getitem__, wrong),
    }
    for name, run in calls.items():
        with pytest.raises(headloom.InputError) as caught:
            run()
        assert "\n" not in str(caught.value), name


def test_shapes_that_do_not_fit_are_shape_errors() -> None:
    with pytest.raises(headloom.ShapeError):
        call((2, 4, 5, 6))
    with pytest.raises(headloom.BackendError):
        call(backend="native", score=headloom.GraphAttentionV2(zeros(8)))
    assert issubclass(headloom.ShapeError, ValueError)


def test_an_error_prints_the_shapes_that_came() -> None:
    with pytest.raises(headloom.ShapeError, match=r"depth 6, keys 8, from \(2, 4, 5, 6\)"):
        call((2, 4, 5, 6))


def test_no_raise_of_the_mechanism_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = set()
    for _, run, _, _ in CASES:
        with pytest.raises(headloom.InputError) as caught:
            run()
        reached.add(line_of_raise(caught.value))
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(headloom.InputError) as caught:
        graph().to_pyg(0)
    reached.add(line_of_raise(caught.value))
    with pytest.raises(headloom.errors.BackendError, match="for this call: KeyError") as caught:
        triton._launch({}, 1, zeros(1))
    reached.add(line_of_raise(caught.value))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'") as unknown:
        _ = matrix.Nothing
    reached.add(line_of_raise(unknown.value))

    missed = []
    for path in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any((str(path), line) in reached for line in lines):
                    missed.append(f"{path.relative_to(FOLDER)}:{node.lineno}")
    assert missed == []
