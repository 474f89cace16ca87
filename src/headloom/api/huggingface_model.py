"""Export of a trained model to Transformers, with its tokenizer, and to CTranslate2."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, processors
from torch import Tensor

from headloom.errors import InputError, VerificationError, installing, optional_package
from headloom.formats.files import read_json, write_json
from headloom.models.classifier import Classifier
from headloom.models.huggingface.conversion import StockModel, stock_model
from headloom.models.language_model import LanguageModel
from headloom.models.transformer import Transformer
from headloom.tracing.pretrained import without_output
from headloom.training.inference import TrainedRun
from headloom.training.text import NO_TOKEN, SPECIALS, PretrainedVocabulary, Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


#: Beam of translations, the default of `headloom predict`.
BEAM = 5


def huggingface_loader(run: TrainedRun) -> str:
    """Return the Auto class that loads a run's model."""
    return "AutoModelForSeq2SeqLM" if run.translates else "AutoModelForCausalLM"


def write_huggingface(run: TrainedRun, folder: Path) -> str:
    """Write a run's model to a folder; return its class in Transformers."""
    stock = stock_model(run.model)
    with optional_package("export", installing("hf")):
        import transformers
    with without_output(transformers):
        _build_model(stock, run).save_pretrained(folder)
        _tokenizer(run).save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(folder.stat().st_mode & 0o666)  # files have the folder's permissions
    return stock.architecture


def logits_of_huggingface(
    run: TrainedRun, folder: Path, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute logits by the run and the exported model; language models read the target alone."""
    import transformers

    with without_output(transformers):
        loaded = getattr(transformers, huggingface_loader(run)).from_pretrained(folder).eval()
    with torch.no_grad():
        if not run.translates:
            return run.model(target), loaded(input_ids=target).logits
        real = (source != run.vocabulary.pad).long()
        output = loaded(input_ids=source, attention_mask=real, decoder_input_ids=target)
        return run.model(source, target), output.logits


def _longest(run: TrainedRun) -> int:
    assert isinstance(run.model, Transformer | LanguageModel)  # no others have an architecture
    return run.model.architecture.max_length


def _build_model(stock: StockModel, run: TrainedRun) -> Any:
    """Build the model of Transformers with a run's weights."""
    import transformers

    kind = getattr(transformers, stock.architecture)
    words = run.vocabulary
    ids = {"pad_token_id": words.pad, "bos_token_id": words.start, "eos_token_id": words.end}
    if run.translates:
        ids["decoder_start_token_id"] = words.start
    specials = {name: None if index == NO_TOKEN else index for name, index in ids.items()}
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
            f"differently ({', '.join([*left, *unexpected][:3])} ...). Report it, with the version."
        )
    if run.translates:
        settings = model.generation_config
        settings.num_beams, settings.length_penalty = BEAM, float(run.length_penalty)
        # Transformers would stop after 20 tokens.
        settings.max_length = _longest(run)
    return model


def _tokenizer(run: TrainedRun) -> Any:
    """Convert the run's tokenizer to Transformers."""
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    words = run.vocabulary
    ids = (words.pad, words.unknown, words.start, words.end)
    names = zip(("pad_token", "unk_token", "bos_token", "eos_token"), ids, strict=True)
    tokenizer = exported_tokenizer(run)
    return make(
        tokenizer_object=tokenizer,
        **{name: tokenizer.id_to_token(index) for name, index in names if index != NO_TOKEN},
        model_max_length=_longest(run),
        # Generation needs the last token of a prompt last; a source can be padded anywhere.
        padding_side="right" if run.translates else "left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def _bare_tokenizer(run: TrainedRun) -> Tokenizer:
    """Return the run's tokenizer without added tokens or a leading space."""
    tokenizer = Tokenizer.from_str(run.vocabulary.tokenizer.to_str())
    if not isinstance(run.vocabulary, PretrainedVocabulary) and run.vocabulary.has_pieces:
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def exported_tokenizer(run: TrainedRun) -> Tokenizer:
    """Return the run's tokenizer with <end> for a translator, or <start> for a classifier."""
    tokenizer = _bare_tokenizer(run)
    if isinstance(run.vocabulary, PretrainedVocabulary):
        return tokenizer
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


def write_ctranslate2(run: TrainedRun, folder: Path) -> str:
    """Write a run's model to a folder; return its class in CTranslate2.

    Source: Klein et al. 2020.
    """
    with optional_package("export", installing("ctranslate2")):
        import transformers
        from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        """Converter with attributes that Transformers 5 has removed."""

        def load_model(self, *args: object, **keywords: object) -> PreTrainedModel:
            with without_output(transformers):
                model: PreTrainedModel = super().load_model(*args, **keywords)
            model.embed_out = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            vars(model.config).update(
                normalize_before=True, normalize_embedding=False, rotary_pct=1.0
            )
            return model

    with tempfile.TemporaryDirectory() as temporary:
        kind = write_huggingface(run, Path(temporary))
        if kind == "MarianMTModel":  # it would start with no token instead of <start>
            raise InputError(
                'export: CTranslate2 does not compute a translator with model.norm "post". Train '
                'with "pre", or export --to huggingface or --to onnx.'
            )
        try:
            Converter(temporary).convert(str(folder), force=True)
        except (KeyError, NotImplementedError, ValueError) as error:
            raise InputError(f"export: CTranslate2 does not convert a {kind}: {error}.") from error
    words = run.vocabulary
    settings = read_json(folder / "config.json", "configuration of CTranslate2")
    names = {"bos_token": words.start, "eos_token": words.end, "unk_token": words.unknown}
    if run.translates:
        names["decoder_start_token"] = words.start
    write_json(folder / "config.json", settings | {name: SPECIALS[i] for name, i in names.items()})
    (folder / "tokenizer.json").write_text(_bare_tokenizer(run).to_str(), "utf-8")
    return "Translator" if run.translates else "Generator"


def scores_of_ctranslate2(
    run: TrainedRun, folder: Path, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities of tokens by the run and the exported model."""
    import ctranslate2

    vocabulary, model = run.vocabulary, run.model
    names = vocabulary.token_names()

    def texts(ids: Tensor) -> list[list[str]]:
        return [[names[i] for i in row if i != vocabulary.pad] for row in ids.tolist()]

    started = torch.cat((torch.full((len(target), 1), vocabulary.start), target), 1)
    settings = {"device": "cpu", "compute_type": "float32"}
    with torch.no_grad():
        if run.translates:
            scored = ctranslate2.Translator(str(folder), **settings).score_batch(
                texts(source), texts(target)
            )
            logits = model(source, started)
        else:
            scored = ctranslate2.Generator(str(folder), **settings).score_batch(texts(started))
            logits = model(started)
    columns = target.shape[1]
    ours = logits.log_softmax(-1)[:, :columns].gather(2, target[..., None])[..., 0]
    return ours, torch.tensor([result.log_probs[:columns] for result in scored])
