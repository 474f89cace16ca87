"""Claim: the attention of a translator aligns words, beside a statistical aligner.

    pip install eflomal
    pip download --no-deps bible-alignments==0.4.2 && unzip -d bible bible_alignments-*.whl
    python benchmarks/evidence/alignment.py --folder PATH/TO/multi30k --bible PATH/TO/bible

Two texts: the Greek New Testament and the Berean Standard Bible, with links that people drew
(bible-alignments, "manual", all sure), words in lower case without punctuation; and Multi30k,
test_2016_flickr, English and German, for which no such links are there: its silver is the
intersection of the two directions of the statistical aligner, so a system is as good there as it
agrees with that one. Heads are chosen on every other pair and measured on the rest, as `headloom
align` does. The translators learn from what the aligner learns from, but for the tests of Multi30k,
which the aligner reads too. Trainings stay in --runs; --multi30k-run and --bible-run name others.

Sources: Och and Ney 2003 (error rate); Östling and Tiedemann 2016, "Efficient Word Alignment with
Markov Chain Monte Carlo" (eflomal); Chen et al. 2020, "Accurate Word Alignment Induction from
Neural Machine Translation".
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from record import Claim, record
from runs import ROOT, trained

import headloom
from headloom.analysis.alignment.align import AlignmentOptions, align_words
from headloom.analysis.alignment.links import ErrorRate, alignment_error_rate
from headloom.analysis.alignment.words import STEPS, WordWeights
from headloom.api.opening import open_model
from headloom.api.word_weights import word_weights_of
from headloom.errors import InputError
from headloom.formats.pharaoh import GoldLinks

#: Verses of which every so many-th is not trained on, but tells when the training is done.
VALID = 40


@dataclass(frozen=True)
class Corpus:
    """Pairs of sentences with their links; the first `tested` are measured."""

    name: str
    sources: list[str]
    targets: list[str]
    tested: int


def verses(folder: Path) -> tuple[Corpus, list[GoldLinks]]:
    """Return verses of the New Testament in Greek and English, with links drawn by people."""

    def rows(path: str) -> list[dict[str, str]]:
        with (folder / "data" / path).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))

    greek: dict[str, list[tuple[str, str]]] = defaultdict(list)
    english: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows("sources/SBLGNT.tsv"):
        greek[row["id"][1:9]].append((row["id"], row["text"].lower()))
    for row in rows("eng/targets/BSB/nt_BSB.tsv"):
        if row["exclude"] != "y":
            english[row["source_verse"]].append((row["id"], row["text"].lower()))
    linked: dict[str, set[str]] = defaultdict(set)
    path = folder / "data/eng/alignments/BSB/SBLGNT-BSB-manual.json"
    for entry in json.loads(path.read_text("utf-8"))["records"]:
        for word in entry["source"]:
            linked[word] |= set(entry["target"])
    sources, targets, gold = [], [], []
    for verse, words in greek.items():
        place = {word: number for number, (word, _) in enumerate(english.get(verse, ()))}
        links = frozenset(
            (number, place[target])
            for number, (word, _) in enumerate(words)
            for target in linked[word]
            if target in place
        )
        if links:
            sources.append(" ".join(text for _, text in words))
            targets.append(" ".join(text for _, text in english[verse]))
            gold.append(GoldLinks(links, links))
    return Corpus("bible-alignments", sources, targets, len(sources)), gold


def captions(folder: Path) -> Corpus:
    """Return the tests of Multi30k, and after them what is trained on."""
    sides = {}
    for language in ("en", "de"):
        tests, train = (
            (folder / f"{name}.{language}").read_text("utf-8").removesuffix("\n").split("\n")
            for name in ("test_2016_flickr", "train")
        )
        sides[language] = [*tests, *train], len(tests)
    return Corpus("Multi30k", sides["en"][0], sides["de"][0], sides["en"][1])


def eflomal_links(corpus: Corpus) -> tuple[list[set[tuple[int, int]]], ...]:
    """Return the links of the statistical aligner, forward and reverse, of what is measured."""
    try:
        import eflomal
    except ImportError:
        raise InputError(
            "alignment: the statistical aligner is missing. pip install eflomal"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("forward", "reverse")]
        eflomal.Aligner().align(
            [text.lower() for text in corpus.sources],
            [text.lower() for text in corpus.targets],
            links_filename_fwd=files[0],
            links_filename_rev=files[1],
        )
        return tuple(
            [set(links.sure) for links in headloom.read_pharaoh(file)[: corpus.tested]]
            for file in files
        )


def bible_run(options: argparse.Namespace, corpus: Corpus) -> Path:
    """Return the folder of a translator of the verses, trained if it is not there."""
    if options.bible_run is not None:
        return Path(options.bible_run)
    folder = options.runs / "bible-texts"
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("grc", corpus.sources), ("eng", corpus.targets)):
        for part, kept in (("train", True), ("valid", False)):
            text = "".join(f"{line}\n" for i, line in enumerate(lines) if bool(i % VALID) == kept)
            (folder / f"{part}.{name}").write_text(text, "utf-8")
    config = ROOT / "benchmarks" / "evidence" / "bible.toml"
    run, _ = trained(options.runs / "bible", config, [f"task.folder={folder}"])
    return Path(run.folder.path)


def captions_run(options: argparse.Namespace) -> Path:
    """Return the folder of a translator of the captions, trained if it is not there."""
    if options.multi30k_run is not None:
        return Path(options.multi30k_run)
    config = ROOT / "examples" / "multi30k.toml"
    changes = [f"task.folder={options.folder}", "training.seed=1"]
    run, _ = trained(options.runs / "multi30k-1", config, changes)
    return Path(run.folder.path)


def weights_of(run: Path, corpus: Corpus) -> list[WordWeights]:
    """Return the weights between words of what is measured."""
    sides = corpus.sources[: corpus.tested], corpus.targets[: corpus.tested]

    def told(done: int, total: int) -> None:
        if done == total:
            print(f"{corpus.name}: {total:,} pairs read", flush=True)

    return list(word_weights_of(open_model(str(run)), *sides, steps=STEPS, progress=told))


def row_of(name: str, corpus: Corpus, rate: ErrorRate, heads: str = "") -> str:
    numbers = " | ".join(f"{100 * n:.1f} %" for n in (rate.aer, rate.precision, rate.recall))
    return f"| {corpus.name} | {name} | {heads} | {numbers} |"


def measured(
    corpus: Corpus, sentences: Sequence[WordWeights], gold: Sequence[GoldLinks], method: str
) -> tuple[list[str], dict[str, ErrorRate]]:
    """Return the rows of a text: the best single head, the best few, and those by agreement."""
    rows: list[str] = []
    rates: dict[str, ErrorRate] = {}

    def add(name: str, chosen: Sequence[WordWeights], options: AlignmentOptions) -> None:
        known = None if options.heads == "agreement" else gold
        result = align_words(chosen, options, known)
        rates[name] = alignment_error_rate(result.links[1::2], gold[1::2])
        if "single" not in name:  # it is one of the two before it
            rows.append(row_of(name, corpus, rates[name], ", ".join(map(str, result.heads))))

    by_step = {step: [_by(step, sentence) for sentence in sentences] for step in STEPS}
    for step in STEPS:
        add(f"best head that {step}s the word, {method}", by_step[step],
            AlignmentOptions("best", method, most=1))  # fmt: skip
    add(f"best single head, {method}", sentences, AlignmentOptions("best", method, most=1))
    add(f"best few heads, {method}", sentences, AlignmentOptions("best", method))
    add("by agreement, without links, mutual", by_step["read"], AlignmentOptions("agreement"))
    return rows, rates


def _by(step: str, sentence: WordWeights) -> WordWeights:
    """Return the weights of the heads by one of the two steps."""
    places = [place for place, head in enumerate(sentence.heads) if head.step == step]
    heads = tuple(sentence.heads[place] for place in places)
    return WordWeights(sentence.weights[places], heads, sentence.source, sentence.target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of Multi30k, task 1 raw")
    parser.add_argument("--bible", type=Path, required=True, help="of bible-alignments, unpacked")
    parser.add_argument("--runs", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--multi30k-run", help="a translator that is trained already")
    parser.add_argument("--bible-run", help="likewise, of the verses")
    options = parser.parse_args()
    text, gold = verses(options.bible)
    forward, reverse = eflomal_links(text)
    rows, rates = measured(text, weights_of(bible_run(options, text), text), gold, "argmax")
    statistical = {
        "forward": forward,
        "reverse": reverse,
        "both (intersection)": [a & b for a, b in zip(forward, reverse, strict=True)],
        "either (union)": [a | b for a, b in zip(forward, reverse, strict=True)],
    }
    others = {
        name: alignment_error_rate(links[1::2], gold[1::2]) for name, links in statistical.items()
    }
    rows += [row_of(f"eflomal, {name}", text, others[name]) for name in list(statistical)[2:]]
    caption = captions(options.folder)
    both = zip(*eflomal_links(caption), strict=True)
    silver = [GoldLinks(frozenset(a & b), frozenset(a & b)) for a, b in both]
    weights = weights_of(captions_run(options), caption)
    more, agreed = measured(caption, weights, silver, "mutual")
    write(rows + more, rates, agreed, others)


def write(
    rows: Sequence[str],
    verse: dict[str, ErrorRate],
    caption: dict[str, ErrorRate],
    statistical: dict[str, ErrorRate],
) -> None:
    """Write the section.

    The links that people drew give most English words a Greek one, so those by argmax stand for the
    verses; the silver is an intersection, so the mutual ones stand for the captions.
    """

    def by(rates: dict[str, ErrorRate], name: str) -> str:
        return f"{100 * rates[name].aer:.1f} %"

    def told(rates: dict[str, ErrorRate], method: str) -> str:
        single, few = (by(rates, f"best {what}, {method}") for what in ("single head", "few heads"))
        read, wrote = (by(rates, f"best head that {step}s the word, {method}") for step in STEPS)
        return f"best single head {single} (reads {read}, writes {wrote}), best few {few}"

    errors = [100 * rate.aer for rate in statistical.values()]
    record(
        Claim(
            name="Word alignment by cross-attention",
            claim="The cross-attention of a translator gives accurate word alignments at the step "
            "that reads the target word, rather than at the step that writes it.",
            source="Chen et al. 2020, https://aclanthology.org/2020.emnlp-main.42; error rate: Och "
            "and Ney 2003",
            published="on three other corpora, with much larger models, the reading step aligns "
            "better than the writing step; a module trained on such links is 1.4 to 4.8 "
            "points better than GIZA++",
            ours=f"alignment error rate, Multi30k against eflomal's intersection: "
            f"{told(caption, 'mutual')}, chosen without gold links "
            f"{by(caption, 'by agreement, without links, mutual')}; bible-alignments: "
            f"{told(verse, 'argmax')}, eflomal {min(errors):.1f} to {max(errors):.1f} %",
            command="python benchmarks/evidence/alignment.py --folder PATH --bible PATH",
            details="\n".join(
                [
                    "| text | links by | heads | AER | precision | recall |",
                    "|---|---|---|---|---|---|",
                    *rows,
                    "",
                    "Multi30k has no human links. Its reference is the intersection of eflomal's "
                    "two directions, so its\nfigures measure agreement with eflomal. Heads are "
                    "chosen on every second pair and measured on the\nothers. The translators "
                    "learned from 7,721 verses and 29,000 captions; the time excludes this.",
                    "The claim does not hold on bible-alignments, where the best head writes the "
                    "word; that translator\nhas learned little.",
                ]
            ),
        )
    )


if __name__ == "__main__":
    main()
