"""The configuration of a run: a TOML file, checked; unknown keys are refused by name."""

from __future__ import annotations

import difflib
import json
import reprlib
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.models.dense import Products
from headloom.training.model_sections import (
    ClassifierConfig,
    GraphConfig,
    ModelConfig,
    Only,
    PretrainedConfig,
    Section,
    TransformerConfig,
)
from headloom.training.optimisation import Schedule
from headloom.training.ranks import Parallel
from headloom.training.stopping import Better
from headloom.training.task_sections import (
    DatesConfig,
    ImagesConfig,
    LabelsConfig,
    LanguageConfig,
    NodesConfig,
    RepeatsConfig,
    TaskConfig,
    TaskSection,
    TranslationConfig,
)

__all__ = [
    "ClassifierConfig",
    "DatesConfig",
    "GraphConfig",
    "ImagesConfig",
    "LabelsConfig",
    "LanguageConfig",
    "ModelConfig",
    "NodesConfig",
    "PretrainedConfig",
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


#: A share that is kept, as of a running mean.
_Decay = Annotated[float, Field(ge=0, lt=1)]
#: A number of batches, or of what is in them; a graph is learned as a whole.
_OfBatches = Annotated[int, Field(ge=1), Only("task.kind", unless=("nodes",))]


class TrainingConfig(Section):
    """How the matrices are learned."""

    seed: int = Field(1, ge=0, le=2**63 - 1)
    max_steps: int = Field(10_000, ge=1)
    max_epochs: int | None = Field(None, ge=1, description="stop after so many passes, if earlier")
    batch_tokens: _OfBatches = Field(
        4_096, le=2**30, description="tokens in a batch, padding included"
    )
    accumulate: _OfBatches = Field(1, description="batches whose gradients make one step")
    parallel: Parallel = Field(
        "ddp",
        description="with several processes: each holds the whole model (ddp), or a share (fsdp)",
    )
    products: Products = Field(
        "float32",
        description="of linear layers; float32-tiles: on a matrix unit, as exact, quicker where "
        "it is free; bfloat16 is quicker where the processor has it",
    )
    optimiser: Literal["adamw", "adam", "muon"] = Field(
        "adamw",
        description="weight decay apart from the gradient, or added to it (L2); muon: of hidden "
        "matrices, adamw of the rest",
    )
    peak_learning_rate: float = Field(1e-3, gt=0)
    matrix_learning_rate: Annotated[float, Only("optimiser", "muon")] = Field(
        0.02, gt=0, description="peak of muon's matrices"
    )
    warmup: int = Field(400, ge=0, description="steps")
    schedule: Schedule = "inverse-sqrt"
    floor: Annotated[float, Only("schedule", "cosine", "linear")] = Field(
        0.0, ge=0, le=1, description="lowest rate, as a share of the peak"
    )
    betas: tuple[_Decay, _Decay] = (0.9, 0.98)
    epsilon: float = Field(1e-9, ge=1.2e-38)  # less is 0 in float32
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(1.0, ge=0, description="of the whole gradient; 0: no limit")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    average: float = Field(
        0.0, ge=0, lt=1, description="decay of a running mean of the weights, which is then used"
    )
    validate_every: int = Field(500, ge=1, description="steps")
    patience: int | None = Field(None, ge=1, description="validations without a better one")
    better: Better = Field(
        "loss",
        description="which weights are kept; of both: those best in both, patience counts either",
    )
    checkpoint_every: int = Field(500, ge=1, description="steps")
    history: bool = True
    history_growth: Annotated[float, Only("history", True)] = Field(
        1.5, gt=1, description="ratio of successive snapshots' steps"
    )


class RunConfig(Section):
    """One training run."""

    task: TaskConfig = Field(default_factory=DatesConfig)
    model: ModelConfig = Field(default_factory=lambda run: run["task"].models[0]())
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @model_validator(mode="after")
    def _check_fit(self) -> RunConfig:
        """Raise an error where the task is not learned by such a model."""
        if not isinstance(self.model, self.task.models):
            kinds = [repr(model.model_fields["kind"].default) for model in self.task.models]
            raise PydanticCustomError(
                "misfit",
                f"model.kind is {self.model.kind!r}, task.kind {self.task.kind!r}, which is "
                f"learned by {' or '.join(kinds)}. Leave model.kind out, or choose another task.",
            )
        return self


def _kinds(section: str) -> dict[str, type[BaseModel]]:
    """The classes of a section that has kinds, by their names; none where it has no kinds."""
    annotation = RunConfig.model_fields[section].annotation
    classes = [annotation] if isinstance(annotation, type) else get_args(annotation)
    return {
        get_args(choice.model_fields["kind"].annotation)[0]: choice
        for choice in classes
        if issubclass(choice, BaseModel) and "kind" in choice.model_fields
    }


def _with_kind(content: JsonObject) -> JsonObject:
    """Where [model] names no kind, "pretrained" with a folder, else the task's own default.

    A validator of RunConfig cannot add it: what comes out of one is no JSON to pydantic, whose
    strict mode then takes no list for a tuple.
    """
    model, task = content.get("model"), content.get("task", {})
    if not isinstance(model, dict) or "kind" in model or not isinstance(task, dict):
        return content
    if "folder" in model:
        return {**content, "model": {"kind": "pretrained", **model}}
    section = _kinds("task").get(str(task.get("kind")), DatesConfig)
    models = section.models if issubclass(section, TaskSection) else DatesConfig.models
    return {**content, "model": {"kind": models[0].model_fields["kind"].default, **model}}


def _in_file(place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where the file has it: pydantic's path names the kind too that it took a section for."""
    if len(place) > 1 and place[0] in RunConfig.model_fields and place[1] in _kinds(str(place[0])):
        return (place[0], *place[2:])
    return place


def _names_at(place: tuple[int | str, ...]) -> list[str]:
    """The keys that may stand where pydantic says."""
    if not place:
        return list(RunConfig.model_fields)
    kinds = _kinds(str(place[0]))
    section = kinds.get(str(place[1])) if len(place) > 1 else None
    annotation: Any = section or RunConfig.model_fields[str(place[0])].annotation
    for key in place[2:] if section else place[1:]:
        field = annotation.model_fields.get(str(key)) if _is_section(annotation) else None
        # Of a section that may be left out, the section.
        known = () if field is None else (field.annotation, *get_args(field.annotation))
        annotation = next(filter(_is_section, known), None)
    return list(annotation.model_fields) if _is_section(annotation) else []


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _wrong_keys(kind: str, key: str) -> tuple[str, ...]:
    """The keys whose values can be what is wrong, where pydantic names one.

    >>> _wrong_keys("greater_than", "training.betas[0]")
    ('training.betas', 'training.betas[0]')
    """
    if kind == "misfit":
        return "task.kind", "model.kind"
    if kind.startswith("union_tag"):
        return key, f"{key}.kind"
    return key.partition("[")[0], key


def _explain(source: str, error: ValidationError, overrides: Mapping[str, str]) -> str:
    """The first thing wrong with a configuration, in one line.

    overrides: of keys that were set on the command line, the words that did so.
    """
    # Without a task there is no default of the model either: no second thing wrong.
    errors = [part for part in error.errors() if part["type"] != "default_factory_not_called"]
    first, more = errors[0], len(errors) - 1
    place = first["loc"]
    key = ".".join(map(str, _in_file(place)))
    if place and isinstance(place[-1], int):
        key = f"{key.rpartition('.')[0]}[{place[-1]}]"
    also = f" ({more} more after this one.)" if more else ""
    for name in _wrong_keys(first["type"], key):
        if name in overrides:
            source = f"--set {overrides[name]!r}"
            break
    else:  # What a whole section has wrong can be of several keys, of the file too.
        for name, words in overrides.items():
            source += f" with --set {words!r}" * name.startswith(f"{key}.")
    if first["type"] == "misfit":
        return f"{source}: {first['msg']}"
    if first["type"] == "extra_forbidden":
        names = _names_at(place[:-1])
        near = difflib.get_close_matches(str(place[-1]), names, 1, 0.6)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}."
        return f"{source}: unknown key {key!r}; {hint}{also}"
    if first["type"] == "missing":
        return f"{source}: {key!r} is missing. Add it.{also}"
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        kinds = list(_kinds(key))
        kind = first["input"].get("kind") if isinstance(first["input"], dict) else None
        near = [] if kind is None else difflib.get_close_matches(str(kind), kinds, 1, 0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        return f"{source}: {key}.kind is {kind!r}; expected one of {', '.join(kinds)}{hint}{also}"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{source}: {key} = {reprlib.repr(first['input'])}: {message}.{also}"


def check_config(
    content: JsonObject, source: str, overrides: Mapping[str, str] | None = None
) -> RunConfig:
    """A configuration from nested dictionaries.

    overrides: of keys that were set on the command line, the words that did so.

    Raises: InputError: one line that names the key, what is wrong and the nearest known.
    """
    try:
        return RunConfig.model_validate_json(json.dumps(_with_kind(content), default=str))
    except ValidationError as error:
        raise InputError(_explain(source, error, overrides or {})) from None
    except RecursionError:
        raise InputError(f"{source}: its values are nested too deeply.") from None


def load_config(path: Path | str, overrides: list[str] | None = None) -> RunConfig:
    """Read and check a TOML file.

    Args:
        path: where it is.
        overrides: "section.key=value" with a TOML value; a bare word is taken as a string.

    Raises:
        DataError: the file is missing or not UTF-8.
        InputError: not TOML, an unknown key, a key that is set twice or that nothing reads, a value
            that cannot be used.
    """
    text = read_text(path, "configuration")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{path}: not TOML: {error}. Give a configuration, as those in examples."
        ) from None
    except RecursionError:
        raise InputError(f"{path}: its values are nested too deeply.") from None
    except ValueError:
        raise InputError(f"{path}: it holds a number of too many digits, or no date.") from None
    words: dict[str, str] = {}
    for override in overrides or []:
        _override(content, override)
        name = override.partition("=")[0].strip()
        if name in words:
            raise InputError(f"--set {override!r}: {name} is set already. Leave one of them out.")
        words[name] = override
    config = check_config(content, str(path), words)
    for name, choice, message in _unread(config):
        if name in words or choice not in words:
            source = f"--set {words[name]!r}" if name in words else str(path)
            raise InputError(f"{source}: {name}: {message}")
        # What the file says for a choice that is set anew is left out with that choice.
        section, _, key = name.partition(".")
        del content[section][key]
    return check_config(content, str(path), words)


def _unread(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """The keys that were set and that nothing reads, the choice because of which, and a message."""
    for name in RunConfig.model_fields:
        section = getattr(config, name)
        for key in sorted(section.model_fields_set):
            marks = [m for m in type(section).model_fields[key].metadata if isinstance(m, Only)]
            for choice, value in [each for m in marks if (each := m.unmet(name, config))][:1]:
                is_now = "left out" if value is None else json.dumps(value)
                message = f"nothing reads it where {choice} is {is_now}. Leave it out."
                yield f"{name}.{key}", choice, message
    training = config.training
    if "warmup" in training.model_fields_set and training.warmup > training.max_steps:
        message = f"it is more than training.max_steps = {training.max_steps:,}. Lower it."
        yield "training.warmup", "", message


def defaults_of(path: Path, config: RunConfig) -> list[str]:
    """A line for each section that the file of a configuration leaves out.

    Raises: InputError: the task is one of them, so that there is nothing to learn.
    """
    named = config.model_fields_set
    if "task" not in named:
        what = "names no task" if named else "is empty"
        *names, last = (f'"{kind}"' for kind in _kinds("task"))
        raise InputError(
            f"{path}: {what}, so there is nothing to learn. Add [task] with kind = "
            f"{', '.join(names)} or {last}; examples/ has a file of each."
        )
    model, lines = config.model, []
    if "model" not in named:
        lines.append(f"No [model] in {path}: {model.summary()}, as by default.")
    if "training" not in named:
        steps = config.training.max_steps
        lines.append(f"No [training] in {path}: up to {steps:,} steps, as by default.")
    return lines


def _override(content: JsonObject, override: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in override):
        # Bytes of the command line that are not UTF-8 come as halves of surrogate pairs.
        raise InputError(
            f"--set {override!r}: it is not UTF-8 text. Convert it, or rename the file that it "
            "names."
        )
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
