"""Two equal commands leave equal files, byte for byte, but for what the clock says.

In two processes whose hashes of strings differ, so that the order of a set is another one: one that
starts anew, and one forked from a process whose hashes are what they happen to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forked import Loaded
from tests.training.conftest import toml

from headloom.training.config import RunConfig

COMMANDS = """
import sys
from headloom.cli import main

print(hash("a string"), file=sys.stderr)
for line in sys.stdin:
    try:
        main(line.rstrip("\\n").split("\\t"))
    except SystemExit as stop:
        assert not stop.code, line
"""


def commands(config: Path, folder: Path) -> str:
    """All that a run, a trace of it, and exports of that trace write."""
    run, trace = str(folder / "run"), str(folder / "t.loom")
    lines = [
        ["train", str(config), "--run", run, "--threads", "1"],
        ["trace", run, "--text", "the cat sat, the dog", "-o", trace],
        *(
            ["export", trace, f"--{kind}", str(folder / name)]
            for kind, name in (
                ("html", "page.html"),
                ("picture", "heads.png"),
                ("picture", "heads.svg"),
                ("parquet", "edges.parquet"),
                ("graphml", "head.graphml"),
            )
        ),
        *(
            ["query", trace, "select * from heads", "-o", str(folder / f"heads.{suffix}")]
            for suffix in ("parquet", "json")
        ),
    ]
    return "\n".join("\t".join(line) for line in lines)


@pytest.fixture(scope="module")
def pair(
    loaded: Loaded, tiny: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """What the same commands left in two processes."""
    content = tiny(average=0.9).model_dump(mode="json")
    content["task"] |= {"tokens": "pieces", "vocabulary": 300}
    folder = tmp_path_factory.mktemp("equal")
    config = folder / "config.toml"
    config.write_text(toml(RunConfig.model_validate_json(json.dumps(content))))
    # Equal names, so that nothing differs but the process.
    new, forked = folders = [folder / name / "work" for name in ("new", "forked")]
    for work in folders:
        work.mkdir(parents=True)
    lines = commands(config, Path()).encode()
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=new, input=lines, capture_output=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with loaded.start(program=COMMANDS, stdin=lines, folder=forked) as process:
        _, errors = process.communicate()
        assert process.wait() == 0, errors
    assert done.stderr.splitlines()[0] != errors.splitlines()[0]
    return folders


@pytest.mark.slow
def test_equal_commands_write_equal_files(pair: list[Path]) -> None:
    contents = [
        {file.relative_to(of): file.read_bytes() for file in of.rglob("*") if file.is_file()}
        for of in pair
    ]
    first, second = contents
    assert first.keys() == second.keys()
    clocks = {Path("run/checkpoint.safetensors"), Path("run/metrics.jsonl")}
    assert clocks < first.keys()
    different = {str(path) for path in first if first[path] != second[path]}
    assert different <= {str(path) for path in clocks}
