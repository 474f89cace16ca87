"""Requests inside vLLM, against the same model in Transformers in float64: `scripts/test-vllm`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import headloom

vllm = pytest.importorskip("vllm", reason="scripts/test-vllm runs it")
openai, transformers = pytest.importorskip("openai"), pytest.importorskip("transformers")

BLOCK, KEEP, LAYERS = 32, 8, [1, 6]


@pytest.fixture(autouse=True)
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADLOOM_VLLM_DIR", str(tmp_path / "traces"))
    return tmp_path / "traces"


def saved(folder: Path, kind: str, **options: Any) -> Any:
    """A random model, saved; the same in float64."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=512, hidden_size=512, intermediate_size=2048, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=2, initializer_range=0.03, eos_token_id=None,
        **options,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model.save_pretrained(folder)
    return model.double()


def prompts(lengths: list[int], seed: int = 0) -> list[dict[str, list[int]]]:
    """Random tokens; every second prompt begins with the same 70 tokens."""
    random = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 512, (n,), generator=random).tolist() for n in lengths]
    rows[::2] = [(rows[0][:70] + row[70:])[: len(row)] for row in rows[::2]]
    return [{"prompt_token_ids": row} for row in rows]


def exact(model: Any, ids: list[int], window: int) -> list[tuple[Tensor, Tensor]]:
    """Weights, (heads, queries, keys), and log-sum-exp of each layer, in float64."""
    rows: list[tuple[Tensor, Tensor]] = []

    def attention(layer: Any, q: Tensor, k: Tensor, v: Tensor, _: Any, **keywords: Any) -> Any:
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
        scores = q @ k.transpose(2, 3) * keywords["scaling"]
        scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
        rows.append((scores.softmax(-1)[0], scores.logsumexp(-1)[0]))
        return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("exact", attention)
    model.set_attn_implementation("exact")
    with torch.no_grad():
        model(torch.tensor([ids]))
    return rows


def check(model: Any, output: Any, window: int = 10**9, heads: Any = slice(None)) -> Any:
    """The first position of a trace, and its largest deviation from the model in float64."""
    trace = headloom.open(output.kv_transfer_params["headloom"]["trace"])
    ids = [*output.prompt_token_ids, *output.outputs[0].token_ids][:-1]
    assert trace.tokens == [f"#{number}" for number in ids]
    rows, far = exact(model, ids, window), 0.0
    first = len(ids) - trace.layers[0].shape[1]
    for number, layer in zip(LAYERS, trace.layers, strict=True):
        assert layer.name == f"model.layers.{number}.self_attn.attn"
        graph, (weights, lse) = layer.graph, (part[heads, first:] for part in rows[number])
        best = weights.topk(min(KEEP, len(ids))).values
        at_keys = weights.gather(2, graph.keys.clamp(min=0)).where(graph.keys >= 0, 0)
        for ours, theirs in (
            (graph.weights, at_keys), (graph.weights[..., : best.shape[2]], best),
            (graph.lse, lse), (graph.entropy, torch.special.entr(weights).sum(-1)),
            (graph.received, weights.sum(1)),
        ):  # fmt: skip
            far = max(far, float((ours - theirs).abs().max()))
    return first, far


