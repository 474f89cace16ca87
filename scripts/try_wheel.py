"""Installs a wheel into an empty environment and uses it as a newcomer does.

    python scripts/try_wheel.py dist/headloom-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl
    python scripts/try_wheel.py --quick dist/headloom-0.1.0.tar.gz    # 20 steps of the demo
    python scripts/try_wheel.py dist/headloom-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl --tests

There is nothing on the path but the environment: no compiler, no Node. (A source distribution is
built with what this program's own path has, in an environment of pip's own.) On Linux pip takes a
torch with gigabytes of CUDA, unless `--before` names another. The first command that fails ends the
trial, with what it printed.

With `--tests` the whole test suite runs against the installed wheel instead, with the tests' own
packages beside it and this program's path: the tests of this folder, and the docstrings of what was
installed. `--tests tests/formats`, after the wheel, runs a part.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Programs that must not be needed.
UNWANTED = ("c++", "g++", "gcc", "clang", "cmake", "ninja", "node", "npm")


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
        """What a program of the environment prints; its failure ends the trial."""
        start = time.perf_counter()
        program = self.program(str(words[0]))
        done = subprocess.run(
            [program, *map(str, words[1:])], cwd=self.work, env=self.variables, text=True,
            encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(f"{time.perf_counter() - start:7.1f} s  {' '.join(map(str, words))}", flush=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nfailed with {done.returncode}")
        return done.stdout

    def program(self, name: str) -> str:
        """The path of a program of the environment."""
        found = shutil.which(name, path=str(self.programs))
        if found is None:
            raise SystemExit(f"{name}: no such program in {self.programs}")
        return found


def main() -> None:
    """Install, then help, doctor, steps, demo, view."""
    parser = argparse.ArgumentParser(description="Use a wheel as a newcomer does.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--quick", action="store_true", help="20 steps of training, not 1,000.")
    parser.add_argument(
        "--before",
        nargs="*",
        default=[],
        help="Packages that are there already: a torch for the CPU.",
    )
    parser.add_argument(
        "--tests",
        nargs="*",
        metavar="PATH",
        help="Run the tests, or those of paths, against the installed wheel.",
    )
    arguments = parser.parse_args()
    # On Windows a program that ends late keeps its files.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        newcomer = Newcomer(Path(folder))
        if arguments.before:
            newcomer.run("pip", "install", "--quiet", *arguments.before)
        if arguments.tests is None:
            try_out(newcomer, arguments.wheel.resolve(), arguments.quick)
        else:
            run_tests(newcomer, arguments.wheel.resolve(), arguments.tests or ["tests", "headloom"])


def try_out(newcomer: Newcomer, wheel: Path, quick: bool) -> None:
    """Use everything once."""
    environment = dict(newcomer.variables)
    if wheel.suffix != ".whl":  # built by pip, with a compiler but without Node
        folders = os.environ["PATH"].split(os.pathsep)
        without = [f for f in folders if not any(Path(f, name).exists() for name in UNWANTED[-2:])]
        if shutil.which("c++", path=os.pathsep.join(without)) is None:
            without.append(compilers(newcomer.work.parent))
        newcomer.variables["PATH"] = os.pathsep.join([str(newcomer.programs), *without])
        if shutil.which("node", path=newcomer.variables["PATH"]):
            raise SystemExit("node is on the path")
    newcomer.run("pip", "install", "--quiet", f"{wheel}[train,pictures,studio]")
    newcomer.variables = environment
    for name in UNWANTED:
        if shutil.which(name, path=environment["PATH"]):
            raise SystemExit(f"{name} is in the environment")

    newcomer.run("headloom", "--help")
    health = newcomer.run("headloom", "doctor", "--json")
    print(health)
    if not json.loads(health)["healthy"]:
        raise SystemExit("headloom doctor says that it is not well")
    newcomer.run("headloom", "steps", "--picture", "steps.png")
    if quick:
        package = newcomer.run(
            "python", "-c", "import headloom; print(headloom.__path__[0])"
        ).strip()
        demo = Path(package, "training", "demo.toml")
        few = ("--set", "training.max_steps=20", "--set", "training.warmup=5")
        newcomer.run("headloom", "train", demo, "--run", "runs/demo", *few)
    else:
        print(newcomer.run("headloom", "demo"))
    newcomer.run("headloom", "trace", "runs/demo", "--text", "de: 17. März 2024", "-o", "t.loom")
    newcomer.run("headloom", "export", "t.loom", "--html", "page.html", "--picture", "heads.png")
    view(newcomer, "t.loom")
    print("everything works")


def run_tests(newcomer: Newcomer, wheel: Path, what: list[str]) -> None:
    """Run tests of this folder; what is tested is the package that was installed."""
    newcomer.run("pip", "install", "--quiet", f"{wheel}[all,dev]")
    newcomer.run("pip", "install", "--quiet", "--no-deps", "timm>=1.0")
    programs = os.pathsep.join([str(newcomer.programs), os.environ["PATH"]])
    variables = {**newcomer.variables, "PATH": programs}
    python = newcomer.program("python")
    where = [python, "-c", "import headloom; print(*headloom.__path__)"]
    tested = subprocess.check_output(where, cwd=ROOT, env=variables, text=True).strip()
    if not Path(tested).is_relative_to(newcomer.programs.parent):
        raise SystemExit(f"{tested} would be tested, not what was installed")
    print(f"testing {tested}", flush=True)
    words = ("-n", "logical", "--maxprocesses", "8", "--dist", "loadfile", "--no-loadscope-reorder")
    kernels = f"--ignore-glob={tested}/mechanism/backends/triton_*.py"  # as in pyproject.toml
    command = [python, "-m", "pytest", *words, kernels, "--pyargs", *what]
    done = subprocess.run(command, cwd=ROOT, env=variables)
    if done.returncode:
        raise SystemExit(done.returncode)


def compilers(folder: Path) -> str:
    """A folder with the compiler of this machine, for a path that leaves out where Node is too."""
    programs = folder / "compilers"
    programs.mkdir()
    compiler = ("c++", "cc", "gcc", "g++", "as", "ld", "ar", "ranlib", "nm", "strip", "objdump")
    for name in (*compiler, "objcopy", "readelf", "sh", "uname", "cmake", "ninja", "make"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    return str(programs)


def view(newcomer: Newcomer, path: str) -> None:
    """Start the studio, and read its page and its script."""
    start = time.perf_counter()
    words = [newcomer.program("headloom"), "view", path, "--no-browser", "--port", "0"]
    with subprocess.Popen(
        words, cwd=newcomer.work, env=newcomer.variables, text=True, encoding="utf-8",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as studio:  # fmt: skip
        try:
            assert studio.stdout is not None
            said, address = "", None
            while address is None:
                line = studio.stdout.readline()
                said += line
                address = re.search(r"http://\S+", line)
                if not line:
                    raise SystemExit(f"{said}\nheadloom view ended")
            page = urllib.request.urlopen(address[0]).read().decode()
            scripts = re.findall(r'(?:src|href)="([^"]+\.(?:js|css)[^"]*)"', page)
            origin = re.match(r"http://[^/]+", address[0])
            sizes = {}
            for script in scripts:
                where = f"{origin[0] if origin else ''}/{script.lstrip('/')}"
                sizes[script] = len(urllib.request.urlopen(where).read())
            print(
                f"{time.perf_counter() - start:7.1f} s  headloom view {path}: {sizes or len(page)}"
            )
            if max([len(page), *sizes.values()]) < 100_000:
                raise SystemExit("the studio's front end is missing")
        finally:
            studio.terminate()


if __name__ == "__main__":
    main()
