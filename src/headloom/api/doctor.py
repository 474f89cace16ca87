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

#: Extras of contributors, and of extras.
_NOT_SHOWN = {"dev", "docs", "all"}


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
    yield from _machine()
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


def _machine() -> Iterator[Finding]:
    group = "machine"
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        described = ""
    found = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    name = found[1].strip() if found else platform.processor()
    parts = dict.fromkeys(part for part in (name, platform.machine()) if part)
    yield Finding(group, "processor", ", ".join(parts))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(group, "cores", f"{usable} of {os.cpu_count()} may be used")
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        yield Finding(group, "memory", _gib(memory))


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
    yield Finding(group, "threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS)")
    built = f", though torch {torch.__version__} is built for CUDA" if torch.version.cuda else ""
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("Apple's graphics processor (mps)")
    yield Finding(group, "accelerators", ", ".join(names) or f"none that torch can use{built}")


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
