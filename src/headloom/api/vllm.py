"""Plugin of vLLM: a request that asks for it has its attention traced on the server's disk.

vLLM loads `register` in each of its processes. In the worker, attention backends are replaced by
subclasses that copy the queries and keys of the requests that ask, as each layer runs. At the end
of such a request the engine has the worker write its trace, and adds the path to the answer.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.graph import Top
from headloom.mechanism.masks import window
from headloom.mechanism.shapes import in_words

if TYPE_CHECKING:
    from headloom.formats.trace import TraceData
    from headloom.tracing.given_sequences import GivenSequences

Vllm = Any  # an object of vLLM, whose types are not known here
#: Environment variable with the folder of the traces; without it the plugin does nothing.
FOLDER = "HEADLOOM_VLLM_DIR"
#: Name of the extra argument of a request, and of the entry in its answer.
NAME = "headloom"
#: Backends of vLLM that are replaced. Only CPU_ATTN has been run.
BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN")
#: Rows of all heads up to which an answer holds their edges.
ROWS_IN_ANSWER = 256


def register() -> None:
    """Replace vLLM's attention backends, and follow requests to their end, if there is a folder."""
    if not os.environ.get(FOLDER):
        return
    registry = import_module("vllm.v1.attention.backends.registry")
    for name in BACKENDS:
        backend = registry.AttentionBackendEnum[name]
        registry.register_backend(backend, f"{__name__}.{name}")
    _extend(import_module("vllm.v1.engine.core").EngineCore, "add_request", _added)
    _extend(import_module("vllm.v1.core.sched.scheduler").Scheduler, "_free_request", _ended)


def _extend(kind: Vllm, name: str, extension: Callable[..., Any]) -> None:
    """Call a function with the result and the arguments of each call of a method; once."""
    method = getattr(kind, name)
    if hasattr(method, NAME):
        return

    @wraps(method)
    def extended(*arguments: Vllm, **keywords: Vllm) -> Vllm:
        return extension(method(*arguments, **keywords), *arguments)

    setattr(extended, NAME, True)
    setattr(kind, name, extended)


def _asked(request: Vllm) -> Vllm:
    """Return the extra argument of a request; None: it has none."""
    return (getattr(request.sampling_params, "extra_args", None) or {}).get(NAME)


def _added(result: Vllm, engine: Vllm, request: Vllm, *_: Vllm) -> Vllm:
    """Note how to call the worker at the end of a request that asks."""
    if _asked(request) is not None:
        setattr(request, NAME, engine.model_executor.collective_rpc)
    return result


def _ended(result: Vllm, _: Vllm, request: Vllm, *__: Vllm) -> Vllm:
    """Have the trace of a request written, and add its path to the answer."""
    call = getattr(request, NAME, None)
    if call is None:
        return result
    ids, prompt = list(request.all_token_ids), request.num_prompt_tokens
    answer = call(finish, args=(request.request_id, ids, prompt))[0]
    kept, *others = result  # `kv_transfer_params` of the answer: what the engine kept
    return {**(kept or {}), NAME: answer}, *others


@cache
def __getattr__(name: str) -> Vllm:
    """Return the subclass of a backend of vLLM whose layers record."""
    if name not in BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    registry = import_module("vllm.v1.attention.backends.registry")
    path, _, kind = registry.AttentionBackendEnum[name].value.rpartition(".")
    backend = getattr(import_module(path), kind)
    layer_kind = backend.get_impl_cls()

    def create(self: Vllm, *arguments: Vllm, **keywords: Vllm) -> None:
        layer_kind.__init__(self, *arguments, **keywords)
        first = import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
        _extend(first, "_update_states", recorder().first_runner)
        second = import_module("vllm.v1.worker.gpu.model_runner").GPUModelRunner
        _extend(second, "add_requests", recorder().add)
        _extend(second, "gather_batch_req_state", recorder().second_runner)

    @wraps(layer_kind.forward)
    def forward(self: Vllm, *arguments: Vllm, **keywords: Vllm) -> Vllm:
        output = layer_kind.forward(self, *arguments, **keywords)
        if recorder().requests:
            layer, query, key, _, cache, metadata = arguments[:6]
            if metadata is not None:
                recorder().record(layer, query, key, cache, metadata)
        return output

    recording = type(layer_kind.__name__, (layer_kind,), {"__init__": create, "forward": forward})
    return type(kind, (backend,), {"get_impl_cls": staticmethod(lambda: recording)})


