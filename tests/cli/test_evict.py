"""`headloom evict`: the table, a policy of one's own, the picture, and bad input in one line."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Command

import headloom

RULES = """
import torch
def latest(prompt, budget):
    return torch.arange(prompt.length).expand(prompt.kv_heads, -1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evict")
    made = torch.Generator().manual_seed(1)
    queries, keys = torch.randn(2, 3, 4, 48, 8, generator=made)
    options = {"mask": headloom.causal(), "kind": "decoder"}
    headloom.from_queries_keys(queries, keys, save=folder / "t.loom", **options)
    headloom.from_queries_keys(
        queries, keys, save=folder / "without.loom", queries_keys=False, **options
    )
    (folder / "rules.py").write_text(RULES)
    (folder / "bad.py").write_text("1 +")
    return folder


def test_the_table_has_a_row_for_each_policy_and_budget(
    folder: Path, headloom_main: Command
) -> None:
    own = f"{folder / 'rules.py'}:latest"
    words = (
        "evict", folder / "t.loom", "--policy", "tova", "--policy", own, "--budget", "25%",
        "--budget", "8", "--prompt-tokens", "32",
    )  # fmt: skip
    report = headloom_main(*words, "--json").json()
    rows = {(row["policy"], row["budget"]): row for row in report["rows"]}
    assert (report["prompt"], report["steps"]) == (32, 16)
    names = ("tova", "latest", "oracle", "oracle-step")
    assert set(rows) == {(name, 8) for name in names}
    # By hand, in float64: the 8 latest of the prompt stay.
    lost = []
    for layer in headloom.open(folder / "t.loom").layers:
        assert layer.queries is not None and layer.keys is not None
        scores = layer.queries.double() @ layer.keys.double().transpose(1, 2) / 8**0.5
        weights = scores.masked_fill(torch.ones(48, 48).triu(1).bool(), -torch.inf).softmax(-1)
        lost.append(weights[:, 32:, :24].sum(-1))
    expected = float(torch.stack(lost).mean())
    assert rows["latest", 8]["lost"] == pytest.approx(expected, abs=1e-6)
    table = headloom_main(*words).out
    assert f"{expected:.5g}" in table
    assert "3 layers, 12 heads; prompt of 32 tokens, then 16 steps" in table


def test_every_layer_head_and_step_as_comma_separated_values(
    folder: Path, headloom_main: Command
) -> None:
    for by, count in (("layer", 3), ("head", 12), ("step", 6)):
        result = headloom_main("evict", folder / "t.loom", "--by", by, "--csv", "--budget", "9")
        rows = list(csv.DictReader(result.out.splitlines()))
        assert len(rows) == 7 * count


def test_the_picture_is_drawn(folder: Path, tmp_path: Path, headloom_main: Command) -> None:
    out = tmp_path / "e.svg"
    result = headloom_main("evict", folder / "t.loom", "--picture", out)
    assert result.code == 0, result.err
    text = out.read_text()
    rows = csv.DictReader(headloom_main("evict", folder / "t.loom", "--csv").out.splitlines())
    kept = {100 * float(row["kept"]) for row in rows}
    # What stays, not what was asked for: no axis and no title says 20 % of a short prompt.
    title = re.search(r"What a cache of ([\d.]+) % of the keys keeps", text)
    assert title is not None and "oracle-step" in text
    assert float(title[1]) in {float(f"{share:.3g}") for share in kept} - {20.0}
    assert all(f">{share:.3g}<" in text for share in kept) and 20.0 not in kept


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, headloom_main: Command) -> None:
    rules = folder / "rules.py"

    def line(*words: object, trace: str = "t.loom") -> str:
        return headloom_main("evict", folder / trace, *words).one_line()

    assert "Trace again with queries and keys" in line(trace="without.loom")
    assert "no policy 'h3'" in line("--policy", "h3")
    assert "budget 'much'; expected a share" in line("--budget", "much")
    assert "the prompt, of 48 tokens, is 99" in line("--prompt-tokens", "99")
    for word, reason in (
        (f"{folder / 'bad.py'}:f", "SyntaxError"), (f"{rules}:absent", "KeyError: 'absent'"),
    ):  # fmt: skip
        assert f"policy {word}: cannot be loaded ({reason}" in line("--policy", word)
    assert "a picture is written as .png" in line("--picture", tmp_path / "e.bmp")
