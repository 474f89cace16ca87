"""The studio in Chromium: time to the first picture, and frames while a matrix is dragged.

    python benchmarks/bench_studio.py
    python benchmarks/bench_studio.py --length N # one layer of N tokens alone, as 131072

For each length a trace of one layer of 12 causal heads, its queries and keys kept, and traces of
32 x 32 and 80 x 64 heads over 128 tokens are served by `headloom view` in a process of its own:

    paint     from the browser's request to the first head that is drawn, and to all of them
    frames    between two frames while the matrix is dragged at the zoom of single cells and from
              afar: median, 95th percentile, and the share within 1/60 s
    hover     from the pointer's event until the panel of the head that it is on has been painted,
              median and 95th percentile of 120
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headloom
from headloom.api.trace import Trace
from headloom.formats.terms import Terms
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.multihead import MultiHeadAttention

LENGTHS = (512, 8_192, 32_768)
HEADS = 12
NAMES = ("chromium", "chromium-browser", "chromium-headless-shell")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

#: Notes when the first and when all heads are drawn, and every frame.
WATCH = """
window.seen = {};
window.frames = [];
const watch = now => {
    const canvases = [...document.querySelectorAll('.stage .sheet > canvas')];
    const drawn = canvases.reduce((sum, canvas) => sum + Number(canvas.dataset.drawn), 0);
    if (drawn) seen.first ??= performance.now();
    if (drawn && !canvases.some((canvas) => canvas.matches('.waiting')))
        seen.all ??= performance.now();
    frames.push(now);
    requestAnimationFrame(watch);
};
requestAnimationFrame(watch);
"""


class OneLayer(nn.Module):
    """One causal layer with rotary positions over words of a small vocabulary."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1_000, 64 * heads)
        self.layer = MultiHeadAttention(64 * heads, heads, kind="decoder", relative="rotary")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens), mask=headloom.causal())


def synthetic(length: int, path: Path, heads: int = HEADS) -> None:
    torch.manual_seed(length)
    model = OneLayer(heads)
    with torch.no_grad():
        model.layer.w_q.weight.mul_(3)
        trace = headloom.trace(model, torch.arange(length) * 31 % 1_000, keep=headloom.Top(16))
    trace.save(path)


