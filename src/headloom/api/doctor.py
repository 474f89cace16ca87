"""`headloom.doctor`: check this installation, and attention against float64."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from packaging.requirements import Requirement

from headloom.errors import InputError, installing
from headloom.version import __version__

if TYPE_CHECKING:
    import pandas

#: Extras of contributors, and those that combine others.
_NOT_SHOWN = {"dev", "docs", "all"}


class Finding(NamedTuple):
    """Fact under a heading; problem: an error with its remedy, or None."""

    group: str
    name: str
    value: str
    problem: str | None = None


def doctor(*, progress: Callable[[str, str, str], None] | None = None) -> pandas.DataFrame:
    """Show what is installed and what this machine has, and check attention against float64.

    progress: called with group, name and value of each finding.

    Returns: a DataFrame with the columns group, name, value, and problem: an error with its remedy,
    or None.
    """
    findings = []
    # Slow parts last: torch is imported after the first two.
    for part in (_packages, _machine, _kernels, _self_check):
        for finding in part():
            findings.append(finding)
            if progress is not None:
                progress(finding.group, finding.name, finding.value)
    import pandas

    return pandas.DataFrame(findings, dtype=object)


def _packages() -> Iterator[Finding]:
    """List the packages that headloom and its extras need."""
    group, python = "versions", f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding(group, "headloom", f"{__version__}, in {Path(__file__).parents[1]}")
    yield Finding(group, "python", f"{python}, {sys.executable}")
    yield Finding(group, "system", platform.platform())
    try:
        extras = metadata.metadata("headloom").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        yield Finding("extras", "headloom", "not installed by pip: its extras are unknown")
        return
    for requirement in _requirements(None):
        yield _package(group, requirement)
    for extra in extras:
        if extra not in _NOT_SHOWN:
            packages = [_package("", requirement) for requirement in _requirements(extra)]
            value = ", ".join(f"{package.name} {package.value}" for package in packages)
            if missing := [package.name for package in packages if package.problem]:
                value = f"{installing(extra)}; missing: {', '.join(missing)}"
            yield Finding("extras", extra, value)


def _requirements(extra: str | None) -> Iterator[Requirement]:
    """Yield the requirements of headloom, or of an extra and the extras in it."""
    for requirement in map(Requirement, metadata.requires("headloom") or []):
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if always != (extra is None) or (marker and not marker.evaluate({"extra": extra or ""})):
            continue
        if requirement.name == "headloom":
            for name in requirement.extras:
                yield from _requirements(name)
        else:
            yield requirement


def _package(group: str, requirement: Requirement) -> Finding:
    """Return the installed version; a problem if it is missing or does not fit."""
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(group, name, "missing", f'{name} is missing. pip install "{requirement}"')
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(group, name, version)
    wanted = f"{name}{requirement.specifier}"
    problem = f'{name} is {version}, headloom needs {wanted}. pip install "{wanted}"'
    return Finding(group, name, version, problem)


def _machine() -> Iterator[Finding]:
    from headloom.studio.page import script

    try:
        described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        described = ""
    model = re.search(r"^model name\s*: (.+)$", described, re.MULTILINE)
    names = (model[1].strip() if model else platform.processor(), platform.machine())
    yield Finding("machine", "processor", ", ".join(filter(None, names)))
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("machine", "cores", f"{usable} of {os.cpu_count()} may be used")
    try:
        yield Finding("machine", "studio", f"built, {len(script()) / 1e6:.2f} MB")
    except InputError as error:
        yield Finding("machine", "studio", "missing", str(error))


def _kernels() -> Iterator[Finding]:
    import torch

    from headloom.mechanism.backends import compiled

    group, broken = "attention", importlib.util.find_spec("headloom._native") is not None
    chosen, runs = compiled.INSTRUCTION_SET, compiled.instruction_sets()
    if compiled.kernels is None:
        # headloom works without kernels; kernels that exist but do not load are an error.
        problem = f"{compiled.NO_KERNELS}. Install headloom again, with a compiler."
        value = "none: torch computes everything, more slowly"
        yield Finding(group, "kernels", value, problem if broken else None)
    else:
        known = ", ".join(compiled.compiled_instruction_sets())
        problem = "the native kernels were built from other sources; make setup"
        yield Finding(group, "compiled for", known or "not known", None if known else problem)
        yield Finding(group, "runs here", ", ".join(runs))
        named = f"{chosen}, by HEADLOOM_INSTRUCTION_SET" if chosen else runs[0]
        problem = (
            f"HEADLOOM_INSTRUCTION_SET is {chosen}, which this processor or build lacks: use one "
            f"of {', '.join(runs)}, or unset it."
        )
        yield Finding(group, "chosen", named, problem if chosen and chosen not in runs else None)
    yield Finding(group, "threads", f"{torch.get_num_threads()} (OMP_NUM_THREADS)")
    built = f", though torch {torch.__version__} is built for CUDA" if torch.version.cuda else ""
    names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("Apple's graphics processor (mps)")
    yield Finding(group, "accelerators", ", ".join(names) or f"none that torch can use{built}")


def _self_check() -> Iterator[Finding]:
    import torch

    from headloom.mechanism.self_check import Check, check_attention

    checks: dict[str, list[Check]] = defaultdict(list)
    # On a busy machine, waiting threads would take most of the time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for check in check_attention():
            checks[check.backend].append(check)
    finally:
        torch.set_num_threads(threads)
    for backend, calls in checks.items():
        wrong = [check for check in calls if not check.error <= 1]
        value = f"{len(calls) - len(wrong)} of {len(calls)} calls right"
        value += f", error {max(check.error for check in calls):.0%} of the rounding error"
        problem = None
        if wrong:
            remedy = "Install torch again."
            if backend != "torch":
                remedy = "Please report it; another HEADLOOM_INSTRUCTION_SET avoids it."
            problem = (
                f"{backend}: {wrong[0].worst} of the call '{wrong[0].call}' is wrong by "
                f"{wrong[0].error:.3g} times the rounding error. {remedy}"
            )
        yield Finding("self-check against float64", backend, value, problem)
