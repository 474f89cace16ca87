"""Every number of the threads is exact, by the dense formula in float64, or is called a bound."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.slow import slow

import headloom
from headloom.api.trace import Trace
from headloom.studio.page import collect
from headloom.studio.serving import Viewer

Known = Callable[..., tuple[Trace, torch.Tensor]]
LENGTH, KEPT = 40, 8
#: Numbers stand with two digits.
ROUNDED = 0.0051


@pytest.fixture(params=[pytest.param("page", marks=pytest.mark.slow), "server"])
def shown(
    request: Any, studio: Any, serving: Callable[..., Viewer], known_trace: Known
) -> Callable[[str, bool], tuple[Any, torch.Tensor, torch.Tensor]]:
    """A function that shows the threads of a trace of 40 tokens and 8 edges a row.

    Returns: the page, the weights, the norms of the values.
    """

    def show(address: str, queries_keys: bool) -> tuple[Any, torch.Tensor, torch.Tensor]:
        trace, weights = known_trace(LENGTH, queries_keys=queries_keys)
        norms = torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(1)) * 9 + 0.1
        (layer,) = trace.layers
        layer = dataclasses.replace(layer, data=dataclasses.replace(layer.data, norms=norms))
        collection = collect([dataclasses.replace(trace, layers=(layer,))])
        address = f"#view=threads&{address}"
        if request.param == "page":
            page = studio.file(collection, address)
        else:
            page = studio.served(serving(collection), address)
        page.locator(".short-threads .word").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(300)
        return page, weights, norms.double()

    return show


def number_of(text: str) -> float:
    return float(text.removeprefix("≥").replace("−", "-"))


def kept_of(weights: torch.Tensor) -> torch.Tensor:
    """The weights that were kept, 0 elsewhere."""
    best = weights.topk(KEPT)
    return torch.zeros_like(weights).scatter(-1, best.indices, best.values)


def compare(texts: list[str], expected: torch.Tensor, bound: bool) -> None:
    """Whether numbers are there, however small they are, and marked where they are bounds."""
    assert len(texts) == len(expected)
    assert any(texts)
    for text, value in zip(texts, expected.tolist(), strict=True):
        if text == "<.01":
            assert 0 < value < ROUNDED and not bound
            continue
        less = value - (number_of(text) if text else 0)
        assert -1e-6 < less < 0.01 if bound else abs(less) < ROUNDED
        assert bool(text) == (value > 0)
        assert not text or text.startswith("≥") == bound


@pytest.mark.parametrize("values", [False, *slow(True)])
@pytest.mark.parametrize("exact", [True, False])
def test_bars_are_the_column_sums(shown: Any, exact: bool, values: bool) -> None:
    page, weights, norms = shown(f"heads=0.1&values={int(values)}", exact)
    seen = weights if exact else kept_of(weights)
    shares = seen
    if values:
        left_out = (weights - seen).sum(-1, keepdim=True)
        total = seen @ norms[..., None] + left_out * norms.amax(-1)[:, None, None]
        shares = seen * norms[:, None] / total
    expected = shares[:2].mean((0, 1))
    compare(page.locator(".keys-column .number").all_inner_texts(), expected, bound=not exact)
    bars = page.locator(".keys-column .word").evaluate_all(
        "words => words.map(word => parseFloat(word.querySelector('i')?.style.width ?? '0'))"
    )
    wide = (80 * expected / expected.max()).clamp(min=1.5)
    assert (torch.tensor(bars).double() - wide).abs().max() < 0.01


@pytest.mark.parametrize("exact", [False, *slow(True)])
def test_what_a_key_gets_is_of_all_queries(shown: Any, exact: bool) -> None:
    page, weights, _ = shown("heads=0.1&key=3&lock=1", exact)
    seen = weights if exact else kept_of(weights)
    text = page.locator(".panel").inner_text()
    found = re.search(r"together (?:they )?give it (at least )?([0-9.]+)\.", text)
    assert found
    assert bool(found[1]) != exact
    less = float(seen[:2, :, 3].sum() / 2) - float(found[2])
    assert abs(less) < ROUNDED if exact else -1e-6 < less < 0.01
    for name, text in table(page, "query"):
        mean = float(weights[:2, int(name), 3].mean())
        marked(text, mean, bound=bool((kept_of(weights)[:2, int(name), 3] == 0).any()))


@pytest.mark.parametrize("exact", [True, *slow(False)])
def test_a_mean_of_heads_is_of_all_of_them(shown: Any, exact: bool) -> None:
    page, weights, _ = shown("heads=0.1&query=5&lock=1&share=1", exact)
    kept = kept_of(weights)[:, 5]
    rows = table(page, "key")
    assert len(rows) >= KEPT
    for name, text in rows:
        mean = float(weights[:2, 5, int(name)].mean())
        marked(text, mean, bound=bool((kept[:2, int(name)] == 0).any()))
    assert any(text.startswith("≥") for _, text in rows)
    assert any(not text.startswith("≥") for _, text in rows)


@pytest.mark.parametrize("exact", [True, False])
def test_weights_by_values_are_shares_of_the_whole(shown: Any, exact: bool) -> None:
    page, weights, norms = shown("head=0&query=5&lock=1&values=1&share=1", exact)
    by_value = weights[0, 5] * norms[0]
    whole = by_value / by_value.sum()
    kept = kept_of(weights)[0, 5] > 0
    assert float(whole[kept].sum()) < 0.5
    texts = page.locator(".keys-column .number").all_inner_texts()
    if exact:
        compare(texts, torch.where(kept, whole, 0), bound=False)
        left = f"{100 * float(whole[~kept].sum()):.0f}\u00a0% is on weaker edges"
        assert f"By |v|: {left}" in page.locator(".panel").inner_text()
        assert f"At most {left}" not in page.locator(".panel").inner_text()
    else:
        assert any(texts)
        for text, share in zip(texts, whole.tolist(), strict=True):
            assert not text or (text.startswith("≥") and number_of(text) < share + 1e-6)
        assert "At most " in page.locator(".panel").inner_text()
    for name, text in table(page, "key"):
        marked(text, float(weights[0, 5, int(name)]), bound=False)
    for name, text in table(page, "key", "by |v|"):
        marked(text, float(whole[int(name)]), bound=not exact)


def test_scores_of_several_heads_are_said_to_be_weights(shown: Any) -> None:
    page, weights, _ = shown("heads=0.1&query=5&lock=1&share=1&of=scores", True)
    assert page.locator(".ends .key small").inner_text() == "weight, mean of heads"
    assert "Scores are of one head" in page.locator(".panel").inner_text()
    drawn = dict(enumerate(page.locator(".keys-column .number").all_inner_texts()))
    for name, _ in table(page, "key"):
        if text := drawn[int(name)]:
            mean = float(weights[:2, 5, int(name)].mean())
            bound = text.startswith("≥")
            assert mean - (1 if bound else ROUNDED) <= number_of(text) <= mean + ROUNDED
    page.keyboard.press("1")
    assert page.locator(".ends .key small").inner_text() == "score"
    assert "Scores are of one head" not in page.locator(".panel").inner_text()


def table(page: Any, side: str, column: str = "weight") -> list[tuple[str, str]]:
    """By place what stands in a column of the panel's table."""
    names = page.locator(".panel .numbers thead th").all_inner_texts()
    rows = page.locator(f".panel .numbers tbody tr:has(.{side})")
    return [
        (
            row.locator(".token").get_attribute("title").split()[-1],
            row.locator("td").nth(names.index(column)).inner_text(),
        )
        for row in rows.all()
    ]


