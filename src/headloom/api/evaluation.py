"""Measures of models on held-out data; comparison of two models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from headloom.api.questions import PredictOptions, Questions, predictions
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.training.config import RunConfig
from headloom.training.inference import TrainedRun, open_run
from headloom.training.measures import (
    STRETCH,
    CorpusMeasure,
    Results,
    bits_per_byte,
    common_stretches,
    label_measures,
    mean_measure,
    perplexity,
    translation_measures,
)
from headloom.training.resampling import Comparison, Confidence, Resampling, compare, interval
from headloom.training.user_data import user_columns, user_task

if TYPE_CHECKING:
    import pandas

#: Interval of a single example.
_NO_INTERVAL = Confidence(math.nan, math.nan)
#: Called with the amount done, its total or None, and a description.
Progress = Callable[..., None]
#: Maximum p-value of a significant difference.
SIGNIFICANT = 0.05
#: Facts of a title, and their formats.
_FACTS = {
    "examples": "{:,} examples", "beam": "beam {}", "tokens": "{:,} tokens",
    "targets": "{:,} targets", "bytes": "{:,} bytes",
}  # fmt: skip


class Evaluation(dict[str, float]):
    """Measures of a model by name, with intervals: a dict that displays as a table.

    table: a DataFrame: measure, value, low, high (95 percent); of a comparison A and B, with the
    interval of each, their difference (B - A) and p.
    titles: models and data; notes: remarks.
    header, rows: the printed table; content: all numbers, as ``--json`` prints them.
    """

    def __init__(
        self, values: Mapping[str, float], titles: Sequence[str], header: Sequence[str],
        rows: list[list[str]], notes: list[str], content: JsonObject, table: list[JsonObject],
    ) -> None:  # fmt: skip
        import pandas

        super().__init__(values)
        self.titles, self.header, self.rows = titles, header, rows
        self.notes, self.content, self.table = notes, content, pandas.DataFrame(table)
        self._printed = pandas.DataFrame(rows, columns=list(header))

    def __missing__(self, name: str) -> float:
        """Return the exact matches as accuracy, or raise an error that has the measures' names."""
        if name == "accuracy" and "exact_match" in self:
            return self["exact_match"]
        raise KeyError(f"no measure {name!r} of this model; there are {', '.join(self)}")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table."""
        return self.table

    def __repr__(self) -> str:
        return "\n".join([*self.titles, self._printed.to_string(index=False), *self.notes])

    def _repr_html_(self) -> str:
        """Return the table in HTML, for notebooks."""
        above, below = (
            "".join(f"<p>{escape(line)}</p>" for line in part) for part in (self.titles, self.notes)
        )
        return f"{above}{self._printed.to_html(index=False)}{below}"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Model with its held-out data.

    measure: computes the results, from the beam and a progress callback.
    split: of the data; digest: their hash; None: examples of the user.
    config, step: of a run; tokenizer: its JSON text, to compare vocabularies.
    """

    name: str
    measure: Callable[[int, Callable[[int, int | None], None]], Results]
    split: str = "given"
    digest: str | None = None
    config: RunConfig | None = None
    step: int | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, eq=False)
class _Measured:
    """Model and its results."""

    model: HeldOut
    results: Results

    @property
    def title(self) -> str:
        """Model, step and data."""
        facts = self.results.facts
        step = "" if self.model.step is None else f"step {self.model.step:,}, "
        parts = [self.model.name, f"{step}{self.results.split} data"]
        parts += [form.format(facts[name]) for name, form in _FACTS.items() if name in facts]
        return ", ".join(parts)

    @property
    def signatures(self) -> list[str]:
        """Variants of measures, as their libraries write them."""
        measures = self.results.measures
        return [f"{m.label}: {m.signature}" for m in measures if m.signature is not None]

    def content(self, intervals: dict[str, Confidence]) -> JsonObject:
        """Return all numbers for JSON."""
        ends = {name: [part.low, part.high] for name, part in intervals.items()}
        notes = {"run": self.model.name, "step": self.model.step}
        return {**notes, **self.results.values(), "intervals": ends}


def held_out_of_run(run: TrainedRun, data: object, split: str | None) -> HeldOut:
    """Return a run with its held-out data, at their present path, or with other examples."""
    name, task, part = str(run.folder.path), None, split
    at_place = isinstance(data, str | Path) and (
        Path(data).is_dir() or run.config.task.place in ("graph", "file")
    )
    if data is None or at_place:  # the run's own data, not other examples
        run = run if data is None else open_run(run.folder.path, Path(str(data)))
        try:
            task = run.task(split)
            part = split or ("test" if task.has_test else "valid")
        except InputError:
            if data is None or run.config.task.place != "file":
                raise  # else it is another text
    label = part or "given"
    if task is None:
        if split is not None:
            raise InputError(f"evaluate: split {split!r} is for the run's own data. Leave it out.")
        task, part, label = user_task(run, data), "valid", "given"
    held_out, chosen = task, part or "valid"

    def measure(beam: int, progress: Callable[[int, int | None], None]) -> Results:
        results = held_out.results(run.model, split=chosen, beam=beam, progress=progress)
        return replace(results, split=label)

    words = run.data.vocabulary
    text = None if words is None else words.tokenizer.to_str()
    return HeldOut(name, measure, label, held_out.digest(chosen), run.config, run.step, text)


