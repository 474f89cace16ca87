"""Configuration of a run: a TOML file, checked; unknown keys are errors."""

from __future__ import annotations

import difflib
import json
import reprlib
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from headloom.errors import InputError
from headloom.formats.files import JsonObject, read_text
from headloom.models.dense import Products
from headloom.training.model_sections import ModelConfig, Section, key
from headloom.training.sections import TaskConfig, TaskSection

#: Rule of the best weights: see headloom.training.checkpoint.Position.add_validation.
Better = Literal["loss", "loss-and-accuracy"]
Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant"]
#: Decay of a moving average.
_Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(Section):
    """Section [training]: optimisation of the weights."""

    seed: int = key(
        1,
        "of data, weights, order and dropout; the same seed gives the same bits",
        ge=0,
        le=2**63 - 1,
    )
    max_steps: int = key(10_000, "end of the run; the limit that is reached first counts", ge=1)
    max_epochs: int | None = key(None, "limit of passes over the training data", ge=1)
    max_minutes: float | None = key(
        None, "limit of training time, over all sessions, without setup", gt=0, le=1e6
    )
    batch_tokens: int = key(
        4_096, "tokens per batch, source, target and padding; for images: pixels", ge=1, le=2**30
    )
    accumulate: int = key(1, "batches per step (gradient accumulation)", ge=1)
    products: Products = key(
        "float32",
        'matrix products of linear layers: `"float32"`, `"float32-tiles"` (on a matrix unit, as '
        'exact as float32) or `"bfloat16"`',
    )
    optimiser: Literal["adamw", "adam", "muon"] = key(
        "adamw",
        'or `"adam"`: weight decay as L2, added to the gradient; or `"muon"` for hidden matrices, '
        "with AdamW for the rest",
    )
    peak_learning_rate: float = key(1e-3, "learning rate after the warmup", gt=0)
    matrix_learning_rate: float = key(0.02, "peak learning rate of Muon's matrices", gt=0)
    warmup: int = key(400, "steps of linear warmup", ge=0)
    schedule: Schedule = key(
        "inverse-sqrt",
        'or `"cosine"`, `"linear"`: they reach the floor at `max_steps` or `max_minutes`, '
        'whichever comes first; or `"constant"`',
    )
    floor: float = key(0.0, "final rate of cosine and linear, as a share of the peak", ge=0, le=1)
    betas: tuple[_Decay, _Decay] = key((0.9, 0.98), "AdamW's decay rates of the moments")
    epsilon: float = key(1e-9, "AdamW's epsilon", ge=1.2e-38)
    weight_decay: float = key(0.0, "of all parameters, multiplied by the learning rate", ge=0)
    clip_norm: float | None = key(
        1.0, "gradient clipping, norm of the whole gradient; 0: none", ge=0
    )
    label_smoothing: float = key(0.1, "share of the target spread over all classes", ge=0, lt=1)
    average: float = key(
        0.0, "decay of an EMA of the weights, which is then validated and kept; 0: none", ge=0, lt=1
    )
    validate_every: int = key(500, "steps between validations", ge=1)
    patience: int | None = key(None, "early stopping: validations without improvement", ge=1)
    better: Better = key(
        "loss",
        'which weights are kept: best loss; `"loss-and-accuracy"`: best in both, and either one '
        "resets patience",
    )
    checkpoint_every: int = key(500, "steps between checkpoints", ge=1)
    history: bool = key(True, "keep snapshots of the weight matrices")
    history_growth: float = key(1.5, "ratio between the steps of successive snapshots", gt=1)

    def share_done(self, step: int, seconds: float) -> float:
        """Return the share of the training done, by steps or minutes, whichever is larger.

        >>> TrainingConfig(max_steps=100, max_minutes=2).share_done(10, 60)
        0.5
        """
        minutes = 0.0 if self.max_minutes is None else seconds / 60 / self.max_minutes
        return min(1.0, max(step / self.max_steps, minutes))

    def ended_by(self, step: int, epoch: int, seconds: float, without_better: int) -> str:
        """Return the key whose limit is reached; "": none."""
        ends: dict[str, tuple[float, float | None]] = {
            "max_steps": (step, self.max_steps),
            "max_epochs": (epoch, self.max_epochs),
            "max_minutes": (seconds / 60, self.max_minutes),
            "patience": (without_better, self.patience),
        }
        return next((k for k, (now, end) in ends.items() if end is not None and now >= end), "")


