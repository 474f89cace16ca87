"""The configuration of a run: a TOML file, checked; unknown keys are refused by name."""

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
from headloom.training.sections import ModelConfig, Section, TaskConfig, TaskSection

#: Which weights are kept: see headloom.training.checkpoint.Position.judge.
Better = Literal["loss", "loss-and-accuracy"]
Schedule = Literal["inverse-sqrt", "cosine", "linear", "constant"]
#: A share that is kept, as of a running mean.
_Decay = Annotated[float, Field(ge=0, lt=1)]


class TrainingConfig(Section):
    """How the matrices are learned."""

    seed: int = Field(1, ge=0, le=2**63 - 1)
    max_steps: int = Field(10_000, ge=1)
    max_epochs: int | None = Field(None, ge=1, description="stop after so many passes, if earlier")
    batch_tokens: int = Field(
        4_096, ge=1, le=2**30, description="tokens in a batch, padding included"
    )
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
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
    matrix_learning_rate: float = Field(0.02, gt=0, description="peak of muon's matrices")
    warmup: int = Field(400, ge=0, description="steps")
    schedule: Schedule = "inverse-sqrt"
    floor: float = Field(
        0.0, ge=0, le=1, description="lowest rate of cosine and linear, as a share of the peak"
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
    history_growth: float = Field(1.5, gt=1, description="ratio of successive snapshots' steps")


class RunConfig(Section):
    """One training run."""

    task: TaskConfig
    model: ModelConfig = Field(default_factory=lambda run: run["task"].models[0]())
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    @model_validator(mode="after")
    def _check_fit(self) -> RunConfig:
        """Raise an error where the task is not learned by such a model."""
        if not isinstance(self.model, self.task.models):
            kinds = [repr(model.model_fields["kind"].default) for model in self.task.models]
            raise InputError(
                f"model.kind is {self.model.kind!r}, task.kind {self.task.kind!r}, which is "
                f"learned by {' or '.join(kinds)}. Leave model.kind out, or choose another task."
            )
        return self


def _kinds(section: str) -> dict[str, type[BaseModel]]:
    """The classes of the section "task" or "model" by their kinds."""
    classes = get_args(RunConfig.model_fields[section].annotation)
    return {get_args(each.model_fields["kind"].annotation)[0]: each for each in classes}


def _with_kind(content: JsonObject) -> JsonObject:
    """Where [model] names no kind, "pretrained" with a folder, else the task's own default.

    A validator of RunConfig cannot add it: its result is no JSON to pydantic, whose strict mode
    then takes no list for a tuple.
    """
    model, task = content.get("model"), content.get("task")
    if not isinstance(model, dict) or "kind" in model or not isinstance(task, dict):
        return content
    section = _kinds("task").get(str(task.get("kind")))
    if "folder" in model or section is None or not issubclass(section, TaskSection):
        return {**content, "model": {"kind": "pretrained", **model}}
    return {**content, "model": {"kind": section.models[0].model_fields["kind"].default, **model}}


def _explain(source: str, error: ValidationError) -> str:
    """The first thing wrong with a configuration, in one line."""
    # Without a task there is no default of the model either: no second thing wrong.
    errors = [part for part in error.errors() if part["type"] != "default_factory_not_called"]
    first, more = errors[0], len(errors) - 1
    place = first["loc"]
    # pydantic's path names the kind too that it took a section for.
    names = [*place[:1], *(place[2:] if place[:1] in (("task",), ("model",)) else place[1:])]
    key = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)[1:]
    also = f" ({more} more after this one.)" if more else ""
    if first["type"] == "value_error" and len(names) < 2:
        return f"{source}: {first['ctx']['error']}"
    if first["type"] == "extra_forbidden":
        sections: dict[str, type[BaseModel]] = {"training": TrainingConfig, "": RunConfig}
        sections |= {**_kinds("task"), **_kinds("model")}
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
        expected = ", ".join(_kinds(key))
        return f"{source}: {key}.kind is {kind!r}; expected one of {expected}.{also}"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return f"{source}: {key} = {reprlib.repr(first['input'])}: {message}.{also}"


def check_config(content: JsonObject, source: str) -> RunConfig:
    """A configuration from nested dictionaries.

    Raises: InputError: one line that names the key, what is wrong and the nearest known.
    """
    try:
        return RunConfig.model_validate_json(json.dumps(_with_kind(content), default=str))
    except ValidationError as error:
        raise InputError(_explain(source, error)) from None
    except RecursionError:
        raise InputError(f"{source}: its values are nested too deeply.") from None


def load_config(path: Path | str, overrides: Sequence[str] | None = None) -> RunConfig:
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
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: not TOML: {error}. Give a configuration, as those in examples."
        ) from None
    for override in overrides or []:
        _override(content, override)
    return check_config(content, f"{path} with --set" if overrides else str(path))


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
