"""The configuration of a run: a TOML file, checked; unknown keys are refused by name."""

from __future__ import annotations

import difflib
import reprlib
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.errors import InputError
from weft.formats.files import JsonObject, read_text
from weft.models.configuration import Architecture, PositionKind
from weft.training.optimisation import Schedule

__all__ = [
    "DatesConfig",
    "LanguageConfig",
    "ModelConfig",
    "RepeatsConfig",
    "RunConfig",
    "TaskConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TranslationConfig",
    "check_config",
    "defaults_of",
    "load_config",
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DatesConfig(_Section):
    """Dates in 48 languages to ISO 8601."""

    kind: Literal["dates"] = "dates"
    train_examples: int = Field(60_000, ge=1, le=10_000_000, description="pairs to learn from")
    test_examples: int = Field(
        1_000, ge=1, le=10_000_000, description="held-out dates to validate and test on"
    )
    first_year: int = Field(1950, ge=1, le=9998)
    last_year: int = Field(2049, ge=1, le=9998)


class TranslationConfig(_Section):
    """Lines of one language to lines of another."""

    kind: Literal["translation"]
    folder: str = Field(".", description="where the files are, from the current folder")
    train: list[str] = Field(description="source and target file, line-aligned; or one TSV")
    valid: list[str] = Field(description="likewise, for early stopping")
    test: list[str] | None = Field(None, description="likewise, for `weft evaluate`")
    vocabulary: int = Field(8_000, ge=300, description="tokens of the shared byte-pair encoding")
    max_length: int = Field(256, ge=1, description="training pairs with a longer side are left out")
    piece_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability of leaving out a merge of the encoding in training",
    )


class LanguageConfig(_Section):
    """A language model on a text file."""

    kind: Literal["language"]
    file: str = Field(description="the text, from the current folder")
    valid_share: float = Field(0.1, gt=0, lt=1, description="the end of the text, held out")
    tokens: Literal["characters", "pieces"] = "characters"
    vocabulary: int = Field(4_000, ge=300, description="tokens of the byte-pair encoding")
    block: int = Field(128, ge=2, description="tokens of one training window")


class RepeatsConfig(_Section):
    """A language model on sequences whose first half comes again."""

    kind: Literal["repeats"]
    symbols: int = Field(62, ge=2, le=62, description="letters and digits that parts are drawn of")
    shortest: int = Field(10, ge=2, description="symbols of a part, at least")
    longest: int = Field(30, ge=2, description="symbols of a part, at most")


TaskConfig = Annotated[
    DatesConfig | TranslationConfig | LanguageConfig | RepeatsConfig, Field(discriminator="kind")
]


class TransformerConfig(_Section):
    """Sizes and choices of the Transformer; see weft.models.configuration.Architecture."""

    kind: Literal["transformer"] = "transformer"
    width: int = Field(256, ge=1, le=1_000_000)
    heads: int = Field(4, ge=1, le=1_000_000)
    kv_heads: int | None = Field(None, ge=1)
    feed_forward: int = Field(1024, ge=1, le=1_000_000)
    encoder_layers: int = Field(3, ge=0, le=1_000)
    decoder_layers: int = Field(3, ge=1, le=1_000)
    positions: PositionKind = "sinusoidal"
    clip: int = Field(16, ge=1, le=10_000_000)
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu", "gelu"] = "relu"
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    tied: bool = True
    max_length: int = Field(1024, ge=1, le=10_000_000)

    def architecture(self) -> Architecture:
        """The same as the model takes it."""
        return Architecture(**self.model_dump(exclude={"kind"}))

    def size(self) -> str:
        """The sizes that its memory follows from, for a message."""
        return f"width {self.width} and feed_forward {self.feed_forward}"


#: What a section [model] may be.
ModelConfig = TransformerConfig


