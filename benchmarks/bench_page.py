"""Claim: a page with a model inside translates a typed date and redraws its heads in under 150 ms.

Chromium opens pages of `headloom export --live` from the disk, without a network. The translator of
`make demo`: milliseconds from a typed text to drawn heads, the largest difference of its weights
from `headloom.trace` over 200 dates, its logits with heads switched off against `headloom.ablate`'s
intervention, the memory of the page over 500 texts, and the token ids of 10,000 lines against
Python's. MiniLM: 25 tokens typed to drawn, limit 300 ms. With --smollm2: tokens a second. There is
no peer: the limits are the figures behind the slash.

    python benchmarks/bench_page.py runs/demo --lines TEXT ...
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headloom
from bench_studio import CHROMIUM, FLAGS
from headloom.analysis.effects.interventions import Intervention, intervening
from headloom.api.run_model import RunModel
from headloom.training.tasks.dates import LOCALES, STYLES, write_date

DATES, TEXTS, LINES, OFF = 200, 500, 10_000, 20
SENTENCE = "the quick brown fox jumps over the lazy dog because it was told so by a very tired cat"
#: Types a text, and waits until its heads are drawn.
TYPED = """async (text) => {
  const box = document.querySelector("#headloom-ask"), start = performance.now();
  box.value = text;
  box.dispatchEvent(new InputEvent("input", {bubbles: true}));
  const shown = () => new URLSearchParams(location.hash.slice(1)).get("text") === text;
  const frame = () => new Promise(requestAnimationFrame);
  while (!shown()) await frame();
  await frame();
  await frame();
  return performance.now() - start;
}"""
IDS = "(lines) => Promise.all(lines.map((line) => headloom.ids(line)))"


def dates(count: int, seed: int) -> list[str]:
    """Return random dates as people write them, in all languages."""
    draw = random.Random(seed)
    days = (
        datetime.date(1950, 1, 1) + datetime.timedelta(draw.randrange(36_000)) for _ in range(count)
    )
    return [write_date(day, draw.choice(LOCALES), draw.choice(list(STYLES))) for day in days]


def opened(browser: Any, page: Path) -> tuple[Any, list[str]]:
    """Open a page; return it with the list of its requests beyond its own files."""
    requests: list[str] = []
    tab = browser.new_page(viewport={"width": 1280, "height": 800})
    own = page.parent.as_uri() if page.name == "index.html" else page.as_uri()
    tab.on("request", lambda one: None if one.url.startswith((own, "blob:", "data:"))
           else requests.append(one.url))  # fmt: skip
    tab.set_default_timeout(300_000)
    tab.goto(page.as_uri())
    tab.evaluate(
        "async () => { while (!window.headloom) await new Promise(requestAnimationFrame) }"
    )
    return tab, requests


def typed(tab: Any, texts: list[str]) -> str:
    """Return the median and the 95th percentile from typed to drawn, after five texts."""
    taken = sorted([tab.evaluate(TYPED, text) for text in texts][5:])
    late = taken[int(0.95 * len(taken))]
    return f"{statistics.median(taken):.0f} ms, 95th percentile {late:.0f} ms"


def memory() -> float:
    """Return the resident megabytes of Chromium's renderers."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                total += int((folder / "statm").read_text().split()[1]) * 4096 / 2**20
        except OSError:
            continue
    return total


