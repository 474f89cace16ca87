"""Notes beside a trace: nothing is lost, nothing damaged is overwritten."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from tests.forked import Loaded

from weft.errors import DataError, InputError
from weft.formats.notes import LONGEST, MOST, ChangedMeanwhileError, NotesFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "dog.weft"
    path.mkdir()
    return path


def test_a_note_is_written_changed_and_removed(folder: Path) -> None:
    file = NotesFile(folder)
    assert file.read() == [] and not file.path.exists()
    file.add("looks at\nthe noun  ", 4, 3, trace="abc")
    (head, edge) = file.add("<script>alert('é ☃')</script>", 1, 0, 5, 2)
    assert (head.layer, head.head, head.query, head.key, head.text, head.version, head.trace) == (
        4, 3, None, None, "looks at\nthe noun", 1, "abc",
    )  # fmt: skip
    assert (edge.query, edge.key, edge.text) == (5, 2, "<script>alert('é ☃')</script>")
    file.change(head.id, 1, "another")
    assert [(note.text, note.version) for note in NotesFile(folder).read()] == [
        ("another", 2), (edge.text, 1),
    ]  # fmt: skip
    # Open formats: read without weft.
    plain = json.loads((folder.parent / "dog.weft.notes.json").read_text("utf-8"))
    assert plain["format"] == "weft-notes" and len(plain["notes"]) == 2
    file.remove(edge.id, 1)
    assert [note.text for note in file.read()] == ["another"]
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        "dog.weft", "dog.weft.notes.json",
    ]  # fmt: skip
    assert list(folder.iterdir()) == []


def test_what_somebody_else_changed_is_not_overwritten(folder: Path) -> None:
    one, other = NotesFile(folder), NotesFile(folder)
    (seen,) = one.add("first", 0, 0)
    other.change(seen.id, 1, "second")
    for act in (lambda: one.change(seen.id, 1, "third"), lambda: one.remove(seen.id, 1)):
        with pytest.raises(ChangedMeanwhileError, match="changed this note meanwhile"):
            act()
    other.remove(seen.id, 2)
    with pytest.raises(ChangedMeanwhileError, match="removed this note meanwhile"):
        one.change(seen.id, 2, "third")
    assert one.read() == []


def test_threads_and_processes_at_once_lose_nothing(loaded: Loaded, folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from weft.formats.notes import NotesFile\n"
        "for n in range(25): NotesFile(Path(sys.argv[1])).add(f'{sys.argv[2]} {n}', 0, n)"
    )
    others = [loaded.start(folder, name, program=program) for name in ("a", "b")]
    file = NotesFile(folder)

    def write(name: str) -> None:
        for number in range(25):
            file.add(f"{name} {number}", 0, number)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("c", "d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in others:
        with process:
            assert process.wait() == 0
    texts = [note.text for note in file.read()]
    assert sorted(texts) == sorted(f"{name} {n}" for name in "abcd" for n in range(25))
    assert len({note.id for note in file.read()}) == 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" \n ", "the text is empty"),
        ("x" * (LONGEST + 1), "has 2,001 characters; a note has at most 2,000"),
        ("half \ud83d", "half a character"),
    ],
)
def test_a_text_that_cannot_be_a_note(folder: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        NotesFile(folder).add(text, 0, 0)
    assert not NotesFile(folder).path.exists()


def test_there_is_an_end(folder: Path) -> None:
    file = NotesFile(folder)
    file.add("x", 0, 0)
    content = json.loads(file.path.read_text())
    note = content["notes"][0]
    content["notes"] = [{**note, "id": f"{n:08x}"} for n in range(MOST)]
    file.path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="has 1,000 already"):
        file.add("y", 0, 0)
    file.remove("00000000", 1)
    assert len(file.add("y", 0, 0)) == MOST


NOTE = {
    "id": "a", "version": 1, "layer": 0, "head": 0, "query": None, "key": None, "text": "x",
    "written": "2026-01-01T00:00:00+00:00", "trace": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "damaged"),
        ("[]", "not the notes of a trace"),
        ('{"format": "weft-notes", "version": 2, "notes": []}', "Upgrade weft"),
        ('{"format": "weft-notes", "version": 1}', "expected a list"),
        ({**NOTE, "layer": -1}, "its layer cannot be that"),
        ({**NOTE, "layer": True}, "its layer cannot be that"),
        ({**NOTE, "head": None}, "its head cannot be that"),
        ({**NOTE, "query": 1}, "an edge has a query and a key"),
        ({**NOTE, "text": 5}, "its text cannot be that"),
        ({**NOTE, "text": "x" * 2001}, "its text cannot be that"),
        ({**NOTE, "text": "\ud83d"}, "its text cannot be that"),
        ({**NOTE, "more": 1}, "expected id, version, layer"),
        ([NOTE, NOTE], "two notes have one name"),
        ("\xff", "not UTF-8"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_file_is_one_line_and_stays(folder: Path, content: object, said: str) -> None:
    file = NotesFile(folder)
    if not isinstance(content, str):
        notes = content if isinstance(content, list) else [content]
        content = json.dumps({"format": "weft-notes", "version": 1, "notes": notes})
    file.path.write_bytes(content.encode("latin-1"))
    for act in (file.read, lambda: file.add("y", 0, 0), lambda: file.remove("a", 1)):
        with pytest.raises(DataError) as raised:
            act()
        assert said in str(raised.value) and "\n" not in str(raised.value)
        assert str(file.path) in str(raised.value)
    assert file.path.read_bytes() == content.encode("latin-1")


def test_too_large_a_file_is_not_read(folder: Path) -> None:
    file = NotesFile(folder)
    with file.path.open("wb") as sparse:
        sparse.truncate(2**34)
    with pytest.raises(DataError, match="larger than 16,777,216 bytes"):
        file.read()


def test_a_trace_that_is_gone(folder: Path) -> None:
    file = NotesFile(folder)
    folder.rmdir()
    with pytest.raises(DataError, match="no longer there"):
        file.add("x", 0, 0)
