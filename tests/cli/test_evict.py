"""`weft evict`: the table, a policy of one's own, the picture, and bad input in one line."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command

import weft

RULES = """
import torch
def latest(prompt, budget):
    return torch.arange(prompt.length).expand(prompt.kv_heads, -1)
def broken(prompt, budget):
    return prompt.nothing
number = 3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evict")
    made = torch.Generator().manual_seed(1)
    queries, keys = torch.randn(2, 3, 4, 48, 8, generator=made)
    options = {"mask": weft.causal(), "kind": "decoder"}
    weft.from_queries_keys(queries, keys, save=folder / "t.weft", **options)
    weft.from_queries_keys(
        queries, keys, save=folder / "without.weft", queries_keys=False, **options
    )
    (folder / "rules.py").write_text(RULES)
    (folder / "bad.py").write_text("1 +")
    return folder


def test_the_table_has_a_row_for_each_policy_and_budget(folder: Path, weft_main: Command) -> None:
    own = f"{folder / 'rules.py'}:latest"
    words = (
        "evict", folder / "t.weft", "--policy", "tova", "--policy", own, "--budget", "25%",
        "--budget", "8", "--prompt-tokens", "32",
    )  # fmt: skip
    result = weft_main(*words, "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    rows = {(row["policy"], row["keys"]): row for row in report["rows"]}
    assert (report["prompt"], report["steps"]) == (32, 16)
    names = ("tova", "latest", "oracle", "oracle-step")
    assert set(rows) == {(name, 8) for name in names}
    # By hand, in float64: the 8 latest of the prompt stay.
    lost = []
    for layer in weft.open(folder / "t.weft").layers:
        assert layer.queries is not None and layer.keys is not None
        scores = layer.queries.double() @ layer.keys.double().transpose(1, 2) / 8**0.5
        weights = scores.masked_fill(torch.ones(48, 48).triu(1).bool(), -torch.inf).softmax(-1)
        lost.append(weights[:, 32:, :24].sum(-1))
    expected = float(torch.stack(lost).mean())
    assert rows["latest", 8]["lost"] == pytest.approx(expected, abs=1e-6)
    table = weft_main(*words).out
    assert f"{100 * expected:.2f} %" in table
    assert "3 layers, 12 heads; prompt of 32 tokens, then 16 steps" in table


def test_what_is_kept_stands_beside_the_budget_and_equal_budgets_are_named(
    folder: Path, weft_main: Command
) -> None:
    words = ("evict", folder / "t.weft", "--prompt-tokens", "7", "--policy", "tova")
    budgets = ("--budget", "5%", "--budget", "20%", "--budget", "3")
    lines = weft_main(*words, *budgets).out.splitlines()
    assert lines[0].split()[:4] == ["policy", "budget", "keys", "kept"]
    assert lines[1].split()[:7] == ["tova", "5", "%", "1", "14.3", "%", lines[1].split()[6]]
    assert "Budgets 5 % and 20 % are one: 1 of 7 keys." in lines
    rows = json.loads(weft_main(*words, *budgets, "--json").out)["rows"]
    assert [(row["budget"], row["keys"], row["kept"]) for row in rows[::3]] == [
        (0.05, 1, 1 / 7), (0.2, 1, 1 / 7), (3 / 7, 3, 3 / 7)
    ]  # fmt: skip
    assert "are one" not in weft_main(*words, "--budget", "3").out


def test_of_heads_that_share_keys_one_may_lose_less_than_with_the_best(
    folder: Path, tmp_path: Path, weft_main: Command
) -> None:
    queries = torch.randn(1, 4, 24, 8, generator=torch.Generator().manual_seed(2))
    keys = torch.randn(1, 2, 24, 8, generator=torch.Generator().manual_seed(3))
    weft.from_queries_keys(
        queries, keys, save=tmp_path / "t.weft", mask=weft.causal(), kind="decoder"
    )
    said = "one of these alone may lose less, below 0 %"
    by_head = ("--by", "head", "--budget", "3")
    shared = ("evict", tmp_path / "t.weft", *by_head)
    least = min(row["above"] for row in json.loads(weft_main(*shared, "--json").out)["rows"])
    table = weft_main(*shared).out
    assert least < -0.001 and said in table and "mean over steps." in table
    assert said not in weft_main("evict", tmp_path / "t.weft", "--budget", "3").out
    alone = ("evict", folder / "t.weft", *by_head)
    least = min(row["above"] for row in json.loads(weft_main(*alone, "--json").out)["rows"])
    assert least > -1e-6 and said not in weft_main(*alone).out


def test_every_layer_head_and_step_as_comma_separated_values(
    folder: Path, weft_main: Command
) -> None:
    for by, count in (("layer", 3), ("head", 12), ("step", 6)):
        result = weft_main(
            "evict", folder / "t.weft", "--by", by, "--csv", "--each-step", "--budget", "9"
        )
        rows = list(csv.DictReader(result.out.splitlines()))
        assert len(rows) == 4 * count and {row["policy"] for row in rows} == {
            "h2o", "streaming", "tova", "oracle-step"
        }  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--each-step",)])
def test_the_picture_is_drawn(
    folder: Path, tmp_path: Path, weft_main: Command, options: tuple[str, ...]
) -> None:
    out = tmp_path / "e.svg"
    result = weft_main("evict", folder / "t.weft", "--picture", out, *options)
    assert result.code == 0, result.err
    text = out.read_text()
    rows = csv.DictReader(weft_main("evict", folder / "t.weft", "--csv", *options).out.splitlines())
    kept = {100 * float(row["kept"]) for row in rows}
    # What stays, not what was asked for: no axis and no title says 20 % of a short prompt.
    title = re.search(r"What a cache of ([\d.]+) % of the keys keeps", text)
    assert title is not None and "oracle-step" in text
    assert float(title[1]) in {float(f"{share:.3g}") for share in kept} - {20.0}
    assert all(f">{share:.3g}<" in text for share in kept) and 20.0 not in kept


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, weft_main: Command) -> None:
    rules = folder / "rules.py"

    def line(*words: object, trace: str = "t.weft") -> str:
        return weft_main("evict", folder / trace, *words).one_line()

    assert "Trace again with queries and keys" in line(trace="without.weft")
    assert "no policy 'h3'" in line("--policy", "h3")
    assert "--budget much: expected a share" in line("--budget", "much")
    for more in ("200%", "120%", "0%", "-5%", "nan%"):
        assert f"--budget {more}: expected a share of the prompt" in line("--budget", more)
    for more in ("-5", "1.2", "0", "inf"):
        assert f"--budget {more}: expected a share" in line("--budget", more)
    assert "budget 1000; expected a share" in line("--budget", "1e3")
    assert "a prompt of 99 of 48 tokens" in line("--prompt-tokens", "99")
    assert "expected policy, layer, head or step" in line("--by", "token")
    assert "no.py" in line("--policy", "no.py:f")
    assert "cannot be imported (SyntaxError" in line("--policy", f"{folder / 'bad.py'}:f")
    assert "there is none" in line("--policy", f"{rules}:absent")
    assert "it is of type int" in line("--policy", f"{rules}:number")
    assert "policy broken: failed (AttributeError" in line("--policy", f"{rules}:broken")
    assert "module no_such_module" in line("--policy", "no_such_module:f")
    assert "a picture is written as .png" in line("--picture", tmp_path / "e.bmp")