#: A share that is kept, as of a running mean.
_Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(_Section):
    """How the matrices are learned."""

    seed: int = Field(1, ge=0, le=2**63 - 1)
    max_steps: int = Field(10_000, ge=1)
    max_epochs: int | None = Field(None, ge=1, description="stop after so many passes, if earlier")
    batch_tokens: int = Field(4_096, ge=1, description="tokens in a batch, padding included")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
    optimiser: Literal["adamw", "adam"] = Field(
        "adamw", description="weight decay apart from the gradient, or added to it (L2)"
    )
    peak_learning_rate: float = Field(1e-3, gt=0)
    warmup: int = Field(400, ge=0, description="steps")
    schedule: Schedule = "inverse-sqrt"
    floor: float = Field(0.0, ge=0, le=1, description="lowest rate, as a share of the peak")
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    epsilon: float = Field(1e-9, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(1.0, gt=0, description="of the whole gradient")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    average: float = Field(
        0.0, ge=0, lt=1, description="decay of a running mean of the weights, which is then used"
    )
    validate_every: int = Field(500, ge=1, description="steps")
    patience: int | None = Field(None, ge=1, description="validations without a better loss")
    checkpoint_every: int = Field(500, ge=1, description="steps")
    history: bool = True
    history_growth: float = Field(1.5, gt=1, description="ratio of successive snapshots' steps")


class RunConfig(_Section):
    """One training run."""

    task: TaskConfig = Field(default_factory=DatesConfig)
    model: ModelConfig = Field(default_factory=TransformerConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)


def _known_keys(model: type[BaseModel]) -> dict[str, type[BaseModel] | None]:
    return {
        name: field.annotation
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        else None
        for name, field in model.model_fields.items()
    }


_TASKS: dict[str, type[BaseModel]] = {
    "dates": DatesConfig,
    "translation": TranslationConfig,
    "language": LanguageConfig,
    "repeats": RepeatsConfig,
}


def _names_at(place: tuple[int | str, ...]) -> list[str]:
    """The keys that may stand in a section of the file."""
    section: type[BaseModel] | None = RunConfig
    for part in place:
        if part == "task" or section is None:
            continue
        section = _TASKS.get(str(part)) or _known_keys(section).get(str(part))
    return list(_known_keys(section)) if section else []


def _explain(source: str, error: ValidationError) -> str:
    """The first thing wrong with a configuration, in one line."""
    first = error.errors()[0]
    place = first["loc"]
    # pydantic names the chosen variant of the task in the path; the file does not.
    key = ".".join(str(part) for part in place if part not in _TASKS)
    if place and isinstance(place[-1], int):
        key = f"{key.rpartition('.')[0]}[{place[-1]}]"
    more = error.error_count() - 1
    also = f" ({more} more after this one.)" if more else ""
    if first["type"] == "extra_forbidden":
        names = _names_at(place[:-1])
        near = difflib.get_close_matches(str(place[-1]), names, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}."
        return f"{source}: unknown key {key!r}; {hint}{also}"
    if first["type"] == "missing":
        return f"{source}: {key!r} is missing. Add it.{also}"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        given = first["input"].get("kind") if isinstance(first["input"], dict) else None
        near = difflib.get_close_matches(str(given), list(_TASKS), 1, 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"{source}: task.kind is {given!r}; expected one of {', '.join(_TASKS)}{hint}{also}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{source}: {key} = {reprlib.repr(first['input'])}: {message}.{also}"


def check_config(content: JsonObject, source: str) -> RunConfig:
    """A configuration from nested dictionaries.

    Raises: InputError: one line that names the key, what is wrong and the nearest known.
    """
    try:
        return RunConfig.model_validate_json(_as_json(content))
    except ValidationError as error:
        raise InputError(_explain(source, error)) from None
    except RecursionError:
        raise InputError(f"{source}: its values are nested too deeply.") from None


def _as_json(content: JsonObject) -> str:
    import json

    return json.dumps(content, default=str)


def load_config(path: Path | str, overrides: list[str] | None = None) -> RunConfig:
    """Read and check a TOML file.

    Args:
        path: where it is.
        overrides: "section.key=value" with a TOML value; a bare word is taken as a string.

    Raises:
        DataError: the file is missing or not UTF-8.
        InputError: not TOML, an unknown key, a value that cannot be used.
    """
    text = read_text(path, "configuration")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}.") from None
    except RecursionError:
        raise InputError(f"{path}: its values are nested too deeply.") from None
    except ValueError:
        raise InputError(f"{path}: it holds a number of too many digits, or no date.") from None
    for override in overrides or []:
        _override(content, override)
    return check_config(content, str(path))


def defaults_of(path: Path, config: RunConfig) -> list[str]:
    """A line for each section that the file of a configuration leaves out.

    Raises: InputError: the task is one of them, so that there is nothing to learn.
    """
    named = config.model_fields_set
    if "task" not in named:
        what = "names no task" if named else "is empty"
        raise InputError(
            f'{path}: {what}, so there is nothing to learn. Add [task] with kind = "dates", '
            '"translation", "language" or "repeats"; examples/ has a file of each.'
        )
    model, lines = config.model, []
    if "model" not in named:
        lines.append(
            f"No [model] in {path}: width {model.width}, {model.heads} heads, "
            f"{model.encoder_layers} + {model.decoder_layers} layers, as by default."
        )
    if "training" not in named:
        steps = config.training.max_steps
        lines.append(f"No [training] in {path}: up to {steps:,} steps, as by default.")
    return lines


def _override(content: JsonObject, override: str) -> None:
    name, equals, value = override.partition("=")
    if not equals or not name.strip():
        raise InputError(f"--set {override!r}: expected section.key=value, as in training.seed=2.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value
    *sections, key = name.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise InputError(f"--set {override!r}: {section!r} is a value, not a section.")
    content[key] = parsed