@dataclass(frozen=True)
class Wanted:
    """Options of a request: numbers of layers and heads, None for all; see `headloom.trace`."""

    layers: list[int] | None = None
    heads: list[int] | None = None
    keep: int = 32
    queries_keys: bool = False

    @classmethod
    def of(cls, value: Any) -> Wanted:
        """Check the extra argument of a request: a dict, or its JSON.

        Raises: InputError: something else.

        >>> Wanted.of('{"layers": [9], "heads": [2], "keep": 8}')
        Wanted(layers=[9], heads=[2], keep=8, queries_keys=False)
        """
        with suppress(ValueError):
            value = json.loads(value) if isinstance(value, str) else value
        fields = cls.__dataclass_fields__
        if not isinstance(value, dict) or value.keys() - fields.keys():
            raise InputError(
                f"{in_words(value)}; expected an object of {', '.join(fields)}, as "
                '{"layers": [9], "heads": [2]}.'
            )
        for name in ("layers", "heads"):
            if not isinstance(value.get(name, []), list):
                raise InputError(f"{name} is {in_words(value[name])}; expected a list, as [9].")
        return cls(**value)


class Layer:
    """Queries and keys of a request in one layer.

    first, count: positions of the first query and after the last one. Keys begin at 0: those of a
    cached prefix have no queries.
    """

    def __init__(self, layer: Vllm, first: int, queries: Tensor, keys: Tensor) -> None:
        self.layer, self.first, self.count = layer, first, len(keys)
        self.queries, self.keys = queries, keys

    def put(self, start: int, queries: Tensor, keys: Tensor) -> None:
        """Add rows at a position; later ones, of steps that were undone, are replaced."""
        end = start + len(keys)
        if end > len(self.keys):
            room = max(end, 2 * len(self.keys)) - start
            self.queries, self.keys = (
                torch.cat((old[:start], new.new_zeros(room, *new.shape[1:])))
                for old, new in ((self.queries, queries), (self.keys, keys))
            )
        self.queries[start:end], self.keys[start:end] = queries, keys
        self.count = end


@dataclass
class Request:
    """Recording of a request: layers by their numbers; failure: why it cannot be traced."""

    wanted: Wanted = field(default_factory=Wanted)
    layers: dict[int, Layer] = field(default_factory=dict)
    failure: str | None = None

    def record(self, layer: Vllm, start: int, queries: Tensor, keys: Tensor, prefix: Any) -> None:
        """Add the rows of a step. prefix: returns the keys before a position."""
        heads, number = self.wanted.heads, layer_number(layer)
        if heads is not None:
            if not heads or {*heads} - {*range(queries.shape[1])}:
                raise InputError(f"heads is {heads}; a layer has 0 to {queries.shape[1] - 1}.")
            queries = queries[:, heads]
        part = self.layers.get(number)
        if part is None or start < part.first:
            # The first step, or the first one after the request was preempted.
            keys_before = prefix(start) if start else keys[:0]
            zeros = queries.new_zeros(start, *queries.shape[1:])
            part = self.layers[number] = Layer(layer, start, zeros, keys_before)
        elif start > part.count:
            raise InputError(
                f"steps of {layer.layer_name} ran where they cannot be seen, in a CUDA graph of "
                "the whole model; start vLLM with enforce_eager or cudagraph_mode PIECEWISE."
            )
        part.put(start, queries, keys)


