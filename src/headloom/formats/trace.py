"""`Trace`: tokens and layers of one input through one model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from headloom.errors import InputError
from headloom.formats.files import JsonMapping
from headloom.formats.head import TraceLayer as TraceLayer
from headloom.formats.layer_data import Digests, StoredLayer
from headloom.formats.layer_data import LayerInMemory as LayerInMemory
from headloom.formats.tokens import Tokens, visible
from headloom.formats.traced_images import TracedImage
from headloom.formats.verification import in_words
from headloom.mechanism.shapes import place_of

if TYPE_CHECKING:
    import pandas

#: Sequences of queries and keys in the layers of an encoder-decoder, by their kind.
SEQUENCES = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}


def layer_number(trace: TraceData, name: str | int) -> int:
    """Return the number of a layer given as 5, as "5 (cross 1)", or by its path.

    The path of a block with one attention layer is enough.

    Raises: InputError: there is none, or the layer of that number is of another kind or index.
    """
    if not isinstance(name, str):
        return place_of("trace", "trace", "layer", name, len(trace.layers))
    name, labels = name.strip(), [f"{n} ({x.kind} {x.index})" for n, x in enumerate(trace.layers)]
    numbers: dict[str, int] = {}
    for number, label in enumerate(labels):
        numbers |= {str(number): number, label: number}
    for number, layer in enumerate(trace.layers):  # a path can be a number, in a Sequential
        numbers.setdefault(layer.name, number)
    inside = [n for n, layer in enumerate(trace.layers) if layer.name.startswith(f"{name}.")]
    if name in numbers or len(inside) == 1:
        return numbers.get(name, *inside[:1])
    is_now = f"the trace has layers 0 to {len(labels) - 1}. Give a number, or a path."
    place = numbers.get(name.partition(" (")[0])
    if place is not None:
        is_now = f"layer {place} is {labels[place]}, of the path {trace.layers[place].name}."
    raise InputError(f"layer {visible(name, 60)}: no such layer; {is_now}")


@dataclass(frozen=True, eq=False)
class TraceData:
    """Tokens and layers of one input through one model.

    sequences   the tokens: {"tokens": [...]} of a model with one sequence,
                {"source": [...], "target": [...]} of an encoder-decoder
    layers      every attention call, in the order of execution
    model       description of the model
    positions   facts about the tokens of a sequence:
                {"tokens": {"offsets": [[0, 5], ...], "special": [False, ...]}}. "offsets" are
                characters of the text, [0, 0] for a token that is not in it; "texts" are given
                where the vocabulary spells tokens differently; for patches of an image "rows"
                and "columns", -1 for other tokens; for frames of a sound "seconds", the middle
                of each; for parts, such as windows of an image, "parts", the part number of each
                position; for image patches among the tokens of a text "images", "tiles", "rows",
                "columns", -1 for other tokens
    verification  comparison of the model with and without headloom: see
                `headloom.formats.verification`. None: not compared
    not_traced  attention modules that ran and are not among the layers: "name" (path), "class"
                and "reason" of each
    images      images whose patches are among the tokens: their tiles, in pixels
    folder      path where it was opened; None: only in memory
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
        """Tokens that the model read: for an encoder-decoder, those of its source."""
        for name in ("tokens", "source"):
            if name in self.sequences:
                return self.sequences[name]
        return next(iter(self.sequences.values()), [])

    def __repr__(self) -> str:
        kinds = Counter(layer.kind for layer in self.layers)
        layers = " + ".join(f"{count} {kind}" for kind, count in kinds.items())
        noun = "layer" if len(self.layers) == 1 else "layers"
        tokens = ", ".join(f"{name}: {len(part)}" for name, part in self.sequences.items())
        verified = "" if self.deviation is None else f", deviation {self.deviation:.1e}"
        if self.verification is not None:
            verified += f", {in_words(self.verification)}"
        without = f", {len(self.not_traced)} not traced" if self.not_traced else ""
        weights = f", weights of {bits}" if (bits := self.model.get("quantization")) else ""
        return f"Trace({layers or 'no'} {noun}{without}, {tokens} tokens{weights}{verified})"

    @property
    def deviation(self) -> float | None:
        """Largest deviation of the layers, NaN if any is NaN; None: not measured."""
        deviations = [layer.deviation for layer in self.layers if layer.deviation is not None]
        return math.nan if any(map(math.isnan, deviations)) else max(deviations, default=None)

    def label(self, number: int) -> str:
        """Return a layer's label: 5, or in a trace with several kinds of layers 5 (cross 1)."""
        layer = self.layers[number]
        several = len({other.kind for other in self.layers}) > 1
        return f"{number} ({layer.kind} {layer.index})" if several else str(number)

    def layer(self, place: int | str, index: int | None = None) -> TraceLayer:
        """Return a layer by number, ``trace.layer(5)``, path, or kind and index, ("cross", 0).

        Raises: InputError: there is none.
        """
        if index is None:
            return self.layers[layer_number(self, place)]
        for layer in self.layers:
            if (layer.kind, layer.index) == (place, index):
                return layer
        kinds = Counter(layer.kind for layer in self.layers)
        known = ", ".join(f'"{kind}" 0 to {count - 1}' for kind, count in kinds.items())
        raise InputError(f"trace: no layer {place} {index}; it has {known or 'no layers'}.")

    def save(
        self, path: Path | str, *, dtype: torch.dtype | None = None, overwrite: bool = False
    ) -> None:
        """Write the trace atomically as a folder in open formats.

        Args:
            path: of the new folder.
            dtype: of stored queries and keys: float32, bfloat16 or float16; None: unchanged.
            overwrite: replace an existing trace; other folders are never replaced.

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
        """Open a trace folder; layers are read at first use.

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
                name=entry["name"], kind=entry["kind"], index=entry["index"],
                shape=tuple(entry["shape"]), queries_from=entry["queries"], keys_from=entry["keys"],
                query_tokens=sequences[entry["queries"]], key_tokens=sequences[entry["keys"]],
                scale=entry["scale"], positions=entry["positions"], mask=entry["mask"],
                softcap=entry.get("softcap"), deviation=entry.get("deviation"),
                data=StoredLayer(folder, number, entry, digests),
            )
            for number, entry in enumerate(manifest["layers"])
        )  # fmt: skip
        return cls(
            sequences, layers, manifest["model"], positions, manifest.get("verification"),
            tuple(manifest.get("not_traced", ())),
            tuple(map(TracedImage.from_manifest, manifest.get("images", ()))), folder,
        )  # fmt: skip

    def to_pandas(self) -> pandas.DataFrame:
        """Return every kept edge: layer, head, query, key, score, weight, as in edges.parquet."""
        import pandas

        from headloom.formats.trace_writer import edge_table

        frames = [
            edge_table(number, layer.graph).to_pandas() for number, layer in enumerate(self.layers)
        ]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
