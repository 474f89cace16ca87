"""Files of word alignments in the Pharaoh format."""

from __future__ import annotations

from pathlib import Path

import pytest

import headloom
from headloom.formats.pharaoh import GoldLinks, check_links, pharaoh_line, write_pharaoh


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    lines = [[(0, 1), (0, 0)], [], [(12, 3)]]
    write_pharaoh(tmp_path / "out", lines)
    assert (tmp_path / "out").read_text() == "0-0 0-1\n\n12-3\n"
    found = headloom.read_pharaoh(tmp_path / "out")
    assert [sorted(links.sure) for links in found] == [[(0, 0), (0, 1)], [], [(12, 3)]]
    assert all(links.sure == links.possible for links in found)
    assert pharaoh_line([]) == ""


def test_possible_links_are_not_sure(tmp_path: Path) -> None:
    (tmp_path / "gold").write_text("0-0 1?2 2p1\r\n")
    (links,) = headloom.read_pharaoh(tmp_path / "gold")
    assert links.sure == {(0, 0)}
    assert links.possible == {(0, 0), (1, 2), (2, 1)}


@pytest.mark.parametrize("wrong", ["0", "0-", "-1", "a-b", "0:1", "0-1-2", "0 - 1", "１-0"])
def test_a_line_that_holds_something_else_is_named(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "gold").write_text(f"0-0\n1-1 {wrong}\n")
    with pytest.raises(headloom.InputError, match=r"line 2 holds .* expected links of words"):
        headloom.read_pharaoh(tmp_path / "gold")


def test_links_have_to_fit_their_sentences() -> None:
    gold = [GoldLinks.of_line("0-0"), GoldLinks.of_line("2-0 1?3")]
    check_links(gold, [(1, 1), (3, 4)])
    with pytest.raises(headloom.InputError, match="line 2 links word 1 of the source to word 3"):
        check_links(gold, [(1, 1), (3, 3)])
    with pytest.raises(headloom.InputError, match=r"links word 2 .* which have 2 and 4 words"):
        check_links(gold, [(1, 1), (2, 4)])
    with pytest.raises(headloom.InputError, match="gold has 2 lines for 1 pairs"):
        check_links(gold, [(1, 1)])
