"""BPE-dropout: words cut into pieces another way each time they are read."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from headloom.training.text import Vocabulary

__all__ = ["PieceDropout"]

#: Ways of cutting kept of each word; cutting it anew each time would cost as much as training.
WAYS = 32


class PieceDropout:
    """Encodes texts with a vocabulary of pieces, merges left out at random.

    At each step of cutting a word, each possible merge is left out with a probability; of those
    that stay, the one that was learned first is done. At 0 this is byte-pair encoding; at 1 each
    byte is a token. Training data only: what is translated is cut the usual way.

    Args:
        vocabulary: of pieces.
        probability: of leaving out a merge, 0 to 1.
        seed: of the ways in which words are cut.

    Source: Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization".
    """

    def __init__(self, vocabulary: Vocabulary, probability: float, seed: int) -> None:
        model = json.loads(vocabulary.tokenizer.to_str())["model"]
        self._ids: dict[str, int] = model["vocab"]
        self._ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        self._tokenizer = vocabulary.tokenizer
        self._probability, self._seed = probability, seed
        self._ways: dict[str, list[list[int]]] = {}
        self._words: dict[str, list[str]] = {}

    def encode_all(self, texts: Sequence[str], epoch: int) -> list[list[int]]:
        """Token ids of texts as an epoch reads them; the same for the same arguments."""
        numbers = random.Random(self._seed * 1_000_003 + epoch)
        return [self._encode(text, numbers) for text in texts]

    def longest(self, texts: Sequence[str]) -> int:
        """Tokens of the longest text where no merge is done."""
        return max(sum(map(len, self._words_of(text))) for text in texts)

    def _words_of(self, text: str) -> list[str]:
        words = self._words.get(text)
        if words is None:
            normal = self._tokenizer.normalizer.normalize_str(text)
            words = [word for word, _ in self._tokenizer.pre_tokenizer.pre_tokenize_str(normal)]
            self._words[text] = words
        return words

    def _encode(self, text: str, numbers: random.Random) -> list[int]:
        ids: list[int] = []
        for word in self._words_of(text):
            ids += self._way(word, int(numbers.random() * WAYS))
        return ids

    def _way(self, word: str, number: int) -> list[int]:
        """One of the ways to cut a word, the same whichever were asked for before it."""
        ways = self._ways.setdefault(word, [[] for _ in range(WAYS)])
        if not ways[number]:
            numbers = random.Random(f"{self._seed} {number} {word}")
            ways[number] = [self._ids[piece] for piece in self.pieces(word, numbers)]
        return ways[number]

    def pieces(self, word: str, numbers: random.Random) -> list[str]:
        """Cut a word of the byte-level alphabet into pieces.

        Args:
            word: as the vocabulary's pre-tokeniser gives it.
            numbers: drawn from to leave out merges.
        """
        pieces = list(word)
        while True:
            best, place = len(self._ranks), -1
            for index in range(len(pieces) - 1):
                rank = self._ranks.get((pieces[index], pieces[index + 1]), best)
                if rank < best and numbers.random() >= self._probability:
                    best, place = rank, index
            if place < 0:
                return pieces
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
