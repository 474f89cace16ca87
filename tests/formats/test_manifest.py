"""Trace folders that are damaged, old or odd: each opens as it was, or says so in one line."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.formats.conftest import TENSORS

import headloom
from headloom.formats import layer_data
from headloom.formats.files import file_digest


def damage(folder: Path, name: str, change) -> None:
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def manifest(folder: Path, change) -> None:
    content = json.loads((folder / "trace.json").read_text("utf-8"))
    change(content)
    (folder / "trace.json").write_text(json.dumps(content), "utf-8")


DAMAGE = {
    "no such trace": lambda f: shutil.rmtree(f),
    "a trace is a folder": lambda f: (shutil.rmtree(f), f.write_text("x")),
    "a half-written trace": lambda f: (f / "trace.json").unlink(),
    "line 1 is not JSON": lambda f: (f / "trace.json").write_text("{"),
    "line 1 is not UTF-8": lambda f: (f / "trace.json").write_bytes(b"\xff"),
    "has no format 'headloom-trace'": lambda f: manifest(f, lambda m: m.pop("format")),
    "a trace of version 2, made by headloom 9.9": lambda f: manifest(
        f, lambda m: m.update(version=2, headloom="9.9")
    ),
    "rows.parquet is missing": lambda f: (f / "rows.parquet").unlink(),
    "queries_keys.safetensors is missing": lambda f: (f / "queries_keys.safetensors").unlink(),
    "trace.json does not match its digest": lambda f: manifest(
        f, lambda m: m["layers"][0].update(scale=0.25)
    ),
    "edges.parquet has": lambda f: damage(f, "edges.parquet", lambda b: b[:-9]),
}


@pytest.mark.parametrize("line", DAMAGE)
def test_a_damaged_folder_says_so_in_one_line(pair_trace, tmp_path, line) -> None:
    path = tmp_path / "t"
    pair_trace.save(path)
    DAMAGE[line](path)
    with pytest.raises(headloom.DataError) as caught:
        headloom.open(path)
    assert line in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_of_traces_names_one_of_them(pair_trace, tmp_path) -> None:
    for name in ("b.loom", "a.loom"):
        pair_trace.save(tmp_path / name)
    with pytest.raises(headloom.DataError, match=r"a folder of traces\. Give one .*a\.loom\.$"):
        headloom.Trace.open(tmp_path)


def test_every_flipped_byte_of_the_numbers_is_noticed_or_harmless(pair_trace, tmp_path) -> None:
    """The tables carry checksums: no flipped bit comes back as another number."""
    path = tmp_path / "t"
    pair_trace.save(path)
    for name in ("edges.parquet", "rows.parquet"):
        whole = (path / name).read_bytes()
        for place in range(4, len(whole), 97):
            flipped = bytearray(whole)
            flipped[place] ^= 0x10
            (path / name).write_bytes(bytes(flipped))
            for number, layer in enumerate(headloom.open(path).layers):
                try:
                    graph = layer.graph
                except headloom.DataError as error:
                    assert f"{name}, layer {number}" in str(error)
                    assert "\n" not in str(error)
                else:
                    original = pair_trace.layers[number].graph
                    for tensor in TENSORS:
                        assert torch.equal(getattr(graph, tensor), getattr(original, tensor))
        (path / name).write_bytes(whole)


def test_every_flipped_bit_of_the_manifest_is_noticed_or_harmless(pair_trace, tmp_path) -> None:
    path = tmp_path / "t"
    pair_trace.save(path)
    whole = (path / "trace.json").read_bytes()
    noticed = 0
    for place in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        (path / "trace.json").write_bytes(bytes(flipped))
        try:
            found = headloom.open(path)
        except headloom.DataError as error:
            assert "\n" not in str(error)
            noticed += 1
        else:
            assert json.loads(flipped) == json.loads(whole)
            assert found.sequences == pair_trace.sequences
    assert noticed > len(whole) // 12


def test_tensors_that_do_not_fit_are_refused(pair_trace, tmp_path) -> None:
    path = tmp_path / "t"
    pair_trace.save(path)
    size = (path / "queries_keys.safetensors").stat().st_size
    (path / "queries_keys.safetensors").write_bytes(b"\0" * size)
    trace = headloom.open(path)
    with pytest.raises(headloom.DataError, match=r"damaged: queries_keys\.safetensors, layer 0"):
        _ = trace.layers[0].queries
    assert trace.layers[0].graph.k == 7  # the rest is whole


def test_threads_that_read_a_file_at_once_both_find_it_sound(
    pair_trace, tmp_path, monkeypatch
) -> None:
    """Each computed the digest, the first forgot what was expected, the second missed it."""
    pair_trace.save(tmp_path / "t")
    digests = headloom.open(tmp_path / "t").layers[0].data.digests

    def slowly(path: Path) -> str:
        time.sleep(0.05)
        return file_digest(path)

    monkeypatch.setattr(layer_data, "file_digest", slowly)
    with ThreadPoolExecutor(4) as pool:
        for found in [pool.submit(digests.verify, "rows.parquet") for _ in range(4)]:
            found.result()
