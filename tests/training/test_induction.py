"""The claims of examples/induction.py and needle.py: two layers repeat, by heads that are what they
are called, and those fetch a needle that stands anywhere in a haystack.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from headloom.analysis.effects.ablation import ablate
from headloom.analysis.heads.formation import formation
from headloom.analysis.heads.roles import head_roles
from headloom.formats.history import History
from headloom.training.inference import TrainedRun

#: The examples that are programs.
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def example_called(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


#: Options with which an example ends soon, what it prints then, and a file that it leaves.
SMALL = {
    "asked": (
        "--folder . --steps 2 --sentences 100",
        "of 4 unseen sentences|\n     6  |looks from the question to the thing: |looks-up.png",
        "looks-up.png",
    ),
    "induction": (
        "--runs . --steps 2 --since 0",
        "2 layers: 2 steps|Right on the repeated half: two layers ",
        "repeats/induction-head.png",
    ),
    "needle": ("--run . --steps 2 --texts 2", "\n 100%  |\nnothing  ", "best.safetensors"),
    "watched": ("--run . --steps 2", "The monitor took |headloom view .", "measures.jsonl"),
}


@pytest.mark.parametrize(
    "example",
    [
        # Two models, and several measures of each.
        pytest.param(path, marks=[pytest.mark.slow] if path.stem == "induction" else [])
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_a_whole_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    example: Path,
) -> None:  # fmt: skip
    options, printed, left = SMALL[example.stem]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [example.name, *options.split()])
    module = example_called(example.stem)
    for name in ("TEXTS", "TESTS"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, 4)
    module.main()
    out = capsys.readouterr().out
    for part in printed.split("|"):
        assert part in out
    assert (tmp_path / left).exists()


@pytest.mark.slow
def test_two_layers_copy_and_their_heads_are_found(tmp_path: Path) -> None:
    example = example_called("induction")
    two = example.trained(tmp_path / "two", 2, None)
    one = example.trained(tmp_path / "one", 1, None)
    loss, accuracy = example.tested(two)
    with torch.no_grad():
        assert loss() < 0.05
        assert accuracy() > 0.95
        assert example.tested(one)[1]() < 0.15
    roles = {(head.layer, head.head): head for head in head_roles(example.unseen(two))}
    previous = [place for place, head in roles.items() if head.role == "previous"]
    copying = [place for place, head in roles.items() if head.role == "induction"]
    assert {layer for layer, _ in previous} == {0}
    assert {layer for layer, _ in copying} == {1}
    # What they are called is what they are needed for.
    found = ablate(two.model, accuracy, kind="mean", heads=[*previous, copying])
    assert min(effect.value for effect in found.effects[:-1]) < 0.9
    assert found.effects[-1].value < 0.1
    # They were not there at first, nor when the loss had fallen to that of one layer.
    moments = formation(History(two.folder.history), "induction")
    of_head = [moment.scores[copying[0]] for moment in moments]
    early = [score for moment, score in zip(moments, of_head, strict=True) if moment.step < 300]
    assert max(early) < 0.3 < 0.8 < of_head[-1]
    needle_is_fetched(two)


def needle_is_fetched(run: TrainedRun) -> None:
    """The same model, asked for a part in the middle of a text, which it never was in training."""
    example = example_called("needle")
    asked = [example.texts(run, depth, 40) for depth in (0.25, 0.5, 0.75)]
    scores = example.retrieving(run, [example.Texts(one.tokens[:8], one.needle) for one in asked])
    ranked = sorted(scores, key=lambda head: scores[head], reverse=True)
    assert {layer for layer, _ in ranked[:4]} == {1}
    for place, head in enumerate(ranked):
        retrieved, mass, chance = scores[head]
        assert chance < 0.05
        assert (retrieved > 0.5 and mass > 0.4) if place < 4 else retrieved < 0.05
    found = example.without(run, asked, ranked)
    assert found.baseline > 0.95
    assert found.effects[3].value < 0.1