def until(page: Any, condition: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        if time.monotonic() > end:
            raise SystemExit(f"{condition} never came true")
        page.wait_for_timeout(10)


def paint(browser: Any, url: str) -> tuple[float, float]:
    """Seconds from the request to the first head drawn, and to all."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(WATCH)
    page.goto(url, wait_until="commit")
    until(page, "Boolean(window.seen?.all)")
    found = page.evaluate("[seen.first, seen.all]")
    page.close()
    return found[0] / 1000, found[1] / 1000


#: Notes how long each hover takes: from its event to the frame after it.
HOVER = """
window.hovers = [];
document.addEventListener('pointerover', (event) => {
    const tile = event.target.closest?.('.sheet .tile');
    if (!tile) return;
    const name = tile.ariaLabel.split(':')[0], start = event.timeStamp;
    requestAnimationFrame(() => setTimeout(() => {
        const said = document.querySelector('.head-panel h2').textContent;
        if (said.startsWith(name + ' ')) hovers.push(performance.now() - start);
    }));
}, true);
"""


def hover(browser: Any, url: str) -> tuple[float, float, int]:
    """Milliseconds that a hover takes, median and 95th percentile, and of how many."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(WATCH)
    page.add_init_script(HOVER)
    page.goto(url)
    until(page, "Boolean(window.seen?.all) && document.querySelector('.bar-row') !== null", 900)
    page.wait_for_timeout(500)
    box = page.locator(".stage .sheet").first.bounding_box()
    for n in range(130):
        along, down = (n * 0.381966) % 1, (n * 0.7548777) % 1
        page.mouse.move(box["x"] + along * box["width"], box["y"] + down * box["height"])
        page.wait_for_timeout(25)
    page.wait_for_timeout(200)
    found = sorted(page.evaluate("hovers"))
    page.close()
    return statistics.median(found), found[int(0.95 * len(found))], len(found)


def pan(browser: Any, url: str) -> tuple[float, float, float, int]:
    """Return the milliseconds between frames while the loaded matrix is dragged for two seconds."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(WATCH)
    page.goto(url)
    page.locator(".stage.matrix canvas").wait_for()
    until(page, "document.querySelector('.stage.matrix').ariaBusy === 'false'", 900)
    page.mouse.move(900, 700)
    page.mouse.down()
    page.evaluate("void (frames.length = 0)")
    end = time.monotonic() + 2.0
    step = 0
    while time.monotonic() < end:
        step += 1
        # To the upper left for a second, and back, faster than a hand.
        along = step if step < 120 else 240 - step
        page.mouse.move(900 - 6 * (along % 120), 700 - 5 * (along % 120))
        page.wait_for_timeout(4)
    frames = page.evaluate("frames")
    page.mouse.up()
    page.close()
    gaps = sorted(b - a for a, b in pairwise(frames))
    inside = sum(gap <= 1000 / 60 + 1 for gap in gaps) / len(gaps)
    return statistics.median(gaps), gaps[int(0.95 * len(gaps))], inside, len(gaps)


def served(path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headloom", "view", str(path), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def bench_length(browser: Any, folder: Path, length: int) -> None:
    path = folder / f"{length}.loom"
    synthetic(length, path)
    process, address = served(path)
    try:
        # At once, while the server still reads; then as it is from then on.
        cold = paint(browser, address)
        warm = [paint(browser, address) for _ in range(5)]
        first, whole = (statistics.median(times) for times in zip(*warm, strict=True))
        print(
            f"N = {length:6,}: first head {first:.2f} s, all {HEADS} {whole:.2f} s (median of 5); "
            f"at the server's start {cold[0]:.2f} s, {cold[1]:.2f} s",
            flush=True,
        )
        pans(browser, address, length, head=3)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=20)


def pans(browser: Any, address: str, length: int, head: int) -> None:
    """Drags a matrix at the zoom of single cells and from afar, and prints how smoothly."""
    matrix = f"{address}#view=matrix&head={head}&window="
    for name, window in (
        ("cells", f"{length // 2},{length // 4},60"),
        ("from afar", f"{length // 8},0,{length // 3}"),
    ):
        median, late, inside, count = pan(browser, matrix + window)
        print(
            f"            panning, {name:<9}: frames of {median:.1f} ms, 95th percentile "
            f"{late:.1f} ms, {inside:.0%} of {count} within 1/60 s",
            flush=True,
        )


def many_heads(layers: int, heads: int, length: int, path: Path) -> None:
    """Save a trace of synthetic heads: on previous tokens, on the first token, or anywhere."""
    depth, groups = 32, max(1, heads // 8)
    names = [f"t{place}" for place in range(length)]
    angles = torch.arange(length)[:, None] * torch.logspace(0, -3, depth // 2)
    waves = torch.cat((angles.cos(), angles.sin()), -1) * 3
    made = []
    for number in range(layers):
        generator = torch.Generator().manual_seed(number)
        queries = torch.randn(heads, length, depth, generator=generator)
        keys = torch.randn(groups, length, depth, generator=generator)
        keys[::2] = waves
        keys[:, 0, 0] = 9
        for head in range(heads):
            if head % 3 == 0:
                queries[head] = waves.roll(head % 5, 0)
            elif head % 3 == 1:
                queries[head, :, 0] += 4
        of_heads = keys.repeat_interleave(heads // groups, 0)
        _, graph = headloom.attend(
            queries, of_heads, of_heads, mask=headloom.causal(), keep=headloom.Top(16)
        )
        made.append(
            TraceLayer(
                name=f"layers.{number}", kind="decoder", index=number,
                shape=(heads, length, length), queries_from="tokens", keys_from="tokens",
                query_tokens=names, key_tokens=names, scale=depth**-0.5, mask="causal",
                data=LayerInMemory(graph, (queries, keys), Terms(mask=headloom.causal())),
            )
        )  # fmt: skip
    Trace({"tokens": names}, tuple(made)).save(path)


def bench_heads(browser: Any, folder: Path) -> None:
    for layers, heads in ((32, 32), (80, 64)):
        path = folder / f"{layers}-{heads}.loom"
        many_heads(layers, heads, 128, path)
        process, address = served(path)
        try:
            cold = paint(browser, address)
            warm = [paint(browser, address) for _ in range(5)]
            first, whole = (statistics.median(times) for times in zip(*warm, strict=True))
            middle, late, count = hover(browser, address)
            print(
                f"{layers} x {heads} heads: first head {first:.2f} s, all {whole:.2f} s (median of "
                f"5); at the server's start {cold[0]:.2f} s, {cold[1]:.2f} s; a hover {middle:.0f} "
                f"ms, 95th percentile {late:.0f} ms (of {count})",
                flush=True,
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def main() -> None:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("needs Chromium: scripts/setup-tests")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, nargs="+", help="lengths alone")
    lengths = parser.parse_args().length
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        if not lengths:
            bench_heads(browser, Path(name))
        for length in lengths or LENGTHS:
            bench_length(browser, Path(name), length)
        browser.close()


if __name__ == "__main__":
    main()
