r"""Claim: training on headloom's layers is not slower than on torch.nn.Transformer.

Peer: torch.nn.Transformer of the same sizes, with the same embeddings, batches and optimiser, and
torch's own loss. headloom multiplies in float32, in float32 on the tiles of a matrix unit where
there is one, and in bfloat16 where the processor has such products. All take the same steps in
turn. Prints real source + target tokens a second; the bound: what the peer's step would take if it
were its matrix products alone, at the speed of large ones, in each of these ways; and the ratios,
headloom / peer, last.

    python benchmarks/bench_training.py                        # dates
    python benchmarks/bench_training.py --folder PATH/multi30k # English to German
    python benchmarks/bench_training.py --folder PATH/multi30k --width 512 --heads 8 \
        --feed-forward 2048 --layers 6 --vocabulary 32000 --batch-tokens 2048 --steps 12
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from typing import get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from headloom.mechanism.positions import sinusoidal
from headloom.models.configuration import Architecture
from headloom.models.dense import Products, has_matrix_unit, linear_maps, products
from headloom.models.transformer import Transformer
from headloom.training.batches import Batch
from headloom.training.sections import DatesConfig, TranslationConfig
from headloom.training.tasks.dates import dates_task
from headloom.training.tasks.pairs import translation_task
from headloom.training.validation import predictor_loss, smoothed_cross_entropy

#: Rows, columns and depth of a large product.
LARGE = 2048


class Peer(nn.Module):
    """torch.nn.Transformer between the same embeddings and output."""

    def __init__(self, vocabulary: int, sizes: Architecture) -> None:
        super().__init__()
        self.scale = math.sqrt(sizes.width)
        self.embedding = nn.Embedding(vocabulary, sizes.width)
        self.positions = sinusoidal(1024, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.transformer = nn.Transformer(
            sizes.width,
            sizes.heads,
            sizes.encoder_layers,
            sizes.decoder_layers,
            sizes.feed_forward,
            sizes.dropout,
            batch_first=True,
            norm_first=True,
        )
        # headloom drops no attention weights by default; neither shall the peer, which is then
        # faster.
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def outputs(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = source == 0
        return self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
            tgt_is_causal=True,
        )

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs @ self.embedding.weight.T


def loss(model: Transformer | Peer, batch: Batch) -> Tensor:
    """Return the summed loss of a batch, as each side computes it."""
    real = batch.targets != 0
    outputs, targets = model.outputs(**batch.inputs)[real], batch.targets[real]
    if isinstance(model, Transformer):
        return predictor_loss(model, outputs, targets, smoothing=0.1)
    return smoothed_cross_entropy(model.logits(outputs), targets, smoothing=0.1, ignore=0)


def step(
    model: Transformer | Peer, optimiser: torch.optim.Optimizer, batch: Batch, kind: Products
) -> float:
    """One training step; returns its seconds."""
    start = time.perf_counter()
    with products(kind):
        (loss(model, batch) / int((batch.targets != 0).sum())).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()
    return time.perf_counter() - start


def bounds(model: Peer, batches: list[Batch]) -> dict[Products, float]:
    """Seconds of a mean step that is its matrix products alone, each as fast as a large one."""
    counter = FlopCounterMode(display=False)
    with counter:
        for batch in batches:
            loss(model, batch).backward()
    model.zero_grad()
    operations = counter.get_total_flops() / len(batches)
    inputs, large = torch.randn(LARGE, LARGE), nn.Linear(LARGE, LARGE, bias=False)
    seconds: dict[Products, float] = {}
    for kind in get_args(Products):
        times = []
        for _ in range(8):
            start = time.perf_counter()
            with torch.no_grad(), products(kind):
                linear_maps(inputs, [large])
            times.append(time.perf_counter() - start)
        seconds[kind] = operations / (2 * LARGE**3 / statistics.median(times[2:]))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="of Multi30k, task 1 raw; default: the dates task")
    parser.add_argument("--steps", type=int, default=24, help="the first 4 are not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--feed-forward", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=3, help="of encoder and decoder")
    parser.add_argument("--vocabulary", type=int, default=0, help="at least the task's own")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    arguments = parser.parse_args()
    sizes = Architecture(
        width=arguments.width, heads=arguments.heads, feed_forward=arguments.feed_forward,
        encoder_layers=arguments.layers, decoder_layers=arguments.layers, dropout=0.1,
    )  # fmt: skip
    if arguments.folder:
        task = translation_task(
            TranslationConfig(
                kind="translation",
                folder=arguments.folder,
                train=["train.en", "train.de"],
                valid=["val.en", "val.de"],
            ),
            seed=1,
        )
    else:
        task = dates_task(DatesConfig(train_examples=20_000), seed=1)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    choices = max(len(task.vocabulary), arguments.vocabulary)
    peer = Peer(choices, sizes)
    models: dict[str, Transformer | Peer] = {
        "torch.nn.Transformer": peer,
        "headloom": Transformer(choices, padding=0, **sizes.arguments()),
    }
    kinds: dict[str, Products] = dict.fromkeys(models, "float32")
    if has_matrix_unit():
        kinds["headloom, float32-tiles"] = "float32-tiles"
    kinds["headloom, bfloat16"] = "bfloat16"
    for name in list(kinds)[len(models) :]:
        models[name] = Transformer(choices, padding=0, **sizes.arguments())
    optimisers = {
        name: torch.optim.AdamW(model.parameters(), fused=True) for name, model in models.items()
    }
    plans = task.plan_epoch(0, arguments.batch_tokens)[: arguments.steps]
    speeds: dict[str, list[float]] = {name: [] for name in models}
    for number, plan in enumerate(plans):
        batch = task.batch(plan)
        for name, model in models.items():
            seconds = step(model, optimisers[name], batch, kinds[name])
            if number >= 4:  # the first steps warm up
                speeds[name].append(batch.tokens / seconds)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    batches = [task.batch(plan) for plan in plans[4:]]
    tokens = statistics.mean(batch.tokens for batch in batches)
    least = bounds(peer, batches)
    parameters = sum(parameter.numel() for parameter in peer.parameters())
    print(f"{parameters / 1e6:.2f} million parameters, {tokens:,.0f} real tokens a step")
    for name, speed in medians.items():
        print(f"{name:<22} {speed:8,.0f} real tokens/s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB, all")
    for kind, seconds in least.items():
        most = tokens / seconds / medians["torch.nn.Transformer"]
        print(f"bound {most:.2f} ({kind}: the peer's products alone take {seconds:.2f} s a step)")
    for name in list(models)[:0:-1]:
        pairs = zip(speeds[name], speeds["torch.nn.Transformer"], strict=True)
        ratios = sorted(ours / peers for ours, peers in pairs)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        ratio = medians[name] / medians["torch.nn.Transformer"]
        print(f"ratio {ratio:.2f} ({name}; 8 of 10 steps {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
