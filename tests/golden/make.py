"""Write the golden files, which test_golden.py compares headloom with.

    python -m tests.golden.make         # all of them; nothing of headloom computes a weight here
    python -m tests.golden.make bits    # a hash of a run's bits, to compare commits on one machine

golden.npz    the dense weights of twelve models in float64, kept as float32, by eager attention of
              Transformers or by formulas.py; and what heads of the GPT-2 do to a number
run.npz       snapshots of a run of run.toml, trained by headloom in its own process; the probe's
              last weights are formulas.py's, of the run's checkpoint

words.json is written by hand: of each model its layers (name, kind, the sequences of its queries
and keys), and the tokens of each text as a reader sees them.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from safetensors import safe_open
from tests.golden.formulas import gat_weights, headloom_layers, softmax_weights, split, turned
from tests.golden.models import MODELS, filled, ids
from torch import Tensor

HERE = Path(__file__).parent
WORDS = json.loads((HERE / "words.json").read_text("utf-8"))
Arrays = dict[str, np.ndarray[Any, Any]]


@contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """Every softmax (batch, heads, queries, keys) of eager attention, in float64 throughout."""
    weights: list[Tensor] = []

    def softmax(scores: Tensor, dim: int = -1, dtype: Any = None) -> Tensor:
        result = torch.softmax(scores, dim)  # Llama asks for float32
        if result.ndim == 4:
            weights.append(result)
        return result

    with mock.patch("torch.nn.functional.softmax", softmax):
        yield weights


def eager(name: str) -> list[Tensor]:
    """Weights (batch, heads, queries, keys) of a model of Transformers, layer by layer."""
    model = filled(MODELS[name][0](attn_implementation="eager"))
    projected: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        module.register_forward_hook(lambda _, __, y, path=path: projected.update({path: y}))
    with recorded() as weights:
        outputs = model(**MODELS[name][1], output_attentions=True)
    if name == "gpt-oss":
        for place, (path, *_) in enumerate(WORDS[name]["layers"]):
            queries, keys = (split(projected[f"{path}.{part}_proj"][0], 8) for part in "qk")
            weights[place] = softmax_weights(
                turned(queries, torch.float32), turned(keys, torch.float32),
                window=12 if place else 5, sinks=model.get_submodule(path).sinks,
            )[None]  # fmt: skip
    own = [x for key, layers in outputs.items() if key.endswith("attentions") for x in layers]
    # Qwen2-VL gives the weights of its language model alone.
    assert len(own) == len(weights) - 2 * (name == "qwen2-vl") > 0
    for layer in own:
        assert any(layer.shape == x.shape and torch.allclose(layer, x, 1e-9) for x in weights)
    return weights


def truth(name: str) -> list[list[Tensor]]:
    """The weights (heads, queries, keys) of every layer, for each text of the batch."""
    build, inputs = MODELS[name]
    if name not in ("translator", "sdpa", "gat"):
        layers = list(zip(eager(name), WORDS[name]["layers"], strict=True))
        return [
            # Without the places that padding fills.
            [x[sample, :, : len(words[rows]), : len(words[keys])] for x, (*_, rows, keys) in layers]
            for sample, words in enumerate(WORDS[name]["samples"])
        ]
    state = filled(build()).state_dict()
    if name == "translator":
        return [[*headloom_layers(state, inputs["target"][0], inputs["source"][0]).values()]]
    if name == "gat":
        edges = torch.cat((inputs["edge_index"], torch.arange(9).expand(2, 9)), 1)
        dense = torch.zeros(4, 9, 9, dtype=torch.float64)
        dense[:, edges[1], edges[0]] = gat_weights(state, inputs["x"], edges)[0]
        return [[dense]]
    queries, keys, values = (
        split(inputs["states"][0] @ state[f"{part}.weight"].T + state[f"{part}.bias"], 8)
        for part in ("queries", "keys", "values")
    )
    own = softmax_weights(queries, keys, window=11)
    output = (own @ values.repeat_interleave(2, 0)).transpose(0, 1).flatten(1)
    asks = split(output @ state["asks.weight"].T + state["asks.bias"], 8)
    return [[own, softmax_weights(asks, split(inputs["memory"][0], 8), scale=1.0)]]


def effects() -> Arrays:
    """Changes of an output of the GPT-2 by what a head gives, (layers, heads).

    zero: nothing, anywhere; patch: at position 4, what it gives on another text; estimate: the
    change to first order, by a small part of the way there and back.
    """
    model = filled(MODELS["gpt2"][0]())
    maps = [model.get_submodule(f"h.{place}.attn.c_proj") for place in range(2)]

    def run(text: Tensor, layer: int, change: Callable[[Tensor], Tensor | None]) -> float:
        """The output where a layer's heads, joined, are changed."""
        hook = maps[layer].register_forward_pre_hook(lambda _, args: change(args[0]))
        number = float(model(text).last_hidden_state[0, -1, 0])
        hook.remove()
        return number

    def effect(layer: int, head: int, share: float, rows: slice, goal: Tensor) -> float:
        """The change where a head goes a share of the way to what it gives elsewhere."""

        def moved(x: Tensor) -> Tensor:
            x, part = x.clone(), (..., rows, slice(8 * head, 8 * head + 8))
            x[part] += share * (goal[part] - x[part])
            return x

        return run(ids(12), layer, moved) - run(ids(12), layer, lambda x: None)

    zero, patch, estimate = np.zeros((3, 2, 4))
    for layer, head in np.ndindex(2, 4):
        other: list[Tensor] = []
        run(ids(12, 5), layer, other.append)
        four = slice(4, 5), other[0]
        zero[layer, head] = effect(layer, head, 1, slice(None), 0 * other[0])
        patch[layer, head] = effect(layer, head, 1, *four)
        both = effect(layer, head, 1e-4, *four), effect(layer, head, -1e-4, *four)
        estimate[layer, head] = (both[0] - both[1]) / 2e-4
    return {"effects/zero": zero, "effects/patch": patch, "effects/estimate": estimate}


