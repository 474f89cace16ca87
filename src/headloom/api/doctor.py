"""What this installation of headloom is, and whether its attention is right: `headloom doctor`."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from headloom.errors import InputError, installing
from headloom.formats.files import JsonObject
from headloom.version import __version__

__all__ = ["Finding", "examine", "report"]

#: An instruction set that takes less than this share of the chosen one's time is named.
QUICKER = 0.9
#: Extras of contributors, and of extras.
_NOT_SHOWN = {"dev", "docs", "all", "test-notebooks"}


@dataclass(frozen=True)
class Finding:
    """One fact.

    group: the heading that it stands under.
    name, value: what it is of, and what it is.
    problem: what is wrong, with the remedy; None: nothing.
    """

    group: str
    name: str
    value: str
    problem: str | None = None


def examine() -> Iterator[Finding]:
    """Every fact, the slow ones last: torch is imported after the first of them."""
    yield from _versions()
    yield from _extras()
    yield from _processor()
    yield from _kernels()
    yield from _places()
    yield from _self_check()


def report(findings: Iterable[Finding]) -> JsonObject:
    """What ``headloom doctor --json`` prints: the values by group and name, and the problems."""
    every = list(findings)
    groups: JsonObject = {}
    for finding in every:
        groups.setdefault(finding.group, {})[finding.name] = finding.value
    problems = [asdict(finding) for finding in every if finding.problem]
    return {"healthy": not problems, "findings": groups, "problems": problems}


def _versions() -> Iterator[Finding]:
    group = "versions"
    yield Finding(group, "headloom", f"{__version__}, in {Path(__file__).parents[1]}")
    supported = sys.version_info[:2] >= (3, 11)
    yield Finding(
        group,
        "python",
        f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}",
        None if supported else "headloom needs Python 3.11 or later.",
    )
    yield Finding(group, "system", platform.platform())
    for requirement in _requirements(None):
        yield _package(group, requirement, needed=True)


def _extras() -> Iterator[Finding]:
    try:
        names = metadata.metadata("headloom").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield Finding("extras", "headloom", "not installed by pip: its extras are not known")
        return
    for extra in names:
        if extra in _NOT_SHOWN:
            continue
        packages = [_package("", requirement, needed=False) for requirement in _requirements(extra)]
        missing = [package.name for package in packages if package.problem]
        if missing:
            value = f"{installing(extra)}; missing: {', '.join(missing)}"
        else:
            value = ", ".join(f"{package.name} {package.value}" for package in packages)
        yield Finding("extras", extra, value)


def _requirements(extra: str | None) -> list[Requirement]:
    """What headloom needs, or what one of its extras adds, those of extras that it names
    included.
    """
    try:
        lines = metadata.requires("headloom") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always != (extra is None) or (marker and not marker.evaluate({"extra": extra or ""})):
            continue
        if requirement.name == "headloom":
            found += [more for name in requirement.extras for more in _requirements(name)]
        else:
            found.append(requirement)
    return found


def _package(group: str, requirement: Requirement, *, needed: bool) -> Finding:
    """The version that is installed; a problem where there is none, or not one that serves."""
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(group, name, "missing", f'{name} is missing. pip install "{requirement}"')
    problem = None
    if not requirement.specifier.contains(version, prereleases=True):
        wanted = f"{name}{requirement.specifier}"
        problem = f'{name} is {version}, headloom needs {wanted}. pip install "{wanted}"'
    return Finding(group, name, version, problem)


def _processor() -> Iterator[Finding]:
    group = "machine"
    yield Finding(group, "processor", _processor_name())
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(group, "cores", f"{usable} of {os.cpu_count()} may be used")
    yield Finding(group, "memory", _memory())


def _processor_name() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        described = ""
    found = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    name = found[1].strip() if found else platform.processor()
    return ", ".join(dict.fromkeys(part for part in (name, platform.machine()) if part))


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if " kB" in line}
        free = f"{_gib(sizes['MemAvailable'])} free of {_gib(sizes['MemTotal'])}"
    except (OSError, KeyError, ValueError):
        pass
    else:
        try:  # what a container may take of it
            most = int(Path("/sys/fs/cgroup/memory.max").read_text("ascii"))
        except (OSError, ValueError):
            return free
        return f"{free}, {_gib(most)} for this container"
    try:
        return f"{_gib(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))}"
    except (AttributeError, OSError, ValueError):
        return "not known"


def _gib(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"


def _kernels() -> Iterator[Finding]:
    import torch

    from headloom.mechanism.backends.compiled import (
        INSTRUCTION_SET,
        NO_KERNELS,
        compiled_instruction_sets,
        instruction_sets,
        kernels,
    )

    group = "attention"
    runs, compiled = instruction_sets(), compiled_instruction_sets()
    if kernels is None:
        # Without kernels headloom works; kernels that are there and do not load are a fault.
        broken = importlib.util.find_spec("headloom._native") is not None
        yield Finding(
            group,
            "kernels",
            "none: torch computes everything, slower",
            f"{NO_KERNELS}. Install headloom again, with a compiler." if broken else None,
        )
    else:
        yield Finding(
            group,
            "compiled for",
            ", ".join(compiled) or "not known",
            None if compiled else "the native kernels were built from other sources; make setup",
        )
        yield Finding(group, "runs here", ", ".join(runs))
        named = f"{INSTRUCTION_SET}, by HEADLOOM_INSTRUCTION_SET" if INSTRUCTION_SET else runs[0]
        problem = None
        if INSTRUCTION_SET and INSTRUCTION_SET not in runs:
            problem = (
                f"HEADLOOM_INSTRUCTION_SET is {INSTRUCTION_SET}, which this processor or build "
                f"lacks: "
                f"take one of {', '.join(runs)}, or unset it."
            )
        yield Finding(group, "chosen", named, problem)
        if problem is None:
            yield Finding(group, "speed", _speeds(INSTRUCTION_SET or runs[0]))
    yield Finding(group, "threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS, --threads)")
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    yield Finding(group, "BLAS of torch", blas[1] if blas else "not known")
    built = f", though torch {torch.__version__} is built for CUDA" if torch.version.cuda else ""
    none = f"none that torch can use{built}"
    yield Finding(group, "accelerators", ", ".join(_accelerators()) or none)
    if importlib.util.find_spec("torchvision") is not None:
        yield _torchvision(group)


def _torchvision(group: str) -> Finding:
    """Whether it loads beside torch: another package brings it along, and a torch of its own."""
    try:
        return Finding(group, "torchvision", importlib.import_module("torchvision").__version__)
    except (ImportError, OSError, RuntimeError) as error:
        problem = f"torchvision does not load beside this torch: {str(error).splitlines()[0]}. "
        problem += "pip uninstall torchvision, or see docs/install.md."
        return Finding(group, "torchvision", "does not load", problem)


def _speeds(chosen: str) -> str:
    """The time of each instruction set, of that of the chosen one; and what would be quicker."""
    from headloom.mechanism.self_check import instruction_set_seconds

    seconds = instruction_set_seconds()
    ratios = {name: taken / seconds[chosen] for name, taken in seconds.items()}
    quickest = min(ratios, key=ratios.__getitem__)
    said = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    said += f" of the time of {chosen} (4 heads of 512 tokens, one thread)"
    if ratios[quickest] < QUICKER:
        said += f"; HEADLOOM_INSTRUCTION_SET={quickest} is quicker here now"
    return said


def _accelerators() -> Iterator[str]:
    import torch

    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            yield torch.cuda.get_device_name(number)
    if torch.backends.mps.is_available():
        yield "Apple's graphics processor (mps)"


def _places() -> Iterator[Finding]:
    from headloom.studio.page import script

    group = "folders"
    try:
        value, problem = f"built, {len(script()) / 1e6:.2f} MB", None
    except InputError as error:
        value, problem = "missing", str(error)
    yield Finding(group, "studio", value, problem)
    # As huggingface_hub, which need not be installed, chooses it.
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface")
    yield _folder(group, "models of the hub", Path(os.environ.get("HF_HUB_CACHE") or home / "hub"))
    yield _folder(group, "here", Path.cwd())


def _folder(group: str, name: str, path: Path) -> Finding:
    """A folder that headloom writes to: the space that is left, a problem where it may not
    write.
    """
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    problem = None if os.access(there, os.W_OK) else f"{there} cannot be written to."
    yet = "" if path.exists() else ", made when it is needed"
    return Finding(group, name, f"{path}{yet}, {_gib(shutil.disk_usage(there).free)} free", problem)


def _self_check() -> Iterator[Finding]:
    import torch

    from headloom.mechanism.self_check import check_attention

    group = "self-check against float64"
    start = time.perf_counter()
    checks: dict[str, list[tuple[str, float, str]]] = {}
    # On a busy machine, threads that wait for each other would take most of the time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for check in check_attention():
            checks.setdefault(check.backend, []).append((check.call, check.error, check.worst))
    finally:
        torch.set_num_threads(threads)
    for backend, errors in checks.items():
        wrong = [(call, error, worst) for call, error, worst in errors if not error <= 1]
        value = f"{len(errors) - len(wrong)} of {len(errors)} calls right"
        value += f", error {max(error for _, error, _ in errors):.0%} of what rounding may cause"
        problem = None
        if wrong:
            call, error, worst = wrong[0]
            remedy = (
                "Please report it; another of HEADLOOM_INSTRUCTION_SET's names goes round it."
                if backend != "torch"
                else "Install torch again."
            )
            problem = (
                f"{backend}: {worst} of the call '{call}' is off by {error:.3g} times what "
                f"rounding may cause. {remedy}"
            )
        yield Finding(group, backend, value, problem)
    yield Finding(group, "took", f"{time.perf_counter() - start:.1f} s")