def marked(text: str, exact: float, bound: bool) -> None:
    """Whether a weight is right, or is called a bound and is one."""
    assert text.startswith("≥") == bound
    value = float(text.removeprefix("≥").replace("e−", "e-"))
    assert value <= exact * 1.06 + 6e-5
    if not bound:
        assert value == pytest.approx(exact, rel=0.06, abs=6e-5)


@pytest.mark.parametrize("kept", [6, 3])
def test_what_a_sink_takes_is_on_no_edge(studio: Any, kept: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(2, 1, 2, 6, 8, generator=generator)
    sinks = torch.tensor([1.0, 0.0])
    trace = headloom.from_queries_keys(
        queries, keys, sinks=sinks, keep=headloom.Top(kept), tokens=list("abcdef")
    )
    powers = (queries[0, 0, 2].double() @ keys[0, 0].double().T / 8**0.5).exp()
    weights = powers / (powers.sum() + sinks[0].double().exp())
    page = studio.file(collect([trace]), "#view=threads&query=2&lock=1&share=1")
    page.locator(".panel tbody tr").first.wait_for()
    said = page.locator(".panel").inner_text().replace("\u00a0", " ")
    taken = 100 * float(1 - weights.sum())
    weaker = 100 * float(weights.sum() - weights.topk(kept).values.sum())
    assert f" {taken:.0f} % is on a sink, which is no key." in said
    assert (f"{weaker:.0f} % is on weaker edges." in said) == (kept == 3)


def test_sums_that_nobody_waits_for_end_before_the_next_head(drawn) -> None:
    trace, dense = drawn(1)
    (example,) = collect([trace]).examples
    heads = iter([True, False])
    with pytest.raises(InterruptedError):
        example.sums(0, lambda: next(heads))
    received = np.frombuffer(example.sums(0), "<f4")[: 2 * 40].reshape(2, 40)
    np.testing.assert_allclose(received, dense.sum(1), rtol=1e-5)
