"""Claim: on Shakespeare's characters, headloom learns more than nanoGPT per step, and faster.

    git clone https://github.com/karpathy/nanoGPT PEER
    python benchmarks/evidence/shakespeare.py --file PATH/tinyshakespeare.txt --peer PEER

The peer is nanoGPT's own train.py with the options that its README gives for a CPU: 4 layers, 4
heads, width 128, 64 characters of context, 12 windows a step, 2,000 steps. headloom trains models
of the same sizes on as many characters a step. Losses are of the same last tenth of the text:
nanoGPT's its own estimate from 200 draws, headloom's of the whole. Seconds are steps times a step's
seconds, which is measured in turn, headloom and peer, so that a busy moment meets both.

Source: Karpathy 2022, nanoGPT, README: a validation loss of 1.88 in about 3 minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from record import Claim, mean_and_spread, record
from runs import ROOT

from headloom.training.config import load_config
from headloom.training.loop import train
from headloom.training.progress import Callback

STEPS = 2_000
#: Steps of a timing: the first ones are left out.
TIMED, LEFT_OUT = 100, 20
#: What is changed of the example, which has Muon.
KINDS = {
    "AdamW": ("training.optimiser=adamw", "training.peak_learning_rate=2e-3"),
    "Muon": (),
}


class Peer:
    """nanoGPT in a folder of its own."""

    def __init__(self, clone: Path, text: Path, folder: Path) -> None:
        self.folder = folder / "nanogpt"
        shutil.copytree(clone, self.folder, ignore=shutil.ignore_patterns(".git"))
        data = self.folder / "data" / "shakespeare_char"
        content = text.read_text()
        characters = sorted(set(content))
        numbers = {character: number for number, character in enumerate(characters)}
        ids = np.array([numbers[character] for character in content], dtype=np.uint16)
        border = int(len(ids) * 0.9)
        ids[:border].tofile(data / "train.bin")
        ids[border:].tofile(data / "val.bin")
        (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters)}))

    def run(self, steps: int, *options: str) -> str:
        """Return the output of train.py."""
        command = [
            sys.executable, "train.py", "config/train_shakespeare_char.py", "--device=cpu",
            "--compile=False", "--log_interval=1", "--block_size=64", "--batch_size=12",
            "--n_layer=4", "--n_head=4", "--n_embd=128", f"--max_iters={steps}",
            f"--lr_decay_iters={STEPS}", "--dropout=0.0", *options,
        ]  # fmt: skip
        return subprocess.run(
            command, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def step_seconds(self) -> float:
        """Of one step, its median."""
        printed = self.run(TIMED, "--eval_iters=1", "--eval_interval=100000")
        times = [float(ms) for ms in re.findall(r"time ([\d.]+)ms", printed)]
        return statistics.median(times[LEFT_OUT:]) / 1000

    def loss(self) -> float:
        """Of validation after all steps, in nats."""
        printed = self.run(STEPS, f"--eval_interval={STEPS}", "--eval_iters=200")
        return float(re.findall(rf"step {STEPS}: .*val loss ([\d.]+)", printed)[-1])


class Ours:
    """headloom's runs, in a folder."""

    def __init__(self, text: Path, folder: Path) -> None:
        self.text, self.folder, self.count = text, folder, 0

    def run(self, steps: int, seed: int, *changes: str) -> list[dict[str, float]]:
        """Return the lines of a run's metrics."""
        self.count += 1
        folder = self.folder / str(self.count)
        config = load_config(
            ROOT / "examples" / "shakespeare.toml",
            [
                f"task.file={self.text}", f"training.seed={seed}", f"training.max_steps={steps}",
                f"training.warmup={min(100, steps // 10)}", f"training.validate_every={steps}",
                f"training.checkpoint_every={steps}", "training.history=false",
                "training.products=bfloat16", *changes,
            ],
        )  # fmt: skip
        train(config, folder, Callback())
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def step_seconds(self, *changes: str) -> float:
        """Of one step, the mean without the first ones."""
        lines = {
            line["step"]: line["seconds"]
            for line in self.run(TIMED, 1, *changes)
            if "validation_loss" not in line
        }
        return (lines[TIMED] - lines[LEFT_OUT]) / (TIMED - LEFT_OUT)

    def losses(self, steps: int, seeds: int, *changes: str) -> list[float]:
        """Of validation after all steps, in nats, seed by seed."""
        return [
            self.run(steps, seed, *changes)[-1]["validation_loss"] for seed in range(1, seeds + 1)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True, help="tinyshakespeare.txt")
    parser.add_argument("--peer", type=Path, required=True, help="a clone of nanoGPT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of timing, in turn")
    parser.add_argument("--short", type=int, default=400, help="steps that shall suffice")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(options.peer, options.file, Path(folder))
        ours = Ours(options.file.resolve(), Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in ("nanoGPT", *KINDS)}
        for _ in range(options.rounds):
            seconds["nanoGPT"].append(peer.step_seconds())
            for name, changes in KINDS.items():
                seconds[name].append(ours.step_seconds(*changes))
            print({name: round(times[-1] * 1000, 1) for name, times in seconds.items()}, flush=True)
        step = {name: statistics.median(times) for name, times in seconds.items()}
        fitting = int(STEPS * step["nanoGPT"] / step["Muon"])
        peer_loss = peer.loss()
        print(f"nanoGPT after {STEPS} steps: {peer_loss:.4f}", flush=True)
        lengths = [("AdamW", STEPS), ("Muon", STEPS), ("Muon", fitting), ("Muon", options.short)]
        trials = [
            (name, steps, ours.losses(steps, options.seeds, *KINDS[name]))
            for name, steps in lengths
        ]
    record_all(step, seconds, peer_loss, trials)


