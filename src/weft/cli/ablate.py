"""`weft ablate`: what each head of a model is needed for, by taking it away."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.asking import given_text, masked_place, one_token
from weft.cli.output import exact_output
from weft.cli.terminal import (
    AsJson,
    Threads,
    console,
    print_table,
    tell_unknown,
    use_threads,
)
from weft.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from weft.experiments.ablation import Ablation
    from weft.training.inference import TrainedRun

__all__ = ["ablate"]


class Replacement(StrEnum):
    """What a head gives instead of its output."""

    zero = "zero"
    mean = "mean"
    uniform = "uniform"


def ablate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A training run; or a model of Hugging Face: a folder, or a name."
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(help="What the model reads; default for a run: its validation data."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A file with the text.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Of an encoder-decoder: what it is to write.")
    ] = None,
    kind: Annotated[
        Replacement,
        typer.Option(
            help="What a head gives instead: nothing, its mean, or the mean of all values it may "
            "look at."
        ),
    ] = Replacement.zero,
    patch: Annotated[
        str | None,
        typer.Option(help="A text of as many tokens: heads give what they give on that instead."),
    ] = None,
    logit: Annotated[
        str | None,
        typer.Option(help="Measure the logit of this token after the text, not the loss."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="With --logit: less the logit of this token.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Only heads of this layer.")] = None,
    together: Annotated[
        bool, typer.Option("--together", help="All heads of a layer at once.")
    ] = False,
    tokens: Annotated[
        int, typer.Option(min=1, help="Of the validation data of a run, at least so many.")
    ] = 4_096,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many lines.")] = None,
    threads: Threads = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take heads away one after the other, and print how the loss changes."""
    from weft.experiments.ablation import ablate as take_away
    from weft.experiments.ablation import attention_layers
    from weft.experiments.ablation import patch as patch_heads

    use_threads(threads)
    text = given_text("ablate", text, file)
    if against is not None and logit is None:
        raise InputError("--against: needs --logit, whose logit it is taken from.")
    experiment = _experiment(model, text, target, logit, against, tokens)
    other = None
    if patch is not None:
        if text is None:
            raise InputError("--patch: needs --text, the text whose heads are replaced.")
        other = _experiment(model, patch, target, logit, against, tokens, experiment.loaded)
    layers = attention_layers(experiment.network, experiment.measure)
    if layer is not None and layer >= len(layers):
        raise InputError(f"--layer {layer}: the model has 0 to {len(layers) - 1}.")
    heads: list[Any] = []
    for number, one in enumerate(layers):
        if layer in (None, number):
            of_layer = [(number, head) for head in range(one.heads)]
            heads += [of_layer] if together else of_layer
    with console().status(f"{len(heads)} runs") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"{done:,} of {total:,}")

        if other is None:
            found = take_away(
                experiment.network, experiment.measure, kind=kind.value, heads=heads,
                progress=progress,
            )  # fmt: skip
        else:
            found = patch_heads(
                experiment.network, experiment.measure, other.measure, heads=heads,
                progress=progress,
            )  # fmt: skip
    if experiment.run is not None and text is not None:
        tell_unknown(experiment.run, "the text", text + (target or "") + (patch or ""))
    _report(found, model, experiment.name, limit, as_csv, as_json)


class _Experiment:
    """A model, and a function that runs it and measures; of a run, that run."""

    def __init__(
        self,
        network: nn.Module,
        measure: Callable[[], float],
        name: str,
        loaded: Any,
        run: TrainedRun | None = None,
    ) -> None:
        self.network, self.measure, self.name, self.loaded = network, measure, name, loaded
        self.run = run


def _experiment(
    model: str,
    text: str | None,
    target: str | None,
    logit: str | None,
    against: str | None,
    tokens: int,
    loaded: Any = None,
) -> _Experiment:
    if (Path(model) / "run.json").is_file():
        from weft.training.inference import open_run

        run = open_run(Path(model)) if loaded is None else loaded
        measured = _of_run(run, text, target, logit, against, tokens)
        return _Experiment(run.model, *measured, run, run)
    if text is None:
        raise InputError("ablate: give the text that the model reads, by --text or --file.")
    from weft.tracing.pretrained import load_pretrained

    network, tokenizer = load_pretrained(model, predicting=True) if loaded is None else loaded
    measured = _of_pretrained(network, tokenizer, text, target, logit, against)
    return _Experiment(network, *measured, (network, tokenizer))


