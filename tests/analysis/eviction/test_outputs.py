"""The change of a layer's output is that of the model's own layer, with those keys masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.tracing.conftest import cached

import weft
from weft.analysis.eviction.evict import evict
from weft.analysis.matrices.projections import matrices_of
from weft.formats.trace import TraceData

transformers = pytest.importorskip("transformers")

LENGTH, PROMPT = 70, 50


@pytest.mark.parametrize("each_step", [False, True])
def test_as_the_models_own_layer_with_these_keys_masked(each_step: bool) -> None:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=48, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=3, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()
    for layer in model.layers:
        layer.self_attn.q_proj.weight.data *= 12
        layer.self_attn.k_proj.weight.data *= 12
    ids = torch.randint(0, 60, (1, LENGTH))
    trace = weft.trace(model, {"input_ids": ids}, verify=False)
    assert isinstance(trace, TraceData)
    caught: dict[int, Any] = {}
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: caught.update({module.layer_idx: dict(kwargs)}),
            with_kwargs=True,
        )
        for layer in model.layers
    ]
    with torch.no_grad():
        cache = transformers.DynamicCache()
        model(ids, **cached(model, cache), use_cache=True)
    for hook in hooks:
        hook.remove()
    found = evict(
        trace, budgets=[12], policies=["tova", "h2o"], prompt=PROMPT, each_step=each_step,
        values={n: cache.layers[n].values[0] for n in range(2)},
        projections={n: layer.W_O for n, layer in enumerate(matrices_of(model))},
    )  # fmt: skip
    ahead = torch.ones(LENGTH, LENGTH).triu(1).bool()
    for n, layer in enumerate(model.layers):
        own = found.layers[n]
        assert own.layer_output is not None
        for number in range(2):
            after = own.evicted_after[number, 0].repeat_interleave(2, 0)
            query = torch.arange(LENGTH)[None, :, None]
            gone = (after >= 0)[:, None] & (after[:, None] < query) & (query >= PROMPT)
            kwargs = {**caught[n], **cached(layer.self_attn, None)}
            outputs = []
            for hidden in (ahead.expand(6, -1, -1), ahead | gone):
                kwargs["attention_mask"] = torch.zeros(6, LENGTH, LENGTH).masked_fill(
                    hidden, torch.finfo(torch.float32).min
                )[None]
                with torch.no_grad():
                    outputs.append(layer.self_attn(**kwargs)[0][0, PROMPT:])
            whole, left = outputs
            expected = (left - whole).norm(dim=-1) / whole.norm(dim=-1)
            torch.testing.assert_close(own.layer_output[number, 0], expected, atol=2e-5, rtol=1e-4)
            assert float(expected.max()) > 0.05
