"""Looks into a wheel, installs it into an empty environment, and uses it as a newcomer does.

    python scripts/try_wheel.py dist/headloom-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl
    python scripts/try_wheel.py --quick dist/*.whl        # 20 steps of the demo
    python scripts/try_wheel.py --contents dist/*         # what wheel and source distribution hold

There is nothing on the path but the environment: no compiler, no Node. On Linux pip takes a torch
with gigabytes of CUDA, unless `--before` names another. The first command that fails ends the
trial, with what it printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

#: Programs that must not be needed.
UNWANTED = ("c++", "g++", "gcc", "clang", "cmake", "ninja", "node", "npm")
#: What a wheel and a source distribution hold, by the end of a file's name.
PARTS = (
    "headloom/__init__.pyi", "headloom/py.typed", "headloom/training/demo.toml", "LICENSE",
    "headloom/studio/static/studio.js", "headloom/studio/static/studio.css",
)  # fmt: skip
SOURCES = ("CMakeLists.txt", "native/module.cpp", "pyproject.toml", "README.md")
#: What neither holds: what is built, and what the front end is built with.
BUILT = ("node_modules/", "build/", "dist/", "runs/", ".venv/")


def check_contents(file: Path) -> None:
    """Raise an error if a part of a wheel or source distribution is missing."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names, wanted = archive.namelist(), (*PARTS, ".so" if os.name != "nt" else ".pyd")
    else:
        with tarfile.open(file) as archive:
            names, wanted = archive.getnames(), (*PARTS, *SOURCES)
    missing = [end for end in wanted if not any(name.endswith(end) for name in names)]
    # The first folder is the name of the distribution.
    unwanted = [name for name in names if name.partition("/")[2].startswith(BUILT)]
    if missing or unwanted:
        raise SystemExit(f"{file}: missing {missing}, not wanted {unwanted[:5]}.")
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB, {len(names)} files")


class Newcomer:
    """An empty environment, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        self.programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.variables = {**kept, "HOME": str(folder), "PATH": str(self.programs)}

    def run(self, *words: str | Path) -> str:
        """Return the output of a program of the environment; its failure ends the trial."""
        start = time.perf_counter()
        done = subprocess.run(
            [self.program(str(words[0])), *map(str, words[1:])], cwd=self.work,
            env=self.variables, text=True, encoding="utf-8", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(f"{time.perf_counter() - start:7.1f} s  {' '.join(map(str, words))}", flush=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nfailed with {done.returncode}")
        return done.stdout

    def program(self, name: str) -> str:
        """Return the path of a program of the environment."""
        found = shutil.which(name, path=str(self.programs))
        if found is None:
            raise SystemExit(f"{name}: no such program in {self.programs}")
        return found

    def view(self, path: str) -> None:
        """Start the studio, and read its page and its script."""
        words = [self.program("headloom"), "view", path, "--no-browser", "--port", "0"]
        with subprocess.Popen(
            words, cwd=self.work, env=self.variables, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as studio:  # fmt: skip
            try:
                assert studio.stdout is not None
                lines = iter(studio.stdout.readline, "")
                address = next(filter(None, (re.search(r"http://\S+", line) for line in lines)))
                page = urllib.request.urlopen(address[0]).read().decode()
                parts = re.findall(r'(?:src|href)="([^"]+\.(?:js|css)[^"]*)"', page)
                origin = address[0].split("/")[2]
                sizes = [
                    len(urllib.request.urlopen(f"http://{origin}/{part.lstrip('/')}").read())
                    for part in parts
                ]
                if max([len(page), *sizes]) < 100_000:
                    raise SystemExit("the studio's front end is missing")
            finally:
                studio.terminate()


def try_out(newcomer: Newcomer, wheel: Path, quick: bool) -> None:
    """Use everything once."""
    newcomer.run("pip", "install", "--quiet", f"{wheel}[train,pictures,studio]")
    for name in UNWANTED:
        if shutil.which(name, path=newcomer.variables["PATH"]):
            raise SystemExit(f"{name} is in the environment")
    newcomer.run("headloom", "--help")
    health = newcomer.run("headloom", "doctor", "--json")
    if not json.loads(health)["healthy"]:
        raise SystemExit(f"headloom doctor says that it is not well: {health}")
    newcomer.run("headloom", "steps", "--picture", "steps.png")
    if quick:
        where = ("python", "-c", "import headloom; print(headloom.__path__[0])")
        demo = Path(newcomer.run(*where).strip(), "training", "demo.toml")
        few = ("--set", "training.max_steps=20", "--set", "training.warmup=5")
        newcomer.run("headloom", "train", demo, "--run", "runs/demo", *few)
    else:
        print(newcomer.run("headloom", "demo"))
    newcomer.run("headloom", "trace", "runs/demo", "--text", "de: 17. März 2024", "-o", "t.loom")
    newcomer.run("headloom", "export", "t.loom", "--html", "page.html", "--picture", "heads.png")
    newcomer.view("t.loom")
    print("everything works")


def main() -> None:
    """Install, then help, doctor, steps, demo, view."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="wheels, source distributions")
    parser.add_argument("--contents", action="store_true", help="look into them, and no more")
    parser.add_argument("--quick", action="store_true", help="20 steps of training, not 1,000")
    parser.add_argument(
        "--before", nargs="*", default=[], help="packages that are there: a torch for the CPU"
    )
    asked = parser.parse_args()
    for file in asked.files:
        check_contents(file)
        if asked.contents:
            continue
        # On Windows a program that ends late keeps its files.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            newcomer = Newcomer(Path(folder))
            if asked.before:
                newcomer.run("pip", "install", "--quiet", *asked.before)
            try_out(newcomer, file.resolve(), asked.quick)


if __name__ == "__main__":
    main()
