"""The tokens of a run as other programs read them."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, processors

from headloom.models.classifier import Classifier
from headloom.training.inference import TrainedRun
from headloom.training.pretrained_vocabulary import PretrainedVocabulary
from headloom.training.text import SPECIALS, Vocabulary

__all__ = ["bare_tokenizer", "exported_tokenizer"]


def bare_tokenizer(run: TrainedRun) -> Tokenizer:
    """The run's tokenizer, which adds nothing to what a model reads, and writes no space before the
    first word.
    """
    tokenizer = Tokenizer.from_str(run.vocabulary.tokenizer.to_str())
    if not isinstance(run.vocabulary, PretrainedVocabulary) and run.vocabulary.has_pieces:
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def exported_tokenizer(run: TrainedRun) -> Tokenizer:
    """The run's tokenizer, which adds what its model reads beside a text.

    <end> after what a translator reads, <start> before what a classifier does; and no space before
    the first word that is written.
    """
    tokenizer = bare_tokenizer(run)
    if isinstance(run.vocabulary, PretrainedVocabulary):
        return tokenizer  # as it came
    tokenizer.add_special_tokens(list(SPECIALS))  # so that decoding leaves them out
    end, start = SPECIALS[Vocabulary.end], SPECIALS[Vocabulary.start]
    if run.translates:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, Vocabulary.end)]
        )
    elif isinstance(run.model, Classifier):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, Vocabulary.start)]
        )
    return tokenizer
