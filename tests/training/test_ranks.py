"""Several processes train one model: as one would, and without a bit lost when they are stopped.

Real processes that talk by gloo. One process imports headloom and forks the others, so that a start
costs no import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import assert_same, toml

from headloom.formats.history import History
from headloom.formats.run import RunFolder
from headloom.formats.tensors import load_tensors
from headloom.training.batches import Batch
from headloom.training.config import RunConfig, check_config
from headloom.training.inference import open_run
from headloom.training.loop import train
from headloom.training.progress import Callback
from headloom.training.tasks import make_task

ConfigMaker = Callable[..., RunConfig]

#: Reads jobs as JSON, one a line, and answers each with what its processes ended with: "" or the
#: error. A process told to "die" kills itself before that step; a "strict" one ends by a warning.
PARENT = """
import faulthandler, json, os, signal, sys, tempfile, warnings
from pathlib import Path
import torch, torch.nn.parallel
import headloom.training.loop as loop
from headloom.training.config import load_config
from headloom.training.progress import Callback

class Callback(Callback):
    def __init__(self, job, rank):
        self.job, self.rank = job, rank
    def stepped(self, position, loss, rate):
        if position.step == self.job.get("stop"):
            raise KeyboardInterrupt
        if [position.step, self.rank] == self.job.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)

def rank_main(job, rank, folder):
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(job["ranks"]), "HEADLOOM_RENDEZVOUS": folder,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    warnings.simplefilter("error" if job.get("strict") else "default")
    sys.stdout = sys.stderr = open(os.devnull, "w")
    faulthandler.dump_traceback_later(100, exit=True, file=open(job["config"] + ".hang", "a"))
    try:
        loop.train(load_config(Path(job["config"])), Path(job["run"]), Callback(job, rank))
        error = ""
    except BaseException as problem:
        error = f"{type(problem).__name__}: {problem}"
    (Path(folder) / f"end-{rank}").write_text(error)
    os._exit(0)

for line in sys.stdin:
    job = json.loads(line)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(job["ranks"]):
            child = os.fork()
            if child == 0:
                rank_main(job, rank, folder)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        ends = [Path(folder) / f"end-{rank}" for rank in range(job["ranks"])]
        print(json.dumps([e.read_text() if e.exists() else "killed" for e in ends]), flush=True)