def record_all(
    step: dict[str, float],
    seconds: dict[str, list[float]],
    peer_loss: float,
    trials: list[tuple[str, int, list[float]]],
) -> None:
    """Print the section of docs/evidence.md, and the ratios last."""
    whole = STEPS * step["nanoGPT"]
    milliseconds = {name: 1000 * value for name, value in step.items()}
    peer_step = milliseconds.pop("nanoGPT")
    rows = [f"| nanoGPT | {STEPS:,} | {peer_loss:.3f} | {peer_step:.1f} | {whole:.0f} | 1 |"]
    for name, steps, losses in trials:
        spent = steps * step[name]
        rows.append(
            f"| headloom, {name} | {steps:,} | {mean_and_spread(losses, digits=3)} | "
            f"{milliseconds[name]:.1f} | {spent:.0f} | {spent / whole:.2f} |"
        )
        print(rows[-1])
    pairs = {
        name: [peer / own for peer, own in zip(seconds["nanoGPT"], seconds[name], strict=True)]
        for name in ("AdamW", "Muon")
    }
    same, short = trials[0], trials[-1]
    spent = short[1] * step["Muon"] / whole
    record(
        Claim(
            name="Shakespeare's characters, against nanoGPT",
            claim="At nanoGPT's CPU sizes, headloom reaches a lower loss in as many steps, and "
            "nanoGPT's loss in a fraction of its time.",
            source="Karpathy 2022, https://github.com/karpathy/nanoGPT; Jordan et al. 2024 (Muon), "
            "https://kellerjordan.github.io/posts/muon",
            published="1.88 after 2,000 steps",
            ours=f"{mean_and_spread(same[2], digits=3)} after {STEPS:,} steps of AdamW; "
            f"{mean_and_spread(short[2], digits=3)} after {short[1]:,} steps of Muon, in "
            f"{spent:.2f} of the time in which nanoGPT reaches {peer_loss:.3f}",
            command="python benchmarks/evidence/shakespeare.py --file PATH --peer NANOGPT",
            details="\n".join(
                [
                    "| | steps | validation loss | ms a step | seconds | of nanoGPT's |",
                    "|---|---|---|---|---|---|",
                    *rows,
                    "",
                    "Characters a second, relative to nanoGPT: "
                    + "; ".join(
                        f"{name} {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                        f"{max(ratios):.2f})"
                        for name, ratios in pairs.items()
                    )
                    + ".",
                ]
            ),
        )
    )
    print(f"time to nanoGPT's loss, headloom / nanoGPT: {spent:.2f}")


if __name__ == "__main__":
    main()
