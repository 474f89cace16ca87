"""A trained model in formats of other programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from weft.errors import VerificationError, optional_package
from weft.formats.folders import atomic_folder
from weft.models.stock import StockModel, stock_model
from weft.training.inference import TrainedRun, open_run
from weft.training.text import SPECIALS, Vocabulary

__all__ = ["ExportedModel", "export_model"]

#: By how much logits may differ, of the largest; sums in float32 in another order.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class ExportedModel:
    """What was written.

    folder: with configuration, weights and vocabulary.
    kind: the class of the other program that computes it.
    loading: the line of Python that opens it.
    numbers: which were compared: logits, or log-probabilities.
    difference: the largest between them and the run's, on random tokens.
    """

    folder: Path
    kind: str
    loading: str
    numbers: str
    difference: float


def export_model(
    path: Path, folder: Path, to: Literal["huggingface", "ctranslate2"]
) -> ExportedModel:
    """Write a run's best weights as a folder that another program opens.

    What was written is opened by that program, and its numbers on random tokens are compared with
    the run's, before the folder gets its name.

    Args:
        path: of the run.
        folder: to write; must not exist.
        to: Transformers, as an architecture of its own (weft.models.stock), or CTranslate2.

    Raises: InputError: that program cannot compute the model; DataError: no run, or the folder
        exists; VerificationError: numbers differ.
    """
    run = open_run(path)
    if to == "huggingface":
        return _export_huggingface(run, folder)
    from weft.jobs.ctranslate2_model import difference_of_scores, write_ctranslate2

    with atomic_folder(folder) as new:
        kind = write_ctranslate2(run, new)
        run.vocabulary.save(new / "tokenizer.json")
        difference = difference_of_scores(run, new, TOLERANCE)
    loading = f"ctranslate2.{kind}({str(folder)!r})"
    return ExportedModel(folder, f"ctranslate2.{kind}", loading, "log-probabilities", difference)


def _export_huggingface(run: TrainedRun, folder: Path) -> ExportedModel:
    stock = stock_model(run.model)
    with optional_package("export", '"weft[hf]"'):
        import transformers
    loader = "AutoModelForSeq2SeqLM" if run.translates else "AutoModelForCausalLM"
    with atomic_folder(folder) as new, _quiet():
        _built(stock, run).save_pretrained(new)
        _tokenizer(run, longest=_longest(stock)).save_pretrained(new)
        for file in new.iterdir():
            file.chmod(0o644)
        loaded = getattr(transformers, loader).from_pretrained(new)
        difference = _difference(run, loaded.eval())
    loading = f"transformers.{loader}.from_pretrained({str(folder)!r})"
    return ExportedModel(folder, stock.architecture, loading, "logits", difference)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars that Transformers shows while it writes and loads."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _longest(stock: StockModel) -> int:
    names = ("max_position_embeddings", "n_positions")
    (longest,) = (stock.settings[name] for name in names if name in stock.settings)
    if not isinstance(longest, int):
        raise TypeError("the number of positions is whole")
    return longest


def _built(stock: StockModel, run: TrainedRun) -> Any:
    """The model of Transformers, with a run's weights."""
    import transformers

    kind = getattr(transformers, stock.architecture)
    specials = {
        "pad_token_id": Vocabulary.pad,
        "bos_token_id": Vocabulary.start,
        "eos_token_id": Vocabulary.end,
    }
    if run.translates:
        specials["decoder_start_token_id"] = Vocabulary.start
    model = kind(kind.config_class(**stock.settings, **specials, forced_eos_token_id=None)).eval()
    weights = {name: tensor.detach().clone() for name, tensor in stock.weights.items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    output = model.get_output_embeddings().weight
    with torch.no_grad():
        output.copy_(stock.output)
    names = dict(model.named_parameters(remove_duplicate=False))
    left = [name for name in missing if name in names and names[name] is not output]
    if left or unexpected:
        raise VerificationError(
            f"export: this version of Transformers names the weights of {stock.architecture} "
            f"otherwise ({', '.join([*left, *unexpected][:3])} ...). Report it, with the version."
        )
    if run.translates:
        settings = model.generation_config
        settings.num_beams, settings.length_penalty = 5, float(run.length_penalty)
    return model


def _tokenizer(run: TrainedRun, *, longest: int) -> Any:
    """The run's tokens, as Transformers keeps them."""
    from tokenizers import Tokenizer, decoders, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(run.vocabulary.tokenizer.to_str())
    if run.vocabulary.has_pieces:
        # weft writes no space before the first word.
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    if run.translates:
        end = SPECIALS[Vocabulary.end]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {end}", special_tokens=[(end, Vocabulary.end)]
        )
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=tokenizer,
        **dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True)),
        model_max_length=longest,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def _difference(run: TrainedRun, loaded: Any) -> float:
    """The largest difference of logits, on random tokens.

    Raises: VerificationError: it is too large.
    """
    generator = torch.Generator().manual_seed(1)
    choices = len(run.vocabulary)

    def ids(length: int) -> torch.Tensor:
        return torch.randint(Vocabulary.end + 1, choices, (4, length), generator=generator)

    source, target = ids(17), ids(13)
    with torch.no_grad():
        if run.translates:
            source[1:, 11:] = Vocabulary.pad
            real = (source != Vocabulary.pad).long()
            ours = run.model(source, target)
            theirs = loaded(input_ids=source, attention_mask=real, decoder_input_ids=target).logits
        else:
            ours, theirs = run.model(target), loaded(input_ids=target).logits
    difference = float((ours - theirs).abs().max())
    largest = float(ours.abs().max())
    if not difference <= TOLERANCE * max(largest, 1.0):
        raise VerificationError(
            f"export: logits of the exported model differ from the run's by {difference:.2g} (the "
            f"largest is {largest:.2g}). Nothing was written; report it."
        )
    return difference