def _of_run(
    run: TrainedRun,
    text: str | None,
    target: str | None,
    logit: str | None,
    against: str | None,
    tokens: int,
) -> tuple[Callable[[], float], str]:
    """The measure of a training run, and its name."""
    import torch

    from weft.experiments.ablation import chosen_logit
    from weft.training.batches import Batch
    from weft.training.tasks import make_task
    from weft.training.tasks.pairs import translate
    from weft.training.validation import foretold

    words = run.vocabulary
    batches: list[Batch] = []
    if text is None:
        if logit is not None or target is not None:
            raise InputError("--logit, --target: need --text.")
        task = make_task(run.config.task, run.config.training.seed, words)
        for batch in task.validation(run.config.training.batch_tokens):
            batches.append(batch)
            tokens -= batch.tokens
            if tokens <= 0:
                break
    elif not run.translates:
        if target is not None:
            raise InputError("--target: this run is a language model, which has no target.")
        ids = torch.tensor([words.encode(text)])
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more.")
        batches = [Batch({"tokens": ids[:, :-1]}, ids[:, 1:], ids.shape[1])]
        if logit is not None:
            batches = [Batch({"tokens": ids}, ids, ids.shape[1])]
    else:
        if target is None:
            (target,) = translate(run.model, words, [text], beam=5)
        source = torch.tensor([[*words.encode(text), words.end]])
        written = torch.tensor([[words.start, *words.encode(target), words.end]])
        inputs = {"source": source, "target": written[:, :-1]}
        batches = [Batch(inputs, written[:, 1:], source.shape[1] + written.shape[1])]
        if logit is not None:
            raise InputError("--logit: is for language models; this run is a translator.")

    if logit is None:
        return lambda: foretold(run.model, batches, words.pad).loss, "loss"
    token = one_token("--logit", words.encode(logit))
    minus = None if against is None else one_token("--against", words.encode(against))
    name = f"logit of {logit!r}" + ("" if against is None else f" less that of {against!r}")
    return lambda: chosen_logit(run.model(**batches[0].inputs), token, minus=minus), name


def _of_pretrained(
    network: nn.Module,
    tokenizer: Any,
    text: str,
    target: str | None,
    logit: str | None,
    against: str | None,
) -> tuple[Callable[[], float], str]:
    """The measure of a model of Hugging Face, and its name."""
    from weft.experiments.ablation import chosen_logit, next_token_loss
    from weft.experiments.prediction import masked_loss, output_change, target_loss

    given = dict(tokenizer(text, return_tensors="pt", verbose=False))
    ids = given["input_ids"]
    config: Any = network.config
    run: Any = network
    if getattr(config, "is_encoder_decoder", False):
        if target is None or logit is not None:
            raise InputError("an encoder-decoder is measured by its loss on a --target.")
        labels = tokenizer(text_target=target, return_tensors="pt", verbose=False)["input_ids"]
        return target_loss(network, given, labels), "loss of the target"
    if target is not None:
        raise InputError(f"--target: a {config.model_type} reads one text and has no target.")
    predicts = run.get_output_embeddings() is not None
    masked = type(network).__name__.endswith("MaskedLM")
    if "token_type_ids" not in inspect.signature(network.forward).parameters:
        given.pop("token_type_ids", None)
    if logit is not None:
        if not predicts:
            raise InputError(f"--logit: {type(network).__name__} predicts no tokens.")
        position = -1
        if masked:
            position = masked_place("--logit", ids[0].tolist(), tokenizer)
        token, minus = (
            None
            if word is None
            else one_token(option, tokenizer(word, add_special_tokens=False)["input_ids"])
            for option, word in (("--logit", logit), ("--against", against))
        )
        assert token is not None
        name = f"logit of {logit!r}" + ("" if against is None else f" less that of {against!r}")
        return (
            lambda: chosen_logit(run(**given).logits, token, minus=minus, position=position)
        ), name
    if masked:
        return masked_loss(network, given, tokenizer), "loss of masked tokens"
    if predicts:
        if ids.shape[1] < 2:
            raise InputError("the text has one token; the loss needs two or more.")
        return lambda: next_token_loss(run(**given).logits, ids), "loss"
    return output_change(network, given), "change of the output"


def _report(
    found: Ablation, model: str, name: str, limit: int | None, as_csv: bool, as_json: bool
) -> None:
    from rich.table import Table

    ordered = sorted(found.effects, key=lambda effect: -abs(effect.change))[:limit]
    if as_csv:
        frame = found.to_pandas()
        order = frame["change"].abs().sort_values(ascending=False, kind="stable").index
        frame.loc[order].head(limit or len(frame)).to_csv(exact_output(), index=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, justify in (("heads", "left"), (name, "right"), ("change", "right")):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for effect in ordered:
        heads = " ".join(f"{layer}.{head}" for layer, head in effect.heads)
        table.add_row(heads, f"{effect.value:.4f}", f"{effect.change:+.4f}")
    print_table(table)
    print(f"Whole model: {name} {found.baseline:.4f}. Heads replaced: {found.kind}.")
    if as_json:
        print(
            json.dumps(
                {
                    "model": model,
                    "measure": name,
                    "kind": found.kind,
                    "baseline": found.baseline,
                    "layers": [layer.name for layer in found.layers],
                    "heads": [
                        {"heads": effect.heads, "value": effect.value, "change": effect.change}
                        for effect in ordered
                    ],
                },
                ensure_ascii=False,
            )
        )
