"""Measuring runs on held-out data; two of them against each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from headloom.api.predict import predictions
from headloom.api.questions import PredictOptions, Questions
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.training.config import RunConfig
from headloom.training.given import given_columns, given_task
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

if TYPE_CHECKING:
    import pandas

#: Of one example alone.
_NO_INTERVAL = Confidence(math.nan, math.nan)
#: Told how much is done, of how much or None, and of what.
Progress = Callable[..., None]
#: The largest p-value of a difference that counts as shown.
SIGNIFICANT = 0.05
#: The facts of a title, and how they are said.
_FACTS = {
    "examples": "{:,} examples", "beam": "beam {}", "tokens": "{:,} tokens",
    "targets": "{:,} targets", "bytes": "{:,} bytes",
}  # fmt: skip


class Evaluation(dict[str, float]):
    """Measures of a model, by their names, and the interval of each: a dict that shows its table.

    table: a DataFrame: measure, value, low, high (95 percent); of a comparison A and B, with the
    interval of each, their difference (B - A) and p.
    titles: what was measured, and on what; notes: what else there is to say.
    header, rows: the table as it is printed; content: all numbers, as ``--json`` prints them.
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
        """The table."""
        return self.table

    def __repr__(self) -> str:
        return "\n".join([*self.titles, self._printed.to_string(index=False), *self.notes])

    def _repr_html_(self) -> str:
        """The table in HTML, for notebooks."""
        above, below = (
            "".join(f"<p>{escape(line)}</p>" for line in part) for part in (self.titles, self.notes)
        )
        return f"{above}{self._printed.to_html(index=False)}{below}"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A model with the data that it is to be measured on.

    measure: what it reaches, by the beam and told how many of how many are done.
    split: of the data; digest: what tells them from others; None: they were given.
    config, step: of a run and its training; tokenizer: its text, where tokens are compared.
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
    """A model, and what it reached."""

    of: HeldOut
    results: Results

    @property
    def title(self) -> str:
        """Model, step and data."""
        facts = self.results.facts
        step = "" if self.of.step is None else f"step {self.of.step:,}, "
        parts = [self.of.name, f"{step}{self.results.split} data"]
        parts += [form.format(facts[name]) for name, form in _FACTS.items() if name in facts]
        return ", ".join(parts)

    @property
    def signatures(self) -> list[str]:
        """Variants of measures, as their libraries write them."""
        measures = self.results.measures
        return [f"{m.label}: {m.signature}" for m in measures if m.signature is not None]

    def content(self, intervals: dict[str, Confidence]) -> JsonObject:
        """All numbers, for JSON."""
        ends = {name: [part.low, part.high] for name, part in intervals.items()}
        notes = {"run": self.of.name, "step": self.of.step}
        return {**notes, **self.results.values(), "intervals": ends}


def held_out_of_run(run: TrainedRun, data: object, split: str | None) -> HeldOut:
    """The held-out data of a run, where they are now, or examples that are given."""
    name, task, part = str(run.folder.path), None, split
    if data is None or _is_place(run, data):
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
            raise InputError(f"evaluate: split {split!r} is of the run's own data. Leave it out.")
        task, part, label = given_task(run, data), "valid", "given"
    held, chosen = task, part or "valid"

    def measure(beam: int, told: Callable[[int, int | None], None]) -> Results:
        results = held.results(run.model, split=chosen, beam=beam, progress=told)
        return replace(results, split=label)

    words = run.data.vocabulary
    text = None if words is None else words.tokenizer.to_str()
    return HeldOut(name, measure, label, held.digest(chosen), run.config, run.step, text)


def _is_place(run: TrainedRun, data: object) -> bool:
    """Whether data is where those of a run are now; else it is other examples."""
    if not isinstance(data, str | Path):
        return False
    return Path(data).is_dir() or run.config.task.place in ("graph", "file")


def results_of_model(
    model: Questions, data: object, beam: int, told: Callable[[int, int | None], None]
) -> Results:
    """Measure a model that is no run on examples."""
    if model._predicts == "label":
        texts, labels = given_columns(data, {"text": None, "label": None})
        return _of_classes(model, texts, labels)
    if model._predicts == "translation":
        sources, targets = given_columns(data, {"source": None, "target": None})
        written = list(predictions(model, iter(sources), PredictOptions(beam)))
        facts: JsonObject = {"examples": len(sources), "beam": beam}
        return Results("given", "sentences", translation_measures(written, targets), facts)
    (texts,) = given_columns(data, {"text": None})
    sums = []
    for done, text in enumerate(texts):
        told(done, len(texts))
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
    shares = [each.probabilities for each in model._classes(texts)]
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
    first: HeldOut, second: HeldOut | None, beam: int, how: Resampling, progress: Progress
) -> Evaluation:
    """Measure a model, with intervals; or two on the same data, with a test in pairs."""
    if second is not None:
        _check_same_data(first, second)

    def measured(model: HeldOut) -> _Measured:
        def told(done: int, total: int | None) -> None:
            progress(done, total, f"measuring {model.name}")

        told(0, None)
        return _Measured(model, model.measure(beam, told))

    one = measured(first)
    if second is None:
        return _of_one(one, how)
    two = measured(second)
    progress(0, None, "comparing")
    return _of_two(*_on_the_same(one, two), how)