def results_of_model(
    model: Questions, data: object, beam: int, progress: Callable[[int, int | None], None]
) -> Results:
    """Measure a model other than a run on examples."""
    if model._predicts == "label":
        texts, labels = user_columns(data, {"text": None, "label": None})
        return _of_classes(model, texts, labels)
    if model._predicts == "translation":
        sources, targets = user_columns(data, {"source": None, "target": None})
        written = list(predictions(model, iter(sources), PredictOptions(beam)))
        facts: JsonObject = {"examples": len(sources), "beam": beam}
        return Results("given", "sentences", translation_measures(written, targets), facts)
    (texts,) = user_columns(data, {"text": None})
    sums = []
    for done, text in enumerate(texts):
        progress(done, len(texts))
        loss = model._loss(text, None)
        with torch.no_grad():
            count = len(loss.tokens) - 1
            sums.append((float(loss.run()) * count, count, len(text.encode())))
    nats, tokens, sizes = (np.array(column, dtype=np.float64) for column in zip(*sums, strict=True))
    measures = [
        mean_measure("bits_per_byte", "bits per byte", nats, sizes, higher=False,
                     formula=bits_per_byte),
        mean_measure("loss", "loss, nats", nats, tokens, higher=False, per_token=True),
        mean_measure("perplexity", "perplexity", nats, tokens, higher=False, formula=perplexity,
                     digits=3, per_token=True),
    ]  # fmt: skip
    facts = {"examples": len(texts), "tokens": int(tokens.sum()), "bytes": int(sizes.sum())}
    return Results("given", "texts", measures, facts)


def _of_classes(model: Questions, texts: Sequence[str], labels: Sequence[str]) -> Results:
    shares = [prediction.probabilities for prediction in model._classes(texts)]
    classes = sorted({name for share in shares for name in share})
    if unknown := set(labels) - set(classes):
        raise InputError(
            f"data: {min(unknown)!r} is no class of {model.name}: {', '.join(classes[:10])}."
        )
    expected = [classes.index(label) for label in labels]
    taken = [classes.index(max(share, key=lambda name: share[name])) for share in shares]
    nats = [-math.log(max(s[right], 1e-300)) for s, right in zip(shares, labels, strict=True)]
    loss = mean_measure("loss", "loss, nats", nats, np.ones(len(nats)), higher=False)
    measures = [*label_measures(expected, taken, len(classes)), loss]
    return Results("given", "texts", measures, {"examples": len(texts)})


def evaluate_models(
    first: HeldOut, second: HeldOut | None, beam: int, settings: Resampling, progress: Progress
) -> Evaluation:
    """Measure a model, with intervals; or two on the same data, with a test in pairs."""
    if second is not None:
        _check_same_data(first, second)

    def measured(model: HeldOut) -> _Measured:
        def report(done: int, total: int | None) -> None:
            progress(done, total, f"measuring {model.name}")

        report(0, None)
        return _Measured(model, model.measure(beam, report))

    result = measured(first)
    if second is None:
        return _of_one(result, settings)
    other = measured(second)
    progress(0, None, "comparing")
    return _of_two(*_on_the_same(result, other), settings)


def _number(measure: CorpusMeasure, value: float) -> str:
    return f"{value:.{measure.digits}f}"


def _range(measure: CorpusMeasure, part: Confidence) -> str:
    if part is _NO_INTERVAL:
        return "-"
    return f"{_number(measure, part.low)}-{_number(measure, part.high)}"


def _of_one(result: _Measured, settings: Resampling) -> Evaluation:
    measures, facts = result.results.measures, result.results.facts
    known = {m.name: interval(m, settings) for m in measures if len(m.statistics) > 1}
    parts = [(m, known.get(m.name, _NO_INTERVAL)) for m in measures]
    rows = [[m.label, _number(m, m.value), _range(m, part)] for m, part in parts]
    notes = []
    if facts.get("unknown_tokens"):
        notes.append(
            f"Not in the vocabulary: {facts['unknown_tokens']:,} of the tokens, which bits per "
            "byte leave out."
        )
    if "chance" in facts:
        notes.append(f"Chance: {facts['chance']:.4f} right.")
    header = ("measure", "value", f"{settings.level:.0%} interval")
    content = {**result.content(known), "resampling": asdict(settings)}
    table: list[JsonObject] = [
        {"measure": m.name, "value": m.value, "low": part.low, "high": part.high}
        for m, part in parts
    ]
    values = {m.name: m.value for m in measures}
    notes += result.signatures
    return Evaluation(values, [result.title], header, rows, notes, content, table)


