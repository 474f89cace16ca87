"""Measuring runs and files of translations on held-out data; two of them against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.training.inference import TrainedRun, open_run
from headloom.training.measures import (
    STRETCH,
    CorpusMeasure,
    Results,
    common_stretches,
    translation_measures,
)
from headloom.training.resampling import (
    Comparison,
    Confidence,
    Resampling,
    compare,
    interval,
)
from headloom.training.tasks.pairs import PairsTask
from headloom.training.tasks.task import Task

__all__ = ["Evaluation", "Report", "evaluate"]

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
    reference: a file with the right translations, for files of translations.
    data: where the data of the runs are; None: where they were in training.
    """

    split: str | None = None
    beam: int = 5
    reference: Path | None = None
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
    """Measure a run on its held-out data, or a file of translations against a reference; or two.

    Two are measured on the same data, and their difference is tested on its examples in pairs.

    Raises: HeadloomError: no such run, no such data, options that do not fit; two whose data are
    not the same, or have nothing in common to be measured by.
    """
    report = _one(first, how, progress) if second is None else _two(first, second, how, progress)
    drawn = how.resampling
    notes = {
        "level": drawn.level, "resamples": drawn.resamples, "trials": drawn.trials,
        "seed": drawn.seed,
    }  # fmt: skip
    return replace(report, content={**report.content, "resampling": notes})


@dataclass(frozen=True, eq=False)
class _Evaluated:
    """A run, or a file of translations, and what it reached.

    notes: what it is: its path, and of a run the step.
    """

    name: str
    notes: JsonObject
    results: Results

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        facts, parts = self.results.facts, [self.name]
        if "step" in self.notes:
            parts.append(f"step {self.notes['step']:,}, {self.results.split} data")
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
        return {**self.notes, **self.results.values(), "intervals": ends}


@dataclass(frozen=True, eq=False)
class _Run:
    """A run with its data read."""

    path: Path
    run: TrainedRun
    task: Task
    split: str

    def evaluated(self, how: Evaluation, progress: Progress) -> _Evaluated:
        def told(done: int, total: int) -> None:
            progress(done, total, f"measuring {self.path}")

        progress(0, None, f"measuring {self.path}")
        results = self.task.results(self.run.model, split=self.split, beam=how.beam, progress=told)
        return _Evaluated(str(self.path), {"run": str(self.path), "step": self.run.step}, results)


def _open(path: Path, how: Evaluation, progress: Progress) -> _Run:
    progress(0, None, f"reading {path}")
    run = open_run(path, how.data)
    if how.reference is not None:
        raise InputError("--reference is for files of translations; a run has its own held-out "
                         "data. Leave it out.")  # fmt: skip
    task = run.task(how.split)
    return _Run(path, run, task, how.split or ("test" if task.has_test else "valid"))


def _one(path: Path, how: Evaluation, progress: Progress) -> Report:
    if path.is_file():
        evaluated = _file(path, how, None, progress)
    else:
        evaluated = _open(path, how, progress).evaluated(how, progress)
    results, facts = evaluated.results, evaluated.results.facts
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
    notes += evaluated.signatures
    return Report([evaluated.title], header, rows, notes, evaluated.content(known))


def _number(measure: CorpusMeasure, value: float) -> str:
    return f"{value:.{measure.digits}f}"


def _range(measure: CorpusMeasure, part: Confidence | None) -> str:
    return "-" if part is None else f"{_number(measure, part.low)}-{_number(measure, part.high)}"


def _lines(path: Path) -> list[str]:
    text = read_text(path, "text")
    if not text.strip():
        raise InputError(f"{path}: the file is empty. Give a translation a line.")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def _file(path: Path, how: Evaluation, run: _Run | None, progress: Progress) -> _Evaluated:
    """The measures of a file of translations, a line each, against a run's data or a reference."""
    progress(0, None, f"measuring {path}")
    written = _lines(path)
    if run is not None:
        if not isinstance(run.task, PairsTask):
            raise InputError(
                f"{path} is a file of translations, {run.path} {run.run.model.purpose}; it does "
                "not translate. Give a run that does, or two files."
            )
        expected = [target for _, target in run.task.pairs(run.split)]
        source = f"the {run.split} data of {run.path}"
    elif how.reference is None:
        raise InputError(
            f"{path} is a file of translations; the right ones are missing. Add --reference FILE."
        )
    else:
        expected, source = _lines(how.reference), str(how.reference)
    if len(written) != len(expected):
        raise InputError(
            f"{path} has {len(written):,} lines, {source} {len(expected):,}; expected a "
            "translation a line, in the order of the references."
        )
    measures = translation_measures(written, expected)
    if run is not None and isinstance(run.task, PairsTask):
        measures = run.task.measures(written, expected)
    split = "test" if run is None else run.split
    results = Results(split, "sentences", measures, {"examples": len(written)})
    return _Evaluated(str(path), {"file": str(path)}, results)


