"""Attention over a sequence that processes share: as one process has it, edges included."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import headloom
from headloom.errors import InputError
from headloom.mechanism.graph import AttentionGraph

#: Forks processes, each of which attends from its part of the queries in each of the cases.
PARENT = """
import os, sys, traceback
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
import headloom

folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
cases = torch.load(folder / "cases.pt", weights_only=False)

def part(tensor, cuts, rank):
    return tensor[..., cuts[rank]:cuts[rank + 1], :]

def rank_main(rank):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(str(folder / "store"), ranks)
    wait = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
    answers = {}
    for name, case in cases.items():
        own = case | case.get("second", {}) if rank == 1 else case
        q, k, v = (part(own[n], case["cuts"], rank) for n in ("queries", "keys", "values"))
        try:
            output, graph = headloom.ring_attend(q, k, v, **own["options"])
            answers[name] = (output, vars(graph))
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    torch.save(answers, folder / f"answer-{rank}.pt")
    dist.destroy_process_group()

children = []
for rank in range(ranks):
    child = os.fork()
    if child == 0:
        try:
            rank_main(rank)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def tensors(keys: int = 37, kv_heads: int = 2, batch: int | None = 2) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(3)
    lead = () if batch is None else (batch,)
    return {
        "queries": torch.randn(*lead, 4, 37, 8, generator=numbers),
        "keys": torch.randn(*lead, kv_heads, keys, 8, generator=numbers),
        "values": torch.randn(*lead, kv_heads, keys, 5, generator=numbers),
    }


def cases() -> dict[str, dict[str, Any]]:
    """Each with cuts for four processes, one of them without any key."""
    numbers = torch.Generator().manual_seed(4)
    even, odd = [0, 10, 20, 30, 37], [0, 1, 1, 30, 37]
    shaw = headloom.Shaw(torch.randn(9, 8, generator=numbers), torch.randn(9, 5, generator=numbers))
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"mask": headloom.causal()},
        "window": {"mask": headloom.window(5, 2)},
        "padding": {"mask": headloom.padding([30, 7]) & headloom.causal()},
        "explicit": {"mask": torch.rand(2, 1, 37, 37, generator=numbers) > 0.6},
        "nothing": {"mask": torch.zeros(37, 37, dtype=torch.bool)},
        "alibi": {"relative": headloom.ALiBi(headloom.alibi_slopes(4)), "mask": headloom.causal()},
        "shaw": {"relative": shaw},
        "sinks": {"sinks": torch.randn(4, generator=numbers), "mask": headloom.causal()},
        "sinks alone": {
            "sinks": torch.randn(4, generator=numbers),
            "mask": torch.zeros(37, 37).bool(),
        },
        "softcap": {"softcap": 2.0, "scale": 0.7},
        "few": {"keep": headloom.Top(3)},
        "all": {"keep": headloom.Top(64)},
        "none": {"keep": headloom.Top(0)},
    }
    listed = {name: tensors() | {"options": o, "cuts": even} for name, o in options.items()}
    listed["uneven"] = tensors() | {"options": {"mask": headloom.causal()}, "cuts": odd}
    listed["one head"] = tensors(kv_heads=1, batch=None) | {"options": {}, "cuts": even}
    ties = {**tensors(), "options": {"keep": headloom.Top(4)}, "cuts": even}
    ties["keys"] = torch.zeros_like(ties["keys"])
    return listed | {"ties": ties}


