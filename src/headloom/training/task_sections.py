"""The section [task] of a configuration: one class for each kind of task."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from headloom.training.model_sections import (
    ClassifierConfig,
    ConvolutionalConfig,
    GraphConfig,
    ModelSection,
    Only,
    PretrainedConfig,
    Section,
    TransformerConfig,
    VisionTransformerConfig,
)

__all__ = [
    "DatesConfig",
    "ImagesConfig",
    "LabelsConfig",
    "LanguageConfig",
    "NodesConfig",
    "RepeatsConfig",
    "TaskConfig",
    "TaskSection",
    "TranslationConfig",
]


class TaskSection(Section):
    """What the section of every kind of task has.

    kind: in a subclass a Literal of its one name.
    models: the kinds of models that can learn it; the first where [model] names none.
    divisible: whether several processes can share a batch.
    place: the key that says where the data are; None: they are drawn.
    """

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig,)
    divisible: ClassVar[bool] = True
    place: ClassVar[str | None] = None
    kind: str


class DatesConfig(TaskSection):
    """Dates in 48 languages to ISO 8601."""

    kind: Literal["dates"] = "dates"
    train_examples: int = Field(60_000, ge=1, le=10_000_000, description="pairs to learn from")
    test_examples: int = Field(
        1_000, ge=1, le=10_000_000, description="held-out dates to validate and test on"
    )
    first_year: int = Field(1950, ge=1, le=9998)
    last_year: int = Field(2049, ge=1, le=9998)


def _as_files(given: object) -> object:
    """One file may stand without its brackets."""
    return [given] if isinstance(given, str) else given


def _check_files(files: list[str]) -> list[str]:
    if len(files) not in (1, 2):
        raise PydanticCustomError(
            "files", "expected two line-aligned files, or one of tab-separated pairs"
        )
    return files


#: Files that pairs of texts are read from.
_PairFiles = Annotated[list[str], BeforeValidator(_as_files), AfterValidator(_check_files)]


class TranslationConfig(TaskSection):
    """Lines of one language to lines of another."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["translation"]
    place: ClassVar[str | None] = "folder"
    folder: str = Field(".", description="where the files are, from the current folder")
    train: _PairFiles = Field(description="source and target file, line-aligned; or one TSV")
    valid: _PairFiles = Field(description="likewise, for early stopping")
    test: _PairFiles | None = Field(None, description="likewise, for `headloom evaluate`")
    vocabulary: Annotated[int, Only("model.kind", "transformer")] = Field(
        8_000, ge=300, description="tokens of the shared byte-pair encoding"
    )
    max_length: int = Field(256, ge=1, description="training pairs with a longer side are left out")
    piece_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability of leaving out a merge of the encoding in training",
    )
    length_penalty: float = Field(
        1.0, ge=0, le=10, description="how much beam search prefers long translations"
    )


class LanguageConfig(TaskSection):
    """A language model on a text file."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (TransformerConfig, PretrainedConfig)
    kind: Literal["language"]
    place: ClassVar[str | None] = "file"
    file: str = Field(description="the text, from the current folder")
    valid_share: float = Field(0.1, gt=0, lt=1, description="the end of the text, held out")
    tokens: Annotated[Literal["characters", "pieces"], Only("model.kind", "transformer")] = (
        "characters"
    )
    vocabulary: Annotated[int, Only("tokens", "pieces"), Only("model.kind", "transformer")] = Field(
        4_000, ge=300, description="tokens of the byte-pair encoding"
    )
    block: int = Field(128, ge=2, description="tokens of one training window")


class RepeatsConfig(TaskSection):
    """A language model on sequences whose first half comes again."""

    kind: Literal["repeats"]
    symbols: int = Field(62, ge=2, le=62, description="letters and digits that parts are drawn of")
    shortest: int = Field(10, ge=2, description="symbols of a part, at least")
    longest: int = Field(30, ge=2, description="symbols of a part, at most")


class _LabelledSection(TaskSection):
    """What tasks share whose examples are each of one class."""

    place: ClassVar[str | None] = "folder"
    folder: str = Field(".", description="where the files are, from the current folder")
    valid: str | None = Field(None, description="as train; left out: drawn from it")
    test: str | None = Field(None, description="as train; left out: drawn from it")
    valid_share: Annotated[float, Only("valid", None)] = Field(0.1, gt=0, lt=0.5)
    test_share: Annotated[float, Only("test", None)] = Field(0.1, ge=0, lt=0.5)
    split_seed: Annotated[int, Only("valid test", None)] = Field(1, ge=0, le=2**63 - 1)


class LabelsConfig(_LabelledSection):
    """Texts, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (ClassifierConfig, PretrainedConfig)
    kind: Literal["labels"]
    train: str = Field(description="label TAB text lines, or a folder with one for each class")
    tokens: Annotated[
        Literal["words", "pieces", "characters"], Only("model.kind", "classifier")
    ] = "words"
    vocabulary: Annotated[
        int, Only("tokens", "words", "pieces"), Only("model.kind", "classifier")
    ] = Field(10_000, ge=300, description="tokens")
    max_length: int = Field(512, ge=2, description="longer texts are read as far as that")
    embeddings: Annotated[str | None, Only("model.kind", "classifier")] = Field(
        None, description="given vectors of tokens: a file or a folder"
    )


class NodesConfig(TaskSection):
    """The classes of the nodes of a graph."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (GraphConfig,)
    divisible: ClassVar[bool] = False
    kind: Literal["nodes"]
    place: ClassVar[str | None] = "graph"
    graph: str = Field(description="an .npz file, or a folder with nodes.tsv and edges.tsv")
    setting: Literal["transductive", "inductive"] = Field(
        "transductive", description="inductive: other nodes are not there in training"
    )
    normalise: bool = Field(True, description="divide each node's features by their sum")
    undirected: bool = Field(False, description="take every edge in both directions")


class ImagesConfig(_LabelledSection):
    """Images, each of one class."""

    models: ClassVar[tuple[type[ModelSection], ...]] = (
        VisionTransformerConfig,
        ConvolutionalConfig,
    )
    kind: Literal["images"]
    train: str = Field(
        description="a .npz with images and labels, or a folder with one for each class"
    )
    colour: bool | None = Field(
        None, description="red, green and blue, or grey; left out: as the images are"
    )
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = Field(
        None, description="rows and columns that image files are scaled to"
    )


#: What a section [task] may be.
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
