"""Traces of GGUF files as llama.cpp runs them: in few bits, with its cache and flash attention.

llama.cpp calls a function after each operation of its graph (``cb_eval``). Of FLASH_ATTN_EXT this
one reads the sources: queries after rotary positions, keys and values as the cache holds them, mask
and sinks; scale and soft cap are parameters. Queries are rounded to the type of the cache, as by
the products of llama.cpp. The output of the operation verifies the layer.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headloom.errors import DataError, InputError, installing, optional_package
from headloom.formats.tokens import Tokens, texts_of
from headloom.formats.trace import TraceData
from headloom.mechanism.shapes import whole_number
from headloom.tracing.given import mask_is_causal
from headloom.tracing.given_sequences import GivenSequences
from headloom.tracing.locating import is_gguf, locate
from headloom.tracing.options import TraceOptions
from headloom.tracing.recording.layer_call import LayerCall
from headloom.tracing.recording.score_terms import rule_of_ranges
from headloom.tracing.recording.sequences import InputSequence, kind_of_name
from headloom.tracing.recording.session import Session

#: Tokens of a prompt that llama.cpp reads at once, as by default.
_BATCH = 512
#: Types of arrays, by their numbers in ggml.h.
_TYPES = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}


class _Tensor(ctypes.Structure):
    """Tensor of ggml.h, with the operation that computes it."""


_Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 4),
    ("strides", ctypes.c_size_t * 4), ("operation", ctypes.c_int),
    ("parameters", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("sources", ctypes.POINTER(_Tensor) * 10), ("viewed", ctypes.c_void_p),
    ("offset", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
]  # fmt: skip


def _not_read(reason: str) -> InputError:
    return InputError(f"engine llama.cpp: {reason}. Leave engine out, to trace it as float32.")


class _Recorder:
    """Function that llama.cpp calls beside each operation; it keeps the rows of each layer."""

    def __init__(self, library: Any) -> None:
        #: Each layer on the tokens of the newest pass; queries, output and ranges of all passes.
        self.layers: dict[int, LayerCall] = {}
        self._rows: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}
        self.error: Exception | None = None
        self.positions = 0
        self._ranges: dict[tuple[int, int], Tensor] = {}
        folder = library.llama_cpp._base_path
        self._ggml = library._ctypes_extensions.load_shared_library("ggml-base", folder)
        self._ggml.ggml_op_desc.restype = self._ggml.ggml_get_name.restype = ctypes.c_char_p
        self._ggml.ggml_nbytes.restype = ctypes.c_size_t
        self.callback = library.ggml_backend_sched_eval_callback(self)

    def __call__(self, address: int, asks: bool, data: object) -> bool:
        """Return whether an operation is wanted or, once it has run, whether to go on."""
        pointer = ctypes.cast(address, ctypes.POINTER(_Tensor))
        wanted = bool(self._ggml.ggml_op_desc(pointer) == b"FLASH_ATTN_EXT")
        if not asks and wanted and self.error is None:
            try:
                self._keep(pointer)
            except Exception as error:  # llama.cpp would drop it
                self.error = error
        return wanted if asks else self.error is None

    def _keep(self, pointer: Any) -> None:
        """Keep the rows of a layer that has run."""
        tensor = pointer.contents
        if tensor.name != self._ggml.ggml_get_name(pointer):
            raise InputError(
                "engine llama.cpp: this llama-cpp-python has another layout of tensors than 0.3.36 "
                'has. pip install "llama-cpp-python==0.3.36"'
            )
        queries, keys, values, mask, sinks = tensor.sources[:5]
        scale, slopes, softcap = struct.unpack("3f", bytes(tensor.parameters)[:12])
        if slopes or not mask:
            raise _not_read("it does not read linear biases (ALiBi), or layers without a mask")
        named = queries
        while not (match := re.search(rb"-(\d+)", named.contents.name)):
            named = named.contents.sources[0]  # scaled queries have no name
        passes = self._rows.setdefault(number := int(match[1]), [])
        output = self._array(pointer).transpose(1, 2)
        passes.append((self._array(queries), output, self._ranges_of(mask)))
        if sum(rows.shape[2] for rows, *_ in passes) != self.positions:
            raise _not_read("it does not read a layer that attends more than once to a token")
        read = [self._array(self._before_copy(keys)), self._array(values)]
        columns, own_values = (numbers[:, :, : self.positions] for numbers in read)
        self.layers[number] = LayerCall(
            f"layers.{number}.self_attn", "decoder", passes[-1][0], columns, own_values, scale,
            softcap=softcap or None, sinks=self._array(sinks).flatten() if sinks else None,
        )  # fmt: skip

    def calls(self) -> Iterator[LayerCall]:
        """Yield the call of each layer over the whole text, and keep it no longer."""
        for number in sorted(self.layers):
            call, passes = self.layers.pop(number), self._rows.pop(number)
            queries, output, ranges = (torch.cat(p, -2) for p in zip(*passes, strict=True))
            call.queries, call.keys = queries.to(call.keys.dtype).float(), call.keys.float()
            call.mask = rule_of_ranges(ranges.T.contiguous(), len(ranges))
            call.is_causal = len(ranges) == 1 or mask_is_causal(call.mask, *[len(ranges)] * 2)
            call.kind = kind_of_name(call.path, call.is_causal)
            call.own_output = partial(output.index_select, 2)
            yield call

    def _before_copy(self, source: Any) -> Any:
        """Return a float32 cache where the operation reads a float16 copy, else the source."""
        copied = self._ggml.ggml_op_desc(source) == b"CPY"
        original = source.contents.sources[0] if copied else None
        return original if original and b"cache" in original.contents.name else source

    def _array(self, pointer: Any) -> Tensor:
        """Return the numbers of a tensor, its last dimension first."""
        tensor = pointer.contents
        kind, size = _TYPES.get(tensor.type), self._ggml.ggml_nbytes(pointer)
        if kind is None:
            raise _not_read(f"{tensor.name.decode()} has type {tensor.type} of ggml, not a float")
        content = torch.empty(size, dtype=torch.uint8)
        arguments = ctypes.c_void_p(content.data_ptr()), ctypes.c_size_t(0), ctypes.c_size_t(size)
        self._ggml.ggml_backend_tensor_get(pointer, *arguments)
        strides = [stride // kind.itemsize for stride in tensor.strides]
        return content.view(kind).as_strided(tuple(tensor.sizes)[::-1], strides[::-1])

    def _ranges_of(self, mask: Any) -> Tensor:
        """Return the range of the keys of each query, (queries, 2), read once for a pass."""
        key = self.positions, ctypes.addressof(mask.contents)
        if key not in self._ranges:
            seen = (self._array(mask)[0, 0, :, : self.positions] == 0).int()
            first, end = seen.argmax(-1), self.positions - seen.flip(-1).argmax(-1)
            if not torch.equal(seen.sum(-1), end - first):
                raise _not_read("it does not read a mask with gaps between the keys of a query")
            self._ranges[key] = torch.stack((first, end), -1)
        return self._ranges[key]


class _Names(GivenSequences):
    """Names of the tokens of a text, by the tokenizer of llama.cpp."""

    def __init__(self, library: Any, vocabulary: Any, ids: Sequence[int], prompt: int) -> None:
        spelled, pieces, content = [], [], ctypes.create_string_buffer(4096)
        special = [bool(library.llama_vocab_is_control(vocabulary, token)) for token in ids]
        for token, is_special in zip(ids, special, strict=True):
            spelled.append(library.llama_vocab_get_text(vocabulary, token).decode(errors="replace"))
            size = library.llama_token_to_piece(vocabulary, token, content, len(content), 0, True)
            pieces.append(spelled[-1] if is_special else content.raw[: max(size, 0)])
        super().__init__(Tokens(spelled, texts_of(pieces)), None, 1, pair=False)
        self._known = {"special": special}
        if len(ids) > prompt:
            self._known["generated"] = [place >= prompt for place in range(len(ids))]

    def of(self, name: str, length: int, sample: int) -> InputSequence:
        sequence = super().of(name, length, sample)
        sequence.known.update(self._known)
        return sequence


def trace_by_llama_cpp(
    model: Path | str, text: str, options: TraceOptions, generate: object = None,
    progress: Callable[[str, int, int | None], None] | None = None, *,
    cache: torch.dtype = torch.float16,
) -> TraceData:  # fmt: skip
    """Trace a GGUF file on a text by llama.cpp, with flash attention.

    Args: see `headloom.trace`; cache: type of the keys and values.
    Raises: InputError: no GGUF file; llama-cpp-python is missing; attention that is not read.
    """
    path, _ = locate(model)
    if not isinstance(path, Path) or not is_gguf(path):
        raise InputError(f"{model}: engine llama.cpp reads GGUF files alone. Leave engine out.")
    more = 0 if generate is None else whole_number("trace", "generate", generate, 1)  # type: ignore[arg-type]
    with optional_package("engine llama.cpp", installing("llama-cpp")):
        import llama_cpp as library
    with ExitStack() as stack:
        logger = logging.getLogger("llama-cpp-python")  # llama.cpp prints what this one takes
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)
        settings = library.llama_model_default_params()
        network = library.llama_model_load_from_file(os.fsencode(path), settings)
        if not network:
            raise DataError(f"{model}: llama.cpp cannot load it; llama_cpp.Llama(path) prints why.")
        stack.callback(library.llama_model_free, network)
        vocabulary, content = library.llama_model_get_vocab(network), text.encode()
        ids = (library.llama_token * (len(content) + 16 + more))()
        sizes = len(content), len(ids)
        prompt = library.llama_tokenize(vocabulary, content, sizes[0], ids, sizes[1], True, True)
        recorder, settings = _Recorder(library), library.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = prompt + more, _BATCH, _BATCH
        settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
        settings.type_k = settings.type_v = {kind: n for n, kind in _TYPES.items()}[cache]
        settings.flash_attn_type, settings.swa_full, settings.cb_eval = 1, True, recorder.callback
        pair = library.llama_model_has_encoder(network)
        context = None if pair else library.llama_init_from_model(network, settings)
        if not context:
            raise _not_read(f"it does not run {model} as a decoder with flash attention")
        stack.callback(library.llama_free, context)
        while recorder.positions < prompt + more:
            start = recorder.positions
            if start >= prompt:
                size = library.llama_vocab_n_tokens(vocabulary)
                logits = torch.tensor(library.llama_get_logits_ith(context, -1)[:size])
                ids[start] = int(logits.argmax())
                if library.llama_vocab_is_eog(vocabulary, ids[start]):
                    break
            count = min(_BATCH, prompt - start) if start < prompt else 1
            recorder.positions += count
            part = (library.llama_token * count)(*ids[start : start + count])
            code = library.llama_decode(context, library.llama_batch_get_one(part, count))
            if code or recorder.error is not None:
                raise recorder.error or _not_read("it cannot read this text")
        names = _Names(library, vocabulary, ids[: recorder.positions], prompt)
        library.llama_model_desc(network, label := ctypes.create_string_buffer(256), 256)
        bits = re.search(r"(?:I?Q|TQ|MXFP)(\d)\S*", label.value.decode())
        about = {
            "name": str(model),
            "quantization": f"{bits[1]}-bit ({bits[0]})" if bits else None,
            "engine": f"llama.cpp (llama-cpp-python {library.__version__})",
        }  # fmt: skip
    if not (total := len(recorder.layers)):
        raise _not_read(f"no layer of {model} runs flash attention in it")
    with Session(options, computes=False) as session:
        if progress is not None:
            session.progress = lambda layer, number: progress(layer, number, total)
        session.begin(names, 1, about)
        for call in recorder.calls():
            session(call)
        session.refused()
        return session.end([])[0]
