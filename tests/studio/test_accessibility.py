"""Every view for every eye: axe-core finds nothing, text stands out from what lies behind it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.studio.windows import themes

from headloom.api.trace import Trace
from headloom.studio.page import collect

AXE = Path(__file__).parents[2] / "studio" / "node_modules" / "axe-core" / "axe.min.js"
#: WCAG 2.2, success criterion 1.4.3.
LEAST = 4.5
LONG = (
    "The river had been rising for three days when the bank of the river flooded. The clerk at the"
    " bank closed the doors, carried the ledgers upstairs and waited. In the evening the water"
    " reached the first step; by midnight it had taken the whole square. Nobody in the town could"
    " remember a spring like this."
)

#: Of two real sentences: the short one first.
TEXTS = {
    "heads": "#view=heads&layer=4&head=3",
    "heads by role": "#view=heads&order=role&layer=1&head=8",
    "heads by entropy": "#view=heads&order=entropy&colour=entropy",
    "threads": "#view=threads&layer=4&head=3",
    "threads of a word": "#view=threads&layer=4&head=3&heads=0.3.8&query=10&lock=1&sinks=1",
    "threads to a key": "#view=threads&layer=4&head=3&key=2&lock=1",
    "threads, scores": "#view=threads&layer=2&head=1&query=3&lock=1&of=scores",
    "flow": "#view=threads&example=1&layer=1&head=7",
    "flow of a word": "#view=threads&example=1&layer=1&head=7&query=12&lock=1&share=1",
    "flow, one word": "#view=threads&example=1&layer=0&head=9&query=20&lock=1&sinks=1",
    "matrix": "#view=matrix&layer=4&head=3",
    "matrix of a cell": "#view=matrix&example=1&layer=1&head=7&query=12&key=11&window=4,0,24",
    "graph": "#view=graph&layer=4&head=3",
    "graph of a mean": "#view=graph&example=1&layer=1&mean=1&mass=0.5&layout=circle",
    "paths": "#view=paths&example=1&output=12",
    "paths between two": "#view=paths&output=10&input=2",
    "neighbours of a token": "#view=graph&example=1&layer=1&head=7&query=12&lock=1&layout=line",
    "matrix from afar": "#view=matrix&example=1&layer=1&head=7&scale=log",
}
#: Of these each view once, where most is seen in it.
SOME = ("heads", "threads of a word", "flow of a word", "matrix of a cell", "graph of a mean",
        "paths between two")  # fmt: skip
#: Of a run of an encoder and a decoder.
RUN = {
    "heads of a run": "#view=heads",
    "threads between texts": "#view=threads&layer=2&head=1&query=2&lock=1",
    "training": "#view=training&layer=1&head=2&step=1",
    "training, products": "#view=training&picture=product&step=1",
}

#: Every text on the screen: where it stands, and its colour with the opacity of what it is in.
SEEN_TEXTS = """() => {
    const above = document.querySelector("dialog[open]") ?? document.querySelector(".studio");
    const walker = document.createTreeWalker(above, NodeFilter.SHOW_TEXT);
    const found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement, style = getComputedStyle(element);
        if (!node.textContent.trim()) continue;
        if (!element.checkVisibility({visibilityProperty: true})) continue;
        if (element.closest(".unseen, .skip, option, :disabled")) continue;
        let opacity = 1;
        // What is scrolled out of a box is not there; other letters may be, behind a dialog.
        const clip = { left: 0, top: 0, right: innerWidth, bottom: innerHeight };
        let above_all = false;  // nothing around a dialog cuts it off
        for (let at = element; at; at = at.parentElement) {
            opacity *= getComputedStyle(at).opacity;
            if (above_all || getComputedStyle(at).overflow === "visible") continue;
            above_all = at.nodeName === "DIALOG";
            const box = at.getBoundingClientRect();
            const left = box.left + at.clientLeft, top = box.top + at.clientTop;
            clip.left = Math.max(clip.left, left);
            clip.top = Math.max(clip.top, top);
            clip.right = Math.min(clip.right, left + at.clientWidth);
            clip.bottom = Math.min(clip.bottom, top + at.clientHeight);
        }
        const range = document.createRange();
        range.selectNodeContents(node);
        const colour = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
        for (const box of range.getClientRects())
            found.push([node.textContent.trim().slice(0, 30),
                element.className?.baseVal ?? element.className, colour, opacity,
                Math.max(box.left, clip.left), Math.max(box.top, clip.top),
                Math.min(box.right, clip.right), Math.min(box.bottom, clip.bottom)]);
    }
    return found;
}"""
#: Hides every letter, or shows them again, without a style element: the page's policy has none.
LETTERS = """hidden => {
    const sheet = new CSSStyleSheet();
    if (hidden) sheet.replaceSync(`
        * { color: transparent !important; caret-color: transparent !important; }
        svg text { fill: transparent !important; }
        *, *::before { transition: none !important; animation: none !important; }`);
    document.adoptedStyleSheets = hidden ? [sheet] : [];
}"""
#: Text on a canvas: what lay there before it was written, against the colour it is written in.
CANVAS = """() => {
    window.written = [];
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
        const at = this.getTransform().transformPoint(new DOMPoint(x, y));
        const step = { left: 4, right: -4, center: 0 }[this.textAlign] ?? 4;
        const { data } = this.getImageData(Math.round(at.x) + step, Math.round(at.y) - 1, 1, 1);
        window.written.push([text, this.fillStyle, this.globalAlpha, [...data].slice(0, 3)]);
        return write.call(this, text, x, y, ...rest);
    };
}"""


def colour_of(css: str) -> tuple[list[float], float]:
    """Red, green and blue, 0 to 255, and how opaque they are, of a colour as a browser names it."""
    if css.startswith("#"):
        return [int(css[place : place + 2], 16) for place in (1, 3, 5)], 1.0
    kind, numbers = css.rstrip(")").split("(")
    found = [
        float(part)
        for part in numbers.replace(",", " ").replace("/", " ").split()[-4:]
        if part != "srgb"
    ]
    scale = 255 if kind == "color" else 1
    return [scale * part for part in found[:3]], found[3] if len(found) > 3 else 1.0


def luminance(colours: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Relative luminance, WCAG 2.2, of colours of 0 to 255."""
    parts = np.asarray(colours, dtype=np.float64) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def ratios(ink: list[float], opacity: float, grounds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The contrast of a colour with each of the colours that lie behind it."""
    grounds = np.asarray(grounds, dtype=np.float64)
    mixed = opacity * np.asarray(ink) + (1 - opacity) * grounds
    one, other = luminance(mixed), luminance(grounds)
    return (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)


def pixels(page: Any) -> np.ndarray[Any, Any]:
    picture = Image.open(io.BytesIO(page.screenshot()))
    return np.asarray(picture.convert("RGB")).astype(np.int16)


def faint_texts(page: Any) -> list[str]:
    """What cannot be read: every text whose letters stand out less than `LEAST`.

    The letters' pixels are those that change when all letters are made transparent.
    """
    texts = page.evaluate(SEEN_TEXTS)
    page.evaluate(LETTERS, False)
    with_letters = pixels(page)
    page.evaluate(LETTERS, True)
    without = pixels(page)
    page.evaluate(LETTERS, False)
    changed = np.abs(with_letters - without).max(-1)
    high, wide = changed.shape
    faint, seen = [], 0
    for text, name, css, opacity, left, top, right, bottom in texts:
        rows = slice(max(0, int(top)), min(high, math.ceil(bottom)))
        columns = slice(max(0, int(left)), min(wide, math.ceil(right)))
        of = changed[rows, columns]
        # Scrolled out of its box, or behind a dialog: not on the screen.
        if of.size == 0 or of.max() < 24:
            continue
        ink, alpha = colour_of(css)
        contrast = ratios(ink, alpha * opacity, without[rows, columns][of > 0.5 * of.max()])
        seen += 1
        if np.percentile(contrast, 10) < LEAST - 0.02:
            faint.append(f"{np.percentile(contrast, 10):.2f} {text!r} .{name}")
    assert seen > 5
    return faint


def axe_findings(page: Any) -> list[str]:
    """What axe-core calls serious or critical."""
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{finding['id']}: {finding['nodes'][0]['html'][:120]}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def settle(page: Any) -> None:
    """Until the view is there and what it draws."""
    page.locator("main:not([aria-busy]) .stage").wait_for()
    page.wait_for_timeout(250)


def findings(page: Any, views: dict[str, str]) -> dict[str, list[str]]:
    """By view what axe finds and what cannot be read; views without a finding are left out."""
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in studio/ (scripts/studio does it)")
    page.evaluate(AXE.read_text("utf-8"))
    found = {}

    def check(name: str) -> None:
        problems = axe_findings(page) + faint_texts(page)
        if problems:
            found[name] = problems

    for name, address in views.items():
        page.evaluate("address => { location.hash = address; }", address)
        settle(page)
        check(name)
    return found


def dialogs(page: Any) -> dict[str, list[str]]:
    """The same of what opens above a view."""
    found = {}
    page.evaluate("location.hash = '#view=threads'")
    settle(page)
    for name, key in {"help": "?", "export": "e"}.items():
        page.keyboard.press(key)
        page.locator(f"dialog.{name}[open]").wait_for()
        found[name] = axe_findings(page) + faint_texts(page)
        page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.locator(".find input").fill("nothing like it")
    page.keyboard.press("Enter")
    page.locator(".find p", has_text="No token holds “nothing like it”.").wait_for()
    found["find"] = axe_findings(page) + faint_texts(page)
    return {name: problems for name, problems in found.items() if problems}


@pytest.fixture(scope="session")
def texts(minilm_trace: Trace, minilm: Callable[..., Trace]) -> list[Trace]:
    return [minilm_trace, minilm(LONG)]


@pytest.mark.parametrize(
    ("theme", "views"),
    [
        pytest.param("light", SOME, id="light"),
        pytest.param("light", tuple(TEXTS), id="light-all", marks=pytest.mark.slow),
        pytest.param("dark", tuple(TEXTS), id="dark-all", marks=pytest.mark.slow),
    ],
)
def test_texts_in_every_view(
    studio, texts: list[Trace], theme: str, views: tuple[str, ...]
) -> None:
    page = studio.file(collect(texts, names=["short", "long"]), theme=theme)
    settle(page)
    assert findings(page, {name: TEXTS[name] for name in views}) == {}
    assert dialogs(page) == {}


@themes("dark")
def test_a_run_in_every_view(studio, pair_trace, history_of, theme: str) -> None:
    collection = collect([pair_trace], history=history_of(pair_trace), summary={"exact": "99 %"})
    page = studio.file(collection, theme=theme)
    settle(page)
    assert findings(page, RUN) == {}


@pytest.mark.slow
@themes("light")
def test_few_kept_edges_in_every_view(studio, drawn, theme: str) -> None:
    trace, _ = drawn(1, length=90, kept=2, queries_keys=False)
    page = studio.file(collect([trace]), theme=theme)
    settle(page)
    views = ("heads", "threads", "matrix", "graph", "paths")
    assert findings(page, {view: f"#view={view}&query=50&lock=1" for view in views}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1024, 1440])
def test_at_every_width(
    studio, texts: list[Trace], pair_trace, history_of, theme: str, width: int
) -> None:
    page = studio.file(collect(texts, names=["short", "long"]), theme=theme, width=width)
    settle(page)
    assert findings(page, TEXTS) == {}
    assert dialogs(page) == {}
    page = studio.file(collect([pair_trace], history=history_of(pair_trace)), "", theme, width)
    settle(page)
    assert findings(page, RUN) == {}


@themes("dark")
def test_text_on_the_matrix(studio, minilm_page: str, theme: str) -> None:
    page = studio.file(minilm_page, "#view=heads", theme)
    settle(page)
    page.evaluate(CANVAS)
    page.evaluate("location.hash = '#view=matrix&layer=4&head=3&query=3&key=5&lock=1'")
    page.locator(".value", has_text="0.").wait_for()
    written = page.evaluate("window.written")
    assert {"queries ↓", "keys →", "street"} <= {text for text, *_ in written}
    faint = [
        (text, contrast)
        for text, css, opacity, ground in written
        if (contrast := ratios(colour_of(css)[0], opacity, np.array([ground]))[0]) < LEAST
    ]
    assert faint == []
    # Both the row and the column in question are in their colours.
    assert len({css for text, css, *_ in written if text in ("cross", "didn")}) > 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_button_keeps_its_label_under_the_pointer(
    studio, serving, pair_trace: Trace, theme: str
) -> None:
    """Of each kind of button: under the pointer, pressed, and with the focus."""
    viewer = serving(collect([pair_trace, pair_trace], names=["one", "other"]))
    kinds, faint = set(), []

    def check(button: Any, state: str) -> None:
        ink, opacity = colour_of(button.evaluate("of => getComputedStyle(of).color"))
        box = button.bounding_box()
        page.evaluate(LETTERS, True)
        picture = Image.open(io.BytesIO(page.screenshot(clip=box))).convert("RGB")
        page.evaluate(LETTERS, False)
        grounds = np.asarray(picture).reshape(-1, 3)
        # The ground is what there is most of: not a border.
        contrast = np.median(ratios(ink, opacity, grounds))
        if contrast < LEAST:
            faint.append(f"{contrast:.2f} {button.inner_text()} {state}")

    for view, within in {
        "heads": "*", "threads": "main", "matrix": "main", "graph": "main", "sql": "main",
        "export": "dialog",
    }.items():  # fmt: skip
        page = studio.served(viewer, f"#view={view.replace('export', 'heads')}", theme=theme)
        settle(page)
        if view == "export":
            page.keyboard.press("e")
        for button in page.locator(f"{within} button:enabled:not(.skip, .word, .tile)").all():
            kind = f"{view} {button.get_attribute('class')}"
            if kind in kinds or not button.is_visible():
                continue
            kinds.add(kind)
            button.hover()
            check(button, "under the pointer")
            page.mouse.down()
            check(button, "pressed")
            page.mouse.move(0, 0)
            page.mouse.up()
            button.focus()
            check(button, "with the focus")
    assert faint == []
    assert {"sql plain primary", "export plain primary"} <= kinds
