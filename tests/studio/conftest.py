"""Traces of every kind and length, a small run, a browser, and the studio in it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import headloom
from headloom.api.trace import Trace
from headloom.formats.history import LayerSnapshot, Snapshot
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.studio.collection import Collection
from headloom.studio.page import collect, page_html
from headloom.studio.serving import Viewer
from headloom.studio.training import TrainingHistory, training_history

#: The first is Chromium without windows: the same engine, half the processor time for each page.
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))),
    None,
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    # A process for every page would take longer to start than most pages to be shown.
    "--renderer-process-limit=1",
    # Nor is a process needed that paints.
    "--in-process-gpu",
]  # fmt: skip
#: What a page has stored.
LEFT = """() => [
    document.cookie, ...Object.keys(localStorage), ...Object.keys(sessionStorage),
].filter(Boolean)"""
TEXT = (
    "The animal didn't cross the street because it was too tired."
    " The river had been rising for three days when the bank of the river flooded."
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, where there is one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        # Continuous integration sets this: a quarter of the studio is tested by nothing else.
        missing = pytest.fail if os.environ.get("HEADLOOM_TESTS_NEED_BROWSER") else pytest.skip
        missing("needs the browser chromium: scripts/setup-tests installs it by apt-get")
    with playwright.sync_playwright() as driver:
        browser = None
        for _ in range(2):  # on a busy machine it now and then crashes while it starts
            with contextlib.suppress(playwright.Error):
                browser = browser or driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        browser = browser or driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def sessions(browser: Any) -> Callable[[bool, bool], Any]:
    """A function from `offline` and `touch` to a session of the browser with an empty page in it.

    Tests share it, since the studio leaves nothing there (no cookies, no storage), and a page in it
    takes half the processor time of one in a session of its own.
    """

    @cache
    def session(offline: bool, touch: bool) -> Any:
        context = browser.new_context(offline=offline, accept_downloads=True, has_touch=touch)
        context.new_page()  # the process of the pages lives as long as one of them does
        return context

    return session


@dataclass
class Studio:
    """Opens collections in a browser, and notes whatever goes wrong there."""

    sessions: Callable[[bool, bool], Any]
    folder: Path
    problems: list[str] = field(default_factory=list)
    _pages: list[Any] = field(default_factory=list)

    def _page(self, theme: str, width: int, own: str, offline: bool, touch: bool = False) -> Any:
        page = self.sessions(offline, touch).new_page()
        self._pages.append(page)
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=theme)
        page.set_default_timeout(60_000)

        def said(message: Any) -> None:
            # That warning is of a test's own reading of pixels.
            if "willReadFrequently" not in message.text:
                self.problems.append(f"{message.type}: {message.text}")

        page.on("console", said)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))

        def asked(request: Any) -> None:
            if not request.url.startswith((own, "data:", "blob:")):
                self.problems.append(f"a request to {request.url}")

        page.on("request", asked)
        return page

    def file(
        self, collection: Collection | str, address: str = "", theme: str = "light",
        width: int = 1280, touch: bool = False,
    ) -> Any:  # fmt: skip
        """A collection as an exported page, or such a page, with the network cut off."""
        path = self.folder / "page.html"
        html = collection if isinstance(collection, str) else page_html(collection)
        path.write_text(html, "utf-8")
        page = self._page(theme, width, "file:", offline=True, touch=touch)
        page.goto(f"{path.as_uri()}{address}")
        return page

    def open(
        self, url: str, own: str, offline: bool = False, theme: str = "light", width: int = 1280
    ) -> Any:
        """A page of a test's own."""
        page = self._page(theme, width, own, offline)
        page.goto(url)
        return page

    def served(
        self, viewer: Viewer, address: str = "", theme: str = "light", width: int = 1280
    ) -> Any:
        """A collection as its server shows it."""
        page = self._page(theme, width, viewer.address, offline=False)
        page.goto(f"{viewer.address}{address}")
        return page

    def close(self) -> None:
        """Close every page, which leaves nothing behind."""
        for page in self._pages:
            if not page.is_closed():
                left = page.evaluate(LEFT) if page.url.startswith(("http", "file")) else []
                self.problems += [f"it leaves {name} in the browser" for name in left]
                page.close()


@pytest.fixture
def studio(sessions: Callable[[bool, bool], Any], tmp_path: Path) -> Iterator[Studio]:
    """The studio in a browser; afterwards nothing may have gone wrong there."""
    opened = Studio(sessions, tmp_path)
    yield opened
    opened.close()
    assert opened.problems == []


def snapshot_of(trace: Trace, step: int, loss: float | None, **measures: float) -> Snapshot:
    """A trace as the snapshot of a training, one number for all its heads; at step 0 even rows."""
    layers = []
    for of in trace.layers:
        graph, (heads, queries, keys) = of.graph, of.shape
        if step == 0:
            zeros = torch.zeros(heads, keys, 1)
            _, graph = headloom.attend(zeros[:, :1].repeat(1, queries, 1), zeros, zeros)
        known = {name: [value] * heads for name, value in measures.items()}
        layers.append(
            LayerSnapshot(
                of.name, of.kind, {}, known, graph, list(of.query_tokens), list(of.key_tokens),
                scale=1.0, product=torch.full((heads, 8, 8), float(step)),
            )
        )  # fmt: skip
    return Snapshot(step, loss, layers)


