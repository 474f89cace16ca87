"""Measuring runs and files of translations on held-out data; two of them against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.training.inference import TrainedRun, open_run
from headloom.training.measures.corpus import Results
from headloom.training.measures.language import STRETCH, common_stretches
from headloom.training.measures.resampling import (
    Comparison,
    Confidence,
    Resampling,
    compare,
    interval,
)
from headloom.training.measures.translation import translation_measures
from headloom.training.tasks.pairs import PairsTask
from headloom.training.tasks.task import Task

__all__ = [
    "Evaluated",
    "Evaluation",
    "Pair",
    "evaluate_one",
    "evaluate_two",
    "in_words",
    "resampling_notes",
]

#: Told how much is done, of how much or None, and of what.
Progress = Callable[..., None]

#: The largest p-value of a difference that counts as shown.
SIGNIFICANT = 0.05


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
    resampling: Resampling = field(default_factory=Resampling)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A run, or a file of translations, and what it reached.

    notes: what it is: its path, and of a run the step.
    """

    name: str
    notes: JsonObject
    results: Results
    resampling: Resampling

    def intervals(self) -> dict[str, Confidence]:
        """The interval of each measure; of one example alone there is none."""
        measures = [m for m in self.results.measures if len(m.statistics) > 1]
        return {measure.name: interval(measure, self.resampling) for measure in measures}

    def report(self, intervals: Mapping[str, Confidence]) -> JsonObject:
        """All numbers, for JSON."""
        return {
            **self.notes,
            **self.results.values(),
            "intervals": {name: [part.low, part.high] for name, part in intervals.items()},
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """Two of them on the same data.

    left_out: labels of measures that cannot be compared.
    """

    first: Evaluated
    second: Evaluated
    comparisons: Sequence[Comparison]
    left_out: Sequence[str]

    def report(self) -> JsonObject:
        """All numbers, for JSON."""
        of_first = {c.measure.name: c.first_interval for c in self.comparisons}
        of_second = {c.measure.name: c.second_interval for c in self.comparisons}
        return {
            "first": self.first.report(of_first),
            "second": self.second.report(of_second),
            "comparison": {
                c.measure.name: {
                    "difference": c.difference,
                    "interval": [c.interval.low, c.interval.high],
                    "p": c.p,
                }
                for c in self.comparisons
            },
            "not_compared": list(self.left_out),
            "in_words": in_words(self),
        }


@dataclass(frozen=True, eq=False)
class _Run:
    """A run with its data read."""

    path: Path
    run: TrainedRun
    task: Task
    split: str

    def evaluated(self, how: Evaluation, progress: Progress) -> Evaluated:
        def told(done: int, total: int) -> None:
            progress(done, total, f"measuring {self.path}")

        notes = {"run": str(self.path), "step": self.run.step}
        progress(0, None, f"measuring {self.path}")
        results = self.task.results(self.run.model, split=self.split, beam=how.beam, progress=told)
        return Evaluated(str(self.path), notes, results, how.resampling)


def _open(path: Path, how: Evaluation, progress: Progress) -> _Run:
    progress(0, None, f"reading {path}")
    run = open_run(path, how.data)
    task = run.task(how.split)
    split = how.split or ("test" if task.has_test else "valid")
    return _Run(path, run, task, split)


def _lines(path: Path) -> list[str]:
    text = read_text(path, "text")
    if not text.strip():
        raise InputError(f"{path}: the file is empty. Give a translation a line.")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def _of_file(
    path: Path, expected: Sequence[str], source: str, task: PairsTask | None, split: str = "test"
) -> Results:
    """The measures of a file of translations, a line each."""
    written = _lines(path)
    if len(written) != len(expected):
        raise InputError(
            f"{path} has {len(written):,} lines, {source} {len(expected):,}; expected a "
            "translation a line, in the order of the references."
        )
    measures = task.measures(written, expected) if task else translation_measures(written, expected)
    return Results(split, "sentences", measures, {"examples": len(written)})


def _file(path: Path, how: Evaluation, run: _Run | None, progress: Progress) -> Evaluated:
    progress(0, None, f"measuring {path}")
    notes, resampling = {"file": str(path)}, how.resampling
    if run is not None:
        if not isinstance(run.task, PairsTask):
            raise InputError(
                f"{path} is a file of translations, {run.path} {run.run.model.purpose}; it does "
                "not translate. Give a run that does, or two files."
            )
        expected = [target for _, target in run.task.pairs(run.split)]
        source = f"the {run.split} data of {run.path}"
        results = _of_file(path, expected, source, run.task, run.split)
        return Evaluated(str(path), notes, results, resampling)
    if how.reference is None:
        raise InputError(
            f"{path} is a file of translations; the right ones are missing. Add --reference FILE."
        )
    if how.data:
        raise InputError(f"--data: {path} is a file, not a run. Leave it out.")
    expected = _lines(how.reference)
    results = _of_file(path, expected, str(how.reference), None)
    return Evaluated(str(path), notes, results, resampling)


def evaluate_one(path: Path, how: Evaluation, progress: Progress) -> Evaluated:
    """Measure a run on its held-out data, or a file of translations against a reference.

    Raises: HeadloomError: no such run, no such data, options that do not fit.
    """
    if path.is_file():
        return _file(path, how, None, progress)
    _check_reference(how)
    return _open(path, how, progress).evaluated(how, progress)


def _check_reference(how: Evaluation) -> None:
    if how.reference is not None:
        raise InputError("--reference is for files of translations; a run has its own held-out "
                         "data. Leave it out.")  # fmt: skip


def evaluate_two(first: Path, second: Path, how: Evaluation, progress: Progress) -> Pair:
    """Measure two on the same data, and test their difference on its examples in pairs.

    Raises: InputError: their data are not the same, or have nothing in common to be measured by.
    """
    runs = [None if path.is_file() else _open(path, how, progress) for path in (first, second)]
    opened = [run for run in runs if run is not None]
    if opened:
        _check_reference(how)
    if len(opened) == 2:
        _check_same_data(*opened)
    # Files first: what is wrong with one is told before a run is measured, which takes minutes.
    done = {
        place: _file(path, how, next(iter(opened), None), progress)
        for place, path in enumerate((first, second))
        if runs[place] is None
    }
    done |= {place: run.evaluated(how, progress) for place, run in enumerate(runs) if run}
    one, two = _on_the_same(done[0], done[1])
    progress(0, None, "comparing")
    words = [run.run.data.vocabulary for run in opened]
    same_tokens = len({None if part is None else part.tokenizer.to_str() for part in words}) < 2
    others = {measure.name: measure for measure in two.results.measures}
    common = [
        (measure, others[measure.name])
        for measure in one.results.measures
        if measure.name in others and (same_tokens or not measure.per_token)
    ]
    if not common:
        raise InputError(
            f"{first} and {second} have other vocabularies and no measure in common. Compare "
            "models of the same task."
        )
    compared = {measure.name for measure, _ in common}
    left_out = [
        measure.label
        for measure in (*one.results.measures, *two.results.measures)
        if measure.name not in compared
    ]
    comparisons = [compare(a, b, how.resampling) for a, b in common]
    return Pair(one, two, comparisons, list(dict.fromkeys(left_out)))


def _on_the_same(first: Evaluated, second: Evaluated) -> tuple[Evaluated, Evaluated]:
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


def in_words(pair: Pair) -> str:
    """What the comparison by the first measure says, in one sentence."""
    chosen, names = pair.comparisons[0], (pair.first.name, pair.second.name)
    label, digits = chosen.measure.label, chosen.measure.digits
    if chosen.difference == 0:
        return f"{names[0]} and {names[1]} are equal by {label}."
    better, worse = chosen.first, chosen.second
    if chosen.second_is_better:
        better, worse, names = worse, better, names[::-1]
    shown = f"{better:.{digits}f}", f"{worse:.{digits}f}"
    if shown[0] == shown[1]:
        shown = f"{better:.6g}", f"{worse:.6g}"
    trials = pair.first.resampling.trials
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


def resampling_notes(how: Resampling) -> JsonObject:
    """How intervals and p-values were drawn, for JSON."""
    return {
        "level": how.level, "resamples": how.resamples, "trials": how.trials, "seed": how.seed,
    }  # fmt: skip
