"""What headloom catches of every family of Transformers, held against their own eager attention.

    python scripts/survey_families.py [--only 'bert,*swin*'] [--workers 2] [--json FILE] [--page]

Each family (model type) of the installed Transformers is built small, with random weights, and run
on a made batch of two, of different lengths where it takes a mask. Then it is traced, with its
default implementation and with eager attention. It is

    exact      every weight of every layer is that of eager attention, to 2e-5
    dense      the same, taken from the dense weights that the model returns
    refused    headloom refuses the model or the input, in one line
    wrong      anything else: a weight, an output, a layer that is neither there nor named as
               missing, a raw error, a model that is not left as it was
    not built  no small model, or no input for it, could be made here

Each runs in a process of its own, with a limit of time and of memory. --page writes
docs/families.md from the results. The last line is the summary; the exit code is 1 where any is
wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import select
import signal
import sys
import time
import warnings
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Of one family: seconds, and bytes of memory beside what the libraries take.
SECONDS, BYTES = 90, 6 << 30
OUTCOMES = ("exact", "dense", "refused", "wrong", "not built")


def model_names() -> dict[str, str]:
    """Return the class that is surveyed of each family: its plain model, else one with a head."""
    from transformers.models.auto import modeling_auto as auto

    names: dict[str, str] = {}
    for mapping in (
        auto.MODEL_MAPPING_NAMES,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
        auto.MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES,
        auto.MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES,
    ):
        for family, name in mapping.items():
            names.setdefault(family, name if isinstance(name, str) else name[0])
    return names


def preload() -> None:
    """Load what every family needs once, before processes are forked."""
    import torch
    import transformers.generation
    import transformers.models.auto.modeling_auto
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2_vl.modeling_qwen2_vl
    import transformers.models.t5.modeling_t5

    import headloom.tracing.capture  # noqa: F401
    from survey import examine  # noqa: F401

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


def start(family: str, name: str) -> tuple[int, int]:
    """Examine a family in a process of its own: its id, and where its result can be read."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        logging.disable(logging.CRITICAL)
        warnings.simplefilter("ignore")
        signal.alarm(SECONDS)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
        import transformers

        from survey.examine import examine

        found = asdict(examine(family, getattr(transformers, name)))
        with os.fdopen(writing, "wb") as file:
            file.write(json.dumps(found).encode())
    finally:
        os._exit(0)


def finish(family: str, name: str, process: int, reading: int) -> dict[str, Any]:
    """Return the result of a family whose process has written it, or has ended."""
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    _, status = os.waitpid(process, 0)
    if content:
        return dict(json.loads(content))
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    reason = "not done in time" if ended == signal.SIGALRM else "the process ended without a result"
    return {"family": family, "model": name, "outcome": "not built", "reason": reason,
            "difference": None, "layers": 0, "not_traced": [], "notes": []}  # fmt: skip


def survey(families: dict[str, str], workers: int) -> list[dict[str, Any]]:
    """Return the results of families, in their order."""
    waiting = list(families.items())
    running: dict[int, tuple[str, str, int, float]] = {}
    results: dict[str, dict[str, Any]] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            family, name = waiting.pop(0)
            process, reading = start(family, name)
            running[reading] = family, name, process, time.monotonic()
        ready, _, _ = select.select(list(running), [], [])
        for reading in ready:
            family, name, process, began = running.pop(reading)
            found = finish(family, name, process, reading)
            found["seconds"] = round(time.monotonic() - began, 1)
            results[family] = found
            difference = found["difference"]
            exactly = "" if difference is None else f" {difference:.0e}"
            print(f"{family}: {found['outcome']}{exactly} {found['reason']}", flush=True)
    return [results[family] for family in families]


def main() -> int:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="families, with * for anything, separated by commas")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--json", type=Path, help="write the results to a file")
    parser.add_argument("--page", action="store_true", help="write docs/families.md")
    parser.add_argument(
        "--results", type=Path, nargs="+", help="run nothing: take the results from --json files"
    )
    options = parser.parse_args()
    if options.results:
        files = [json.loads(path.read_text("utf-8")) for path in options.results]
        return report([result for file in files for result in file], options)
    preload()
    families = model_names()
    if options.only:
        patterns = options.only.split(",")
        families = {
            family: name
            for family, name in families.items()
            if any(fnmatchcase(family, pattern) for pattern in patterns)
        }
    return report(survey(families, options.workers), options)


def report(results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Write what was asked for and print the summary; the exit code."""
    results = list({result["family"]: result for result in results}.values())
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    counts = {outcome: sum(r["outcome"] == outcome for r in results) for outcome in OUTCOMES}
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    summary = f"{len(results)} families: {listed}"
    if options.page:
        import transformers

        from survey.page import page

        results.sort(key=lambda result: result["family"].lower())
        path = ROOT / "docs" / "families.md"
        path.write_text(page(results, transformers.__version__, summary), "utf-8")
    print(summary)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
