"""Tracing somebody's module beside its plain forward pass: time and memory.

Peer: the same module, random weights, run as it is, with torch's fused attention and its fast
paths. Headloom keeps the 32 strongest edges of every query, with queries and keys, in memory; each
call of attention is held against torch's own on four of its rows. Once without the untouched run
that verifies the whole module, and once with it, as `headloom.trace` does where nothing is said.
Peer and headloom in turn in one process, medians; the ratios last. Peak memory is that of a process
of its own for each, which has run once before.

    python benchmarks/bench_any_module.py               # every module whose library is installed
    python benchmarks/bench_any_module.py --only encoder --repeats 9
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import headloom
from side_by_side import side_by_side

Built = tuple[nn.Module, dict[str, Any]]


class Own(nn.Module):
    """A causal layer as somebody writes it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project = heads, nn.Linear(width, 3 * width)
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        parts = self.project(self.norm(hidden)).chunk(3, -1)
        parts = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        output = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        hidden = hidden + self.out(output.transpose(1, 2).flatten(2))
        return hidden + self.narrow(nn.functional.gelu(self.wide(hidden)))


def own() -> Built:
    return nn.Sequential(*(Own(512, 8) for _ in range(4))), {"input": torch.randn(1, 1024, 512)}


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 4), {"src": torch.randn(1, 512, 512)}


def transformer() -> Built:
    model = nn.Transformer(512, 8, 2, 2, 2048, batch_first=True)
    return model, {"src": torch.randn(1, 512, 512), "tgt": torch.randn(1, 256, 512)}


def _timm() -> Any:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tracing"))
    from without_torchvision import timm

    return timm()


def vit() -> Built:
    model = _timm().create_model("vit_small_patch16_224")
    return model, {"x": torch.randn(1, 3, 224, 224)}


def swin() -> Built:
    timm = _timm()
    timm.layers.set_fused_attn(True, experimental=True)
    return timm.create_model("swin_tiny_patch4_window7_224"), {"x": torch.randn(1, 3, 224, 224)}


def unet() -> Built:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=32, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=256,
        attention_head_dim=8, norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return model, {
        "sample": torch.randn(1, 4, 32, 32), "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(1, 77, 256),
    }  # fmt: skip


def x_transformers() -> Built:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=512, depth=4, heads=8, attn_flash=True)
    model = TransformerWrapper(num_tokens=1000, max_seq_len=1024, attn_layers=layers)
    return model, {"x": torch.randint(0, 1000, (1, 1024))}


MODULES: dict[str, Callable[[], Built]] = {
    "own": own, "encoder": encoder, "transformer": transformer, "vit": vit, "swin": swin,
    "unet": unet, "x_transformers": x_transformers,
}  # fmt: skip


def runs_of(name: str) -> dict[str, Callable[[], object]]:
    """Return the plain pass of a module, its trace, and its trace verified whole."""
    torch.manual_seed(1)
    model, inputs = MODULES[name]()
    model.eval()

    def plain() -> None:
        with torch.no_grad():
            model(**inputs)

    return {
        "plain": plain,
        "traced": partial(headloom.trace, model, inputs, verify=False),
        "verified": partial(headloom.trace, model, inputs),
    }


def peak(name: str, what: str) -> float:
    """Return the peak memory of a run in a process of its own, in megabytes."""
    command = [sys.executable, __file__, "--only", name, "--peak", what]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return float(done.stdout.splitlines()[-1])


def measure(name: str, repeats: int) -> str:
    """Return the ratios of a module, as a line."""
    runs = runs_of(name)
    seconds = side_by_side(*runs.values(), repeats=repeats)
    memory = [peak(name, what) for what in runs]
    trace = runs["traced"]()
    assert isinstance(trace, headloom.Trace)
    each = "; ".join(
        f"{what} {time:.3f} s, {size:,.0f} MB"
        for what, time, size in zip(runs, seconds, memory, strict=True)
    )
    print(f"{name}: {len(trace.layers)} layers: {each}; deviation {trace.deviation:.1e}")
    return (
        f"ratios to plain, {name}: seconds traced {seconds[1] / seconds[0]:.2f}, verified "
        f"{seconds[2] / seconds[0]:.2f}; memory {memory[1] / memory[0]:.2f}, "
        f"{memory[2] / memory[0]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODULES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak", help="one run of --only, in this process")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.peak:
        run = runs_of(given.only)[given.peak]
        run()
        run()
        # Not the resource usage, which begins with that of the process around this one.
        status = Path("/proc/self/status").read_text()
        print(float(status.split("VmHWM:")[1].split()[0]) / 1024)
        return
    ratios = []
    for name in [given.only] if given.only else MODULES:
        try:
            ratios.append(measure(name, given.repeats))
        except ImportError as error:
            print(f"{name}: {error}")
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
