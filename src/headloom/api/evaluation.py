"""Measuring runs and files of translations on held-out data; two of them against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
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
from headloom.training.resampling import Comparison, Confidence, Resampling, compare, interval
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
    paths = [path for path in (first, second) if path is not None]
    sides: list[_Run | Path] = [
        path if path.is_file() else _opened(path, how, progress) for path in paths
    ]
    runs = [side for side in sides if isinstance(side, _Run)]
    if len(runs) == 2:
        _check_same_data(*runs)
    # Files first: what is wrong with one is told before a run is measured, which takes minutes.
    order = sorted(range(len(sides)), key=lambda place: isinstance(sides[place], _Run))
    measured = {place: _measured(sides[place], runs, how, progress) for place in order}
    one = measured[0]
    report = _of_one(one, how) if second is None else _of_two(one, measured[1], runs, how, progress)
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
    """A run, or a file of translations, and what it reached; notes: its path, of a run the step."""

    path: Path
    notes: JsonObject
    results: Results

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        facts, parts = self.results.facts, [str(self.path)]
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


def _opened(path: Path, how: Evaluation, progress: Progress) -> _Run:
    progress(0, None, f"reading {path}")
    run = open_run(path, how.data)
    if how.reference is not None:
        raise InputError(
            "--reference is for files of translations; a run has its own held-out data. Leave it "
            "out."
        )
    task = run.task(how.split)
    return _Run(path, run, task, how.split or ("test" if task.has_test else "valid"))


def _measured(
    side: _Run | Path, runs: list[_Run], how: Evaluation, progress: Progress
) -> _Measured:
    """A side's results; those of a file are against the data of the run beside it."""
    if isinstance(side, Path):
        return _file_measured(side, next(iter(runs), None), how, progress)
    path = str(side.path)

    def told(done: int, total: int | None) -> None:
        progress(done, total, f"measuring {path}")

    told(0, None)
    results = side.task.results(side.run.model, split=side.split, beam=how.beam, progress=told)
    return _Measured(side.path, {"run": path, "step": side.run.step}, results)


def _file_measured(path: Path, run: _Run | None, how: Evaluation, progress: Progress) -> _Measured:
    """A file of translations, a line each, against a run's data or a reference."""
    progress(0, None, f"measuring {path}")
    written, measures_of, split = _lines(path), translation_measures, "test"
    if run is not None:
        if not isinstance(run.task, PairsTask):
            raise InputError(
                f"{path} is a file of translations, {run.path} {run.run.model.purpose}; it does "
                "not translate. Give a run that does, or two files."
            )
        expected = [target for _, target in run.task.pairs(run.split)]
        source = f"the {run.split} data of {run.path}"
        measures_of, split = run.task.measures, run.split
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
    facts = {"examples": len(written)}
    results = Results(split, "sentences", measures_of(written, expected), facts)
    return _Measured(path, {"file": str(path)}, results)


def _lines(path: Path) -> list[str]:
    text = read_text(path, "text")
    if not text.strip():
        raise InputError(f"{path}: the file is empty. Give a translation a line.")
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


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


def _of_two(
    one: _Measured, two: _Measured, runs: list[_Run], how: Evaluation, progress: Progress
) -> Report:
    one, two = _on_the_same(one, two)
    progress(0, None, "comparing")
    words = [run.run.data.vocabulary for run in runs]
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
