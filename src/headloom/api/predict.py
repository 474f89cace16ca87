"""What a run, or a folder of Transformers, predicts from lines: `headloom predict`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headloom.analysis.alignment.links import mutual, pairs_of
from headloom.api.loaded_model import from_huggingface
from headloom.api.questions import tell_unknown
from headloom.api.run_model import RunModel
from headloom.api.word_alignment import word_weights_of
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.pharaoh import pharaoh_line
from headloom.formats.run import is_run
from headloom.models.dense import Products
from headloom.models.language_model import LanguageModel
from headloom.training.inference import TrainedRun, classify, generate_text, open_run
from headloom.training.translation import Search, TranslatedLine, translated_windows

#: Lines that are read, sorted by length and predicted at once.
WINDOW = 2_000
#: Digits of weights and of log-probabilities.
_DIGITS = 6


@dataclass(frozen=True)
class PredictOptions:
    """How a model writes.

    beam, length_penalty: of a translator; None: the penalty of the run. n_best: hypotheses a line
    that are described.
    length, temperature, top_k, top_p, seed: of a language model, see
    `headloom.models.decoding.sample`.
    products: of a run's linear maps, "float32" or "bfloat16".
    """

    beam: int = 5
    length_penalty: float | None = None
    n_best: int = 1
    length: int = 200
    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 1
    products: Products = "float32"

    def __post_init__(self) -> None:
        """Raise an InputError where more is asked for than a beam holds."""
        if self.n_best > self.beam:
            raise InputError(
                f"--n-best {self.n_best}: a beam of {self.beam} holds no more than {self.beam}. "
                f"Give --beam {self.n_best}, or a smaller --n-best."
            )


@dataclass(frozen=True)
class Predicted:
    """What a model says of one line: as a line of text, and by names (docs/formats.md)."""

    line: str
    content: JsonObject


def predict(
    name: str,
    lines: Iterable[str],
    options: PredictOptions | None = None,
    *,
    described: bool = False,
) -> Iterator[Predicted]:
    """Translate, continue or classify lines, as the model does; in memory that does not grow.

    Args:
        name: the folder of a run, or one of Transformers that `from_huggingface` reads.
        lines: texts.
        options: see PredictOptions.
        described: whether the content is wanted too: of a translator the n best hypotheses, their
            scores and which words belong together, which takes longer.

    Raises: InputError: a model that predicts nothing from text, or a line that is too long: those
    before it were given.
    """
    options = options or PredictOptions()
    if not is_run(name):
        yield from _of_folder(name, lines, options)
        return
    run = open_run(Path(name))
    unknown: dict[str, None] = {}

    def watched() -> Iterator[str]:
        for line in lines:
            unknown.update(dict.fromkeys(run.vocabulary.unknown_parts(line)))
            yield line

    if run.translates:
        yield from _translated(run, watched(), options, described)
    elif run.model.classifies_texts:
        yield from _classified(run, watched())
    elif isinstance(run.model, LanguageModel):
        for line in watched():
            text = line + generate_text(
                run, line, length=options.length, temperature=options.temperature,
                top=options.top_k, top_p=options.top_p, seed=options.seed,
            )  # fmt: skip
            yield Predicted(text, {"prompt": line, "text": text[len(line) :]})
    else:
        raise InputError(f"{name}: this run {run.model.purpose}, and predicts nothing from text.")
    tell_unknown("the input", list(unknown))


def _translated(
    run: TrainedRun, lines: Iterator[str], options: PredictOptions, described: bool
) -> Iterator[Predicted]:
    penalty = run.length_penalty if options.length_penalty is None else options.length_penalty
    search = Search(options.beam, penalty, products=options.products)
    for window in translated_windows(run.model, run.vocabulary, lines, search, WINDOW):
        aligned = _alignments(run, window, options.n_best) if described else iter(())
        for line in window:
            best: list[JsonObject] = [
                {
                    "text": run.vocabulary.decode(hypothesis.tokens),
                    "log_probability": round(hypothesis.log_probability, _DIGITS),
                    "score": round(hypothesis.score(penalty), _DIGITS),
                    "ended": hypothesis.ended,
                    "tokens": run.vocabulary.token_strings(hypothesis.tokens),
                    **(next(aligned) if described and hypothesis.ended else {}),
                }
                for hypothesis in line.hypotheses[: options.n_best]
            ]
            text = " ".join(best[0]["text"].splitlines()) if best else ""
            content = {
                "line": line.number, "source": line.source,
                "source_tokens": run.vocabulary.token_strings(line.ids), "hypotheses": best,
            }  # fmt: skip
            yield Predicted(text, content)


def _alignments(run: TrainedRun, window: list[TranslatedLine], n_best: int) -> Iterator[JsonObject]:
    """Which words belong together in each hypothesis that ended: by the mean of all heads.

    That of the rows which write a word; of those which read it, it is blurred by heads that already
    look for the next one: docs/alignment.md has figures.
    """
    pairs = [
        (line.source, run.vocabulary.decode(hypothesis.tokens))
        for line in window
        for hypothesis in line.hypotheses[:n_best]
        if hypothesis.ended
    ]
    if not any(source.strip() and target.strip() for source, target in pairs):
        yield from ({"alignment": "", "weights": []} for _ in pairs)
        return
    sources, targets = zip(*pairs, strict=True)
    for read in word_weights_of(RunModel(run), sources, targets, steps=("write",)):
        mean = read.weights.mean(0, keepdim=True)
        yield {
            "alignment": pharaoh_line(pairs_of(mutual(mean)[0])),
            "weights": [[round(weight, _DIGITS) for weight in row] for row in mean[0].tolist()],
        }


def _classified(run: TrainedRun, lines: Iterator[str]) -> Iterator[Predicted]:
    while window := list(islice(lines, WINDOW)):
        for text, found in zip(window, classify(run.model, run.data, window), strict=True):
            line = "" if found is None else f"{found.label}\t{found.probability:.4f}"
            content: JsonObject = {"text": text, "label": found and found.label,
                                   "probabilities": dict(found or {})}  # fmt: skip
            yield Predicted(line, content)


def _of_folder(name: str, lines: Iterable[str], options: PredictOptions) -> Iterator[Predicted]:
    """By one of headloom's models with the weights of a folder of Transformers."""
    model, rest = from_huggingface(name), iter(lines)
    if isinstance(model.model, LanguageModel):
        for line in rest:
            text = model.generate(
                line, length=options.length, temperature=options.temperature, top=options.top_k,
                top_p=options.top_p, seed=options.seed,
            )  # fmt: skip
            yield Predicted(line + text, {"prompt": line, "text": text})
        return
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    while window := list(islice(rest, WINDOW)):
        texts = model.translate(window, beam=options.beam, length_penalty=penalty)
        for source, text in zip(window, texts, strict=True):
            yield Predicted(text, {"source": source, "hypotheses": [{"text": text}]})
