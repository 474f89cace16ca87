"""`weft relevance`: which tokens of a text a prediction of a model comes from."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.asking import given_text, masked_place, one_token
from weft.cli.output import exact_output
from weft.cli.terminal import AsJson, Threads, print_json, tell_unknown, use_threads
from weft.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from weft.training.inference import TrainedRun

__all__ = ["relevance"]


def relevance(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A training run; or a model of Hugging Face: a folder, or a name."
        ),
    ],
    text: Annotated[str | None, typer.Option(help="What the model reads.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text.")] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Of an encoder-decoder: what it has written so far; default for a run: its own "
            "translation."
        ),
    ] = None,
    logit: Annotated[
        str | None,
        typer.Option(
            help="The token, or of a classifier the label, that is predicted; default: the "
            "likeliest."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="With --logit: and not this one; the difference is asked.")
    ] = None,
    position: Annotated[
        int | None,
        typer.Option(
            help="After which token of the text, or of the target; negative ones from the end. "
            "Default: the last; where a text has a mask, that."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Tokens printed at most.")] = 20,
    threads: Threads = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print comma-separated values, of all tokens in order.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Relevance: which tokens of a text a prediction comes from, by weights and their gradients."""
    from weft.experiments.relevance import relevance as relevance_of
    from weft.formats.tokens import shown, visible

    use_threads(threads)
    text = given_text("relevance", text, file)
    if text is None:
        raise InputError("relevance: give the text that the model reads, by --text or --file.")
    if against is not None and logit is None:
        raise InputError("--against: needs --logit, whose logit it is taken from.")
    if (Path(model) / "run.json").is_file():
        from weft.training.inference import open_run

        asked = _of_run(open_run(Path(model)), text, target)
    else:
        from weft.tracing.pretrained import load_pretrained

        network, tokenizer = load_pretrained(model, predicting=True, labelling=True)
        asked = _of_pretrained(network, tokenizer, text, target, position)
    place = asked.place_of(position)
    chosen = None if logit is None else asked.number("--logit", logit)
    other = None if against is None else asked.number("--against", against)
    answer: dict[str, Any] = {}

    def score(output: Any) -> Tensor:
        logits = asked.logits(output, place)
        wanted = int(logits.argmax()) if chosen is None else chosen
        answer["predicted"] = asked.name(wanted)
        value = logits[wanted] if other is None else logits[wanted] - logits[other]
        answer["logit"] = float(value.detach())
        return value

    given = asked.arguments(place)
    (values,) = relevance_of(asked.network, given, score, rows=place or 0).tolist()
    after = None if place is None else shown(asked.read)[place]
    if as_csv:
        import csv

        writer = csv.writer(exact_output(), lineterminator="\n")
        writer.writerow(("position", "token", "relevance"))
        writer.writerows(zip(range(len(values)), shown(asked.tokens), values, strict=True))
    else:
        said = "label" if after is None else f"after {visible(after)} ({place})"
        less = "" if other is None else f" less {visible(asked.name(other))}"
        print(f"{visible(answer['predicted'])}{less}, {said}: {answer['logit']:.4f}")
        order = sorted(range(len(values)), key=lambda index: -values[index])
        for index in order[:top]:
            print(f"{values[index]:8.4f}  {index:6}  {visible(shown(asked.tokens)[index])}")
    if as_json:
        print_json(
            {
                "model": model,
                "predicted": answer["predicted"],
                "against": against,
                "logit": answer["logit"],
                "position": place,
                "tokens": asked.tokens,
                "relevance": values,
            }
        )


