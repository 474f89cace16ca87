"""Traces of arrays: held against the formula in float64, and against what they were given."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor

import headloom
from headloom.analysis.heads.patterns import visible_keys


def by_formula(queries: Tensor, keys: Tensor, allowed: Tensor | None = None) -> Tensor:
    """The weights, (heads, queries, keys), in float64, written out."""
    heads, rows, depth = queries.shape
    weights = torch.zeros(heads, rows, keys.shape[1], dtype=torch.float64)
    for head in range(heads):
        own = keys[head * len(keys) // heads].double()
        scores = queries[head].double() @ own.T / depth**0.5
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        weights[head] = scores.softmax(-1)
    return weights


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights_of(layer: headloom.TraceLayer) -> Tensor:
    return layer.graph.to_dense().double()


class Foreign:
    """An array of another library, that only has `__dlpack__`, as JAX's have."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: object) -> object:
        return self._tensor.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


class Elsewhere(Foreign):
    """An array on a device that torch does not have, that NumPy can read, as MLX's on a Mac."""

    def __dlpack__(self, **options: object) -> object:
        raise BufferError("no such device")

    def __array__(self, *_: object, **options: object) -> np.ndarray:
        return self._tensor.numpy()


@pytest.mark.parametrize(
    "form",
    ["torch", "big-endian", "read-only", "dlpack", "no-device", "list", "nhd", "batch of one"],
)
def test_queries_and_keys_of_any_library_and_order_give_the_weights_of_the_formula(form) -> None:
    queries, keys = drawn(3, 4, 9, 8), drawn(3, 2, 9, 8, seed=1)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    first, second, options = queries, keys, {}
    if form == "big-endian":
        first, second = queries.numpy().astype(">f8"), keys.numpy().astype(">f4")
    elif form == "read-only":
        first, second = queries.numpy().copy(), keys.numpy()
        first.flags.writeable = False
    elif form == "dlpack":
        first, second = Foreign(queries), Foreign(keys)
    elif form == "no-device":
        first, second = Elsewhere(queries), Elsewhere(keys)
    elif form == "list":
        first, second = list(queries.numpy()), tuple(keys)
    elif form == "nhd":
        first, second = queries.transpose(1, 2), keys.transpose(1, 2)
        options = {"layout": "NHD"}
    elif form == "batch of one":
        first, second = list(queries[:, None]), list(keys[:, None])
    trace = headloom.from_queries_keys(first, second, mask=headloom.causal(), **options)
    assert [layer.kind for layer in trace.layers] == ["decoder"] * 3
    assert [layer.mask for layer in trace.layers] == ["causal"] * 3
    for number, layer in enumerate(trace.layers):
        expected = by_formula(queries[number], keys[number], allowed)
        assert torch.allclose(weights_of(layer), expected, atol=2e-6)
        assert torch.allclose(layer.matrix.to_dense().double(), expected, atol=2e-6)
        assert layer.value_norms is None
        assert layer.deviation is None


@pytest.mark.parametrize("form", [Foreign, Tensor.numpy])
def test_attend_takes_arrays_of_any_library(form) -> None:
    queries, keys, values = drawn(3, 4, 9, 8)
    output, weights = headloom.attend(*map(form, (queries, keys, values)), keep="all")
    expected = by_formula(queries, keys)
    assert torch.allclose(weights.double(), expected, atol=2e-6)
    assert torch.allclose(output.double(), expected @ values.double(), atol=2e-6)
    with pytest.raises(headloom.InputError, match="attend: keys are list; expected a tensor"):
        headloom.attend(queries, [[1.0]], values)


def test_positions_and_caps_are_those_of_attend() -> None:
    queries, keys = drawn(4, 6, 8), drawn(4, 6, 8, seed=1)
    slopes = headloom.alibi_slopes(4)
    (layer,) = headloom.from_queries_keys(
        queries, keys, relative=headloom.ALiBi(slopes), softcap=2.0, scale=0.5
    ).layers
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs().double()
    scores = 2 * (0.5 * queries.double() @ keys.double().mT / 2).tanh()
    expected = (scores - slopes.double()[:, None, None] * distance).softmax(-1)
    assert layer.positions == "alibi"
    assert torch.allclose(weights_of(layer), expected, atol=2e-6)
    assert torch.allclose(layer.matrix.to_dense().double(), expected, atol=2e-6)


