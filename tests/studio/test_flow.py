"""Long texts as paragraphs."""

from __future__ import annotations

from headloom.studio.page import collect

SENTENCE = ["the", "river", "rose", "for", "2", ".", "5", "days", "."]
CHUNKS = """() => [...document.querySelectorAll(".chunk")].map((chunk) => ({
    tokens: chunk.querySelectorAll("bdi").length,
    last: [...chunk.querySelectorAll("bdi")].slice(-2).map((word) => word.textContent),
    room: parseFloat(getComputedStyle(chunk).marginBottom),
}))"""


def chunks_of(studio, make_trace, tokens: list[str]) -> list[dict[str, object]]:
    page = studio.file(collect([make_trace(tokens, keep=2)]), "#view=threads")
    page.locator(".chunk bdi").first.wait_for()
    return page.evaluate(CHUNKS)


def test_paragraphs_end_with_sentences(studio, make_trace) -> None:
    tokens = [*(['"', *SENTENCE, '"'] * 40), "and", "so", "on"]
    *ended, last = chunks_of(studio, make_trace, tokens)
    assert len(ended) == 2
    assert [chunk["last"] for chunk in ended] == [[".", '"']] * 2
    assert all(chunk["room"] > 0 for chunk in ended)
    assert sum(chunk["tokens"] for chunk in [*ended, last]) == len(tokens)
    assert last["last"] == ["so", "on"]


def test_paragraphs_end_at_blank_lines(studio, make_trace) -> None:
    line = "\n"
    tokens = ["a"] * 20 + [line, line] + ["b"] * 50 + [line] + ["c"] * 10
    assert [chunk["tokens"] for chunk in chunks_of(studio, make_trace, tokens)] == [22, 61]


def test_a_text_without_sentences_has_no_gaps(studio, make_trace) -> None:
    chunks = chunks_of(studio, make_trace, ["word"] * 1500)
    assert sum(chunk["tokens"] for chunk in chunks) == 1500
    assert all(chunk["room"] == 0 for chunk in chunks[:-1])


def test_what_a_key_gets_is_not_drawn_behind_its_letters(studio, make_trace) -> None:
    tokens = ["Ägypten", "jq", "word"] * 5
    page = studio.file(collect([make_trace(tokens)]), "#view=threads&query=9&lock=1")
    page.locator(".keys-column .word i").first.wait_for()
    below = """() => [...document.querySelectorAll(".keys-column .word:has(i)")].map((word) => {
        const middle = word.querySelector(".token").getBoundingClientRect();
        const size = parseFloat(getComputedStyle(word).fontSize);
        return word.querySelector("i").getBoundingClientRect().top
            - (middle.top + middle.height / 2 + size * 0.36);  // its letters stand on this
    })"""
    found = page.evaluate(below)
    assert len(found) > 3 and min(found) >= 0
