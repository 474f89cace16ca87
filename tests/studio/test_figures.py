"""Figures that people publish: what the export of each view holds."""

from __future__ import annotations

import re
import struct
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image
from tests.studio.printed import SVG, check_print, exported, texts, words

from headloom.studio.page import collect


@pytest.fixture
def page(studio, pair_trace, history_of) -> Any:
    collection = collect([pair_trace], "a pair", history=history_of(pair_trace))
    page = studio.file(collection)
    page.locator(".stage .tile").first.wait_for()
    return page


def test_every_view_as_svg_with_text_as_text(page, pair_trace, tmp_path) -> None:
    path = exported(page, tmp_path, "svg", "85")
    root = ElementTree.parse(path).getroot()
    assert root.get("width") == "85mm"
    assert float(root.get("height").removesuffix("mm")) > 10
    assert len(list(root.iter(f"{SVG}image"))) == 12
    found = texts(path)
    assert {"Every head", "L0", "H3"} <= set(found)
    assert re.search(r"a pair · .*headloom", words(path))

    page.keyboard.press("t")
    page.locator(".short-threads").wait_for()
    page.locator(".queries .word").nth(1).click()
    path = exported(page, tmp_path, "svg")
    found = texts(path)
    assert [text for text in found if text in pair_trace.layers[0].query_tokens]
    assert len(list(ElementTree.parse(path).iter(f"{SVG}path"))) > 10
    assert {"queries", "keys"} <= set(found)

    page.keyboard.press("m")
    page.locator(".stage.matrix canvas").wait_for()
    page.wait_for_timeout(200)
    path = exported(page, tmp_path, "svg")
    assert len(list(ElementTree.parse(path).iter(f"{SVG}image"))) == 1
    assert {"queries ↓", "keys →"} <= set(texts(path))

    page.keyboard.press("r")
    page.locator("#curve").wait_for()
    path = exported(page, tmp_path, "svg")
    assert "step 0: random matrices" in words(path)


def test_png_has_twice_the_pixels_and_the_theme(page, tmp_path) -> None:
    sizes = {}
    for theme in ("light", "dark"):
        content = exported(page, tmp_path, "png", "screen", theme).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        sizes[theme] = struct.unpack(">II", content[16:24])
    svg = ElementTree.parse(exported(page, tmp_path, "svg", "screen")).getroot()
    assert sizes["light"] == sizes["dark"]
    assert sizes["light"] == pytest.approx(
        [2 * float(svg.get("width")), 2 * float(svg.get("height"))], abs=1.5
    )


VIEWS = {
    "heads": ".stage .tile",
    "heads&order=role": ".stage .tile",
    "threads&layer=4&head=3&heads=0.3.8&query=10&lock=1&sinks=1": ".short-threads",
    "matrix&layer=4&head=3": '.stage.matrix[aria-busy="false"]',
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [85, 175])
def test_letters_are_readable_at_the_width_that_is_printed(
    studio, minilm_trace, pair_trace, history_of, tmp_path, width: int
) -> None:
    page = studio.file(collect([minilm_trace], "MiniLM"))
    for view, ready in VIEWS.items():
        page.evaluate("view => { location.hash = `#view=${view}`; }", view)
        page.locator(ready).first.wait_for()
        page.wait_for_timeout(150)
        check_print(studio, exported(page, tmp_path, "svg", str(width)), width)
    run = collect([pair_trace], "a pair", history=history_of(pair_trace))
    page = studio.file(run, "#view=training&layer=1&head=2&step=1")
    page.locator("#curve").wait_for()
    check_print(studio, exported(page, tmp_path, "svg", str(width)), width)


@pytest.mark.parametrize("picture", ["attention", "product"])
def test_a_training_has_its_colours_its_losses_and_its_steps(
    studio, pair_trace, history_of, tmp_path, picture: str
) -> None:
    first, last = history_of(pair_trace)
    history = [first, {**last, "step": 26}, {**last, "step": 500}]
    curves = {
        "training loss": [(20, 5.426), (40, 1.901), (500, 0.2)],
        "validation loss": [(500, 0.3)],
    }
    run = collect([pair_trace], "a pair", history=history, curves=curves)
    page = studio.file(run, f"#view=training&step=1&picture={picture}")
    page.locator("#curve").wait_for()
    page.locator(".ramp").wait_for()
    shown = [page.locator(".ramp figcaption").inner_text()]
    shown += page.locator(".ramp svg text").all_text_contents()
    shown += page.locator(".curve-names span").all_inner_texts()
    for width in (85, 175):
        path = exported(page, tmp_path, "svg", str(width))
        assert path.name == f"a-pair-training-step-26-{picture}-Encoder-L0-H0-{width}mm.svg"
        check_print(studio, path, width)
    said = texts(path)
    assert set(shown) <= set(said)
    assert "training loss: from 5.43 to 0.200, closest to here 5.43 at step 20" in words(path)
    # Below the losses, and below the measures of the three snapshots.
    assert said.count("step 0") == said.count("500") == 2 and said.count("26") == 1


def test_a_long_text_at_the_width_that_is_printed(studio, make_trace, tmp_path) -> None:
    trace = make_trace(["The", "river", "rose", "for", "reproduction", "days", "."] * 20)
    for width in (85, 175):
        page = studio.file(collect([trace]), "#view=threads&query=9&lock=1&share=1")
        page.locator("bdi.seen[data-place]").first.wait_for()
        check_print(studio, exported(page, tmp_path, "svg", str(width)), width)


