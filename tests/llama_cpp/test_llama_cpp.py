"""Traces by llama.cpp against its own weights, kq_soft_max, which it has without flash attention.

In a model of few bits a difference before a layer grows, as activations are rounded to 8 bits. So
the run without flash attention gets the output of each layer (l_out) from the run with it.
"""

from __future__ import annotations

import ctypes
import logging
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

import headloom
import headloom.cli
from headloom.tracing.llama_cpp import trace_by_llama_cpp
from headloom.tracing.locating import packaged_model
from headloom.tracing.options import TraceOptions

library = pytest.importorskip("llama_cpp", reason="scripts/test-llama-cpp runs it")
logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL + 1)  # else each run prints much
Arrays = dict[str, list[np.ndarray]]
BATCH, HEADS, LAYERS = 512, 9, 30
TEXT = "The animal didn't cross the street because it was too tired. What did it do instead?"


def run(text: str, flash: bool, cache: int, inputs: Arrays | None = None) -> Arrays:
    """Outputs and weights of the layers, a flat array a batch; outputs are set to `inputs`."""
    folder = Path(library.__file__).parent / "lib"
    ggml = library._ctypes_extensions.load_shared_library("ggml-base", folder)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    ggml.ggml_get_name.argtypes, ggml.ggml_get_name.restype = [pointer], ctypes.c_char_p
    ggml.ggml_nbytes.argtypes, ggml.ggml_nbytes.restype = [pointer], size
    for copy in (ggml.ggml_backend_tensor_get, ggml.ggml_backend_tensor_set):
        copy.argtypes = [pointer, pointer, size, size]
    parts: Arrays = defaultdict(list)

    @library.ggml_backend_sched_eval_callback
    def keep(tensor: int, asks: bool, data: object) -> bool:
        name = ggml.ggml_get_name(tensor).decode()
        wanted = name.startswith(("l_out-", "kq_soft_max-"))
        if wanted and not asks:
            array = np.empty(ggml.ggml_nbytes(tensor) // 4, np.float32)
            if inputs is not None and name in inputs:
                array = inputs[name][len(parts[name])]
                ggml.ggml_backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)
            else:
                ggml.ggml_backend_tensor_get(tensor, array.ctypes.data, 0, array.nbytes)
            parts[name].append(array)
        return wanted or not asks

    model = str(packaged_model("smollm2")).encode()
    network = library.llama_model_load_from_file(model, library.llama_model_default_params())
    ids, vocabulary = (library.llama_token * 2048)(), library.llama_model_get_vocab(network)
    count = library.llama_tokenize(vocabulary, text.encode(), len(text), ids, 2048, True, True)
    settings = library.llama_context_default_params()
    settings.n_ctx, settings.n_batch, settings.n_ubatch = count, count, BATCH
    settings.type_k, settings.type_v, settings.flash_attn_type = cache, cache, int(flash)
    settings.cb_eval = keep
    context = library.llama_init_from_model(network, settings)
    assert library.llama_decode(context, library.llama_batch_get_one(ids, count)) == 0
    library.llama_free(context)
    library.llama_model_free(network)
    return parts


@pytest.mark.parametrize(
    ("number", "cache", "text"),
    [(1, torch.float16, TEXT), (0, torch.float32, TEXT), (1, torch.float16, TEXT * 33)],
)
def test_weights_are_those_that_llama_cpp_has_without_flash_attention(
    number: int, cache: torch.dtype, text: str
) -> None:
    options = TraceOptions(keep=headloom.All())
    trace = trace_by_llama_cpp("smollm2", text, options, cache=cache)
    weights, tokens = run(text, False, number, run(text, True, number)), len(trace.tokens)
    assert len(trace.layers) == LAYERS and (tokens > BATCH) == (text != TEXT)
    largest = 0.0
    for place, layer in enumerate(trace.layers):
        rows = layer.graph.to_dense().numpy()
        parts = weights[f"kq_soft_max-{place}"]
        assert len(parts) == -(-tokens // BATCH)
        for start, part in zip(range(0, tokens, BATCH), parts, strict=True):
            dense = rows[:, start : start + BATCH]
            own = part.reshape(HEADS, dense.shape[1], -1)[..., :tokens]
            assert not dense[..., own.shape[-1] :].any()
            largest = max(largest, float(abs(dense[..., : own.shape[-1]] - own).max()))
    print(f"{cache}, {tokens} tokens: weights within {largest:.1e} of kq_soft_max")
    assert largest < 1e-5


def test_what_it_writes_is_what_llama_cpp_writes(tmp_path: Path) -> None:
    options = ["--text", TEXT, "--engine", "llama.cpp", "--generate", "6", "-o", f"{tmp_path}/t"]
    with pytest.raises(SystemExit) as stop:
        headloom.cli.main(["trace", "smollm2", *options])
    assert not stop.value.code
    trace = headloom.open(tmp_path / "t")
    path = str(packaged_model("smollm2"))
    own = library.Llama(path, n_ctx=128, flash_attn=True, verbose=False)
    written = own(TEXT, max_tokens=6, temperature=0)["choices"][0]["text"]
    assert "".join(trace.positions["tokens"]["texts"]) == TEXT + written
    assert trace.positions["tokens"]["generated"].count(True) == 6
    assert trace.model["quantization"] == "4-bit (Q4_1)"
    assert trace.deviation < 0.02  # from the output of llama.cpp
