"""Measuring runs on held-out data; two of them against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.training.inference import TrainedRun, open_run
from headloom.training.measures import (
    STRETCH,
    CorpusMeasure,
    Results,
    common_stretches,
)
from headloom.training.resampling import Comparison, Confidence, Resampling, compare, interval
from headloom.training.tasks.task import Task

#: Told how much is done, of how much or None, and of what.
Progress = Callable[..., None]
#: The largest p-value of a difference that counts as shown.
SIGNIFICANT = 0.05
#: The facts of a title, and how they are said.
_FACTS = {
    "examples": "{:,} examples", "beam": "beam {}", "tokens": "{:,} tokens",
    "targets": "{:,} targets", "bytes": "{:,} bytes",
}  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """How models are measured.

    split: "valid" or "test"; None: test where there is such data.
    beam: of the decoding, 1 = greedy.
    data: where the data of the runs are; None: where they were in training.
    """

    split: str | None = None
    beam: int = 5
    data: Path | None = None
    resampling: Resampling = Resampling()  # noqa: RUF009 - frozen


@dataclass(frozen=True, eq=False)
class Report:
    """What was measured: titles, a table, what is to be said below it; and all by names."""

    titles: list[str]
    header: Sequence[str]
    rows: list[list[str]]
    notes: list[str]
    content: JsonObject


def evaluate(first: Path, second: Path | None, how: Evaluation, progress: Progress) -> Report:
    """Measure a run on its held-out data; or two on the same, and test their difference in pairs.

    Raises: HeadloomError: no such run, no such data, options that do not fit; two whose data are
    not the same, or have nothing in common to be measured by.
    """
    paths = [path for path in (first, second) if path is not None]
    runs = [_opened(path, how, progress) for path in paths]
    if second is not None:
        _check_same_data(*runs)
    measured = [_measured(run, how, progress) for run in runs]
    report = _of_one(measured[0], how)
    if second is not None:
        progress(0, None, "comparing")
        report = _of_two(*_on_the_same(*measured), how)
    return replace(report, content={**report.content, "resampling": asdict(how.resampling)})


@dataclass(frozen=True, eq=False)
class _Run:
    """A run with its data read."""

    path: Path
    run: TrainedRun
    task: Task
    split: str


@dataclass(frozen=True, eq=False)
class _Measured:
    """A run, and what it reached."""

    path: Path
    run: TrainedRun
    results: Results

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        facts = self.results.facts
        parts = [str(self.path), f"step {self.run.step:,}, {self.results.split} data"]
        parts += [form.format(facts[name]) for name, form in _FACTS.items() if name in facts]
        return ", ".join(parts)

    @property
    def signatures(self) -> list[str]:
        """Which variant a measure is, as its library writes it."""
        measures = self.results.measures
        return [f"{m.label}: {m.signature}" for m in measures if m.signature is not None]

    def content(self, intervals: dict[str, Confidence]) -> JsonObject:
        """All numbers, for JSON."""
        ends = {name: [part.low, part.high] for name, part in intervals.items()}
        notes = {"run": str(self.path), "step": self.run.step}
        return {**notes, **self.results.values(), "intervals": ends}


def _opened(path: Path, how: Evaluation, progress: Progress) -> _Run:
    progress(0, None, f"reading {path}")
    run = open_run(path, how.data)
    task = run.task(how.split)
    return _Run(path, run, task, how.split or ("test" if task.has_test else "valid"))


def _measured(one: _Run, how: Evaluation, progress: Progress) -> _Measured:
    def told(done: int, total: int | None) -> None:
        progress(done, total, f"measuring {one.path}")

    told(0, None)
    results = one.task.results(one.run.model, split=one.split, beam=how.beam, progress=told)
    return _Measured(one.path, one.run, results)


def _number(measure: CorpusMeasure, value: float) -> str:
    return f"{value:.{measure.digits}f}"


def _range(measure: CorpusMeasure, part: Confidence | None) -> str:
    return "-" if part is None else f"{_number(measure, part.low)}-{_number(measure, part.high)}"


def _of_one(one: _Measured, how: Evaluation) -> Report:
    results, facts = one.results, one.results.facts
    # Of one example alone there is no interval.
    known = {m.name: interval(m, how.resampling) for m in results.measures if len(m.statistics) > 1}
    rows = [[m.label, _number(m, m.value), _range(m, known.get(m.name))] for m in results.measures]
    notes = []
    if facts.get("unknown_tokens"):
        notes.append(
            f"Not in the vocabulary: {facts['unknown_tokens']:,} of the tokens; what they would "
            "cost is missing in bits per byte."
        )
    if "chance" in facts:
        notes.append(f"Chance: {facts['chance']:.4f} right.")
    header = ("measure", "value", f"{how.resampling.level:.0%} interval")
    return Report([one.title], header, rows, [*notes, *one.signatures], one.content(known))


def _of_two(one: _Measured, two: _Measured, how: Evaluation) -> Report:
    words = [side.run.data.vocabulary for side in (one, two)]
    same_tokens = len({None if part is None else part.tokenizer.to_str() for part in words}) < 2
    others = {measure.name: measure for measure in two.results.measures}
    comparisons = [
        compare(measure, others[measure.name], how.resampling)
        for measure in one.results.measures
        if measure.name in others and (same_tokens or not measure.per_token)
    ]
    if not comparisons:
        raise InputError(
            f"{one.path} and {two.path} have other vocabularies and no measure in common. Compare "
            "models of the same task."
        )
    compared = {c.measure.name for c in comparisons}
    measures = (*one.results.measures, *two.results.measures)
    left_out = list(dict.fromkeys(m.label for m in measures if m.name not in compared))
    in_words = _in_words(one, two, comparisons[0], how.resampling.trials)
    level = f"{how.resampling.level:.0%}"
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
                "difference": c.difference,
                "interval": [c.interval.low, c.interval.high],
                "p": c.p,
            }
            for c in comparisons
        },
        "not_compared": left_out,
        "in_words": in_words,
    }
    header = ("measure", "A", f"{level} of A", "B", f"{level} of B", "B - A", "p")
    notes = [f"Not comparable: {', '.join(left_out)}."] if left_out else []
    titles = [f"A: {one.title}", f"B: {two.title}"]
    return Report(titles, header, rows, [*notes, in_words, *one.signatures], content)


def _on_the_same(first: _Measured, second: _Measured) -> tuple[_Measured, _Measured]:
    """Both on the examples that both have whole: windows may end a text at different places."""
    covered = first.results.covered, second.results.covered
    if covered[0] is None or covered[1] is None or covered[0] == covered[1]:
        return first, second
    common = common_stretches(covered[0], covered[1])
    if common.start == common.stop:
        raise InputError(
            f"{first.path} and {second.path} have no {STRETCH} characters of the held-out text in "
            "common. Compare models of a longer text, or with a smaller task.block."
        )
    one, two = (replace(part, results=part.results.part(common)) for part in (first, second))
    return one, two


def _check_same_data(first: _Run, second: _Run) -> None:
    if first.task.digest(first.split) == second.task.digest(second.split):
        return
    configs = first.run.config, second.run.config
    seeds, kinds = ([c.training.seed for c in configs], [c.task.kind for c in configs])
    why = ""
    if kinds[0] != kinds[1]:
        why = f" (task.kind {kinds[0]} and {kinds[1]})"
    elif kinds[0] in ("dates", "repeats") and seeds[0] != seeds[1]:
        why = f" (drawn with training.seed {seeds[0]} and {seeds[1]})"
    raise InputError(
        f"{first.path} and {second.path}: their {first.split} data differ{why}. Two models are "
        "compared on the same data."
    )


def _in_words(first: _Measured, second: _Measured, chosen: Comparison, trials: int) -> str:
    """What the comparison by a measure says, in one sentence."""
    names, measure = (first.path, second.path), chosen.measure
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