class RunConfig(Section):
    """Configuration of a training run; docs/reference/configuration.md lists the keys."""

    task: TaskConfig = key(..., "what is learned, of which data: `kind`, and the keys of that kind")
    model: ModelConfig = Field(
        default_factory=lambda run: run["task"].models[0](),
        description="`kind` and sizes; none: the kind that the task has by default",
    )
    training: TrainingConfig = Field(
        default_factory=TrainingConfig, description="how the matrices are learned"
    )

    @model_validator(mode="after")
    def _check_fit(self) -> RunConfig:
        """Raise an error where this kind of model cannot learn the task."""
        if not isinstance(self.model, self.task.models):
            kinds = [repr(model.model_fields["kind"].default) for model in self.task.models]
            raise InputError(
                f"model.kind is {self.model.kind!r}, task.kind {self.task.kind!r}, which is "
                f"learned by {' or '.join(kinds)}. Remove model.kind, or choose another task."
            )
        return self


def kinds(section: str) -> dict[str, type[BaseModel]]:
    """Return the classes of the section "task" or "model" by their kinds."""
    classes = get_args(RunConfig.model_fields[section].annotation)
    return {get_args(kind.model_fields["kind"].annotation)[0]: kind for kind in classes}


def _with_kind(content: JsonObject) -> JsonObject:
    """Add a missing model.kind: "pretrained" with a folder, else the default of the task.

    A validator of RunConfig cannot add it: pydantic's strict mode would then refuse a list for a
    tuple, since the result is no longer JSON.
    """
    model, task = content.get("model"), content.get("task")
    if not isinstance(model, dict) or "kind" in model or not isinstance(task, dict):
        return content
    section = kinds("task").get(str(task.get("kind")))
    if "folder" in model or section is None or not issubclass(section, TaskSection):
        return {**content, "model": {"kind": "pretrained", **model}}
    return {**content, "model": {"kind": section.models[0].model_fields["kind"].default, **model}}


def _explain(source: str, error: ValidationError) -> str:
    """Describe the first error of a configuration in one line."""
    # Without a task the model has no default: not a second error.
    errors = [part for part in error.errors() if part["type"] != "default_factory_not_called"]
    first, more = errors[0], len(errors) - 1
    place = first["loc"]
    # pydantic's path includes the kind of a section.
    names = [*place[:1], *(place[2:] if place[:1] in (("task",), ("model",)) else place[1:])]
    key = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)[1:]
    also = f" ({more} more after this one.)" if more else ""
    if first["type"] == "value_error" and len(names) < 2:
        return f"{source}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        sections: dict[str, type[BaseModel]] = {"training": TrainingConfig, "": RunConfig}
        sections |= {**kinds("task"), **kinds("model")}
        section = sections.get(str(place[-2]) if len(place) > 1 else "")
        known = [] if section is None else list(section.model_fields)
        near = difflib.get_close_matches(str(place[-1]), known, 1, 0.6)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known) or 'others'}."
        )
        return f"{source}: unknown key {key!r}; {hint}{also}"
    if first["type"] == "missing":
        return f"{source}: {key!r} is missing. Add it.{also}"
    if first["type"].startswith("union_tag"):
        kind = first["input"].get("kind") if isinstance(first["input"], dict) else None
        expected = ", ".join(kinds(key))
        return f"{source}: {key}.kind is {kind!r}; expected one of {expected}.{also}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{source}: {key} = {reprlib.repr(first['input'])}: {message}.{also}"


def check_config(content: JsonObject, source: str) -> RunConfig:
    """Check a configuration given as nested dictionaries.

    Raises: InputError: one line with the key, the error and the nearest known key.
    """
    try:
        return RunConfig.model_validate_json(json.dumps(_with_kind(content), default=str))
    except ValidationError as error:
        raise InputError(_explain(source, error)) from None
    except RecursionError:
        raise InputError(f"{source}: the values are nested too deeply.") from None


def load_config(path: Path | str, overrides: Sequence[str] | None = None) -> RunConfig:
    """Read and check a TOML file: see `read_config`, `overridden` and `check_config`."""
    content = overridden(read_config(path), overrides or ())
    return check_config(content, f"{path} with --set" if overrides else str(path))


def read_config(path: Path | str) -> JsonObject:
    """Read a TOML file, or a run's JSON file, without checks.

    Raises: DataError: the file is missing or not UTF-8; InputError: it is not TOML.
    """
    text = read_text(path, "configuration")
    try:
        content: JsonObject = (json if str(path).endswith(".json") else tomllib).loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not TOML: {error}. Give a configuration like those in examples."
        ) from None
    return content


def overridden(content: JsonObject, overrides: Sequence[str]) -> JsonObject:
    """Apply "section.key=value" overrides; the value is TOML, or a string without quotes.

    >>> overridden({"training": {"seed": 1}}, ["training.seed=2", "model.kind=graph"])
    {'training': {'seed': 2}, 'model': {'kind': 'graph'}}
    """
    content = json.loads(json.dumps(content, default=str))
    for override in overrides:
        name, equals, value = override.partition("=")
        if not equals or not name.strip():
            raise InputError(
                f"--set {override!r}: expected section.key=value, as in training.seed=2."
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            parsed = value
        *sections, key = name.strip().split(".")
        place = content
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {override!r}: {section!r} is a value, not a section.")
        place[key] = parsed
    return content