"""


@dataclass
class Starter:
    """Starts processes that train together."""

    process: subprocess.Popen[str]
    folder: Path

    def run(self, config: RunConfig, path: Path, ranks: int, **orders: Any) -> list[str]:
        """How each ended: "" or its error; orders: see PARENT."""
        file = self.folder / "config.toml"
        file.write_text(toml(config))
        job = {"config": str(file), "run": str(path), "ranks": ranks, **orders}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        ends: list[str] = json.loads(self.process.stdout.readline())
        return ends


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starter]:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Starter(process, tmp_path_factory.mktemp("configs"))
        assert process.stdin is not None
        process.stdin.close()


def losses(path: Path) -> list[float]:
    """Of all reports, in order."""
    reports = RunFolder(path).reports.read()
    return [report.get("loss", report.get("validation_loss")) for report in reports]


def alone(config: RunConfig, path: Path) -> None:
    train(config, path, Callback())


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_any_number_of_processes_learns_what_one_does(
    optimiser: str, tiny: ConfigMaker, starter: Starter, tmp_path: Path
) -> None:
    config = tiny(
        max_steps=40, average=0.9, accumulate=2, label_smoothing=0.1, optimiser=optimiser,
        peak_learning_rate=3e-3,
    )  # fmt: skip
    alone(config, tmp_path / "1")
    whole, _ = load_tensors(tmp_path / "1" / "best.safetensors", "weights")
    for ranks in (2, 4):
        assert starter.run(config, tmp_path / str(ranks), ranks) == [""] * ranks
        assert losses(tmp_path / str(ranks)) == pytest.approx(losses(tmp_path / "1"), abs=1e-4)
        weights, _ = load_tensors(tmp_path / str(ranks) / "best.safetensors", "weights")
        assert weights.keys() == whole.keys()
        # What the bias of a key is changes no weight: Adam follows its rounding errors.
        names = [name for name in whole if not name.endswith("w_k.bias")]
        differences = {n: float((weights[n] - whole[n]).abs().max()) for n in names}
        assert max(differences.values()) < 2e-3, differences


@pytest.mark.slow
def test_the_history_is_that_of_one_process(
    tiny: ConfigMaker, starter: Starter, tmp_path: Path
) -> None:
    config = tiny()
    alone(config, tmp_path / "1")
    assert starter.run(config, tmp_path / "2", 2) == ["", ""]
    one, two = (History(tmp_path / name / "history") for name in ("1", "2"))
    assert two.steps == one.steps
    for step in one.steps:
        for mine, other in zip(two[step].layers, one[step].layers, strict=True):
            for name, matrix in other.matrices.items():
                assert torch.allclose(mine.matrices[name], matrix, atol=1e-4)
            for name, measure in other.measures.items():
                known = [value for value in measure if value is not None]
                other_known = [value for value in mine.measures[name] if value is not None]
                assert other_known == pytest.approx(known, rel=1e-2, abs=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("end", [{"stop": 8}, {"die": [9, 1]}, {"die": [7, 0]}])
def test_stopped_or_killed_and_gone_on_with_is_the_same_to_the_last_bit(
    end: dict[str, Any], tiny: ConfigMaker, starter: Starter, tmp_path: Path
) -> None:
    config = tiny(model={"dropout": 0.2, "attention_dropout": 0.1}, average=0.9)
    assert starter.run(config, tmp_path / "whole", 2) == ["", ""]
    ends = starter.run(config, tmp_path / "pieces", 2, **end)
    assert "" not in ends
    if "die" in end:
        assert ends[end["die"][1]] == "killed"
        assert ends[1 - end["die"][1]].startswith("GroupError: another process")
    assert starter.run(config, tmp_path / "pieces", 2) == ["", ""]
    assert_same(tmp_path / "whole", tmp_path / "pieces")
    assert losses(tmp_path / "whole") == losses(tmp_path / "pieces")


@pytest.mark.slow
def test_a_checkpoint_of_one_process_goes_on_in_two(
    tiny: ConfigMaker, starter: Starter, tmp_path: Path
) -> None:
    config = tiny(optimiser="muon")
    alone(config, tmp_path / "1")
    assert starter.run(config, tmp_path / "run", 1, stop=7)[0]
    assert RunFolder(tmp_path / "run").checkpoint.exists()
    assert starter.run(config, tmp_path / "run", 2) == ["", ""]
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "1"), abs=1e-4)


def test_a_share_without_texts_has_no_targets() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    batch = Batch({"tokens": ids}, ids, 4)
    shares = [batch.share(rank, 3, ignored=-100) for rank in range(3)]
    assert [share.targets.tolist() for share in shares] == [[[1, 2]], [[3, 4]], [[-100, -100]]]
    assert [share.tokens for share in shares] == [4, 4, 4]


@pytest.mark.slow
def test_what_is_wrong_is_said_once(tiny: ConfigMaker, starter: Starter, tmp_path: Path) -> None:
    """By the first process, where all would say it; nobody waits for ever."""
    content = tiny().model_dump(mode="json", exclude_unset=True)
    content["task"]["file"] = str(tmp_path / "no")
    ends = starter.run(check_config(content, "test"), tmp_path / "a", 2)
    assert ends[0].startswith("DataError")
    assert ends[1] == "GroupError: the first process failed to start."
    assert not (tmp_path / "a").exists()
    ends = starter.run(tiny(peak_learning_rate=1e30, clip_norm=0), tmp_path / "b", 2)
    assert ends[0].startswith("InputError: step ")
    assert ends[1].startswith("GroupError: the ")


@pytest.mark.slow
def test_a_graph_is_learned_by_one_process(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "graph.npz").write_bytes(b"not read")
    task = {"kind": "nodes", "graph": str(tmp_path / "graph.npz")}
    ends = starter.run(check_config({"task": task}, "test"), tmp_path / "a", 2)
    assert all("a graph is learned as a whole, by one process" in end for end in ends)


@pytest.mark.slow
def test_batch_norms_are_those_of_the_checkpoint(starter: Starter, tmp_path: Path) -> None:
    """Each process norms its own share; what is kept goes on the same, and was validated."""
    draw = np.random.default_rng(1)
    for part, size in (("train", 64), ("valid", 16)):
        images = draw.integers(0, 255, (size, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"{part}.npz", images=images, labels=images[:, 0, 0] % 3)
    settings = {
        "task": {
            "kind": "images", "folder": str(tmp_path), "train": "train.npz", "valid": "valid.npz",
        },
        "model": {"kind": "convolutional", "channels": [4, 4], "halved": [1], "attention": 0},
        "training": {
            "max_steps": 12, "batch_tokens": 1024, "validate_every": 4, "checkpoint_every": 5,
            "warmup": 2, "average": 0.9,
        },
    }  # fmt: skip
    config = check_config(settings, "test")
    assert starter.run(config, tmp_path / "whole", 2) == ["", ""]
    assert "" not in starter.run(config, tmp_path / "pieces", 2, stop=7)
    assert starter.run(config, tmp_path / "pieces", 2) == ["", ""]
    assert losses(tmp_path / "whole") == losses(tmp_path / "pieces")
    best = [(tmp_path / name / "best.safetensors").read_bytes() for name in ("whole", "pieces")]
    assert best[0] == best[1]
    run = open_run(tmp_path / "whole")
    assert any("running_mean" in name for name in run.model.state_dict())
    task = make_task(run.config, run.data)
    found = task.results(run.model.eval(), split="valid", beam=1, progress=lambda done, total: None)
    measured = next(m for m in found.measures if m.name == "loss")
    reports = RunFolder(tmp_path / "whole").reports.read()
    least = min(r["validation_loss"] for r in reports if "validation_loss" in r)
    assert float(measured.formula(measured.statistics.sum(0))) == pytest.approx(least, abs=1e-5)