def _of_two(first: _Measured, second: _Measured, settings: Resampling) -> Evaluation:
    same_tokens = first.model.tokenizer == second.model.tokenizer
    others = {measure.name: measure for measure in second.results.measures}
    comparisons = [
        compare(measure, others[measure.name], settings)
        for measure in first.results.measures
        if measure.name in others and (same_tokens or not measure.per_token)
    ]
    if not comparisons:
        raise InputError(
            f"{first.model.name} and {second.model.name} have different vocabularies, and no "
            "common measure. Compare models of the same task."
        )
    compared = {c.measure.name for c in comparisons}
    measures = (*first.results.measures, *second.results.measures)
    left_out = list(dict.fromkeys(m.label for m in measures if m.name not in compared))
    in_words = _in_words(first, second, comparisons[0], settings.trials)
    level = f"{settings.level:.0%}"
    rows = [
        [
            c.measure.label,
            _number(c.measure, c.first), _range(c.measure, c.first_interval),
            _number(c.measure, c.second), _range(c.measure, c.second_interval),
            f"{c.difference:+.{c.measure.digits}f}", f"{c.p:.4f}",
        ]
        for c in comparisons
    ]  # fmt: skip
    content = {
        "first": first.content({c.measure.name: c.first_interval for c in comparisons}),
        "second": second.content({c.measure.name: c.second_interval for c in comparisons}),
        "comparison": {
            c.measure.name: {
                "difference": c.difference, "interval": [c.interval.low, c.interval.high], "p": c.p,
            }
            for c in comparisons
        },
        "not_compared": left_out, "in_words": in_words, "resampling": asdict(settings),
    }  # fmt: skip
    table: list[JsonObject] = [
        {
            "measure": c.measure.name,
            "A": c.first, "A_low": c.first_interval.low, "A_high": c.first_interval.high,
            "B": c.second, "B_low": c.second_interval.low, "B_high": c.second_interval.high,
            "difference": c.difference, "p": c.p,
        }
        for c in comparisons
    ]  # fmt: skip
    header = ("measure", "A", f"{level} of A", "B", f"{level} of B", "B - A", "p")
    notes = [f"Not comparable: {', '.join(left_out)}."] if left_out else []
    titles = [f"A: {first.title}", f"B: {second.title}"]
    values = {c.measure.name: c.first for c in comparisons}
    notes += [in_words, *first.signatures]
    return Evaluation(values, titles, header, rows, notes, content, table)


def _on_the_same(first: _Measured, second: _Measured) -> tuple[_Measured, _Measured]:
    """Restrict both to common examples: windows may end a text at different places."""
    covered = first.results.covered, second.results.covered
    if covered[0] is None or covered[1] is None or covered[0] == covered[1]:
        return first, second
    common = common_stretches(covered[0], covered[1])
    if common.start == common.stop:
        raise InputError(
            f"{first.model.name} and {second.model.name} have no {STRETCH} characters of held-out "
            "text in common. Compare models of a longer text, or with a smaller task.block."
        )
    first, second = (replace(m, results=m.results.part(common)) for m in (first, second))
    return first, second


def _check_same_data(first: HeldOut, second: HeldOut) -> None:
    if first.digest == second.digest:
        return
    why, configs = "", [m.config for m in (first, second) if m.config is not None]
    kinds, seeds = [c.task.kind for c in configs], [c.training.seed for c in configs]
    if len(set(kinds)) == 2:
        why = f" (task.kind {kinds[0]} and {kinds[1]})"
    elif len(set(seeds)) == 2 and kinds[0] in ("dates", "repeats"):
        why = f" (drawn with training.seed {seeds[0]} and {seeds[1]})"
    raise InputError(
        f"{first.name} and {second.name}: their {first.split} data differ{why}. Two models "
        "are compared on the same data."
    )


def _in_words(first: _Measured, second: _Measured, chosen: Comparison, trials: int) -> str:
    """Return the outcome of a comparison by a measure, in one sentence."""
    names, measure = (first.model.name, second.model.name), chosen.measure
    if chosen.difference == 0:
        return f"{names[0]} and {names[1]} are equal by {measure.label}."
    values = chosen.first, chosen.second
    if chosen.second_is_better:
        values, names = values[::-1], names[::-1]
    better, worse = (_number(measure, value) for value in values)
    if better == worse:
        better, worse = (f"{value:.6g}" for value in values)
    outcome = (
        f"{measure.label} {better} to {worse}; exchanging their results at random makes so large a "
        f"difference in {chosen.p * (trials + 1) - 1:,.0f} of {trials:,} trials "
        f"(p = {chosen.p:.4f})."
    )
    if chosen.p <= SIGNIFICANT:
        return f"{names[0]} is better than {names[1]}: {outcome}"
    return f"No difference is shown between {names[0]} and {names[1]}: {outcome}"