class Recorder:
    """Requests of a worker that are recorded, by their ids."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}
        #: Returns the ids of the requests of the running step, in the order of its rows.
        self._batch: Callable[[], Sequence[str]] = tuple

    def add(self, result: Vllm, _: Vllm, step: Vllm) -> Vllm:
        """Begin to record the new requests of a step that ask for it."""
        for data in step.scheduled_new_reqs:
            if _asked(data) is None or data.req_id in self.requests:
                continue
            request = self.requests[data.req_id] = Request()
            try:
                request.wanted = Wanted.of(_asked(data))
            except InputError as error:
                request.failure = str(error)
        return result

    def first_runner(self, result: Vllm, runner: Vllm, step: Vllm) -> Vllm:
        """Follow vLLM's first model runner, which serves CPUs."""
        self._batch = lambda: runner.input_batch.req_ids
        return self.add(result, runner, step)

    def second_runner(self, result: Vllm, *_: Vllm) -> Vllm:
        """Follow vLLM's second model runner."""
        ids = () if result[0] is None else result[0].req_ids
        self._batch = lambda: ids
        return result

    def record(self, layer: Vllm, query: Tensor, key: Tensor, cache: Tensor, step: Vllm) -> None:
        """Copy the rows of a layer's step for the requests that ask for it."""
        number, rows = layer_number(layer), None
        for place, name in enumerate(self._batch()):
            request = self.requests.get(name)
            if request is None or request.failure is not None:
                continue
            if number not in (request.wanted.layers or (number,)):
                continue
            try:
                if rows is None:
                    check_layer(layer, key, cache, step)
                    rows = step.query_start_loc.tolist(), step.seq_lens.tolist()
                begin, end = rows[0][place : place + 2]
                start = rows[1][place] - (end - begin)
                prefix = partial(cached_keys, layer, key, cache, step, place)
                request.record(layer, start, query[begin:end], key[begin:end], prefix)
            except Exception as error:  # a trace never breaks the server
                request.failure, request.layers = str(error), {}


@cache
def recorder() -> Recorder:
    """Return the recorder of this process."""
    return Recorder()


def finish(worker: Vllm, name: str, ids: list[int], prompt: int) -> JsonObject:
    """Write the trace of a request that ends; return its path, or why there is none."""
    request = recorder().requests.pop(name, Request(failure="the request did not run."))
    try:
        several = worker.vllm_config.parallel_config.world_size > 1
        failure = "vLLM on several devices is not traced." if several else request.failure
        if failure is not None:
            raise InputError(failure)
        trace = written(request, worker.vllm_config.model_config, name, ids, prompt)
        return {"trace": str(trace.folder)} | small(trace)
    except Exception as error:  # a trace never breaks the server
        return {"error": str(error)}