@pytest.mark.parametrize("added", [0.0, 0.5])
def test_a_bias_of_minus_infinity_is_a_mask(added: float, tmp_path) -> None:
    queries, keys = drawn(2, 9, 8), drawn(2, 9, 8, seed=1)
    allowed = torch.ones(9, 9, dtype=torch.bool).tril()
    numbers = added * drawn(9, 9, seed=2)
    bias = numbers.masked_fill(~allowed, -torch.inf)
    trace = headloom.from_queries_keys(queries, keys, bias=bias, keep=headloom.Top(3))
    trace.save(tmp_path / "t.loom")
    masked = headloom.from_queries_keys(
        queries, keys, mask=headloom.causal(), bias=numbers, keep=headloom.Top(3)
    )
    for one in (trace, headloom.open(tmp_path / "t.loom")):
        (layer,) = one.layers
        assert (layer.kind, layer.mask) == ("decoder", "causal")
        assert layer.positions == ("bias" if added else "none")
        torch.testing.assert_close(layer.matrix.to_dense(), masked.layers[0].matrix.to_dense())
        pandas.testing.assert_frame_equal(one.heads(), masked.heads(), atol=1e-6)
    assert np.isnan(trace.heads()["next"]).all()  # no row may look there


def test_a_batch_gives_a_trace_for_each_input_with_its_own_tokens() -> None:
    queries, keys = drawn(2, 3, 4, 5, 8), drawn(2, 3, 2, 5, 8, seed=1)  # 2 layers, 3 inputs
    tokens = [list("abcde"), list("fghij"), list("klmno")]
    traces = headloom.from_queries_keys(list(queries), list(keys), tokens=tokens)
    assert [trace.tokens for trace in traces] == tokens
    assert {trace.model["name"] for trace in traces} == {"queries and keys"}
    for sample, trace in enumerate(traces):
        for number, layer in enumerate(trace.layers):
            expected = by_formula(queries[number, sample], keys[number, sample])
            assert torch.allclose(weights_of(layer), expected, atol=2e-6)


def test_cross_attention_has_two_sequences() -> None:
    kinds = ["encoder", "decoder", "cross"]
    queries = [drawn(2, 7, 4), drawn(2, 3, 4), drawn(2, 3, 4)]
    keys = [drawn(2, 7, 4), drawn(2, 3, 4), drawn(2, 7, 4)]
    trace = headloom.from_queries_keys(
        queries, keys, kind=kinds, mask=[None, headloom.causal(), None],
        tokens={"source": list("abcdefg"), "target": list("xyz")},
    )  # fmt: skip
    ends = [(layer.queries_from, layer.keys_from) for layer in trace.layers]
    assert ends == [("source", "source"), ("target", "target"), ("target", "source")]
    assert trace.rollout().shape == (3, 7)
    again = headloom.from_weights([weights_of(layer).numpy() for layer in trace.layers])
    assert [layer.kind for layer in again.layers] == kinds
    assert torch.allclose(again.rollout(), trace.rollout(), atol=1e-6)