def exactness(tab: Any, model: RunModel, texts: list[str]) -> None:
    """Print the largest difference of weights, and of logits with heads switched off."""
    largest, same, logits = 0.0, 0, 0.0
    draw = random.Random(3)
    for number, text in enumerate(texts):
        read = tab.evaluate(
            "async (text) => { const read = await headloom.read(text);"
            "return {...read, weights: read.weights.map((layer) => layer.map((head) =>"
            "[...head].map((row) => [...row])))} }", text,
        )  # fmt: skip
        trace = model.trace(text, keep="all", verify=False)
        same += "".join(trace.sequences["target"][1:]) == read["output"]
        for layer, found in zip(trace.layers, read["weights"], strict=True):
            dense = layer.graph.to_dense().numpy()
            if dense.shape == np.shape(found):
                largest = max(largest, float(np.abs(dense - np.array(found)).max()))
        if number < OFF:
            layer, head = draw.randrange(len(trace.layers)), draw.randrange(4)
            target = "".join(trace.sequences["target"][1:])
            ids = model._ids(text, target)
            path = trace.layers[layer].name
            with intervening(model.module, [Intervention(path, head)]), torch.no_grad():
                expected = model.module(**ids)[0, -1].numpy()
            off = tab.evaluate(
                "async ([text, target, off]) => "
                "[...(await headloom.read(text, {target, off: [off]})).logits]",
                [text, target, [layer, head]],
            )  # fmt: skip
            logits = max(logits, float(np.abs(expected - off[-len(expected) :]).max()))
    print(f"weights of {len(texts)} dates: within {largest:.1e} of headloom.trace / 1e-4; "
          f"{same} translations equal")  # fmt: skip
    print(f"logits with a head switched off: within {logits:.1e} of the ablated model's / 1e-3")


def ids(tab: Any, name: str, lines: list[str], expected: list[list[int]]) -> None:
    """Print how many lines have the same ids in the page and in Python."""
    found: list[list[int]] = []
    for start in range(0, len(lines), 500):
        found += tab.evaluate(IDS, lines[start : start + 500])
    wrong = [line for line, one, two in zip(lines, found, expected, strict=True) if [*one] != two]
    print(f"{name}: ids of {len(lines) - len(wrong):,} of {len(lines):,} lines equal", wrong[:3])


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of make demo's run")
    parser.add_argument("--lines", type=Path, nargs="+", default=[], help="files of texts")
    parser.add_argument("--smollm2", action="store_true", help="also this model, which writes")
    settings = parser.parse_args()
    lines = ["שלום עולם, 17 במרץ 2024", "👩‍👩‍👧 e\u0301 \u200f", *dates(LINES // 4, seed=1)]
    for file in settings.lines:  # as many of each
        texts = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
        lines += texts[: (LINES - LINES // 4 - 2) // len(settings.lines)]
    model = RunModel(settings.run, beam=1)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = settings.run / "demo.html"
        tab, requests = opened(browser, page.resolve())
        print(f"{page}: {page.stat().st_size / 1e6:.1f} MB / 20")
        print("a date, typed to drawn:", typed(tab, dates(DATES, seed=2)), "/ 150 ms")
        exactness(tab, model, dates(DATES, seed=2))
        ids(
            tab, "translator", lines, [model._ids(line, "")["source"][0].tolist() for line in lines]
        )
        held = []
        for number, text in enumerate(dates(TEXTS + 100, seed=4)):
            tab.evaluate(TYPED, text)
            if number in (99, TEXTS + 99):
                tab.request_gc()
                time.sleep(2)
                held.append(memory())
        print(f"memory after 100 and {TEXTS + 100} texts: {held[0]:.0f} and {held[1]:.0f} MB")
        tab.close()
        for name in ("minilm", *(["smollm2"] if settings.smollm2 else [])):
            (written,) = headloom.export(name, html=Path(folder) / f"{name}.html", live=True)
            index = written / "index.html" if written.is_dir() else written
            size = sum(part.stat().st_size for part in index.parent.rglob("*") if part.is_file())
            tab, others = opened(browser, index)
            requests += others
            tokenizer: Any = headloom.load(name).tokenizer
            ids(tab, name, lines, [tokenizer(line)["input_ids"] for line in lines])
            if name == "minilm":
                texts = [f"{SENTENCE} {number} ." for number in range(30)]
                print("minilm, 25 tokens, typed to drawn:", typed(tab, texts), "/ 300 ms")
            else:
                tab.evaluate("headloom.generate('Once upon a time', {tokens: 2})")
                start = time.perf_counter()
                tab.evaluate("headloom.generate('The history of', {tokens: 40})")
                speed = 40 / (time.perf_counter() - start)
                print(f"{name}: {speed:.1f} tokens a second / 5; {size / 1e6:.0f} MB / 180")
            tab.close()
        print(f"requests that left a page: {len(requests)} {requests[:3]}")


if __name__ == "__main__":
    main()
