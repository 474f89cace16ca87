"""Translation: two line-aligned text files, or one file of tab-separated pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import read_text
from headloom.formats.lines import check_line_ends
from headloom.training.data import DataDescription
from headloom.training.measures import CorpusMeasure, translation_measures
from headloom.training.sections import TranslationConfig
from headloom.training.tasks.pairs import PairsTask, TextPairs
from headloom.training.text import Vocabulary

__all__ = ["read_pairs", "translation_task"]


def read_pairs(folder: Path, files: Sequence[str]) -> TextPairs:
    """Pairs of texts from two line-aligned files, or from one of tab-separated pairs.

    Args:
        folder: where the files are.
        files: one or two names.

    Returns: (source, target), without spaces around them; lines empty on both sides are left out.

    Raises:
        DataError: a file is missing or not UTF-8.
        InputError: not one or two files, lines that do not pair, or nothing at all.
    """
    paths = [folder / name for name in files]
    texts = [
        read_text(path, "text (task.folder says where, in headloom evaluate --data)")
        for path in paths
    ]
    for path, text in zip(paths, texts, strict=True):
        check_line_ends(text, path)
    lines = [text.removesuffix("\n").split("\n") for text in texts]
    if len(files) == 2:
        sources, targets = lines
        numbers = list(range(1, len(sources) + 1))
        if len(sources) != len(targets):
            raise InputError(
                f"{paths[0]} has {len(sources)} lines, {paths[1]} {len(targets)}; line-aligned "
                "files have as many. Pair them up again."
            )
    else:
        sources, targets, numbers = [], [], []
        for number, line in enumerate(lines[0], 1):
            if not line.strip():
                continue
            source, tab, target = line.partition("\t")
            if not tab or "\t" in target:
                raise InputError(
                    f"{paths[0]}: line {number} has {line.count(chr(9))} tabs; expected source TAB "
                    "target."
                )
            sources.append(source)
            targets.append(target)
            numbers.append(number)
    pairs = []
    for number, source, target in zip(numbers, sources, targets, strict=True):
        pair = source.strip(), target.strip()
        if bool(pair[0]) != bool(pair[1]):
            empty = paths[0] if not pair[0] else paths[-1]
            raise InputError(
                f"{empty}: line {number} is empty, its partner is not. Remove both or fill it in."
            )
        if pair[0]:
            pairs.append(pair)
    if not pairs:
        raise InputError(f"{' and '.join(map(str, paths))}: no pairs; the files are empty.")
    return pairs


class TranslationTask(PairsTask):
    """Lines of one language to lines of another.

    left_out: how many training pairs are too long, and how many tokens are not.
    """

    left_out = 0, 0

    def notices(self) -> list[str]:
        """See Task.notices."""
        count, most = self.left_out
        if not count:
            return super().notices()
        are, pairs = "is" if count == 1 else "are", count + len(self.texts["train"])
        left_out = (
            f"{count:,} of {pairs:,} training pairs {are} left out, longer than task.max_length = "
            f"{most:,} tokens."
        )
        return [left_out, *super().notices()]

    def measures(self, written: Sequence[str], expected: Sequence[str]) -> list[CorpusMeasure]:
        """BLEU, chrF and TER, see translation_measures."""
        return translation_measures(written, expected)


def translation_task(
    config: TranslationConfig, seed: int, data: DataDescription | None = None
) -> TranslationTask:
    """The task with its files read."""
    folder = Path(config.folder)
    train = read_pairs(folder, config.train)
    valid = read_pairs(folder, config.valid)
    test = read_pairs(folder, config.test) if config.test else []
    vocabulary = None if data is None else data.vocabulary
    if vocabulary is None:
        vocabulary = Vocabulary.of_pieces(
            (text for pair in train for text in pair), config.vocabulary
        )
    lengths = [max(map(len, vocabulary.encode_all(pair))) <= config.max_length for pair in train]
    fitting = [pair for pair, fits in zip(train, lengths, strict=True) if fits]
    if not fitting:
        raise InputError(
            f"every training pair is longer than task.max_length = {config.max_length} tokens."
        )
    task = TranslationTask(vocabulary, seed, fitting, valid, test, config.length_penalty)
    task.left_out = len(train) - len(fitting), config.max_length
    return task
