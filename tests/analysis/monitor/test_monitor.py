"""A watched training ends with the same bits; what its folder holds, whatever happens to it."""

from __future__ import annotations

import copy
import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.analysis.monitor.conftest import same_state
from torch import Tensor, nn

import headloom
from headloom.analysis.monitor.probe import Probe
from headloom.errors import InputError
from headloom.formats.history import History
from headloom.formats.run import Reports, RunFolder
from headloom.mechanism.spectra import product_cells

Train = Callable[..., None]


def steps_of(folder: Path) -> list[int]:
    return [report["step"] for report in Reports(folder / "measures.jsonl", "measures").read()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_training_ends_with_the_same_bits(
    tmp_path: Path, gpt2: Any, batches: list[Tensor], trained: Train, implementation: str
) -> None:
    """With dropout, which draws random numbers, and measured at every step."""
    alone, watched = gpt2(), gpt2()
    for model in (alone, watched):
        model.set_attn_implementation(implementation)
    trained(alone, batches[:12])
    with headloom.monitor(watched, tmp_path / "run", every=1) as monitor:
        trained(watched, batches[:12], monitor)
    assert same_state(alone, watched)
    assert watched.training
    assert steps_of(tmp_path / "run") == list(range(13))
    assert History(tmp_path / "run" / "history").steps == [0, 1, 2, 4, 8, 12]
    assert RunFolder(tmp_path / "run").state == "finished"
    assert not watched._forward_pre_hooks


def test_the_probe_is_the_first_text_of_the_first_batch(
    tmp_path: Path, gpt2: Any, batches: list[Tensor], trained: Train
) -> None:
    model = gpt2()
    with headloom.monitor(model, tmp_path / "run") as monitor:
        trained(model, batches[:3], monitor)
    probe = Probe.open(tmp_path / "run" / "probe.safetensors", torch.device("cpu"))
    assert set(probe.inputs) == {"input_ids"}
    assert torch.equal(probe.inputs["input_ids"], batches[0][:1])
    layer = History(tmp_path / "run" / "history")[2].layers[0]
    assert layer.query_tokens == [f"#{number}" for number in batches[0][0].tolist()]


def test_losses_are_reported(
    tmp_path: Path, gpt2: Any, batches: list[Tensor], trained: Train
) -> None:
    model, losses = gpt2(), []
    with headloom.monitor(model, tmp_path / "run", every=10) as monitor:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches[:25]:
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
            monitor.step(loss, **({"validation_loss": 3.5} if len(losses) == 7 else {}))
    reports = RunFolder(tmp_path / "run").reports.read()
    assert reports[0] == {"step": 7, "validation_loss": 3.5}
    assert [report["step"] for report in reports[1:]] == [20, 25]
    assert reports[1]["loss"] == pytest.approx(sum(losses[:20]) / 20)
    assert reports[2]["loss"] == pytest.approx(sum(losses[20:]) / 5)


def test_a_training_that_is_taken_up_again_is_measured_as_if_it_never_stopped(
    tmp_path: Path, gpt2: Any, batches: list[Tensor]
) -> None:
    """Stopped by an error after 7 steps, taken up from a checkpoint of step 5."""

    def train(model: Any, optimiser: Any, batches: list[Tensor], monitor: Any) -> None:
        for batch in batches:
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            monitor.step()

    def made() -> tuple[Any, Any]:
        model = gpt2(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    model, optimiser = made()
    with headloom.monitor(model, tmp_path / "whole", every=2) as monitor:
        train(model, optimiser, batches[:10], monitor)

    model, optimiser = made()
    with (
        pytest.raises(ZeroDivisionError),
        headloom.monitor(model, tmp_path / "parts", every=2) as monitor,
    ):
        train(model, optimiser, batches[:5], monitor)
        checkpoint = copy.deepcopy(model.state_dict())
        train(model, optimiser, batches[5:7], monitor)
        raise ZeroDivisionError
    assert RunFolder(tmp_path / "parts").state == "training"
    assert steps_of(tmp_path / "parts") == [0, 1, 2, 4, 6]
    # A process that was killed while it wrote leaves half a line.
    with (tmp_path / "parts" / "measures.jsonl").open("a") as file:
        file.write('{"step": 8, "layers": {"transf')

    model, optimiser = made()
    model.load_state_dict(checkpoint)
    with headloom.monitor(model, tmp_path / "parts", every=2, step=5) as monitor:
        train(model, optimiser, batches[5:10], monitor)

    def read(name: str) -> list[Any]:
        reports = Reports(tmp_path / name / "measures.jsonl", "measures").read()
        return [(report["step"], report["layers"]) for report in reports if report["step"] != 5]

    assert read("parts") == read("whole")
    histories = [History(tmp_path / name / "history") for name in ("whole", "parts")]
    assert histories[0].steps == [0, 1, 2, 4, 8, 10]
    assert histories[1].steps == [0, 1, 2, 4, 5, 8, 10]
    one, other = (history[10].layers[1] for history in histories)
    assert torch.equal(one.matrices["W_Q"], other.matrices["W_Q"])
    assert one.query_tokens == other.query_tokens


def test_trainings_are_not_mixed(tmp_path: Path, gpt2: Any, batches: list[Tensor]) -> None:
    probe = {"input_ids": batches[0][:1]}
    folder = tmp_path / "run"
    with headloom.monitor(gpt2(), folder, probe=probe) as monitor:
        for _ in range(3):
            monitor.step()
    with (
        pytest.raises(InputError, match=r"holds a training of 3 steps already\. Choose another"),
        headloom.monitor(gpt2(), folder),
    ):
        pass
    with (
        pytest.raises(
            InputError, match=r"another model: .*h\.0\.attn with 2 heads there, .* 4 now"
        ),
        headloom.monitor(gpt2(n_head=4), folder, probe=probe, step=3),
    ):
        pass
    assert steps_of(folder) == [0, 1, 2, 3]
    with headloom.monitor(gpt2(), folder, probe=probe, every=1, step=2, overwrite=True) as monitor:
        monitor.step()
    assert steps_of(folder) == [0, 1, 2, 3]
    (folder / "mine.txt").write_text("mine")
    with headloom.monitor(gpt2(n_head=4), folder, probe=probe, overwrite=True):
        pass
    assert steps_of(folder) == [0]
    assert (folder / "mine.txt").read_text() == "mine"
    with (
        pytest.raises(InputError, match="being trained already"),
        headloom.monitor(gpt2(), folder, probe=probe, overwrite=True),
        headloom.monitor(gpt2(), folder, probe=probe, overwrite=True),
    ):
        pass


def test_what_fails_while_it_trains_is_warned_of_once(
    tmp_path: Path, gpt2: Any, batches: list[Tensor], trained: Train
) -> None:
    """The folder is gone: the training goes on, and ends with the same bits."""
    alone, watched = gpt2(), gpt2()
    trained(alone, batches[:6])
    with (
        pytest.warns(
            UserWarning, match=r"headloom\.monitor: step 1: .* The training goes on"
        ) as told,
        headloom.monitor(watched, tmp_path / "run", every=1) as monitor,
    ):
        watched(input_ids=batches[0])
        shutil.rmtree(tmp_path / "run")
        trained(watched, batches[:6], monitor)
    assert same_state(alone, watched)
    assert len(told) == 1


def test_a_model_that_is_not_called_is_not_measured(tmp_path: Path, gpt2: Any) -> None:
    with (
        pytest.warns(UserWarning, match="was not called, or is compiled.* Give probe="),
        headloom.monitor(gpt2(), tmp_path / "run") as monitor,
    ):
        for _ in range(5):
            monitor.step(torch.ones(()))
    assert not (tmp_path / "run" / "run.json").exists()


def test_large_matrices_are_pictures(
    tmp_path: Path, gpt2: Any, batches: list[Tensor], monkeypatch: Any
) -> None:
    """W_Q W_K^T of 96 rows on 32: of each 3 x 3 cells the one that is furthest from 0."""
    model = gpt2(n_embd=96)
    monkeypatch.setattr("headloom.analysis.monitor.monitor.LARGE", 0)
    with headloom.monitor(model, tmp_path / "run", probe={"input_ids": batches[0][:1]}):
        pass
    snapshot = History(tmp_path / "run" / "history")[0]
    layer = snapshot.layers[0]
    assert layer.matrices == {} and layer.product is not None
    weight = model.transformer.h[0].attn.c_attn.weight.detach()
    queries, keys = (part.unflatten(1, (2, 48)).transpose(0, 1) for part in weight.chunk(3, 1)[:2])
    whole = queries @ keys.mT
    assert layer.product.shape == (2, 32, 32)
    for head, row, column in ((0, 0, 0), (1, 31, 5), (0, 7, 20)):
        cells = whole[head, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3].flatten()
        assert layer.product[head, row, column] == pytest.approx(
            float(cells[cells.abs().argmax()]), rel=1e-5
        )
    assert torch.allclose(product_cells(queries, keys, 96), whole, atol=1e-6)


def test_warnings_of_collapse_and_explosion(tmp_path: Path, gpt2: Any, batches: Any) -> None:
    """W_Q and W_K grow by hand: each layer is warned of once, until it is in order again."""
    model = gpt2()
    folder = tmp_path / "run"

    def grow(factor: float) -> None:
        with torch.no_grad():
            model.transformer.h[1].attn.c_attn.weight[:, :32] *= factor

    with headloom.monitor(model, folder, probe={"input_ids": batches[0][:1]}, every=1) as monitor:
        monitor.step()
        assert monitor.warnings == []
        grow(300)
        with pytest.warns(
            UserWarning, match=r"headloom\.monitor: step 2: transformer\.h\.1\.attn:"
        ):
            monitor.step()
        kinds = [text.split(": ")[2] for text in monitor.warnings]
        assert kinds == ["entropy collapses", "scores explode"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            monitor.step()
            grow(1 / 300)
            monitor.step()
        grow(300)
        with pytest.warns(UserWarning, match="step 5"):
            monitor.step()
        with torch.no_grad():
            model.transformer.h[0].attn.c_attn.weight[0, 0] = math.nan
        with pytest.warns(UserWarning, match="numbers that are infinite or NaN") as told:
            monitor.step()
        assert ["h.0.attn" in str(warning.message) for warning in told] == [True, False]
    reports = Reports(folder / "measures.jsonl", "measures").read()
    assert [len(report.get("warnings", [])) for report in reports] == [0, 0, 2, 0, 0, 2, 2]
    assert reports[2]["warnings"][0]["kind"] == "entropy collapse"
    # Head 1 does not read what head 0 made of it, in the same layer.
    assert reports[6]["layers"]["transformer.h.0.attn"]["entropy"][0] is None
    assert reports[6]["layers"]["transformer.h.1.attn"]["entropy"] == [None, None]
    assert History(folder / "history")[6].layers[0].measures["effective_rank"] == [None, None]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, r"every is 0"),
        ({"step": -1}, r"step is -1"),
        ({"layers": "attn"}, r"layers='attn'; expected a list of numbers or paths"),
        ({"probe": "a text"}, r"probe is str; expected a tensor, a tuple of them, or a dict"),
    ],
)
def test_what_cannot_be_asked(
    tmp_path: Path, gpt2: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=f"monitor: {message}"):
        headloom.monitor(gpt2(), **{"folder": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_watched(tmp_path: Path, gpt2: Any, batches: list[Tensor]) -> None:
    with pytest.raises(InputError, match="the model is a str 'gpt2'"):
        headloom.monitor("gpt2", tmp_path / "run")  # type: ignore[arg-type]
    model = nn.Linear(2, 2)
    model.weight.ds_id = 0  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="spread over processes"):
        headloom.monitor(model, tmp_path / "run")
    monitor = headloom.monitor(gpt2(), tmp_path / "run")
    with pytest.raises(InputError, match="enter it first"):
        monitor.step()
    with (
        pytest.raises(InputError, match="trace"),
        headloom.monitor(nn.Linear(2, 2), tmp_path / "run", probe=torch.zeros(1, 2)),
    ):
        pass
    # Nothing stays behind that stands in the way of a second try.
    with headloom.monitor(gpt2(), tmp_path / "run", probe={"input_ids": batches[0][:1]}):
        pass
