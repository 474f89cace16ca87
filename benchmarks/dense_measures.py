"""The measures of benchmarks/bench_analysis.py beside the same on dense matrices, where these fit.

Each is written down here once more, in the plainest way that is not slow, on the dense matrices of
a trace. `compare` prints, for each, the seconds that it takes once the matrices are there, how far
the exact one is from it, and whether what the kept edges alone say holds it, and how wide that is.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components, maximum_flow
from torch import Tensor

import headloom
from headloom.analysis.compare import distance
from headloom.analysis.effects.relevance import relevance
from headloom.analysis.graphs.components import components
from headloom.analysis.graphs.flow import attention_flow
from headloom.analysis.graphs.norms import given_by_rows, norms_of_heads
from headloom.analysis.graphs.pagerank import pagerank
from headloom.analysis.graphs.reciprocity import reciprocity
from headloom.analysis.graphs.rollout import Rollout, rollout_columns, rollout_rows, whole_rollout
from headloom.analysis.graphs.spectrum import effective_rank, energy_rank
from headloom.analysis.graphs.strength import heavy_hitters, received
from headloom.analysis.heads.pattern_mass import LayerWeights
from headloom.analysis.heads.roles import layer_scores
from headloom.analysis.interval import Interval, Source
from headloom.api.trace import Trace
from headloom.formats.trace import TraceLayer
from headloom.mechanism.reference import graphs as reference

__all__ = ["compare", "compare_relevance", "compare_two_sequences"]

#: The layer that measures of all singular values are taken of: they take a second a head.
ONE_LAYER = 6

#: Capacities of a flow as whole numbers.
ONE = 2**20


@dataclass(frozen=True)
class Measure:
    """A measure three times: on dense matrices, exact, and as far as the kept edges say.

    dense: from the trace and the weights of its layers to tensors; exact: likewise, or intervals;
    kept: intervals, or None.
    """

    name: str
    dense: Callable[[Trace, list[Tensor]], list[Tensor]]
    exact: Callable[[Trace], list[Any]]
    kept: Callable[[Trace], list[Interval]] | None = None


def by_layer(measure: Callable[[Source, TraceLayer], Any], kept: bool) -> Callable[[Trace], Any]:
    """A measure of a layer's weights, of each layer of a trace."""
    return lambda trace: [
        measure(layer.graph if kept else exactly(layer), layer) for layer in trace.layers
    ]


def exactly(layer: TraceLayer) -> headloom.AttentionMatrix:
    assert layer.matrix is not None
    return layer.matrix


def between(name: str, dense: Any, measure: Callable[[Source, TraceLayer], Interval]) -> Measure:
    """A measure of layers that gives an interval from either source."""
    return Measure(name, dense, by_layer(measure, False), by_layer(measure, True))


def around(value: Tensor, bound: Tensor) -> Interval:
    return Interval(value - bound, value + bound)


def from_below(found: Rollout, across: bool = True) -> Interval:
    bound = found.bound[:, None] if across else found.bound
    return Interval(found.values, found.values + bound.reshape(found.values.shape[0], -1))


def smallest_sets(weights: Tensor, share: float = 0.9) -> Tensor:
    """How many keys hold a share of all mass, by head."""
    sums = weights.double().sum(1).sort(dim=-1, descending=True).values.cumsum(-1)
    wanted = share * (1 - 1e-9) * weights.double().sum((1, 2))
    return (sums < wanted[:, None]).sum(-1) + 1


def parts(weights: Tensor, threshold: float = 0.05) -> Tensor:
    counts = [
        connected_components(scipy.sparse.csr_array((head >= threshold).numpy()), True, "weak")[0]
        for head in weights
    ]
    return torch.tensor(counts)


def spectral(weights: Tensor, power: int) -> Tensor:
    """exp of the entropy of the singular values, to a power, as shares."""
    values = torch.linalg.svdvals(weights.double()) ** power
    shares = values / values.sum(-1, keepdim=True)
    return torch.exp(-torch.xlogy(shares, shares).sum(-1))