def trained(folder: Path) -> tuple[Arrays, dict[str, Any]]:
    """What the files of a run of run.toml hold: tensors by file and name, and notes by file."""
    command = [sys.executable, "-m", "headloom", "train", str(HERE / "run.toml"), "--threads", "1"]
    subprocess.run([*command, "--run", str(folder)], check=True, capture_output=True)
    tensors, notes = {}, {}
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, "np") as file:
            notes[path.stem] = json.loads(file.metadata()["notes"])
            tensors |= {
                f"{path.stem}:{name}": file.get_tensor(name) for name in sorted(file.keys())
            }
    return tensors, notes


def history(folder: Path) -> Arrays:
    """Snapshots of a run: "step/loss", "step/layer/W_Q", ...; and the probe's last weights."""
    tensors, notes = trained(folder)
    golden = {}
    for name, note in notes.items():
        if name.startswith("step-"):
            golden[f"{note['step']}/loss"] = note["loss"]
            probe = note["layers"][0]["query_tokens"]
    state = {}
    for name, tensor in tensors.items():
        file, _, place = name.partition(":")
        if place.startswith("model/"):
            state[place.removeprefix("model/")] = torch.from_numpy(tensor).double()
        elif file.startswith("step-") and "/probe/" not in place:
            golden[f"{int(file[5:])}/{place}"] = tensor
    vocabulary = json.loads((folder / "vocabulary.json").read_text())["model"]["vocab"]
    for layer, weights in headloom_layers(
        state, torch.tensor([vocabulary[x] for x in probe])
    ).items():
        golden[f"8/{layer}/probe"] = weights.numpy()
    return golden


def save(name: str, arrays: Arrays) -> None:
    np.savez_compressed(HERE / name, **{key: np.float32(array) for key, array in arrays.items()})


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        if sys.argv[1:] == ["bits"]:
            tensors, _ = trained(Path(folder) / "run")
            content = b"".join(name.encode() + tensors[name].tobytes() for name in sorted(tensors))
            print(hashlib.sha256(content).hexdigest())
            return
        weights = effects()
        for name in MODELS:
            for sample, layers in enumerate(truth(name)):
                for place, layer in enumerate(layers):
                    weights[f"{name}/{sample}/{place}"] = layer.numpy()
        save("golden.npz", weights)
        save("run.npz", history(Path(folder) / "run"))


if __name__ == "__main__":
    main()