def _number(measure: CorpusMeasure, value: float) -> str:
    return f"{value:.{measure.digits}f}"


def _range(measure: CorpusMeasure, part: Confidence) -> str:
    if part is _NO_INTERVAL:
        return "-"
    return f"{_number(measure, part.low)}-{_number(measure, part.high)}"


def _of_one(one: _Measured, how: Resampling) -> Evaluation:
    measures, facts = one.results.measures, one.results.facts
    known = {m.name: interval(m, how) for m in measures if len(m.statistics) > 1}
    parts = [(m, known.get(m.name, _NO_INTERVAL)) for m in measures]
    rows = [[m.label, _number(m, m.value), _range(m, part)] for m, part in parts]
    notes = []
    if facts.get("unknown_tokens"):
        notes.append(
            f"Not in the vocabulary: {facts['unknown_tokens']:,} of the tokens; what they would "
            "cost is missing in bits per byte."
        )
    if "chance" in facts:
        notes.append(f"Chance: {facts['chance']:.4f} right.")
    header = ("measure", "value", f"{how.level:.0%} interval")
    content = {**one.content(known), "resampling": asdict(how)}
    table: list[JsonObject] = [
        {"measure": m.name, "value": m.value, "low": part.low, "high": part.high}
        for m, part in parts
    ]
    values = {m.name: m.value for m in measures}
    notes += one.signatures
    return Evaluation(values, [one.title], header, rows, notes, content, table)


def _of_two(one: _Measured, two: _Measured, how: Resampling) -> Evaluation:
    same_tokens = one.of.tokenizer == two.of.tokenizer
    others = {measure.name: measure for measure in two.results.measures}
    comparisons = [
        compare(measure, others[measure.name], how)
        for measure in one.results.measures
        if measure.name in others and (same_tokens or not measure.per_token)
    ]
    if not comparisons:
        raise InputError(
            f"{one.of.name} and {two.of.name} have other vocabularies and no measure in common. "
            "Compare models of the same task."
        )
    compared = {c.measure.name for c in comparisons}
    measures = (*one.results.measures, *two.results.measures)
    left_out = list(dict.fromkeys(m.label for m in measures if m.name not in compared))
    in_words = _in_words(one, two, comparisons[0], how.trials)
    level = f"{how.level:.0%}"
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
        "first": one.content({c.measure.name: c.first_interval for c in comparisons}),
        "second": two.content({c.measure.name: c.second_interval for c in comparisons}),
        "comparison": {
            c.measure.name: {
                "difference": c.difference, "interval": [c.interval.low, c.interval.high], "p": c.p,
            }
            for c in comparisons
        },
        "not_compared": left_out, "in_words": in_words, "resampling": asdict(how),
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
    titles = [f"A: {one.title}", f"B: {two.title}"]
    values = {c.measure.name: c.first for c in comparisons}
    notes += [in_words, *one.signatures]
    return Evaluation(values, titles, header, rows, notes, content, table)


def _on_the_same(first: _Measured, second: _Measured) -> tuple[_Measured, _Measured]:
    """Both on the examples that both have whole: windows may end a text at different places."""
    covered = first.results.covered, second.results.covered
    if covered[0] is None or covered[1] is None or covered[0] == covered[1]:
        return first, second
    common = common_stretches(covered[0], covered[1])
    if common.start == common.stop:
        raise InputError(
            f"{first.of.name} and {second.of.name} have no {STRETCH} characters of the held-out "
            "text in common. Compare models of a longer text, or with a smaller task.block."
        )
    one, two = (replace(part, results=part.results.part(common)) for part in (first, second))
    return one, two


def _check_same_data(first: HeldOut, second: HeldOut) -> None:
    if first.digest == second.digest:
        return
    why, configs = "", [each.config for each in (first, second) if each.config is not None]
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
    names, measure = (first.of.name, second.of.name), chosen.measure
    if chosen.difference == 0:
        return f"{names[0]} and {names[1]} are equal by {measure.label}."
    values = chosen.first, chosen.second
    if chosen.second_is_better:
        values, names = values[::-1], names[::-1]
    better, worse = (_number(measure, value) for value in values)
    if better == worse:
        better, worse = (f"{value:.6g}" for value in values)
    found = (
        f"{measure.label} {better} to {worse}; exchanging their results at random makes so large a "
        f"difference in {chosen.p * (trials + 1) - 1:,.0f} of {trials:,} trials "
        f"(p = {chosen.p:.4f})."
    )
    if chosen.p <= SIGNIFICANT:
        return f"{names[0]} is better than {names[1]}: {found}"
    return f"No difference is shown between {names[0]} and {names[1]}: {found}"