def test_an_excerpt_of_a_long_text_says_so(studio, make_trace, tmp_path) -> None:
    trace = make_trace([f"w{place}" for place in range(1000)])
    graph = trace.layers[0].graph
    kept = dict(zip(graph.keys[0, 900].tolist(), graph.weights[0, 900].tolist(), strict=True))
    page = studio.file(collect([trace]), "#view=threads&query=900&lock=1&share=1")
    page.locator("bdi.seen[data-place]").first.wait_for()
    said = words(exported(page, tmp_path, "svg"))
    assert "tokens 100 to 999 of 1,000" in said
    assert " … w100 w101 " in said and said.count(" w99 ") == 0
    outside = 100 * sum(weight for key, weight in kept.items() if 0 <= key < 100)
    (percent,) = re.findall(r"words outside hold at least ([\d.]+)\s%", said)
    assert float(percent) <= outside < float(percent) + 0.1


def test_numbers_in_a_figure_are_those_of_the_page_and_have_a_name(
    studio, make_trace, tmp_path
) -> None:
    trace = make_trace(["a", "b", "c", "d"])
    for address, side, what in (
        ("query=2&lock=1", "keys-column", "Numbers: weight."),
        ("query=2&lock=1&of=scores", "keys-column", "Numbers: score."),
        ("key=1&lock=1", "queries", "Numbers: weight."),
        ("", "keys-column", "Numbers: mean weight."),
    ):
        page = studio.file(collect([trace]), f"#view=threads&{address}")
        page.locator(".short-threads").wait_for()
        drawn = texts(exported(page, tmp_path, "svg"))
        assert any(text.endswith(what) for text in drawn), address
        numbers = [text for text in page.locator(f".{side} .number").all_inner_texts() if text]
        assert numbers and all(number in drawn for number in numbers), address


def test_a_column_is_not_a_page_made_small(page, tmp_path) -> None:
    sizes = {}
    for width in (85, 175):
        root = ElementTree.parse(exported(page, tmp_path, "svg", str(width))).getroot()
        sizes[width] = float(root.get("viewBox").split()[2])
        with Image.open(exported(page, tmp_path, "png", str(width))) as picture:
            picture.load()
            assert picture.info["dpi"] == pytest.approx((300, 300), abs=0.01)
            # At its dots an inch it is as wide as was asked for.
            inches = picture.width / picture.info["dpi"][0]
        assert 25.4 * inches == pytest.approx(width, abs=0.1)
    assert sizes[85] == pytest.approx(85 * 96 / 25.4, abs=0.01)
    assert sizes[175] == pytest.approx(175 * 96 / 25.4, abs=0.01)
    with Image.open(exported(page, tmp_path, "png", "screen")) as picture:
        assert picture.info["dpi"][0] == pytest.approx(192, abs=0.01)


def test_hostile_tokens_in_a_figure(studio, make_trace, hostile_tokens, tmp_path) -> None:
    page = studio.file(collect([make_trace(hostile_tokens)]), "#view=threads&query=0&lock=1")
    page.locator(".short-threads").wait_for()
    path = exported(page, tmp_path, "svg")
    root = ElementTree.parse(path).getroot()  # well-formed, whatever the tokens are
    assert not list(root.iter(f"{SVG}script"))
    assert "<script>alert(1)</script>"[:23] in " ".join(texts(path))
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


def test_a_key_pressed_while_the_dialog_closes_is_not_lost(page) -> None:
    page.keyboard.press("e")
    press = """() => {
        const button = document.querySelector(".export .primary");
        button.focus();
        if (%s) button.closest("dialog").close();
        button.dispatchEvent(new KeyboardEvent("keydown", { key: "t", bubbles: true }));
    }"""
    page.evaluate(press % "false")
    assert not page.locator(".short-threads").count()
    page.evaluate(press % "true")
    page.locator(".short-threads").wait_for()


def test_cells_of_a_matrix_have_their_numbers_where_these_have_room(
    studio, make_trace, tmp_path
) -> None:
    trace = make_trace([f"t{place}" for place in range(14)])
    page = studio.file(collect([trace]), "#view=matrix")
    page.locator('.stage.matrix[aria-busy="false"]').wait_for()
    weights = trace.layers[0].graph.dense()[0].flatten().tolist()
    words = [f"{weight:.2f}" if weight >= 0.005 else "<.01" for weight in weights if weight]
    found = {}
    for width in (85, 175):
        path = exported(page, tmp_path, "svg", str(width))
        check_print(studio, path, width)
        found[width] = [text for text in texts(path) if re.fullmatch(r"\d\.\d\d|<\.01", text)]
    # The colour bar has two such numbers of its own.
    bar = ["0.04", "0.25"]
    assert found[85] == bar
    assert len(words) > 100 and len(found[175]) == len(words) + 2
    near = [
        abs(float(a) - float(b))
        for a, b in zip(found[175], words, strict=False)
        if "<" not in a + b
    ]
    assert max(near) <= 0.0101


def test_short_names_of_columns_stand_upright(studio, make_trace, tmp_path) -> None:
    for tokens, turned in ((list("dnupb"), 0), (["dog", "and", "underneath", "the", "roof"], 5)):
        page = studio.file(collect([make_trace(tokens)]), "#view=matrix")
        page.locator('.stage.matrix[aria-busy="false"]').wait_for()
        path = exported(page, tmp_path, "svg", "85")
        check_print(studio, path, 85)
        assert path.read_text("utf-8").count("rotate(-90") == turned


def test_the_step_of_a_probe_is_said_beside_its_name(
    studio, pair_trace, history_of, tmp_path
) -> None:
    run = collect([pair_trace], "a run", names=["the probe"], history=history_of(pair_trace))
    page = studio.file(run, "#view=threads&step=0")
    page.locator(".chooser", has_text="after step 500, the last").wait_for()
    small = words(exported(page, tmp_path, "svg"))
    assert "a run · after step 500, the last" in small