def written(request: Request, config: Vllm, name: str, ids: list[int], prompt: int) -> TraceData:
    """Compute and write the trace of a request."""
    # These load pyarrow and pandas, which vLLM's other processes do not need.
    from headloom.tracing.options import TraceOptions
    from headloom.tracing.recording.layer_call import LayerCall
    from headloom.tracing.recording.session import Session

    wanted, parts = request.wanted, [part for _, part in sorted(request.layers.items())]
    missing = {*(wanted.layers or ())} - request.layers.keys()
    if missing or not parts:
        raise InputError(f"layers {sorted(missing) or ''} did not run.")
    # The last token has no row: no step has read it.
    length = min([len(ids) - 1, *(part.count for part in parts)])
    about = {
        "name": config.model, "given": "vLLM", "vllm": import_module("vllm").__version__,
        "request": name,
    } | ({} if wanted.heads is None else {"heads": wanted.heads})  # fmt: skip
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    options = TraceOptions(
        save=folder / re.sub(r"[^\w-]+", "_", name),  # a client may choose the name
        keep=Top(wanted.keep), queries_keys=wanted.queries_keys, received=True, verify=False,
        sampled=False,
    )  # fmt: skip
    with Session(options) as session, torch.inference_mode():
        session.begin(names_of(config, ids[:length], prompt), 1, about)
        for part in parts:
            impl, wide = part.layer.impl, part.layer.sliding_window
            queries = part.queries[part.first : length].transpose(0, 1)[None]
            keys = part.keys[:length].transpose(0, 1)[None]
            sinks = getattr(impl, "sinks", None)
            if wanted.heads is not None:
                group = impl.num_heads // impl.num_kv_heads
                keys = keys[:, [head // group for head in wanted.heads]]
                sinks = None if sinks is None else sinks[wanted.heads]
            mask = window(None if wide is None else wide - 1, 0, part.first)
            call = LayerCall(
                part.layer.layer_name, "decoder", queries, keys, keys[..., :1], impl.scale, mask,
                softcap=impl.logits_soft_cap or None, sinks=sinks, values_known=False,
            )  # fmt: skip
            session(call)
        (trace,) = session.end([])
    return trace


def names_of(config: Vllm, ids: list[int], prompt: int) -> GivenSequences:
    """Return the names of tokens, of which those after the prompt were generated."""
    from headloom.tracing.given_sequences import GivenSequences

    class Names(GivenSequences):
        def of(self, name: str, length: int, sample: int) -> Any:
            sequence = super().of(name, length, sample)
            first = len(ids) - length
            sequence.known["generated"] = [place >= prompt for place in range(first, len(ids))]
            return sequence

    tokenizer = None
    if not config.skip_tokenizer_init:
        tokenizer = import_module("vllm.tokenizers").cached_tokenizer_from_config(config)
    return Names(ids, tokenizer, 1, pair=False)


def small(trace: TraceData) -> JsonObject:
    """Return the edges of a small trace for an answer; empty: it is not small."""
    if sum(layer.shape[0] * layer.shape[1] for layer in trace.layers) > ROWS_IN_ANSWER:
        return {}
    names = ("keys", "weights", "lse", "entropy")
    layers = [
        {"name": layer.name} | {name: getattr(layer.graph, name).tolist() for name in names}
        for layer in trace.layers
    ]
    return {"layers": layers}


def layer_number(layer: Vllm) -> int:
    """Return the number in the path of a layer: 9 of model.layers.9.self_attn.attn."""
    return int(re.findall(r"\d+", layer.layer_name)[0])


def check_layer(layer: Vllm, key: Tensor, cache: Tensor, metadata: Vllm) -> None:
    """Raise an InputError for layers whose weights are not those of its queries and keys."""
    reasons = {
        "is not causal self-attention": type(layer).__name__ != "Attention"
        or layer.attn_type != "decoder"
        or not metadata.causal
        or layer.use_mm_prefix,
        "adds ALiBi": getattr(layer.impl, "alibi_slopes", None) is not None,
        "has no keys of its own": layer.kv_sharing_target_layer_name is not None,
        "keeps its keys quantized": cache.dtype != key.dtype,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"{layer.layer_name} {reason}, which is not traced.")


def cached_keys(
    layer: Vllm, like: Tensor, cache: Tensor, metadata: Vllm, place: int, count: int
) -> Tensor:
    """Return the first keys of a request of the batch from the paged cache.

    Backends arrange the keys inside a block in their own way, which is read from a block that the
    backend fills with the numbers of the places. Keys before a sliding window, whose blocks may be
    gone, are 0. Shape: (count, kv_heads, depth).
    """
    heads, depth = like.shape[1:]
    size = cache.numel() // (cache.shape[0] * 2 * heads * depth)
    places = torch.arange(1, 1 + size * heads * depth, device=cache.device)
    trial, stored = torch.zeros_like(cache[:1]), torch.zeros_like(places[:1])
    slots = torch.arange(size, device=cache.device, dtype=metadata.slot_mapping.dtype)
    for power in (14, 7, 0):  # digits that half precision holds exactly
        digit = ((places >> power) % 128).view(size, heads, depth).to(like.dtype)
        layer.impl.do_kv_cache_update(layer, digit, torch.zeros_like(digit), trial, slots)
        stored = stored * 128 + trial.flatten().long()
    order = stored.argsort()[-len(places) :]  # the others are values
    pages = cache[metadata.block_table[place, : -(-count // size)].long()].flatten(1)
    keys = pages[:, order].view(-1, heads, depth)[:count]
    if layer.sliding_window is not None:
        keys[: max(0, count - layer.sliding_window + 1)] = 0
    return keys
