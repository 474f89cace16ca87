"""`Trace`: the tokens and the layers of one input through one model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from headloom.errors import Hints, InputError, optional_package
from headloom.formats.files import JsonMapping
from headloom.formats.head import Head
from headloom.formats.layer_data import Digests, LayerData, StoredLayer
from headloom.formats.layer_data import LayerInMemory as LayerInMemory
from headloom.formats.terms import Terms
from headloom.formats.tokens import Tokens, visible
from headloom.formats.traced_images import TracedImage
from headloom.formats.verification import in_words
from headloom.mechanism.drawn import Drawn
from headloom.mechanism.graph import AttentionGraph
from headloom.mechanism.matrix.attention_matrix import AttentionMatrix
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class TraceLayer(Drawn, Hints):
    """One attention call of a model.

        name           its path in the model
        kind           "encoder" (a sequence looks at itself), "decoder" (likewise, never ahead)
                       or "cross" (the target looks at the source)
        index          its place among the layers of its kind, from 0
        shape          (heads, queries, keys)
        queries_from   the sequence its queries are made from: "tokens", "source" or "target"
        keys_from      the sequence its keys are made from
        query_tokens   a token for each row of the weight matrix
        key_tokens     a token for each column
        scale          the factor on the scores
        positions      relative positions: "none", "shaw", "alibi", "rotary" or "bias" (added to
                       the scores, as by T5). With "shaw", "alibi" and "bias", scores are more
                       than scale * queries . keys
        mask           "all", "causal", "window" or "ranges" (of keys side by side, one for each
                       query) where the rule is known, else None
        softcap        c, where scores are c tanh(scale * queries . keys / c), else None
        deviation      how far, on a sample of rows, what was caught is from what the model's own
                       attention gives: the largest difference of outputs and weights. None: not
                       measured

    What lies on disk is read when it is first asked for.
    """

    _elsewhere: ClassVar[dict[str, str]] = {
        name: f"layer[head].{name}" for name in ("weights", "to_pandas", "to_networkx", "exact")
    } | dict.fromkeys(("attention", "attentions", "dense", "numpy"), "layer[head].weights")

    name: str
    kind: str
    index: int
    shape: tuple[int, int, int]
    queries_from: str
    keys_from: str
    query_tokens: list[str]
    key_tokens: list[str]
    scale: float
    data: LayerData = field(repr=False)
    positions: str = "none"
    mask: str | None = None
    softcap: float | None = None
    deviation: float | None = None

    @property
    def heads(self) -> int:
        """How many heads it has."""
        return self.shape[0]

    @property
    def one_sequence(self) -> bool:
        """Whether its sequence looks at itself: queries and keys are the same tokens."""
        return self.queries_from == self.keys_from and self.shape[1] == self.shape[2]

    @cached_property
    def graph(self) -> AttentionGraph:
        """The attention graph of the layer."""
        return self.data.graph

    @cached_property
    def _queries_keys(self) -> tuple[Tensor, Tensor] | None:
        return self.data.queries_keys

    @property
    def queries(self) -> Tensor | None:
        """The queries as they were scored, (heads, queries, depth), where they were kept."""
        return None if self._queries_keys is None else self._queries_keys[0]

    @property
    def keys(self) -> Tensor | None:
        """The keys as they were scored, (kv_heads, keys, depth), where they were kept."""
        return None if self._queries_keys is None else self._queries_keys[1]

    @cached_property
    def terms(self) -> Terms | None:
        """What enters the weights besides queries and keys; None: it is not known."""
        return self.data.terms

    @cached_property
    def value_norms(self) -> Tensor | None:
        """The Euclidean norm of each value, |v_j|, (kv_heads, keys); None: they were not kept.

        Head h reads the values of kv head ``h // (heads / kv_heads)``. ``w_ij |v_j|`` is how much
        key j gives to the output of query i (Kobayashi et al. 2020, without the projection).
        Values that relative positions add are not in it.
        """
        return self.data.value_norms

    @cached_property
    def matrix(self) -> AttentionMatrix | None:
        """The whole weight matrix, exact, never formed; None: see `no_matrix`.

        Any tile, ``matrix[head, i0:i1, j0:j1]``, is recomputed from queries, keys and the rows'
        log-sum-exp; products, column sums and the rest as `headloom.AttentionMatrix` says. As exact
        as the type that queries and keys are stored in: where that is half precision, scores are
        rounded and the log-sum-exp is the model's, so that a row sums to 1 only about; see
        `normalised_matrix`.
        """
        tensors = self._queries_keys
        if tensors is None or self.no_matrix is not None:
            return None
        # Half precision is a matter of storage; scores are taken in float32.
        queries, keys = (tensor.float() for tensor in tensors)
        # Of the rows alone: a tile needs no edges to be read.
        return self._operator(queries, keys, self.data.lse)

    @cached_property
    def normalised_matrix(self) -> AttentionMatrix | None:
        """The weights of the queries and keys as they are stored; each row sums to 1, as a softmax.

        `matrix`, but where queries and keys are stored in half precision: there each row has the
        log-sum-exp of its own rounded scores, which takes one pass over queries and keys. What
        follows paths through whole rows is taken from it: shares of these are at most 1.
        """
        matrix = self.matrix
        if matrix is None or not self.half_precision:
            return matrix
        return self._operator(matrix.queries, matrix.keys, None)

    @property
    def half_precision(self) -> bool:
        """Whether queries and keys were kept, in float16 or bfloat16."""
        return self.queries is not None and self.queries.dtype in (torch.float16, torch.bfloat16)

    def _operator(self, queries: Tensor, keys: Tensor, lse: Tensor | None) -> AttentionMatrix:
        """The weights of queries and keys; lse: of each row, or None: its own."""
        terms = self.terms
        assert terms is not None
        return AttentionMatrix(
            queries,
            keys,
            mask=terms.mask,
            bias=terms.bias,
            relative=terms.relative,
            scale=self.scale,
            softcap=self.softcap,
            sinks=terms.sinks,
            lse=lse,
        )

    @property
    def no_matrix(self) -> str | None:
        """Why the layer has no `matrix`; None: it has one."""
        if self.terms is not None and self.terms.missing is not None:
            return self.terms.missing
        if self._queries_keys is None:
            return "its queries and keys were not kept"
        if self.terms is None:
            return "what enters its scores besides queries and keys was not kept"
        return None

    def plot(
        self,
        head: int | None = None,
        *,
        ax: Axes | Figure | None = None,
        width: float | None = None,
        **imshow: Any,
    ) -> Any:
        """Draw the weights of a head, tokens on both axes; or all heads beside each other.

        Rows are queries, columns keys; a colour is the square root of a weight, so that small ones
        are seen. Exact where the layer has its queries and keys or every edge; else of the kept
        edges, and the picture says what is missing.

        Args:
            head: which one; None: all.
            ax: axes to draw into, or a figure to fill; None: a new figure, which a notebook and
                ``pyplot.show()`` show.
            width: of a new figure, in millimetres; its height follows.
            imshow: options of `matplotlib.axes.Axes.imshow`, as cmap, vmax and norm.

        Returns: the axes; of all heads an array of them.
        Raises: InputError: no such head; matplotlib is not installed.
        """
        return self._plot("head_or_all", self, head, ax=ax, width=width, **imshow)

    def __getitem__(self, head: int) -> Head:
        """``layer[2]``: a head; -1 is the last one. Raises: InputError: there is no such head."""
        return Head(self, place_of("layer", self.name, "head", head, self.heads))

    def __len__(self) -> int:
        """The number of heads."""
        return self.heads

    def __iter__(self) -> Iterator[Head]:
        return (self[head] for head in range(self.heads))

    def __repr__(self) -> str:
        verified = "" if self.deviation is None else f", deviation={self.deviation:.1e}"
        return f"TraceLayer({self.name!r}, kind={self.kind!r}, shape={self.shape}{verified})"


def layer_number(trace: TraceData, name: str | int) -> int:
    """The number of the layer that somebody names: by 5, by 5 (cross 1), or by its path.

    Raises: InputError: there is none, or the layer of that number is of another kind or index.
    """
    labels = [f"{n} ({layer.kind} {layer.index})" for n, layer in enumerate(trace.layers)]
    numbers: dict[str, int] = {}
    for number, label in enumerate(labels):
        numbers |= {str(number): number, label: number}
    for number, layer in enumerate(trace.layers):  # whose path can be a number, in a Sequential
        numbers.setdefault(layer.name, number)
    name = str(name).strip()
    if name in numbers:
        return numbers[name]
    is_now = f"the trace has layers 0 to {len(labels) - 1}. Give a number, or a path."
    place = numbers.get(name.partition(" (")[0])
    if place is not None:
        is_now = f"layer {place} is {labels[place]}, of the path {trace.layers[place].name}."
    raise InputError(f"layer {visible(name, 60)}: no such layer; {is_now}")


@dataclass(frozen=True, eq=False)
class TraceData:
    """Tokens and layers of one input through one model.

    sequences   the tokens: {"tokens": [...]} of a model that reads one sequence,
                {"source": [...], "target": [...]} of an encoder-decoder
    layers      every attention call, in the order of the model's run
    model       what is known of the model
    positions   what is known of the tokens of a sequence, besides their strings:
                {"tokens": {"offsets": [[0, 5], ...], "special": [False, ...]}}. Offsets are
                characters of the text, [0, 0] of a token that is not in it; "texts" are what the
                tokens say, where their vocabulary spells them otherwise; of the patches of an
                image there are "rows" and "columns", -1 of a token that is no patch; of those of
                a sound "seconds", where each has its middle; of parts, as windows of an image,
                "parts", the number of each position's part; of the patches of images among the
                tokens of a text "images", "tiles", "rows", "columns", -1 of a token that is none
    verification  how the model with headloom was held against the model without: see
                `headloom.formats.verification`. None: it was not
    not_traced  attention modules that ran and are not among the layers: the "name" (path), the
                "class" and the "reason" of each
    images      those whose patches are among the tokens: their tiles, in pixels
    folder      where it was opened; None: it is in memory alone
    """

    sequences: Mapping[str, list[str]]
    layers: tuple[TraceLayer, ...]
    model: JsonMapping = field(default_factory=dict)
    positions: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    verification: JsonMapping | None = None
    not_traced: tuple[Mapping[str, str], ...] = ()
    images: tuple[TracedImage, ...] = ()
    folder: Path | None = None

    @property
    def tokens(self) -> list[str]:
        """The tokens the model read: of an encoder-decoder, those of its source."""
        for name in ("tokens", "source"):
            if name in self.sequences:
                return self.sequences[name]
        return next(iter(self.sequences.values()), [])

    def __repr__(self) -> str:
        kinds = Counter(layer.kind for layer in self.layers)
        layers = " + ".join(f"{count} {kind}" for kind, count in kinds.items())
        noun = "layer" if len(self.layers) == 1 else "layers"
        tokens = ", ".join(f"{name}: {len(of)}" for name, of in self.sequences.items())
        verified = "" if self.deviation is None else f", deviation {self.deviation:.1e}"
        if self.verification is not None:
            verified += f", {in_words(self.verification)}"
        without = f", {len(self.not_traced)} not traced" if self.not_traced else ""
        weights = f", weights of {bits}" if (bits := self.model.get("quantization")) else ""
        return f"Trace({layers or 'no'} {noun}{without}, {tokens} tokens{weights}{verified})"

    @property
    def deviation(self) -> float | None:
        """The largest deviation of its layers, NaN where one is; None where none was measured."""
        found = [layer.deviation for layer in self.layers if layer.deviation is not None]
        return math.nan if any(map(math.isnan, found)) else max(found, default=None)

    def label(self, number: int) -> str:
        """A layer as people read it: 5, or of a trace of several kinds 5 (cross 1)."""
        layer = self.layers[number]
        several = len({each.kind for each in self.layers}) > 1
        return f"{number} ({layer.kind} {layer.index})" if several else str(number)

    def layer(self, place: int | str, index: int | None = None) -> TraceLayer:
        """A layer: ``trace.layer(5)``, of a path, or of a kind and its index, ("cross", 0).

        A path may end early, where it is that of a block with one attention layer.

        Raises: InputError: there is none.
        """
        if not isinstance(place, str):
            return self.layers[place_of("trace", "trace", "layer", place, len(self.layers))]
        for layer in self.layers:
            if (layer.kind, layer.index) == (place, index) or (layer.name, None) == (place, index):
                return layer
        inside = [layer for layer in self.layers if layer.name.startswith(f"{place}.")]
        if len(inside) == 1 and index is None:
            return inside[0]
        kinds = Counter(layer.kind for layer in self.layers)
        there = [f'"{kind}" 0 to {count - 1}' for kind, count in kinds.items()]
        there += [f"paths such as {layer.name!r}" for layer in self.layers[:1]]
        asked = visible(place, 60) + ("" if index is None else f" {index}")
        raise InputError(f"trace: no layer {asked}; it has {', '.join(there) or 'no layers'}.")

    def save(
        self, path: Path | str, *, dtype: torch.dtype | None = None, overwrite: bool = False
    ) -> None:
        """Write the trace as a folder of open formats, whole or not at all.

        Args:
            path: the folder to be.
            dtype: in which queries and keys are stored: float32, bfloat16 or float16; None: as
                they are.
            overwrite: replace a trace that is there, and nothing else.

        Raises: DataError: the folder exists, or cannot be written.
        """
        from headloom.formats.trace_writer import writing_trace
        from headloom.mechanism.backends.compiled import beside_a_thread

        with (
            beside_a_thread(),
            writing_trace(
                path, self.sequences, self.model, dtype=dtype, overwrite=overwrite
            ) as writer,
        ):
            writer.verification = self.verification
            for name, known in self.positions.items():
                writer.describe(name, known)
            writer.not_traced = self.not_traced
            writer.images = self.images
            for layer in self.layers:
                writer.append(layer)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a trace folder; its layers are read when they are first asked for.

        Raises: DataError: it is missing, half-written, damaged, or of a newer version.
        """
        from headloom.formats.manifest import open_folder

        folder, manifest = open_folder(path)
        digests = Digests(folder, manifest)
        positions = manifest.get("positions", {})
        sequences: dict[str, list[str]] = manifest["sequences"]
        for name, known in positions.items():
            if known.get("texts"):
                sequences[name] = Tokens(sequences[name], known["texts"])
        layers = tuple(
            TraceLayer(
                name=entry["name"],
                kind=entry["kind"],
                index=entry["index"],
                shape=tuple(entry["shape"]),
                queries_from=entry["queries"],
                keys_from=entry["keys"],
                query_tokens=sequences[entry["queries"]],
                key_tokens=sequences[entry["keys"]],
                scale=entry["scale"],
                positions=entry["positions"],
                mask=entry["mask"],
                softcap=entry.get("softcap"),
                deviation=entry.get("deviation"),
                data=StoredLayer(folder, number, entry, digests),
            )
            for number, entry in enumerate(manifest["layers"])
        )
        return cls(
            sequences, layers, manifest["model"], positions, manifest.get("verification"),
            tuple(manifest.get("not_traced", ())),
            tuple(map(TracedImage.read, manifest.get("images", ()))), folder,
        )  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """Every kept edge: layer, head, query, key, score, weight, as in edges.parquet."""
        from headloom.formats.trace_writer import edge_table

        with optional_package("to_pandas", "pip install pandas"):
            import pandas
        frames = [
            edge_table(number, layer.graph).to_pandas() for number, layer in enumerate(self.layers)
        ]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
