"""Two processes that train one model by DDP: the first writes, and both end with the same bits."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
from torch import nn

import headloom
from headloom.formats.history import History
from headloom.mechanism.multihead import MultiHeadAttention


class Model(nn.Module):
    """One causal layer of headloom."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = MultiHeadAttention(8, 2, kind="decoder")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens), mask=headloom.causal())


def _train(rank: int, port: int, folder: str, watch: bool) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    try:
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(Model())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
        torch.manual_seed(rank)
        monitor = headloom.monitor(model, Path(folder) / f"run-{watch}", every=1)
        if watch:
            monitor.__enter__()
        for _ in range(3):
            model(torch.randint(0, 20, (2, 6))).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()
            if watch:
                monitor.step()
        if watch:
            monitor.__exit__(None, None, None)
            assert (monitor.overhead > 0) == (rank == 0)
        torch.save(model.module.state_dict(), Path(folder) / f"weights-{watch}-{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    for watch in (False, True):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(_train, (port, str(tmp_path), watch), nprocs=2)
    states = [
        torch.load(tmp_path / f"weights-{watch}-{rank}.pt", weights_only=True)
        for watch in (False, True)
        for rank in (0, 1)
    ]
    for state in states[1:]:
        assert all(torch.equal(state[name], value) for name, value in states[0].items())
    assert History(tmp_path / "run-True" / "history").steps == [0, 1, 2, 3]
    assert not (tmp_path / "run-False").exists()
