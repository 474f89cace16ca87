"""Section [task] of a configuration: one class for each kind."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from headloom.training.model_sections import (
    ClassifierConfig,
    ConvolutionalConfig,
    GraphConfig,
    ModelSection,
    Pixels,
    PretrainedConfig,
    Section,
    TransformerConfig,
    VisionTransformerConfig,
    key,
)

#: Tokens: byte-pair encoding needs 300, and allocates memory for all of them.
_Pieces = Annotated[int, Field(ge=300, le=10_000_000)]
_Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Models = tuple[type[ModelSection], ...]


class TaskSection(Section):
    """Base class of the section [task].

    kind: a Literal of its one name in each subclass.
    models: the kinds of models that can learn it; the first is the default.
    divisible: whether several processes can share a batch.
    place: the key of the data's path; None: the data are generated.
    """

    models: ClassVar[_Models] = (TransformerConfig,)
    divisible: ClassVar[bool] = True
    place: ClassVar[str | None] = None
    kind: str


class DatesConfig(TaskSection):
    """Dates in the words and orders of 50 locales, 48 languages (Babel's CLDR data), to ISO 8601.

    No held-out date occurs in training, in any language.
    """

    kind: Literal["dates"] = "dates"
    train_examples: int = key(60_000, "training pairs, drawn by the seed", ge=1, le=10_000_000)
    test_examples: int = key(
        1_000, "pairs for validation; the same number for the test", ge=1, le=10_000_000
    )
    first_year: int = key(1950, "first year of the dates", ge=1, le=9998)
    last_year: int = key(
        2049, "last year; at most 100 years, since many locales write two digits", ge=1, le=9998
    )


#: Two line-aligned files, or one of pairs, also as a string.
_PairFiles = Annotated[
    list[str],
    Field(min_length=1, max_length=2),
    BeforeValidator(lambda files: [files] if isinstance(files, str) else files),
]


class TranslationConfig(TaskSection):
    """Translation: lines of one language to lines of another, or any text to any text."""

    models: ClassVar[_Models] = (TransformerConfig, PretrainedConfig)
    kind: Literal["translation"]
    place: ClassVar[str | None] = "folder"
    folder: str = key(".", "folder of the files")
    train: _PairFiles = key(
        ..., "two line-aligned files, or one of CSV, TSV, Parquet or JSON lines"
    )
    valid: _PairFiles | None = key(
        None, "same formats; if empty, drawn from `train`, see `valid_share`"
    )
    test: _PairFiles | None = key(None, "same formats")
    source: str | None = key(None, "column of sources; if empty, found by its name, or the first")
    target: str | None = key(None, "column of targets; if empty, found by its name, or the second")
    valid_share: float = key(
        0.1, "share of `train` drawn for validation if `valid` is missing", gt=0, lt=0.5
    )
    split_seed: _Seed = key(1, "seed of these draws")
    vocabulary: _Pieces = key(8_000, "size of the shared byte-level BPE")
    max_length: int = key(256, "in tokens; training pairs with a longer side are left out", ge=1)
    length_penalty: float = key(
        1.0,
        "beams are ranked by log-probability / length^penalty (Wu et al. 2016); tune it on the "
        "validation data",
        ge=0,
        le=10,
    )


class LanguageConfig(TaskSection):
    """Language model: predict each next token of a text."""

    models: ClassVar[_Models] = (TransformerConfig, PretrainedConfig)
    kind: Literal["language"]
    place: ClassVar[str | None] = "file"
    file: str = key(..., "a text; or CSV, TSV, Parquet or JSON lines, rows joined by newlines")
    text: str | None = key(None, "column of texts; if empty, found by its name, or the first")
    valid_share: float = key(0.1, "share of the text, at its end, held out", gt=0, lt=1)
    tokens: Literal["characters", "pieces", "words"] = key(
        "characters", 'or `"pieces"` (byte-level BPE), `"words"`'
    )
    vocabulary: _Pieces = key(4_000, "maximal size for pieces and words")
    block: int | None = key(
        None, "tokens per window; if empty, 128, or fewer for a short held-out text", ge=2
    )


class RepeatsConfig(TaskSection):
    """Sequences whose first half, different random symbols, is repeated.

    A language model has to find the earlier copy. Only the repeated symbols are targets. The heads
    that result: docs/heads.md.
    """

    kind: Literal["repeats"]
    symbols: int = key(62, "number of letters and digits", ge=2, le=62)
    shortest: int = key(10, "shortest part", ge=2)
    longest: int = key(
        30, "longest part; lengths vary, so no fixed distance leads to the copy", ge=2
    )


class _LabelledSection(TaskSection):
    """Keys of all classification tasks."""

    place: ClassVar[str | None] = "folder"
    folder: str = key(".", "folder of the files")
    valid: str | None = key(None, "as `train`; if empty, drawn from `train`, see `valid_share`")
    test: str | None = key(None, "as `train`; if empty, drawn from `train`, see `test_share`")
    valid_share: float = key(
        0.1, "share of each class drawn for validation if `valid` is missing", gt=0, lt=0.5
    )
    test_share: float = key(0.1, "the same for the test; 0: no test", ge=0, lt=0.5)
    split_seed: _Seed = key(1, "seed of these draws")


class LabelsConfig(_LabelledSection):
    """Text classification."""

    models: ClassVar[_Models] = (ClassifierConfig, PretrainedConfig)
    kind: Literal["labels"]
    train: str = key(
        ...,
        "CSV, TSV, Parquet or JSON lines; lines of label TAB text; or a folder with one folder "
        "of .txt files per class",
    )
    text: str | None = key(None, "column of texts; if empty, found by its name, or the first")
    label: str | None = key(None, "column of labels; if empty, found by its name, or the second")
    tokens: Literal["words", "pieces", "characters"] = key(
        "words", 'or `"pieces"` (byte-level BPE), `"characters"`'
    )
    vocabulary: _Pieces = key(10_000, "maximal size for words and pieces")
    max_length: int = key(512, "tokens of a text that are read; the rest is cut off", ge=2)


class NodesConfig(TaskSection):
    """Classification of the nodes of a graph."""

    models: ClassVar[_Models] = (GraphConfig,)
    divisible: ClassVar[bool] = False
    kind: Literal["nodes"]
    place: ClassVar[str | None] = "graph"
    graph: str = key(..., "an .npz file: docs/graphs.md")
    setting: Literal["transductive", "inductive"] = key(
        "transductive", 'or `"inductive"`: training sees training nodes only'
    )
    normalise: bool = key(True, "scale each node's features to sum 1")
    undirected: bool = key(False, "add every edge's reverse")


class ImagesConfig(_LabelledSection):
    """Image classification."""

    models: ClassVar[_Models] = (VisionTransformerConfig, ConvolutionalConfig)
    kind: Literal["images"]
    train: str = key(
        ...,
        "an .npz file with `images` and `labels`, or a folder with one folder of PNG or JPEG "
        "files per class",
    )
    colour: bool | None = key(None, "convert images to colour, or to grey; if empty, as they are")
    size: tuple[Pixels, Pixels] | None = key(None, "rows and columns to scale files to")


#: Union of all kinds of [task].
TaskConfig = Annotated[
    DatesConfig
    | TranslationConfig
    | LanguageConfig
    | RepeatsConfig
    | LabelsConfig
    | NodesConfig
    | ImagesConfig,
    Field(discriminator="kind"),
]