@dataclass(frozen=True, eq=False)
class _Asked:
    """A model, what it reads, and how its predictions are named.

    tokens: of the text, whose relevance is wanted.
    read: those that predictions come after: the same, or of an encoder-decoder the target's; of a
        classifier none.
    words: from the word of an option to its tokens; names: the other way.
    masked: where a mask stands, whose token is predicted.
    """

    network: nn.Module
    inputs: dict[str, Any]
    tokens: list[str]
    read: list[str]
    words: Any
    names: Any
    masked: int | None = None

    def place_of(self, position: int | None) -> int | None:
        """The position that is asked, from 0; None: of a classifier."""
        count = len(self.read)
        if not self.read:
            if position is not None:
                raise InputError("--position: a classifier predicts one label for the whole text.")
            return None
        place = self.masked if position is None else position
        place = count - 1 if place is None else place
        if not -count <= place < count:
            raise InputError(f"--position {place}: there are tokens 0 to {count - 1}.")
        return place % count

    def arguments(self, place: int | None) -> dict[str, Any]:
        """The inputs, and where only the last logits are asked about, that no others are made."""
        takes = inspect.signature(self.network.forward).parameters
        if place is not None and place == len(self.read) - 1 and "logits_to_keep" in takes:
            return {**self.inputs, "logits_to_keep": 1}
        return self.inputs

    def number(self, option: str, word: str) -> int:
        """The number of the logit of a word."""
        return one_token(option, self.words(word))

    def name(self, number: int) -> str:
        """The token or the label of a logit."""
        from weft.formats.tokens import shown

        (found,) = shown(self.names([number]))
        return str(found)

    def logits(self, output: Any, place: int | None) -> Tensor:
        """Those of one position."""
        found: Tensor = (output if self.read and not hasattr(output, "logits") else output.logits)[
            0
        ]
        if place is None:
            return found
        # Some models are asked for their last logits alone.
        return found[place - len(self.read) if len(found) < len(self.read) else place]


def _of_run(run: TrainedRun, text: str, target: str | None) -> _Asked:
    import torch

    from weft.tracing.names import token_names
    from weft.training.tasks.pairs import translate

    words = run.vocabulary
    ids = words.encode(text)
    if not run.translates:
        if target is not None:
            raise InputError("--target: this run is a language model, which has no target.")
        sequences = {"tokens": ids}
    else:
        if target is None:
            (target,) = translate(run.model, words, [text], beam=5)
        sequences = {
            "source": [*ids, words.end],
            "target": [words.start, *words.encode(target)],
        }
    tell_unknown(run, "the text", text + (target or ""))
    names = [token_names(sequence, words) for sequence in sequences.values()]
    return _Asked(
        run.model,
        {name: torch.tensor([sequence]) for name, sequence in sequences.items()},
        names[0],
        names[-1],
        words.encode,
        lambda numbers: token_names(numbers, words),
    )


def _of_pretrained(
    network: nn.Module, tokenizer: Any, text: str, target: str | None, position: int | None
) -> _Asked:
    from weft.tracing.names import token_names
    from weft.tracing.pretrained import text_inputs

    config: Any = network.config
    run: Any = network
    kind = type(network).__name__
    given = text_inputs(network, tokenizer, text, target)
    if isinstance(given, str):
        given = dict(tokenizer(text, return_tensors="pt", verbose=False))
    takes = inspect.signature(network.forward).parameters
    if "token_type_ids" not in takes:
        given.pop("token_type_ids", None)
    ids = given["input_ids"][0].tolist()
    if not ids:
        raise InputError("the text is empty; expected at least one token.")
    tokens = token_names(ids, tokenizer)
    if kind.endswith("ForSequenceClassification"):
        labels = {str(name): number for number, name in config.id2label.items()}

        def number_of(label: str) -> list[int]:
            if label not in labels:
                raise InputError(f"no label {label!r}; there are {', '.join(labels)}.")
            return [labels[label]]

        return _Asked(
            network, given, tokens, [], number_of, lambda n: [config.id2label[i] for i in n]
        )
    if run.get_output_embeddings() is None:
        raise InputError(
            f"a {kind} predicts nothing that a token could be relevant for. Give a model that was "
            "saved with its language model or its classifier."
        )
    read = tokens
    if "decoder_input_ids" in given:
        read = token_names(given["decoder_input_ids"][0].tolist(), tokenizer)
    masked = kind.endswith("MaskedLM") and position is None
    return _Asked(
        network,
        given,
        tokens,
        read,
        lambda word: tokenizer(word, add_special_tokens=False)["input_ids"],
        lambda numbers: token_names(numbers, tokenizer),
        masked_place("relevance", ids, tokenizer) if masked else None,
    )
