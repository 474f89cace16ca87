"""A trained model as CTranslate2 reads it, by its own converter of a Transformers folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headloom.api.huggingface_model import bare_tokenizer, quiet, write_huggingface
from headloom.errors import InputError, installing, optional_package
from headloom.formats.files import read_json, write_json
from headloom.training.inference import TrainedRun
from headloom.training.text import SPECIALS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["scores_of_ctranslate2", "write_ctranslate2"]


def write_ctranslate2(run: TrainedRun, folder: Path) -> str:
    """Fill a folder with a run's model; returns the class of CTranslate2 that opens it.

    Raises: InputError: no architecture of Transformers, or of CTranslate2, computes the model.

    Source: Klein et al. 2020 (CTranslate2).
    """
    with optional_package("export", installing("ctranslate2")):
        from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        """Gives models and configurations names that those of Transformers 5 no longer have."""

        def load_model(self, *args: object, **keywords: object) -> PreTrainedModel:
            with quiet():
                model: PreTrainedModel = super().load_model(*args, **keywords)
            model.embed_out = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            vars(model.config).update(
                normalize_before=True, normalize_embedding=False, rotary_pct=1.0
            )
            return model

    with tempfile.TemporaryDirectory() as temporary:
        kind = write_huggingface(run, Path(temporary))
        if kind == "MarianMTModel":  # it would begin with no token instead of <start>
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
    (folder / "tokenizer.json").write_text(bare_tokenizer(run).to_str(), "utf-8")
    return "Translator" if run.translates else "Generator"


def scores_of_ctranslate2(
    run: TrainedRun, folder: Path, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token of some texts, by the run and the written model.

    Args:
        run: the run.
        folder: of the written model.
        source: ids, (texts, positions); a language model reads the target alone.
        target: likewise, without start and end.
    """
    import ctranslate2

    vocabulary, model = run.vocabulary, run.model
    names = vocabulary.token_names()

    def texts(ids: Tensor) -> list[list[str]]:
        return [[names[i] for i in row if i != vocabulary.pad] for row in ids.tolist()]

    begun = torch.cat((torch.full((len(target), 1), vocabulary.start), target), 1)
    settings = {"device": "cpu", "compute_type": "float32"}
    with torch.no_grad():
        if run.translates:
            scored = ctranslate2.Translator(str(folder), **settings).score_batch(
                texts(source), texts(target)
            )
            logits = model(source, begun)
        else:
            scored = ctranslate2.Generator(str(folder), **settings).score_batch(texts(begun))
            logits = model(begun)
    columns = target.shape[1]
    ours = logits.log_softmax(-1)[:, :columns].gather(2, target[..., None])[..., 0]
    return ours, torch.tensor([result.log_probs[:columns] for result in scored])