def test_server_with_a_sliding_window(tmp_path: Path, traces: Path) -> None:
    """Chosen heads, a window shorter than the cached prefix, small traces in the answer."""
    double, folder = saved(tmp_path / "model", "Mistral", sliding_window=40), f"{tmp_path}/model"
    port = pytest.importorskip("vllm.utils.network_utils").get_open_port()
    command = (
        f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {folder} --port {port} "
        f"--dtype float32 --enforce-eager --skip-tokenizer-init --block-size {BLOCK} "
        "--max-model-len 512 --max-num-batched-tokens 96"
    )
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=50)

    def ask(prompt: list[int], **extra: str) -> Any:
        more = {"return_token_ids": True, "detokenize": False, "vllm_xargs": extra}
        answer = client.completions.create(
            model=folder, prompt=prompt, max_tokens=6, temperature=0, extra_body=more
        )
        kept = answer.model_extra["kv_transfer_params"]
        return SimpleNamespace(
            prompt_token_ids=prompt, outputs=answer.choices, kv_transfer_params=kept
        )

    with subprocess.Popen(command.split()) as process:
        try:
            prompt, heads = prompts([150])[0]["prompt_token_ids"], [5, 0]
            wanted = json.dumps({"layers": LAYERS, "heads": heads, "keep": KEEP})
            outputs = [ask(prompt, headloom=wanted), ask(prompt, headloom=wanted), ask(prompt)]
            for output, first in zip(outputs, (0, 128), strict=False):
                start, far = check(double, output, 40, heads)
                print(f"\nsliding window: deviation {far:.1e}, first position {start}")
                assert start == first and far <= 1e-5
            small = outputs[1].kv_transfer_params["headloom"]["layers"]
            assert [len(layer["lse"]) for layer in small] == [2, 2]
            assert outputs[2].kv_transfer_params is None
            for wrong, reason in ({"layers": 5}, "a list"), ({"layers": [99]}, "[99]"), (
                {"heads": [8]}, "0 to 7"
            ):  # fmt: skip
                answer = ask(prompt[:9], headloom=json.dumps(wrong)).kv_transfer_params
                assert reason in answer["headloom"]["error"]
        finally:
            process.terminate()
    assert len(list(traces.iterdir())) == 2


def test_requests_of_a_batch(tmp_path: Path) -> None:
    """Eight lengths at once, grouped heads, prefill in chunks, prefixes from the cache."""
    double = saved(tmp_path / "model", "Llama")
    llm = vllm.LLM(
        str(tmp_path / "model"), dtype="float32", enforce_eager=True, skip_tokenizer_init=True,
        max_model_len=512, max_num_batched_tokens=96, max_num_seqs=8, block_size=BLOCK,
        enable_chunked_prefill=True, enable_prefix_caching=True, seed=0,
    )  # fmt: skip

    def generate(given: Any, new: int, wanted: Any = None) -> Any:
        extra = wanted and {"headloom": wanted}
        how = vllm.SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, extra_args=extra)
        return llm.generate(given, how, use_tqdm=False)

    lengths, wanted = [100, 7, 180, 33, 150, 64, 71, 1], {"layers": LAYERS, "keep": KEEP}
    plain = generate(prompts(lengths), 24)
    llm.reset_prefix_cache()
    runs = [plain, *(generate(prompts(lengths), 24, wanted) for _ in range(2))]
    assert all(output.kv_transfer_params is None for output in plain)
    tokens = [[output.outputs[0].token_ids for output in run] for run in runs]
    assert tokens[0] == tokens[1] == tokens[2]
    firsts, far = zip(*(check(double, output) for run in runs[1:] for output in run), strict=True)
    print(f"\nlargest deviation from float64: {max(far):.1e}; first positions: {firsts}")
    assert max(far) <= 1e-5
    assert firsts[8:] == tuple((n - 1) // BLOCK * BLOCK for n in lengths)

    seconds: list[list[float]] = [[], []]
    for turn in range(14):  # in turn, on prompts of which nothing is cached
        given = prompts([200, 150, 120, 100, 80, 60, 40, 20], seed=1 + turn)
        start = time.perf_counter()
        generate(given, 64, json.dumps(wanted) if turn % 2 else None)
        seconds[turn % 2].append(time.perf_counter() - start)
    before, traced = (sorted(times)[3] for times in seconds)
    print(f"8 requests, 512 new tokens: {before:.2f} s; with 2 of 8 layers traced {traced:.2f} s; "
          f"throughput {before / traced:.2f} of that without")  # fmt: skip
    assert before / traced >= 0.8