def dense_flow(dense: list[Tensor], source: int, target: int) -> Tensor:
    """The largest flow through half weights, half residual connections."""
    length = dense[0].shape[1]
    rows, columns, capacities = [], [], []
    for number, weights in enumerate(dense):
        step = (reference.with_residual(weights.mean(0)) * ONE).round().int().numpy()
        above, below = np.nonzero(step)
        rows.append(above + (number + 1) * length)
        columns.append(below + number * length)
        capacities.append(step[above, below])
    nodes = (len(dense) + 1) * length
    network = scipy.sparse.csr_array(
        (np.concatenate(capacities), (np.concatenate(rows), np.concatenate(columns))),
        shape=(nodes, nodes),
        dtype=np.int32,
    )
    start = len(dense) * length + source % length
    found = maximum_flow(network, start, target % length, method="dinic").flow_value
    return torch.tensor([found / ONE], dtype=torch.float64)


def patterns(trace: Trace, dense: list[Tensor]) -> list[Tensor]:
    """Scores of the patterns of roles for each head of each layer."""
    length = len(trace.tokens)
    place = torch.arange(length)
    numbers = {token: number for number, token in enumerate(dict.fromkeys(trace.tokens))}
    ids = torch.tensor([numbers[token] for token in trace.tokens])
    back = place[:, None] - place
    equal = (ids[:, None] == ids) & (back > 0)
    after = torch.zeros_like(equal)
    after[:, 1:] = (ids[:, None] == ids)[:, :-1] & (back[:, 1:] >= 0)
    found = []
    for weights in dense:

        def on(there: Tensor, weights: Tensor = weights) -> Tensor:
            rows = there.any(-1)
            return (weights * there).sum(-1)[:, rows].mean(-1)

        entropy = -torch.xlogy(weights, weights).sum(-1)
        breadth = (entropy.exp() / (place + 1))[:, 1:].mean(-1)
        scores = [on(back == 1), on(back == 0), weights[:, :, 0].mean(-1)]
        scores += [(weights * (back.abs() <= 4)).sum(-1).mean(-1), on(equal), on(after)]
        scores += [breadth, entropy.mean(-1), (weights * back.abs()).sum(-1).mean(-1)]
        found.append(torch.stack(scores))
    return found


def pattern_scores(trace: Trace) -> list[Tensor]:
    names = ("previous", "same", "first", "local", "duplicate", "induction")
    names += ("broad", "entropy", "distance")
    found = [layer_scores(LayerWeights(layer, exact=True)) for layer in trace.layers]
    return [torch.stack([scores[name].score for name in names]) for scores in found]


def pagerank_kept(source: Source, _: TraceLayer) -> Interval:
    found = pagerank(source)
    return around(found.mean, found.mean_bound)


def residual(dense: list[Tensor]) -> list[Tensor]:
    return [reference.with_residual(weights.mean(0)) for weights in dense]


def norms(trace: Trace, dense: list[Tensor]) -> list[Tensor]:
    return [
        (weights @ norms_of_heads(layer)[..., None])[..., 0]
        for weights, layer in zip(dense, trace.layers, strict=True)
    ]


def changes(trace: Trace, exact: bool) -> list[Interval]:
    return [distance(b, a, exact=exact) for a, b in itertools.pairwise(trace.layers)]


