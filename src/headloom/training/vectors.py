"""Embeddings that are given: a matrix with its words, or those of a model of Hugging Face."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from headloom.errors import DataError, InputError
from headloom.formats.files import check_file, parse_json, read_json, read_text
from headloom.formats.lines import text_lines
from headloom.training.text import SPECIALS, Vocabulary

__all__ = ["GivenVectors", "read_vectors"]

#: How models of Hugging Face call the matrix of their token embeddings, at the end of its path.
_EMBEDDINGS = (
    "word_embeddings.weight", "embed_tokens.weight", "wte.weight", "shared.weight",
    "tok_embeddings.weight", "word_embedding.weight", "embed_in.weight",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GivenVectors:
    """Vectors of tokens.

    vocabulary: the tokens, the 4 specials of headloom first.
    matrix: (tokens, width), a row for each of them; 0 for padding, start and end.
    source: where they are from, for errors.
    """

    vocabulary: Vocabulary
    matrix: Tensor
    source: str

    @torch.no_grad()
    def fill(self, weight: Tensor) -> None:
        """Write the vectors into a matrix of embeddings, times one number.

        The number makes their standard deviation that of embeddings drawn at random, 1 /
        sqrt(width), so that positions, which are added, are neither lost nor drown them.

        weight: (tokens, width). Raises: InputError: another width, or other tokens.
        """
        tokens, width = self.matrix.shape
        if weight.shape[1] != width:
            raise InputError(
                f"{self.source}: these embeddings have width {width}, model.width is "
                f"{weight.shape[1]}. Set model.width = {width}."
            )
        if weight.shape[0] != tokens:
            raise InputError(
                f"{self.source}: these embeddings have {tokens} tokens, the run has "
                f"{weight.shape[0]}. Give the file that the run was started with."
            )
        spread = float(self.matrix[len(SPECIALS) :].std())
        if not math.isfinite(spread) or spread == 0:
            raise InputError(
                f"{self.source}: the embeddings are all alike, or not finite. Give another file."
            )
        weight.copy_(self.matrix / (spread * math.sqrt(width)))


def read_vectors(path: Path) -> GivenVectors:
    """Read given embeddings.

    Args:
        path: a safetensors file with one matrix, (words, width), and its words: a JSON list
            "words" in its metadata, or a file of the same name that ends in .txt, a word a line;
            or the folder of a model of Hugging Face, with model.safetensors and tokenizer.json.

    Raises:
        DataError: a file is missing or damaged.
        InputError: no such matrix, or as many words as it has not rows.
    """
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_file(path: Path) -> GivenVectors:
    tensors, metadata = _open(path)
    matrices = {name: shape for name, shape in tensors.items() if len(shape) == 2}
    if len(matrices) != 1:
        raise InputError(f"{path}: {len(matrices)} matrices; expected one, (words, width).")
    (name,) = matrices
    matrix = _load(path, name)
    if "words" in metadata:
        words = parse_json(metadata["words"], path, "list of words")
    else:
        words = text_lines(read_text(path.with_suffix(".txt"), "list of words"))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{path}: its words are no list of strings.")
    if len(words) != len(matrix):
        raise InputError(
            f"{path}: {len(matrix)} rows for {len(words)} words; expected one for each."
        )
    try:
        vocabulary = Vocabulary.of_list(words)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    zero = matrix.new_zeros(1, matrix.shape[1])
    # An unknown word is like the mean word.
    specials = torch.cat((zero, matrix.mean(0, keepdim=True), zero, zero))
    return GivenVectors(vocabulary, torch.cat((specials, matrix)), str(path))


def _of_folder(folder: Path) -> GivenVectors:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        content = read_json(index, "index")
        places = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(places, dict):
            raise DataError(f"{index}: damaged; expected a weight_map. Put a copy back.")
        files = {str(name): folder / str(file) for name, file in places.items()}
    else:
        single = folder / "model.safetensors"
        files = dict.fromkeys(_open(single)[0], single)
    names = [name for ending in _EMBEDDINGS for name in files if name.endswith(ending)]
    if not names:
        raise InputError(
            f"{folder}: no matrix of token embeddings, as {_EMBEDDINGS[0]}. Give a safetensors "
            "file with one matrix and its words."
        )
    matrix = _load(files[names[0]], names[0])
    path = folder / "tokenizer.json"
    content = read_json(path, "tokenizer")
    try:
        tokenizer, order, unknown = _behind_specials(content)
        vocabulary = Vocabulary(Tokenizer.from_str(json.dumps(tokenizer)))
    except (DataError, InputError):
        raise
    except Exception as error:  # tokenizers raises plain Exception
        raise DataError(f"{path}: a tokenizer that cannot be read: {error}.") from error
    if max(order) >= len(matrix):
        raise InputError(
            f"{folder}: {len(matrix)} embeddings, the tokenizer has a token {max(order)}. Give "
            "the tokenizer of this model."
        )
    rows = matrix[torch.tensor(order)]
    zero = rows.new_zeros(1, rows.shape[1])
    middle = rows.mean(0, keepdim=True) if unknown is None else matrix[unknown][None]
    return GivenVectors(vocabulary, torch.cat((zero, middle, zero, zero, rows)), str(folder))


def _behind_specials(content: Any) -> tuple[Any, list[int], int | None]:
    """A tokenizer.json with the 4 specials of headloom first, and all other tokens after them.

    Returns: it; the number that each token had, in the new order; and that of its unknown token.
    """
    model = dict(content["model"])
    kind, vocabulary = model.get("type"), model["vocab"]

    def moved(word: str) -> str:
        """A token of headloom's own names moves out of the way: no text is cut into it."""
        return f"[{word}]" if word in SPECIALS else word

    if kind == "Unigram":
        pieces = [[special, -100.0] for special in SPECIALS]
        old_unknown = model.get("unk_id")
        own = [[moved(word), score] for word, score in vocabulary]
        model |= {"vocab": [*pieces, *own], "unk_id": SPECIALS.index("<unk>")}
        order = list(range(len(vocabulary)))
    else:
        taken = sorted(vocabulary.items(), key=lambda pair: pair[1])
        old_unknown = vocabulary.get(model.get("unk_token"))
        names = [moved(word) for word, _ in taken]
        numbered = {word: place for place, word in enumerate((*SPECIALS, *names))}
        model |= {"vocab": numbered, "unk_token": SPECIALS[1]}
        order = [number for _, number in taken]
    # Texts are read whole and without special tokens; what cuts and fills them is left out.
    without: dict[str, object] = {
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    return {**content, **without, "model": model}, order, old_unknown


def _open(path: Path) -> tuple[dict[str, list[int]], dict[str, str]]:
    """The shapes of the tensors of a safetensors file, and its metadata."""
    check_file(path, "matrix of embeddings")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
            return shapes, file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: not a safetensors file, or damaged: {error}.") from error


def _load(path: Path, name: str) -> Tensor:
    try:
        with safe_open(path, framework="pt") as file:
            matrix: Tensor = file.get_tensor(name).float()
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: {name} cannot be read: {error}.") from error
    return matrix
