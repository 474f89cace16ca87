"""Attention between far-apart pixels: SAGAN's block beside the same convolutions without it.

    python benchmarks/evidence/far_pixels.py                  # both tasks, 3 seeds each
    python benchmarks/evidence/far_pixels.py --write far      # the data alone, for `headloom train`
    python benchmarks/evidence/far_pixels.py --picture x.png  # where the place of reading looks
    python benchmarks/evidence/far_pixels.py --patches x.png  # where a class token looks

Two tasks on canvases of 8 x 48 pixels, made from scikit-learn's handwritten digits (8 x 8):

    one   a digit in columns 0 to 7; the class is read from the features of columns 44 to 47
    two   a digit at either end; a bar in the middle picks the left one (upper half) or the right
          one (lower half); the class is read from the features of columns 22 to 25

Four convolutions of 3 x 3, the second followed by 2 x 2 maxima, see 6 pixels to either side of what
is read, which is background, or the bar alone: they can but guess. The configuration is
examples/far_digit.toml; `headloom train` runs it too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from record import Claim, mean_and_spread, record
from runs import results_of
from torch import nn

import headloom
from headloom.formats.files import JsonObject
from headloom.models.images import ConvolutionalClassifier
from headloom.studio.pictures import save_picture
from headloom.studio.pictures.canvas import Page, picture, weight_norm
from headloom.training.checkpoint import Position
from headloom.training.config import RunConfig, TrainingConfig, load_config
from headloom.training.inference import TrainedRun, open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks import build_model
from headloom.training.tasks.images import normalised
from headloom.training.tasks.task import Task

CONFIGURATION = Path(__file__).parents[2] / "examples" / "far_digit.toml"
#: A vision Transformer, for the task of two digits.
PATCHES = CONFIGURATION.with_name("far_patches.toml")
ROWS, COLUMNS = 8, 48
#: Inches of a picture: an image, and around it. How much of the ground the ink may take.
WIDE, MARGIN, INK = 7.2, 0.2, 0.4
#: Canvases of each part; of one digit each, every digit once.
PAIRS = {"train": 8_000, "valid": 400, "test": 1_000}
#: What the configuration has another way in each task.
TASKS = {
    "one": ["training.max_steps=600", "model.region=[0, 22, 4, 2]"],
    "two": ["training.max_steps=1200", "model.region=[0, 11, 4, 2]"],
}


def digits() -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """scikit-learn's 1,797 digits in bytes, and their classes, in three parts."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("far_pixels: its digits are scikit-learn's, which is not here. Install it: "
                 "pip install scikit-learn")  # fmt: skip
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    parts = {"train": order[:1_100], "valid": order[1_100:1_297], "test": order[1_297:]}
    return {part: (images[places], data.target[places]) for part, places in parts.items()}


