"""What the monitor measures, held against the formulas written out densely in float64."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headloom
from headloom.formats.history import History
from headloom.formats.run import Reports

transformers = pytest.importorskip("transformers", reason="needs Transformers")


def measured(folder: Path) -> list[dict[str, Any]]:
    return Reports(folder / "measures.jsonl", "measures").read()


def dense(scores: Tensor, allowed: Tensor) -> dict[str, Tensor]:
    """The measures of (heads, queries, keys) scores, by their definitions."""
    scores = scores.masked_fill(~allowed, -math.inf)
    weights = scores.softmax(-1)
    rows = -torch.xlogy(weights, weights).sum(-1)
    count = allowed.sum(-1).expand_as(rows)
    choice = count > 1
    even = torch.where(choice, rows / count.clamp(min=2).double().log(), 0)
    return {
        "entropy": rows.mean(-1),
        "evenness": even.sum(-1) / choice.sum(-1),
        "largest_score": scores.amax((-1, -2)),
        "first_token": weights[..., 0].mean(-1),
    }


def dense_matrices(queries: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """The measures of W_Q and W_K, (heads, width, depth), by W_Q W_K^T itself."""
    product = queries @ keys.mT
    symmetric, other = (product + product.mT) / 2, (product - product.mT) / 2
    square = product.square().sum((1, 2))
    return {
        "norm_W_Q": queries.square().sum((1, 2)).sqrt(),
        "norm_W_K": keys.square().sum((1, 2)).sqrt(),
        "norm": square.sqrt(),
        "symmetry": (symmetric.square().sum((1, 2)) - other.square().sum((1, 2))) / square,
    }


def same(measures: dict[str, list[float]], expected: dict[str, Tensor]) -> None:
    for name, values in expected.items():
        found = torch.tensor(measures[name], dtype=torch.float64)
        assert torch.allclose(found, values, rtol=2e-5, atol=2e-6), name


def inputs_of(model: nn.Module, layers: list[nn.Module], **inputs: Tensor) -> list[Tensor]:
    """What some layers of a float64 copy of a model read."""
    double, seen = copy.deepcopy(model).double().eval(), []
    names = {id(module): name for name, module in model.named_modules()}
    for layer in layers:
        double.get_submodule(names[id(layer)]).register_forward_hook(
            lambda module, args, output: seen.append(args[0])
        )
    with torch.no_grad():
        double(**inputs)
    return seen


def test_a_causal_model(tmp_path: Path, gpt2: Any, batches: list[Tensor]) -> None:
    """GPT-2: all of a probe of three texts, at the first step."""
    model = gpt2()
    probe = {"input_ids": batches[0][:3]}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    with headloom.monitor(model, tmp_path / "run", probe=probe):
        pass
    (report,) = measured(tmp_path / "run")
    projections = [block.attn.c_attn for block in model.transformer.h]
    read = inputs_of(model, projections, **probe)
    causal = torch.ones(10, 10, dtype=torch.bool).tril()
    for block, (name, measures) in enumerate(report["layers"].items()):
        assert name == f"transformer.h.{block}.attn"
        weight, bias = (part.detach().double() for part in projections[block].parameters())
        made = (read[block] @ weight + bias).chunk(3, -1)
        queries, keys = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in made[:2])
        scores = queries @ keys.mT / math.sqrt(8)
        texts = [dense(scores[text], causal) for text in range(3)]
        expected = {name: torch.stack([text[name] for text in texts]).mean(0) for name in texts[0]}
        expected["largest_score"] = torch.stack([text["largest_score"] for text in texts]).amax(0)
        same(measures, expected)
        heads = [part.unflatten(-1, (2, 8)).transpose(0, 1) for part in weight.chunk(3, -1)]
        same(measures, dense_matrices(heads[0], heads[1]))


def test_padding_counts_nowhere(tmp_path: Path) -> None:
    """BERT on two texts, of which one is shorter: its padding is neither query nor key."""
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=12, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    ids = torch.randint(1, 20, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    probe = {"input_ids": ids, "attention_mask": mask}
    with headloom.monitor(model, tmp_path / "run", probe=probe):
        pass
    (report,) = measured(tmp_path / "run")
    ((_, measures),) = report["layers"].items()
    layer = model.encoder.layer[0].attention.self
    (read,) = inputs_of(model, [layer.query], **probe)
    queries, keys = (
        (read @ part.weight.detach().double().T + part.bias.detach().double())
        .unflatten(-1, (3, 4))
        .transpose(1, 2)
        for part in (layer.query, layer.key)
    )
    scores, total = queries @ keys.mT / 2, []
    for text, length in enumerate((7, 4)):
        part = scores[text, :, :length, :length]
        total.append((length, dense(part, torch.ones(length, length, dtype=torch.bool))))
    expected = {
        name: sum(length * text[name] for length, text in total) / 11 for name in total[0][1]
    }
    expected["largest_score"] = torch.maximum(*(text["largest_score"] for _, text in total))
    same(measures, expected)  # type: ignore[arg-type]


def test_a_snapshot_holds_the_matrices_and_the_graph(
    tmp_path: Path, gpt2: Any, batches: list[Tensor]
) -> None:
    model = gpt2()
    with headloom.monitor(model, tmp_path / "run", probe={"input_ids": batches[0][:1]}):
        pass
    snapshot = History(tmp_path / "run" / "history")[0]
    assert [layer.name for layer in snapshot.layers] == [f"transformer.h.{n}.attn" for n in (0, 1)]
    weight = model.transformer.h[1].attn.c_attn.weight.detach()
    layer = snapshot.layers[1]
    for place, name in enumerate(("W_Q", "W_K", "W_V")):
        expected = weight[:, 16 * place : 16 * (place + 1)].unflatten(1, (2, 8)).transpose(0, 1)
        assert torch.equal(layer.matrices[name], expected)
    assert torch.equal(
        layer.matrices["W_O"], model.transformer.h[1].attn.c_proj.weight.detach().view(2, 8, 16)
    )
    model.set_attn_implementation("eager")
    weights = model.eval()(batches[0][:1], output_attentions=True).attentions
    assert torch.allclose(layer.graph.to_dense(), weights[1][0], atol=1e-6)
    product = layer.matrices["W_Q"].double() @ layer.matrices["W_K"].double().mT
    spectrum = torch.linalg.svdvals(product)
    share = spectrum / spectrum.sum(-1, keepdim=True)
    rank = torch.exp(-torch.xlogy(share, share).sum(-1))
    found = torch.tensor(layer.measures["effective_rank"], dtype=torch.float64)
    assert torch.allclose(found, rank, rtol=1e-4)
