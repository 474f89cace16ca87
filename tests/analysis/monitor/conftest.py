"""Small models, and loops that train them, for the tests of the monitor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", reason="needs Transformers")


@pytest.fixture
def gpt2() -> Callable[..., Any]:
    """A function that makes a small GPT-2, with dropout: it draws random numbers at each step."""

    def make(**options: Any) -> Any:
        torch.manual_seed(5)
        config = transformers.GPT2Config(
            **{"vocab_size": 30, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
            | {"bos_token_id": 0, "eos_token_id": 0}
            | options
        )
        return transformers.GPT2LMHeadModel(config)

    return make


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models hold the same numbers, bit for bit."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def batches() -> list[Tensor]:
    """Batches of 4 texts of 10 tokens."""
    return list(torch.randint(0, 30, (40, 4, 10), generator=torch.Generator().manual_seed(3)))


@pytest.fixture
def trained() -> Callable[..., None]:
    """A function that trains a model on batches, and tells a monitor of each step."""

    def train(
        model: nn.Module, batches: list[Tensor], monitor: Any = None, rate: float = 0.01
    ) -> None:
        torch.manual_seed(11)
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
        model.train()
        for batch in batches:
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if monitor is not None:
                monitor.step(loss)

    return train