def unlike() -> dict[str, dict[str, Any]]:
    """Cases in which the second process has other values, or tensors of another type."""
    cuts, mine = [0, 10, 20, 30, 37], tensors()
    double = {name: tensor.double() for name, tensor in mine.items()}
    wider = {"values": torch.nn.functional.pad(mine["values"], (0, 1))}
    options: dict[str, dict[str, Any]] = {
        "wrong keep": {"keep": headloom.All()},
        "wrong sinks": {"sinks": torch.zeros(3)},
        "wrong size": {"mask": torch.ones(37, 36).bool()},
        "no mask": {"mask": "causal"},
    }
    seconds = {"wider values": wider, "float64": double}
    seconds |= {name: {"options": wrong} for name, wrong in options.items()}
    return {
        name: mine | {"options": {}, "cuts": cuts, "second": second}
        for name, second in seconds.items()
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of four processes found."""
    folder = tmp_path_factory.mktemp("ring")
    torch.save(cases() | unlike(), folder / "cases.pt")
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(folder), "4"], capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    assert (folder / "answer-0.pt").exists(), done.stderr
    return [torch.load(folder / f"answer-{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("name", cases())
def test_a_ring_has_what_one_process_has(name: str, answers: list[dict[str, Any]]) -> None:
    case = cases()[name]
    for answer in answers:
        assert not isinstance(answer[name], str), answer[name]
    output = torch.cat([answer[name][0] for answer in answers], -2)
    expected, graph = headloom.attend(
        case["queries"], case["keys"], case["values"], **case["options"]
    )
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    parts = [answer[name][1] for answer in answers]
    batched = graph.batched
    for field in ("lse", "entropy", "rest", "count"):
        whole = torch.cat([part[field] for part in parts], -1)
        torch.testing.assert_close(whole, getattr(graph, field), atol=3e-6, rtol=1e-5, msg=field)
    assert {part["length"] for part in parts} == {graph.length}
    edges = {
        field: torch.cat([part[field] for part in parts], -2)
        for field in ("keys", "scores", "weights")
    }
    ring = AttentionGraph(
        **edges, lse=graph.lse, entropy=graph.entropy, rest=graph.rest, count=graph.count,
        length=graph.length,
    )  # fmt: skip
    for head in range(4):
        for sample in range(2) if batched else (None,):
            mine = ring if sample is None else ring[sample]
            other = graph if sample is None else graph[sample]
            difference = mine.adjacency(head) - other.adjacency(head)
            assert abs(difference).max() < 1e-6
    assert edges["keys"].shape == graph.keys.shape


def test_edges_are_those_of_the_dense_formula(answers: list[dict[str, Any]]) -> None:
    """In float64, by torch alone."""
    case = cases()["causal"]
    queries, keys = case["queries"].double(), case["keys"].double().repeat_interleave(2, 1)
    scores = queries @ keys.mT / 8**0.5
    scores = scores.masked_fill(torch.ones(37, 37).triu(1).bool(), -torch.inf)
    weights, strongest = scores.softmax(-1).topk(32, -1)
    found = torch.cat([answer["causal"][1]["weights"] for answer in answers], -2)
    places = torch.cat([answer["causal"][1]["keys"] for answer in answers], -2)
    assert torch.allclose(found.double(), weights, atol=1e-6)
    assert torch.equal(places[weights > 0], strongest[weights > 0])


def test_ties_go_to_the_lower_key(answers: list[dict[str, Any]]) -> None:
    keys = torch.cat([answer["ties"][1]["keys"] for answer in answers], -2)
    assert torch.equal(keys, torch.arange(4).expand_as(keys))


def test_processes_that_are_unlike_say_how(answers: list[dict[str, Any]]) -> None:
    """What one sends is as large as what the next one expects, or the program ends in the ring."""
    floats = "torch.float32 and batch, heads and depths"
    for rank in (0, 2, 3):
        assert answers[rank]["wider values"] == (
            f"ShapeError: ring_attend: process {rank} has {floats} [2, 4, 2, 2, 8, 5], process 1 "
            f"{floats} [2, 4, 2, 2, 8, 6]. Give all the same."
        )
        assert "process 1 torch.float64" in answers[rank]["float64"]
    assert "process 1 has torch.float64" in answers[1]["float64"]
    assert "[2, 4, 2, 2, 8, 6], process 0" in answers[1]["wider values"]


def test_an_error_of_one_process_ends_all(answers: list[dict[str, Any]]) -> None:
    """The others would wait for its keys until the group's time is over."""
    own = {
        "wrong keep": "expected headloom.Top(k)", "wrong sinks": "sinks", "wrong size": "mask",
        "no mask": "mask",
    }  # fmt: skip
    for name, words in own.items():
        assert words in answers[1][name]
        for rank in (0, 2, 3):
            assert answers[rank][name] == (
                "InputError: ring_attend: process 1 cannot use what it was given; its own error "
                "says why. Nothing was computed."
            )


@pytest.mark.parametrize(
    "options",
    [
        {"sinks": torch.zeros(4, requires_grad=True)},
        {"score": headloom.Bilinear(torch.eye(8, requires_grad=True))},
        {"relative": headloom.ALiBi(headloom.alibi_slopes(4).requires_grad_())},
    ],
    ids=lambda options: next(iter(options)),
)
def test_parameters_get_no_gradients_in_silence(options: dict[str, Any]) -> None:
    part = tensors()
    with pytest.raises(InputError, match="gradients do not travel"):
        headloom.ring_attend(part["queries"], part["keys"], part["values"], **options)
    with torch.no_grad(), pytest.raises(InputError, match="is not started"):
        headloom.ring_attend(part["queries"], part["keys"], part["values"], **options)


def test_without_processes_it_says_what_to_do() -> None:
    part = tensors()
    with pytest.raises(InputError, match=r"torch\.distributed is not started"):
        headloom.ring_attend(part["queries"], part["keys"], part["values"])
