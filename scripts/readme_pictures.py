"""The README's animation and its chart, into docs/pictures.

    python scripts/readme_pictures.py

Trains examples/dates.toml, a minute or two on two cores; learning.gif shows the attention of one
head, what the model writes and its loss at some steps. ratios.png draws figures of
docs/performance.md and docs/evidence.md; the commands that measure them stand beside them there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.animation import FuncAnimation, PillowWriter

import headloom
from headloom.training.translation import Search, translate

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
TEXT, DATE = "de: 17. März 2024", "2024-03-17"
STEPS = sorted({round(600 * (n / 44) ** 2.2) for n in range(45)})
#: Time in units of the peer's, on two cores of an Intel Xeon with AMX.
RATIOS = {
    "Attention with its exact top 32 edges\n(1 = torch's fused attention, no weights)": 0.62,
    "Training to nanoGPT's loss on tinyshakespeare\n(1 = nanoGPT)": 0.21,
    "Full trace of SmolLM2, 8,192 tokens, written to disk\n(1 = its plain forward pass)": 1.11,
}  # fmt: skip


class Film(headloom.Callback):
    """The loss of every step; at some steps what the model writes, and its attention."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.frames: list[tuple[int, str, np.ndarray]] = []

    def started(self, task: Any, model: Any, position: Any, last: int) -> None:
        self.words, self.model = task.vocabulary, model
        source, target = self.words.encode(TEXT), self.words.encode(DATE)
        self.inputs = {
            "source": torch.tensor([[*source, self.words.end]]),
            "target": torch.tensor([[self.words.start, *target]]),
        }
        self.take(0)

    def stepped(self, position: Any, loss: float, rate: float) -> None:
        self.losses.append(loss)
        if position.step in STEPS:
            self.take(position.step)

    def take(self, step: int) -> None:
        """Add a frame."""
        self.model.eval()
        (written,) = translate(self.model, self.words, [TEXT], Search(1))
        trace = headloom.trace(self.model, self.inputs, tokenizer=self.words, verify=False)
        self.frames.append((step, written, trace["cross", 1].matrix.to_dense().numpy()))
        self.model.train()


def animation(film: Film, path: Path) -> None:
    """Draw the head that ends with the least entropy."""
    last = film.frames[-1][2]
    head = int(-(last * np.log(last + 1e-9)).sum(-1).mean(-1).argmax())
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.6, 3.3), dpi=100, width_ratios=(1.75, 1), layout="constrained"
    )
    keys = [*TEXT.replace(" ", "␣"), "⏎"]
    image = left.imshow(np.zeros((len(DATE), len(keys))), cmap="Blues", vmin=0, vmax=1)
    left.set_xticks(range(len(keys)), keys)
    left.set_yticks(range(len(DATE)), [*DATE])
    left.set(xlabel="letters it reads (keys)", ylabel="digits it writes (queries)")
    left.tick_params(length=0)
    left.spines[:].set_visible(False)
    right.set(xlim=(0, 300), ylim=(0, max(film.losses) * 1.05), xlabel="step")
    right.set_title("loss", loc="left", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    (curve,) = right.plot([], [], color="#3b6fb6")
    title = left.set_title("", loc="left", fontsize=10, family="DejaVu Sans Mono")

    def draw(number: int) -> None:
        step, written, weights = film.frames[min(number, len(film.frames) - 1)]
        image.set_data(weights[head][: len(DATE)])
        curve.set_data(range(1, step + 1), film.losses[:step])
        title.set_text(f"step {step:>3}   {TEXT}  →  {written[:14] or '(nothing)'}")
        title.set_color("#1a7f37" if written == DATE else "#b42318")

    FuncAnimation(figure, draw, len(film.frames) + 14).save(path, PillowWriter(fps=7))


def chart(path: Path) -> None:
    """Draw the ratios as bars."""
    figure, axis = plt.subplots(figsize=(7.6, 1.9), dpi=160, layout="constrained")
    bars = axis.barh([*RATIOS], [*RATIOS.values()], color="#3b6fb6", height=0.55)
    axis.bar_label(bars, [f" {value:.2f}" for value in RATIOS.values()], fontsize=9)
    axis.axvline(1, color="#888", linewidth=1)
    axis.set(xlim=(0, 1.3), xticks=[0, 0.5, 1])
    axis.invert_yaxis()
    axis.set_xlabel("time, in units of the peer's", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    plt.rcParams |= {"font.size": 9}
    film = Film()
    with tempfile.TemporaryDirectory() as folder:
        headloom.train(ROOT / "examples/dates.toml", run=Path(folder) / "run", callbacks=[film])
    animation(film, PICTURES / "learning.gif")
    chart(PICTURES / "ratios.png")
