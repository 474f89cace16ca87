"""Claim: from `pip install` of a wheel in an empty environment to the first picture, in seconds.

Peer: `pip install torch` alone, in an environment of its own: what anybody who uses torch pays.
Each twice: cold, with an empty cache of pip, and warm, with what that left. The picture is that of
`headloom steps --picture`. Prints seconds; last the ratio headloom / peer, cold and warm.

    make wheel && python benchmarks/bench_first_picture.py [dist/headloom-....whl]
    python benchmarks/bench_first_picture.py --torch torch==2.13.0+cpu    # not the one with CUDA
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="if not the one in dist")
    parser.add_argument("--torch", default="torch", help="what pip is to take as torch")
    arguments = parser.parse_args()
    found = sorted((ROOT / "dist").glob(f"headloom-*-cp3{sys.version_info[1]}-*.whl"))
    found += sorted((ROOT / "dist").glob("headloom-*-abi3-*.whl"))
    wheel = arguments.wheel or next(iter(found), None)
    if wheel is None:
        sys.exit("bench_first_picture.py: dist has no wheel for this Python. Run make wheel.")
    if not wheel.is_file():
        sys.exit(
            f"bench_first_picture.py: {wheel}: no such wheel. Check the path, or run make wheel."
        )
    wheel = wheel.resolve()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios = []
        for temperature in ("cold", "warm"):
            peer, _ = install(folder, f"peer-{temperature}", [arguments.torch], picture=False)
            both = [f"{wheel}[pictures]", arguments.torch]
            ours, drawn = install(folder, f"headloom-{temperature}", both, picture=True)
            print(
                f"{temperature}: torch alone {peer:.1f} s; headloom {ours:.1f} s, "
                f"and its first picture {drawn:.1f} s",
                flush=True,
            )
            ratios.append((ours + drawn) / peer)
    print(f"from pip install to the first picture, ratio cold {ratios[0]:.2f} warm {ratios[1]:.2f}")


def install(folder: Path, name: str, what: list[str], *, picture: bool) -> tuple[float, float]:
    """Seconds of an installation in an empty environment, and of the first picture there."""
    environment = folder / name
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    # Each side has a cache of its own: what the other side left would warm it.
    cache = str(folder / f"cache-{name.partition('-')[0]}")
    variables = {**os.environ, "PATH": str(programs), "PIP_CACHE_DIR": cache}
    variables |= {"MPLCONFIGDIR": str(environment / "matplotlib")}
    variables.pop("PYTHONPATH", None)

    def run(*words: str) -> float:
        start = time.perf_counter()
        done = subprocess.run(words, cwd=folder, env=variables, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: failed, for the reason above. See --torch and the wheel.")
        return time.perf_counter() - start

    quiet = ("--quiet", "--quiet", "--disable-pip-version-check")
    installed = run(str(programs / "python"), "-m", "pip", "install", *quiet, *what)
    drawn = 0.0
    if picture:
        drawn = run(str(programs / "headloom"), "steps", "--picture", str(folder / "steps.png"))
    shutil.rmtree(environment)  # gigabytes, where torch has CUDA
    return installed, drawn


if __name__ == "__main__":
    main()