def one_digit(
    images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Each digit far left on a canvas."""
    canvases = np.zeros((len(images), ROWS, COLUMNS), np.uint8)
    canvases[:, :, :8] = images
    return canvases, labels


def two_digits(
    images: NDArray[np.uint8], labels: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pairs of digits, drawn with replacement, and a bar that picks one of each."""
    numbers = np.random.default_rng(seed)
    left, right = numbers.integers(0, len(images), (2, count))
    picks_right = numbers.integers(0, 2, count).astype(bool)
    canvases = np.zeros((count, ROWS, COLUMNS), np.uint8)
    canvases[:, :, :8], canvases[:, :, -8:] = images[left], images[right]
    canvases[~picks_right, :4, 23:25] = 255
    canvases[picks_right, 4:, 23:25] = 255
    return canvases, np.where(picks_right, labels[right], labels[left])


def write(folder: Path) -> None:
    """Write the canvases of both tasks, a .npz for each part: one-train.npz, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, (images, labels)) in enumerate(digits().items()):
        data = {
            "one": one_digit(images, labels),
            "two": two_digits(images, labels, PAIRS[part], seed),
        }
        for task, (canvases, classes) in data.items():
            np.savez_compressed(folder / f"{task}-{part}.npz", images=canvases, labels=classes)


@dataclass
class GammaListener(Callback):
    """Writes down gamma at every validation."""

    model: nn.Module | None = None
    path: list[tuple[int, float]] = field(default_factory=list)

    def started(
        self, task: Task, model: nn.Module, position: Position, settings: TrainingConfig
    ) -> None:
        """See Callback.started."""
        self.model = model
        self._note(position)

    def validated(self, position: Position, report: JsonObject, better: bool) -> None:
        """See Callback.validated."""
        self._note(position)

    def _note(self, position: Position) -> None:
        if isinstance(self.model, ConvolutionalClassifier) and self.model.attention is not None:
            self.path.append((position.step, self.model.attention.gamma.item()))


@dataclass(frozen=True)
class Outcome:
    """Test accuracy, in per cent; and the path of gamma."""

    accuracy: float
    gamma: list[tuple[int, float]]


def configured(folder: Path, task: str, *, attention: bool, seed: int) -> RunConfig:
    """Return the configuration of examples/far_digit.toml, for one of the tasks."""
    overrides = [
        f'task.folder="{folder}"',
        *(f'task.{part}="{task}-{part}.npz"' for part in PAIRS),
        *TASKS[task],
        f"model.attention={4 if attention else 0}",
        f"training.seed={seed}",
        "training.history=false",
    ]
    return load_config(CONFIGURATION, overrides)


def learn(folder: Path, task: str, *, attention: bool, seed: int) -> Outcome:
    """Train on one of the tasks, and measure on its test canvases."""
    run = folder / f"{task}-{attention}-{seed}"
    listener = GammaListener()
    train(configured(folder, task, attention=attention, seed=seed), run, listener)
    found = results_of(open_run(run), beam=1).values()
    outcome = Outcome(100 * found["accuracy"], listener.path)
    path = ", ".join(f"{step}: {gamma:+.3f}" for step, gamma in outcome.gamma)
    kind = "with attention" if attention else "convolutions alone"
    print(f"{task} seed {seed} {kind}: {outcome.accuracy:.1f} %  {path}", flush=True)
    return outcome


def canvas(images: NDArray[np.uint8], left: int, right: int, *, picks_left: bool) -> NDArray[Any]:
    """Two digits and the bar that picks one, (1, 1, rows, columns), from 0 to 1."""
    made = np.zeros((1, 1, ROWS, COLUMNS), np.float32)
    made[..., :8], made[..., -8:] = images[left] / 255, images[right] / 255
    made[..., slice(0, 4) if picks_left else slice(4, 8), 23:25] = 1
    return made


@dataclass(frozen=True, eq=False)
class Look:
    """An image, 0 (the ground) to 1 (ink), and the weights on it, (rows, columns) of the keys.

    asked: the places that look, in pixels: first row, first column, rows, columns; None: a token.
    """

    image: NDArray[Any]
    weights: NDArray[Any]
    asked: tuple[float, float, float, float] | None
    title: str


def sees(
    model: nn.Module,
    run: TrainedRun,
    pixels: NDArray[Any],
    region: tuple[int, int, int, int] | None,
    title: str,
) -> Look:
    """Where the place of reading looks in the last layer; and what the model says, in the title."""
    inputs = {"images": normalised(pixels, run.data)}
    with torch.no_grad():
        likeliest = int(model(**inputs).argmax())
    trace = headloom.trace(model, inputs, keep=headloom.All(), verify=False)
    title += f" The model says {run.data.facts['classes'][likeliest]}."
    layer, image = trace.layers[-1], pixels[0, 0]
    (rows, columns, before), keys = (
        grid(trace.positions[name]) for name in (layer.queries_from, layer.keys_from)
    )
    asked, numbers = None, np.arange(before)
    if region is not None:
        row, column, tall, wide = region
        cells = np.arange(rows * columns).reshape(rows, columns)
        numbers = before + cells[row : row + tall, column : column + wide].ravel()
        high, across = image.shape[0] / rows, image.shape[1] / columns
        asked = (row * high, column * across, tall * high, wide * across)
    weights = np.asarray(layer[0])[numbers, keys[2] :].mean(0).reshape(keys[:2])
    return Look(image, weights, asked, title)


def grid(known: JsonObject) -> tuple[int, int, int]:
    """Rows and columns of the patches of a sequence, and the tokens before them."""
    rows, columns = (max(known[name]) + 1 for name in ("rows", "columns"))
    return rows, columns, len(known["rows"]) - rows * columns


@picture
def places(page: Page, looks: list[Look], *, title: str = "", caption: str = "") -> NDArray[Any]:
    """Weights as the ground, images the ink on it; an even row is faint."""
    rows, columns = looks[0].image.shape
    wide = page.fits(WIDE, (2 * MARGIN, 1))
    high, top = wide * rows / columns, 0.48 if title else 0.12
    page.letters([title, caption, *(look.title for look in looks)])
    page.lay(wide + 2 * MARGIN, top + len(looks) * (0.3 + high) + 0.62)
    page.title(title)
    colours, drawn = page.colours, []
    most = max(max(float(look.weights.max()), min(9 / look.weights.size, 1)) for look in looks)
    norm = weight_norm(most)
    how: dict[str, Any] = {"norm": norm, "cmap": colours.weight}
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    for look in looks:
        page.say(MARGIN, top + 0.09, look.title, 8.5, colours.ink)
        axes = page.matrix(MARGIN, top + 0.3, wide, high, look.weights, extent=extent, **how)
        ink = np.dstack((inks(look, norm, colours), INK * np.clip(look.image, 0, 1)))
        axes.imshow(ink, extent=extent, aspect="auto", interpolation="nearest")
        if look.asked is not None:
            row, column, tall, across = look.asked
            frame = Rectangle((column - 0.5, row - 0.5), across, tall, fill=False, linewidth=2.2,
                              edgecolor=colours.query, clip_on=False, zorder=4)  # fmt: skip
            axes.add_patch(frame)
        drawn.append(axes)
        top += 0.3 + high
    ticks = {0.0: "0", most / 4: f"{most / 4:.2g}", most: f"{most:.2g}"}
    page.scale(MARGIN, 0.26, 1.6, how, "weight, square-root scale", ticks)
    page.say(2.1, page.height - 0.15, caption, va="baseline")
    return np.array(drawn)


def inks(look: Look, norm: Any, colours: Any) -> NDArray[Any]:
    """Return the colour of marks on each pixel, (rows, columns, 3): ink or paper, by contrast."""
    light = np.array([0.2126, 0.7152, 0.0722])
    rows, columns = (
        np.arange(pixels) * cells // pixels
        for pixels, cells in zip(look.image.shape, look.weights.shape, strict=True)
    )
    under = colours.weight(norm(look.weights))[np.ix_(rows, columns)][..., :3] @ light
    either = np.array([to_rgb(colours.ink), to_rgb(colours.ground)])
    chosen: NDArray[Any] = either[np.abs(under[..., None] - either @ light).argmax(-1)]
    return chosen


def draw(folder: Path, path: Path, configuration: Path) -> None:
    """Where the place of reading looks in the task of two digits, before training and after."""
    tokens = configuration == PATCHES
    config = configured(folder, "two", attention=True, seed=2)
    if tokens:
        config = load_config(PATCHES, [f'task.folder="{folder}"', "training.history=false"])
    train(config, folder / "drawn", GammaListener())
    run = open_run(folder / "drawn")
    torch.manual_seed(config.training.seed)
    # As the training draws it: the same matrices as at step 0.
    before = build_model(config, run.data).eval()
    images, labels = digits()["test"]
    left, right = (int(np.flatnonzero(labels == label)[0]) for label in (3, 7))
    looks = []
    for model, when in ((before, "Before training"), (run.model, "After training")):
        for side, label in (("left", 3), ("right", 7)):
            pixels = canvas(images, left, right, picks_left=side == "left")
            place = "above" if side == "left" else "below"
            title = f"{when}. Bar {place}: the {side} digit, {label}."
            looks.append(sees(model, run, pixels, None if tokens else (0, 11, 4, 2), title))
    caption = "Framed: where the class is read. Colour: the mean weights of these eight places."
    title = "The middle looks at the digit that the bar picks"
    if tokens:
        title = "The class token looks at the digit that the bar picks"
        caption = "Colour: the weights of the class token on the six patches; last layer, head 0."
    save_picture(places(looks, title=title, caption=caption), path)


def last_gamma(outcomes: dict[tuple[str, bool], list[Outcome]]) -> str:
    """Gamma after the training of the first seed, as Markdown."""
    last = {task: outcomes[task, True][0].gamma[-1] for task in TASKS}
    ends = [f"{gamma:+.2f} ({name} digits, {step:,} steps)" for name, (step, gamma) in last.items()]
    return (
        "gamma, the weight of the block, starts at 0 and ends in seed 1 at "
        + " and\n".join(ends).replace("one digits", "one digit")
        + "."
    )


def main() -> None:
    """Measure, and write the section of docs/evidence.md."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write the data, train nothing"
    )
    options.add_argument("--picture", type=Path, metavar="FILE", help="draw, measure nothing")
    options.add_argument(
        "--patches", type=Path, metavar="FILE", help="draw a vision Transformer, measure nothing"
    )
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    if chosen.write is not None:
        write(chosen.write)
        print(f"written: {len(TASKS) * len(PAIRS)} files in {chosen.write}")
        return
    torch.set_num_threads(chosen.threads)
    outcomes: dict[tuple[str, bool], list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        write(Path(temporary))
        drawn = chosen.picture or chosen.patches
        if drawn is not None:
            draw(Path(temporary), drawn, CONFIGURATION if chosen.picture else PATCHES)
            print(f"written: {drawn}")
            return
        for task in TASKS:
            for attention in (True, False):
                outcomes[task, attention] = [
                    learn(Path(temporary), task, attention=attention, seed=seed)
                    for seed in range(1, chosen.seeds + 1)
                ]
    ours = {
        key: mean_and_spread([run.accuracy for run in runs], "%") for key, runs in outcomes.items()
    }
    record(
        Claim(
            name="Self-attention lets convolutions see far-apart pixels",
            claim="Self-attention relates all places of an image in one layer. On canvases of 8 x "
            "48 pixels with scikit-learn's digits, the class is read where four convolutions "
            "cannot see the digit. In one task the digit is far left and the class is read far "
            "right. In the other, two digits are at the ends, a bar selects one of them, and the "
            "class is read in the middle.",
            source="Zhang et al. 2019, Self-Attention Generative Adversarial Networks, sections 1 "
            "and 3, https://arxiv.org/abs/1805.08318",
            published="no figure for these tasks; chance is 10 %",
            ours=f"one digit: {ours['one', True]} with the block, {ours['one', False]} without; "
            f"two digits: {ours['two', True]} with the block, {ours['two', False]} without",
            command="python benchmarks/evidence/far_pixels.py",
            details=last_gamma(outcomes),
        )
    )


if __name__ == "__main__":
    main()
