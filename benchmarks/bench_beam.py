"""Claim: a beam of 5 takes headloom at most half the time that it takes Transformers.

Peers: the same weights, exported by headloom, in Transformers' generate and in CTranslate2
(float32). All translate the same sentences in the same batches, in turn; headloom with products in
float32 and in bfloat16, which is float32 where the processor has none. Prints seconds, how many
translations are the same, how many of a peer's score higher under headloom's model than headloom's
own (by more than 1e-4: a search that ends too early), and the ratios, headloom / peer, last. With
--processor-time they are the processor's, of all threads: on a busy host, with --threads 1, the
time on the clock is that of others too.

    python benchmarks/bench_beam.py --run RUN                # a translator that you have trained
    python benchmarks/bench_beam.py --folder PATH/multi30k   # 6 + 6 layers of width 512, untrained,
                                                             # each translation of 40 tokens

Needs `pip install ".[hf,ctranslate2]"`.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ctranslate2
import torch
from transformers import AutoModelForSeq2SeqLM

from headloom.api.model_export import export_model
from headloom.models.decoding import beam_hypotheses
from headloom.models.dense import Products, products
from headloom.models.transformer import Transformer
from headloom.training.batches import padded
from headloom.training.config import load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks import make_task
from headloom.training.tasks.pairs import PairsTask

ROOT = Path(__file__).parents[1]
BEAM = 5


def untrained(data: Path, folder: Path) -> None:
    """Train one step of 6 + 6 layers of width 512, 8 heads, 10,000 tokens."""
    changes = [
        f"task.folder={data}", "model.width=512", "model.heads=8", "model.feed_forward=2048",
        "model.encoder_layers=6", "model.decoder_layers=6", "training.max_steps=1",
        "training.warmup=0", "training.batch_tokens=512", "training.history=false",
        "training.optimiser=adamw",
    ]  # fmt: skip
    train(load_config(ROOT / "examples" / "multi30k.toml", changes), folder, Callback())


def ours(
    run: TrainedRun, kind: Products, batch: list[list[int]], limit: int, *, forced: bool
) -> list[list[int]]:
    """Return headloom's translations."""
    words, model = run.vocabulary, run.model
    assert isinstance(model, Transformer)
    with products(kind):
        found = beam_hypotheses(
            model, model.start(padded(batch, words.pad)), len(batch), start=words.start,
            end=-1 if forced else words.end, max_length=limit, beam=BEAM,
            length_penalty=run.length_penalty,
        )  # fmt: skip
    return [ranked[0].tokens for ranked in found]


def scores(run: TrainedRun, batch: list[list[int]], written: list[list[int]]) -> list[float]:
    """Return the model's score of each translation of a batch, computed in one pass."""
    words = run.vocabulary
    targets = padded([[words.start, *tokens, words.end] for tokens in written], words.pad)
    logits = run.model(padded(batch, words.pad), targets[:, :-1])
    nats = logits.log_softmax(-1).gather(2, targets[:, 1:, None])[..., 0]
    real = targets[:, 1:] != words.pad
    lengths = real.sum(1) ** run.length_penalty
    return ((nats * real).sum(1) / lengths).tolist()  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--folder", type=Path, help="of Multi30k, task 1 raw")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    if (options.run is None) == (options.folder is None):
        parser.error("give --run or --folder")
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    with tempfile.TemporaryDirectory() as name:
        place, forced = Path(name), options.run is None
        if forced:
            untrained(options.folder, place / "run")
        path = place / "run" if forced else options.run
        run = open_run(path)
        words = run.vocabulary
        export_model(path, place / "huggingface", "huggingface")
        export_model(path, place / "ctranslate2", "ctranslate2")
        stock = AutoModelForSeq2SeqLM.from_pretrained(place / "huggingface")
        engine = ctranslate2.Translator(
            str(place / "ctranslate2"), intra_threads=options.threads, compute_type="float32"
        )
        task = make_task(run.config, run.data)
        assert isinstance(task, PairsTask)
        texts = [source for source, _ in task.pairs("test")][: options.sentences]
        sources = sorted(([*ids, words.end] for ids in words.encode_all(texts)), key=len)
        names = words.token_names()

        def by_transformers(batch: list[list[int]], limit: int) -> list[list[int]]:
            ids = padded(batch, words.pad)
            settings = {"eos_token_id": None} if forced else {}
            written = stock.generate(
                input_ids=ids, attention_mask=(ids != words.pad).long(), num_beams=BEAM,
                max_new_tokens=limit, length_penalty=run.length_penalty, **settings,
            )  # fmt: skip
            return [[i for i in row if i > words.end or forced] for row in written[:, 1:].tolist()]

        def by_ctranslate2(batch: list[list[int]], limit: int) -> list[list[int]]:
            results = engine.translate_batch(
                [[names[i] for i in ids] for ids in batch], beam_size=BEAM,
                max_decoding_length=limit, min_decoding_length=limit if forced else 1,
                length_penalty=run.length_penalty,
            )  # fmt: skip
            numbers = {name: index for index, name in enumerate(names)}
            return [[numbers[token] for token in result.hypotheses[0]] for result in results]

        sides: dict[str, Callable[[list[list[int]], int], list[list[int]]]] = {
            "headloom": partial(ours, run, "float32", forced=forced),
            "headloom, bfloat16": partial(ours, run, "bfloat16", forced=forced),
            "Transformers": by_transformers,
            "CTranslate2": by_ctranslate2,
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        written: dict[str, list[list[int]]] = {side: [] for side in sides}
        ahead: dict[str, list[float]] = {side: [] for side in sides}
        for first in range(0, len(sources), options.batch):
            batch = sources[first : first + options.batch]
            limit = 40 if forced else 2 * len(batch[-1]) + 32
            for side, translate in sides.items():
                if not first:
                    translate(batch[:4], 4)  # warms up
                start = clock()
                with torch.no_grad():
                    written[side] += translate(batch, limit)
                    seconds[side].append(clock() - start)
                    own, theirs = (written[each][first:] for each in ("headloom", side))
                    both = zip(scores(run, batch, theirs), scores(run, batch, own), strict=True)
                ahead[side] += [their_score - own_score for their_score, own_score in both]
    tokens = sum(map(len, written["headloom"]))
    for side, values in seconds.items():
        same = sum(a == b for a, b in zip(written[side], written["headloom"], strict=True))
        print(
            f"{side:<14}{sum(values):8.2f} s  {tokens / sum(values):7,.0f} tokens/s  the same as "
            f"headloom's: {same} of {len(sources)}"
            + (f", better: {sum(a > 1e-4 for a in ahead[side])}, by {max(ahead[side]):.1g} at most")
            * (not forced)
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, all")
    for own in ("headloom, bfloat16", "headloom"):
        for side in ("CTranslate2", "Transformers"):
            ratios = [a / b for a, b in zip(seconds[own], seconds[side], strict=True)]
            print(
                f"ratio {statistics.median(ratios):.2f} ({own} / {side}; batches "
                f"{min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