MEASURES = [
    between("received", lambda _, dense: [w.sum(1) for w in dense], lambda s, _: received(s)),
    between(
        "heavy hitters",
        lambda _, dense: [smallest_sets(w) for w in dense],
        lambda s, _: heavy_hitters(s).count,
    ),
    between("given", norms, lambda s, layer: given_by_rows(s, norms_of_heads(layer))),
    between(
        "reciprocity",
        lambda _, dense: [
            (w * w.transpose(1, 2)).sum((1, 2)) / w.square().sum((1, 2)) for w in dense
        ],
        lambda s, _: reciprocity(s),
    ),
    Measure(
        "pagerank",
        lambda _, dense: [reference.pagerank(w.mean(0).double()) for w in dense],
        by_layer(lambda s, layer: pagerank(s, edges=layer.graph).mean, False),
        by_layer(pagerank_kept, True),
    ),
    Measure(
        "components",
        lambda _, dense: [parts(w) for w in dense],
        by_layer(lambda s, _: torch.from_numpy(components(s, 0.05).count), False),
        by_layer(lambda s, _: _complete_parts(s), True),
    ),
    Measure(
        "effective rank",
        lambda _, dense: [spectral(dense[ONE_LAYER], 1)],
        lambda trace: [effective_rank(exactly(trace.layers[ONE_LAYER]))],
    ),
    Measure(
        "energy rank",
        lambda _, dense: [spectral(dense[ONE_LAYER], 2)],
        lambda trace: [energy_rank(exactly(trace.layers[ONE_LAYER]))],
        lambda trace: [energy_rank(trace.layers[ONE_LAYER].graph)],
    ),
    Measure(
        "rollout row",
        lambda _, dense: [torch.linalg.multi_dot([*_last_row(residual(dense))])],
        lambda trace: [rollout_rows(trace, -1, exact=True).values],
        lambda trace: [from_below(rollout_rows(trace, -1, exact=False))],
    ),
    Measure(
        "rollout column",
        lambda _, dense: [torch.linalg.multi_dot([*_first_column(residual(dense))])],
        lambda trace: [rollout_columns(trace, 0, exact=True).values],
        lambda trace: [from_below(rollout_columns(trace, 0, exact=False))],
    ),
    Measure(
        "rollout whole",
        lambda _, dense: [reference.rollout([w.mean(0) for w in dense])],
        lambda trace: [whole_rollout(trace, exact=True).values],
        lambda trace: [from_below(whole_rollout(trace, exact=False))],
    ),
    Measure(
        "change",
        lambda _, dense: [(b - a).abs().sum(-1).mean(-1) / 2 for a, b in itertools.pairwise(dense)],
        lambda trace: changes(trace, True),
        lambda trace: changes(trace, False),
    ),
    Measure(
        "flow",
        lambda trace, dense: [dense_flow(dense, -1, len(trace.tokens) // 2)],
        lambda trace: [attention_flow(trace, -1, len(trace.tokens) // 2, exact=True)],
        lambda trace: [attention_flow(trace, -1, len(trace.tokens) // 2, exact=False)],
    ),
    Measure("roles", patterns, pattern_scores),
]


def _complete_parts(source: Source) -> Interval:
    """Exact where the kept edges are complete; else what they have is more parts than there are."""
    found = components(source, 0.05)
    upper = torch.from_numpy(found.count)
    return Interval(torch.where(torch.from_numpy(found.complete), upper, 1), upper)


def _last_row(steps: list[Tensor]) -> list[Tensor]:
    return [steps[-1][-1:], *steps[-2::-1]]


def _first_column(steps: list[Tensor]) -> list[Tensor]:
    return [*steps[:0:-1], steps[0][:, :1]]


def _difference(found: Sequence[Any], expected: Sequence[Tensor]) -> str:
    """How far the exact results are from the dense ones, as shares of the largest."""
    widest, furthest = 0.0, 0.0
    for one, truth in zip(found, expected, strict=True):
        truth = truth.double()
        largest = float(truth.abs().max())
        if isinstance(one, Interval):
            widest = max(widest, float(one.width.max()) / largest)
            outside = torch.maximum(one.lower.double() - truth, truth - one.upper.double())
            furthest = max(furthest, float(outside.clamp(min=0).max()) / largest)
        else:
            furthest = max(furthest, float((one.double() - truth).abs().max()) / largest)
    return f"{furthest:.1e}" + (f", interval of {widest:.2f}" if widest > 1e-6 else "")


def _bounds(found: Sequence[Interval], expected: Sequence[Tensor]) -> str:
    """Whether intervals hold the dense results, and how wide they are, of the largest value."""
    inside, widths = True, []
    for one, truth in zip(found, expected, strict=True):
        truth, largest = truth.double(), truth.double().abs().max()
        slack = 1e-4 * largest
        held = (one.lower.double() <= truth + slack) & (one.upper.double() >= truth - slack)
        inside &= bool(held.all())
        widths.append(float(one.width.double().mean() / largest))
    return f"{'holds' if inside else 'DOES NOT HOLD'}, width {sum(widths) / len(widths):.2g}"


def say(name: str, seconds: float, exact_seconds: float, difference: str, kept: str) -> None:
    print(
        f"{name:17} dense {seconds:7.3f} s   exact {exact_seconds:7.3f} s, differs by "
        f"{difference:24} kept: {kept}",
        flush=True,
    )


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def compare(trace: Trace, measures: Sequence[Measure] = MEASURES) -> None:
    """Print each measure of a trace beside the same from its dense matrices."""
    dense, seconds = timed(lambda: [exactly(layer).dense(force=True) for layer in trace.layers])
    print(f"dense matrices: {seconds:.2f} s to form; differences are shares of the largest value")
    for one in measures:
        expected, of_dense = timed(lambda one=one: one.dense(trace, dense))
        found, of_exact = timed(lambda one=one: one.exact(trace))
        kept = "-" if one.kept is None else _bounds(one.kept(trace), expected)
        say(one.name, of_dense, of_exact, _difference(found, expected), kept)


def compare_relevance(model: Any, ids: Tensor) -> None:
    """Relevance beside gradients of dense weights, as the model's own library takes them."""
    (found,), of_exact = timed(lambda: relevance(model, ids, rows=-1))
    own = model.config._attn_implementation

    def by_gradients() -> Tensor:
        model.set_attn_implementation("eager")
        output = model(ids, output_attentions=True, use_cache=False, logits_to_keep=1)
        slopes = torch.autograd.grad(output.logits[0, -1].max(), output.attentions)
        row = torch.zeros(ids.shape[1])
        row[-1] = 1
        for slope, weights in zip(slopes[::-1], output.attentions[::-1], strict=True):
            row = row + row @ (slope * weights.detach())[0].clamp(min=0).mean(0)
        return row

    try:
        expected, of_dense = timed(by_gradients)
    finally:
        model.set_attn_implementation(own)
    # The one that the position holds of itself says nothing.
    difference = _difference([found[:-1]], [expected[:-1]])
    say("relevance", of_dense, of_exact, difference, "-")


def compare_two_sequences(length: int) -> None:
    """Rollout between two sequences, of an encoder-decoder of 4 + 4 layers, 8 heads each."""
    import transformers

    torch.manual_seed(1)
    config = transformers.BartConfig(
        vocab_size=1000, d_model=512, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=512,
        decoder_ffn_dim=512, max_position_embeddings=length,
    )  # fmt: skip
    model = transformers.BartModel._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter *= 8
    inputs = {
        "input_ids": torch.randint(4, 1000, (1, length)),
        "decoder_input_ids": torch.randint(4, 1000, (1, length // 2)),
    }
    trace = headloom.trace(model, inputs)
    assert isinstance(trace, Trace)

    def by_dense(trace: Trace, dense: list[Tensor]) -> list[Tensor]:
        layers = list(zip((w.mean(0) for w in dense), trace.layers, strict=True))
        encoder = reference.rollout([w for w, layer in layers if layer.kind == "encoder"])
        found = torch.zeros(length // 2, length)
        for weights, layer in layers:
            if layer.kind == "decoder":
                found = reference.with_residual(weights) @ found
            elif layer.kind == "cross":
                found = 0.5 * found + 0.5 * weights @ encoder
        return [found]

    compare(
        trace,
        [
            Measure(
                "rollout between",
                by_dense,
                lambda trace: [whole_rollout(trace, exact=True).values],
                lambda trace: [from_below(whole_rollout(trace, exact=False))],
            )
        ],
    )