def _two(first: Path, second: Path, how: Evaluation, progress: Progress) -> Report:
    paths = first, second
    runs = [None if path.is_file() else _open(path, how, progress) for path in paths]
    opened = [run for run in runs if run is not None]
    if len(opened) == 2:
        _check_same_data(*opened)
    # Files first: what is wrong with one is told before a run is measured, which takes minutes.
    done = {
        place: _file(path, how, next(iter(opened), None), progress)
        for place, path in enumerate(paths)
        if runs[place] is None
    }
    done |= {place: run.evaluated(how, progress) for place, run in enumerate(runs) if run}
    one, two = _on_the_same(done[0], done[1])
    progress(0, None, "comparing")
    words = [run.run.data.vocabulary for run in opened]
    same_tokens = len({None if part is None else part.tokenizer.to_str() for part in words}) < 2
    others = {measure.name: measure for measure in two.results.measures}
    comparisons = [
        compare(measure, others[measure.name], how.resampling)
        for measure in one.results.measures
        if measure.name in others and (same_tokens or not measure.per_token)
    ]
    if not comparisons:
        raise InputError(
            f"{first} and {second} have other vocabularies and no measure in common. Compare "
            "models of the same task."
        )
    compared = {c.measure.name for c in comparisons}
    measures = (*one.results.measures, *two.results.measures)
    left_out = list(dict.fromkeys(m.label for m in measures if m.name not in compared))
    words_of = _in_words(one, two, comparisons[0], how.resampling)
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
        "in_words": words_of,
    }
    return Report(
        [f"A: {one.title}", f"B: {two.title}"],
        ("measure", "A", f"{level} of A", "B", f"{level} of B", "B - A", "p"),
        rows,
        [*([f"Not comparable: {', '.join(left_out)}."] if left_out else []), words_of,
         *one.signatures],
        content,
    )  # fmt: skip


def _on_the_same(first: _Evaluated, second: _Evaluated) -> tuple[_Evaluated, _Evaluated]:
    """Both on the examples that both have whole: windows may end a text at different places.

    Raises: InputError: there is none.
    """
    covered = first.results.covered, second.results.covered
    if covered[0] is None or covered[1] is None or covered[0] == covered[1]:
        return first, second
    common = common_stretches(covered[0], covered[1])
    if common.start == common.stop:
        raise InputError(
            f"{first.name} and {second.name} have no {STRETCH} characters of the held-out text in "
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


def _in_words(first: _Evaluated, second: _Evaluated, chosen: Comparison, how: Resampling) -> str:
    """What the comparison by a measure says, in one sentence."""
    names = first.name, second.name
    label, digits = chosen.measure.label, chosen.measure.digits
    if chosen.difference == 0:
        return f"{names[0]} and {names[1]} are equal by {label}."
    better, worse = chosen.first, chosen.second
    if chosen.second_is_better:
        better, worse, names = worse, better, names[::-1]
    shown = f"{better:.{digits}f}", f"{worse:.{digits}f}"
    if shown[0] == shown[1]:
        shown = f"{better:.6g}", f"{worse:.6g}"
    trials = how.trials
    chance = (
        f"exchanging their results at random makes so large a difference in "
        f"{chosen.p * (trials + 1) - 1:,.0f} of {trials:,} trials (p = {chosen.p:.4f})"
    )
    if chosen.p <= SIGNIFICANT:
        return f"{names[0]} is better than {names[1]}: {label} {shown[0]} to {shown[1]}; {chance}."
    return (
        f"No difference is shown between {names[0]} and {names[1]}: {label} {shown[0]} to "
        f"{shown[1]}; {chance}."
    )
