"""Models that do not go through the interface: traced from dense weights, or refused."""

from __future__ import annotations

import pytest
import torch
from tests.tracing.conftest import assert_dense, dense_weights, largest_difference

import headloom

transformers = pytest.importorskip("transformers")


SMALL = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SHORT = {**SMALL, "intermediate_size": 48, "max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("Bloom", {"vocab_size": 20, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "decoder"),
        ("Mpt", {"vocab_size": 20, "d_model": 32, "n_layers": 2, "n_heads": 4}, "decoder"),
        ("MPNet", SHORT, "encoder"),
        ("Deberta", SHORT, "encoder"),
        ("DebertaV2", SHORT, "encoder"),
    ],
)  # fmt: skip
def test_off_the_interface_dense_weights_are_taken_with_a_warning(
    name, options, kind, tmp_path
) -> None:
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config).eval()
    ids = torch.randint(3, 20, (2, 9), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    own = model.config._attn_implementation
    with pytest.warns(UserWarning, match="does not use the attention interface"):
        traces = headloom.trace(model, inputs, keep=headloom.All())
    assert model.config._attn_implementation == own
    assert not any(module._forward_hooks for module in model.modules())
    model.config._attn_implementation = "eager"
    expected = dense_weights(model, inputs)
    assert largest_difference(traces, inputs, expected) <= 2e-6
    assert {layer.kind for trace in traces for layer in trace.layers} == {kind}
    assert traces[0].deviation is None
    with pytest.warns(UserWarning, match="one layer at a time"):
        saved = headloom.trace(model, ids[0], keep=headloom.Top(2), save=tmp_path / "saved")
    top = expected["all"][0][0].topk(2, -1).values
    assert torch.allclose(saved.layers[0].graph.weights[:, 2:], top[:, 2:], atol=2e-6)
    assert saved.layers[0].queries is None


READ = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        # Its weights are (queries, keys, batch, heads).
        ("XLNet", {"vocab_size": 60, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
        # Its modules return lists.
        ("OpenAIGPT", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4,
                       "n_positions": 64}),
        # Its softmax is a module of its own, whose output the model goes on with.
        ("IBert", {**READ, "quant_mode": False}),
        # Its modules return named tuples.
        ("Reformer", {"vocab_size": 60, "hidden_size": 32, "num_attention_heads": 4,
                      "attention_head_size": 8, "feed_forward_size": 48,
                      "attn_layers": ["local"], "local_attn_chunk_length": 12,
                      "local_num_chunks_before": 1, "axial_pos_shape": [4, 3],
                      "axial_pos_embds_dim": [16, 16], "is_decoder": False}),
    ],
)  # fmt: skip
def test_weights_in_other_wrappings_are_taken_and_the_output_is_unchanged(name, options) -> None:
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**options)
    model = getattr(transformers, f"{name}Model")(config).eval()
    ids = torch.randint(3, 60, (2, 12), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        before = model(input_ids=ids)[0]
    outputs = []
    hook = model.register_forward_hook(lambda *given: outputs.append(given[2][0]))
    with pytest.warns(UserWarning, match="formed one layer at a time"):
        traces = headloom.trace(model, ids, keep=headloom.All())
    hook.remove()
    assert torch.allclose(outputs[-1], before, atol=1e-5)
    assert not any(module._forward_hooks for module in model.modules())
    with torch.no_grad():
        own = model(input_ids=ids, output_attentions=True).attentions
    for sample, trace in enumerate(traces):
        assert trace.layers
        assert_dense(trace.layers, [own[layer.index] for layer in trace.layers], sample)


def test_weights_that_are_no_matrix_are_refused_in_one_line() -> None:
    ids = torch.tensor([1, 2, 3, 4])
    model = transformers.LongformerModel(transformers.LongformerConfig(**SHORT, attention_window=4))
    with pytest.raises(headloom.InputError, match="a band around each query"):
        headloom.trace(model, ids)
    model = transformers.FNetModel(
        transformers.FNetConfig(vocab_size=20, hidden_size=32, num_hidden_layers=1,
                                intermediate_size=48, max_position_embeddings=64)
    ).eval()  # fmt: skip
    with pytest.raises(headloom.InputError, match="no attention ran in FNetModel"):
        headloom.trace(model, ids)
