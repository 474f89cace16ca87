"""Claim: from `pip install` of a wheel in an empty environment to the first picture, in seconds.

Peer: `pip install torch` alone, in an environment of its own: what anybody who uses torch pays.
Each twice: cold, with an empty cache of pip, and warm, with what that left. The picture is that of
`weft steps --picture`. Prints seconds; last the ratio weft / peer, cold and warm.

    make wheel && python benchmarks/bench_first_picture.py [dist/weft-....whl]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from weft.errors import InputError

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run and print."""
    wheels = [Path(word).resolve() for word in sys.argv[1:]] or sorted(
        (ROOT / "dist").glob(f"weft-*-cp3{sys.version_info[1]}-*.whl")
    )
    if not wheels:
        raise InputError("dist has no wheel for this Python. Run make wheel.")
    wheel = wheels[0]
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios = []
        for temperature in ("cold", "warm"):
            peer, _ = install(folder, f"peer-{temperature}", "torch", picture=False)
            ours, drawn = install(folder, f"weft-{temperature}", f"{wheel}[pictures]", picture=True)
            print(
                f"{temperature}: torch alone {peer:.1f} s; weft {ours:.1f} s, "
                f"and its first picture {drawn:.1f} s",
                flush=True,
            )
            ratios.append((ours + drawn) / peer)
    print(f"from pip install to the first picture, ratio cold {ratios[0]:.2f} warm {ratios[1]:.2f}")


def install(folder: Path, name: str, what: str, *, picture: bool) -> tuple[float, float]:
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
        subprocess.run(words, cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    quiet = ("--quiet", "--quiet", "--disable-pip-version-check")
    installed = run(str(programs / "python"), "-m", "pip", "install", *quiet, what)
    if not picture:
        return installed, 0.0
    return installed, run(str(programs / "weft"), "steps", "--picture", str(folder / "steps.png"))


if __name__ == "__main__":
    main()