def softmax(*shape: int, causal: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    scores = 2 * drawn(*shape)
    if causal:
        hidden = torch.ones(shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_kept_as_they_are_given(dtype, causal, tmp_path) -> None:
    given = softmax(2, 3, 40, 40, causal=causal, dtype=dtype)
    headloom.from_weights(given.float())  # rows sum as half precision does, whatever the type
    trace = headloom.from_weights(given, keep=headloom.All(), save=tmp_path / "t.loom")
    for number, layer in enumerate(trace.layers):
        assert layer.kind == ("decoder" if causal else "encoder")
        assert layer.mask == ("causal" if causal else "all")
        assert torch.equal(layer.graph.to_dense(), given[number].float())
        entropy = -torch.special.xlogy(given[number].double(), given[number].double()).sum(-1)
        assert torch.allclose(layer.graph.entropy.double(), entropy, atol=1e-6)
        assert layer.matrix is None
        assert layer.no_matrix == "its queries and keys were not kept"
    assert set(trace.heads()["source"]) == {"exact"}


def test_the_strongest_weights_are_kept_and_the_rest_is_said() -> None:
    given = softmax(1, 4, 30, 30)
    layer = headloom.from_weights(given.numpy(), keep=headloom.Top(5)).layers[0]
    top = given[0].topk(5)
    assert torch.equal(layer.graph.weights, top.values)
    assert torch.equal(layer.graph.keys.long(), top.indices)
    assert torch.allclose(layer.graph.rest, 1 - top.values.sum(-1), atol=1e-6)
    trace = headloom.from_weights(given, keep=headloom.Top(5))
    assert set(trace.heads()["source"]) == {"kept"}
    with pytest.raises(headloom.InputError, match="not known exactly"):
        trace.heads(exact=True)


def test_sinks_take_what_a_row_lacks() -> None:
    given = softmax(2, 5, 5) * 0.75
    given[:, 4] = 0  # of a query that looks nowhere
    (partial,) = headloom.from_weights(given, partial=True).layers
    assert torch.equal(partial.graph.to_dense(), given)
    assert torch.allclose(partial.graph.rest[:, :4], torch.tensor(0.25))
    assert partial.graph.rest[:, 4].tolist() == partial.graph.count[:, 4].tolist() == [0, 0]
    assert bool((partial.graph.lse[:, 4] == -torch.inf).all())


GIVEN = softmax(2, 3, 5, 5)
SCORES = 3 * drawn(2, 3, 5, 5)
BROKEN = GIVEN.clone()
BROKEN[1, 2, 4, 0] = torch.nan


@pytest.mark.parametrize(
    ("given", "options", "line"),
    [
        (SCORES, {}, "weights of layer 0: -.* like scores before the softmax"),
        (BROKEN, {}, "weights of layer 1: nan at head 2, row 4, column 0; 1 of 75 numbers are"),
        (GIVEN * 1.01, {}, r"head 0, query 0: the row sums to 1\.01, and 15 of 15 rows .* dropout"),
        (GIVEN.mT, {}, "queries before keys"),
        (GIVEN * 0, {}, "every weight is 0"),
        (GIVEN * 1.5, {"partial": True}, r"sums to 1\.5"),
        (
            GIVEN,
            {"mask": headloom.causal()},
            "row 0, column 1; .* are where the mask hides",
        ),
        (GIVEN, {"tokens": list("abcd")}, "has 5 positions, the sequence 'tokens' 4 tokens"),
        (GIVEN, {"kind": "both"}, "kind='both'; expected encoder, decoder, cross"),
        (GIVEN, {"names": ["a"]}, "names is a list of 1 for 2 layers"),
        ([], {}, "no layers"),
        ((None, None), {}, 'weights of layer 0: a NoneType.*attn_implementation="eager"'),
        (GIVEN.to(torch.int64), {}, "numbers of type int64; expected floating-point"),
        (GIVEN.numpy().astype("V4"), {}, "lose the type bfloat16: save as float32"),
        ([GIVEN, GIVEN[:1]], {}, "expected one batch for all layers"),
    ],
)
def test_what_are_no_weights_is_told_in_one_line(given, options, line) -> None:
    with pytest.raises(headloom.InputError, match=line) as raised:
        headloom.from_weights(given, **options)
    assert "\n" not in str(raised.value)


QUERIES = drawn(2, 4, 5, 8)
INFINITE = QUERIES.clone()
INFINITE[1, 3, 2, 0] = torch.inf


@pytest.mark.parametrize(
    ("queries", "keys", "options", "line"),
    [
        (INFINITE, QUERIES, {}, "queries of layer 1: inf at head 3, row 2, column 0"),
        (QUERIES, QUERIES[:1], {}, "2 layers of queries, 1 layers of keys"),
        (QUERIES, QUERIES[..., :4], {}, "queries have depth 8, keys 4"),
        (QUERIES, QUERIES, {"layout": "DHN"}, r"layout='DHN'; expected \"HND\" or \"NHD\""),
        (QUERIES, QUERIES, {"tokens": "abcde"}, "the tokens of 'tokens': expected a text or an id"),
        (QUERIES, QUERIES, {"tokens": ["a", "b", "c", "d", 5]}, "or an id for each"),
        (QUERIES, QUERIES, {"tokens": {"text": list("abcde")}}, "tokens of 'text'; expected"),
        (QUERIES, drawn(2, 4, 9, 8), {"tokens": list("abcde")}, "of an encoder-decoder"),
        (QUERIES, drawn(2, 4, 9, 8), {"mask": headloom.causal()}, "9 keys under a causal mask"),
        (QUERIES, QUERIES, {"mask": [None]}, "mask is a list of 1 for 2 layers"),
        (QUERIES, QUERIES, {"tokens": {"source": list("abcde"), "target": list("xyzuv")}},
         "no layer reads the tokens of 'target'.*kind=\"cross\""),
    ],
)  # fmt: skip
def test_what_are_no_queries_and_keys_is_told_in_one_line(
    queries, keys, options, line, tmp_path
) -> None:
    with pytest.raises(headloom.InputError, match=line) as raised:
        headloom.from_queries_keys(queries, keys, save=tmp_path / "t.loom", **options)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


OFFSET = torch.arange(9)[None] - torch.arange(9)[:, None]
GROUPS = torch.arange(9)[None] // 3 <= torch.arange(9)[:, None] // 3


@pytest.mark.parametrize(
    ("rule", "mask", "shown"),
    [
        ("causal", headloom.causal(), OFFSET <= 0),
        ("window", headloom.window(3, 1), (OFFSET >= -3) & (OFFSET <= 1)),
        ("ranges", GROUPS, GROUPS),
        ("all", headloom.padding(torch.tensor([9])), OFFSET < 9),
    ],
)
def test_weights_with_their_mask_say_which_keys_are_hidden(rule, mask, shown, tmp_path) -> None:
    given = drawn(2, 9, 9).masked_fill(~shown, -torch.inf).softmax(-1)
    # Few edges: they do not say by themselves what is hidden.
    options = {"mask": mask, "keep": headloom.Top(1)}
    layer = headloom.from_weights(given, **options).layers[0]
    assert layer.mask == rule
    assert torch.equal(visible_keys(layer).cells(range(9), range(9))[0], shown)
    headloom.from_weights(given, **options, save=tmp_path / "t.loom")
    assert headloom.open(tmp_path / "t.loom").layers[0].mask == rule


def test_weights_of_a_later_step_of_a_generation_have_a_kind() -> None:
    """One query over four keys: the last of a text, unless something says another sequence."""
    step = np.full((2, 1, 4), 0.25)
    with pytest.raises(
        headloom.InputError, match=r'1 query and 4 keys.*kind="decoder".*kind="cross"'
    ):
        headloom.from_weights([np.ones((2, 1, 1)), step])
    (layer,) = headloom.from_weights(step, tokens=["a", "b", "c", "d"]).layers
    assert layer.kind == "decoder"
    assert list(layer.query_tokens) == ["d"] and list(layer.key_tokens) == ["a", "b", "c", "d"]
    assert list(headloom.from_weights(step).layers[0].query_tokens) == ["position 3"]
    assert headloom.from_weights(step, kind="cross").layers[0].kind == "cross"
    both = {"source": ["a", "b", "c", "d"], "target": ["e"]}
    assert headloom.from_weights(step, tokens=both).layers[0].kind == "cross"


def test_rows_of_padding_before_a_causal_text_are_no_sign_of_an_encoder() -> None:
    """Eager attention gives a row that may look nowhere the same weight for every key."""
    causal = np.tril(np.random.default_rng(0).random((3, 5, 5)) + 0.1)
    causal[:, 2:, :2] = 0
    causal /= causal.sum(-1, keepdims=True)
    causal[:, :2] = 0.2
    assert headloom.from_weights(causal).layers[0].kind == "decoder"
    assert headloom.from_weights(np.full((3, 5, 5), 0.2)).layers[0].kind == "encoder"
    ahead = causal.copy()
    ahead[:, 3] = [0, 0, 0.5, 0.25, 0.25]
    assert headloom.from_weights(ahead).layers[0].kind == "encoder"