@pytest.fixture
def history_of() -> Callable[[Trace], TrainingHistory]:
    """A function from a probe's trace to a training of two snapshots."""

    def make(trace: Trace) -> TrainingHistory:
        first = snapshot_of(trace, 0, 2.0, norm=1.0, symmetry=0.0)
        return training_history([first, snapshot_of(trace, 500, 1.0, norm=2.0, symmetry=0.1)])

    return make


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[Collection], Viewer]]:
    """A function that serves a collection until the tests of the file end."""
    viewers = []

    def serve(collection: Collection) -> Viewer:
        viewer = Viewer(collection, 0)
        viewer.start()
        viewers.append(viewer)
        return viewer

    yield serve
    if viewers:
        # Each looks ten times a second whether it is to end: all at once.
        with ThreadPoolExecutor(len(viewers)) as threads:
            list(threads.map(Viewer.close, viewers))


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> Callable[[str], Trace]:
    """A function from a text to its trace by the real MiniLM, 6 layers of 12 heads."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from headloom.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained(minilm_folder)

    def trace(text: str) -> Trace:
        inputs = dict(tokenizer(text, return_tensors="pt"))
        return headloom.trace(model, inputs, tokenizer=tokenizer, keep=headloom.Top(16))

    return trace


@pytest.fixture(scope="session")
def minilm_trace(minilm: Callable[[str], Trace]) -> Trace:
    """MiniLM on a sentence."""
    return minilm(TEXT.split(".")[0] + ".")


@pytest.fixture(scope="session")
def minilm_page(minilm_trace: Trace) -> str:
    """The page of that trace, 7 MB, made once."""
    return page_html(collect([minilm_trace]))


class OneLayer(nn.Module):
    """One causal layer over many tokens."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.layer = MultiHeadAttention(32, heads, kind="decoder", relative="rotary")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens), mask=headloom.causal())


@pytest.fixture(scope="session")
def long_trace() -> Callable[[int], Trace]:
    """A function from a length to a trace of one layer with two heads; each is made once."""
    made: dict[int, Trace] = {}

    def make(length: int) -> Trace:
        if length not in made:
            torch.manual_seed(7)
            model = OneLayer(2)
            with torch.no_grad():
                model.layer.w_q.weight.mul_(3)
                found = headloom.trace(model, torch.arange(length) * 31 % 256, keep=headloom.Top(8))
            assert isinstance(found, Trace)
            made[length] = found
        return made[length]

    return make


@pytest.fixture(scope="session")
def known_trace() -> Callable[..., tuple[Trace, torch.Tensor]]:
    """A function from a length to a trace of queries and keys made by hand, of which few edges are
    kept, and to its weights, (heads, queries, keys), by the dense formula in float64.

    Head 0 is nearly even, head 1 looks at the first key, head 2 at the one before.
    """

    def make(length: int, queries_keys: bool = True) -> tuple[Trace, torch.Tensor]:
        generator = torch.Generator().manual_seed(length)
        depth = 64
        queries = torch.randn(3, length, depth, generator=generator) / 8
        keys = torch.randn(3, length, depth, generator=generator)
        queries[1, :, 0], keys[1, :, 0], keys[1, 0, 0] = 9.0, 0.0, 9.0
        place = torch.arange(length)[:, None] * torch.logspace(0, -3, depth // 2)
        waves = torch.cat((place.cos(), place.sin()), -1) * 4
        queries[2], keys[2] = waves.roll(1, 0), waves
        scores = queries.double() @ keys.double().transpose(1, 2) / depth**0.5
        trace = headloom.from_queries_keys(
            queries, keys, keep=headloom.Top(8), kind="encoder", queries_keys=queries_keys,
            tokens=[f"t{place}" for place in range(length)],
        )  # fmt: skip
        return trace, scores.softmax(-1)

    return make


@pytest.fixture(scope="session")
def drawn() -> Callable[..., tuple[Trace, np.ndarray[Any, Any]]]:
    """A function from a seed to a trace of two heads, and its weights by the formula."""

    def make(
        seed: int, length: int = 40, kept: int = 6, queries_keys: bool = True
    ) -> tuple[Trace, np.ndarray[Any, Any]]:
        generator = torch.Generator().manual_seed(seed)
        queries, keys = (torch.randn(2, length, 8, generator=generator) for _ in range(2))
        queries[0] *= 3
        scores = queries.double() @ keys.double().transpose(1, 2) / 8**0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        dense = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        trace = headloom.from_queries_keys(
            queries, keys, mask=headloom.causal(), keep=headloom.Top(kept), kind="decoder",
            queries_keys=queries_keys, tokens=[f"t{place}" for place in range(length)],
        )  # fmt: skip
        return trace, dense.numpy()

    return make
