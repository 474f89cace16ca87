"""Keywords of `headloom.train`, each in the section of the configuration that has such a key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.training.config import TrainingConfig, kinds
from headloom.training.sections import TaskSection
from headloom.training.tasks.language import BLOCK

#: Kinds of tasks, by what else they are called.
_KINDS = {
    "labels": ("classification", "classify", "classifier", "text-classification",
               "sequence-classification", "sentiment", "sentiment-analysis"),
    "translation": ("translate", "seq2seq", "text2text", "text2text-generation", "pairs"),
    "language": ("lm", "language-model", "language-modeling", "language-modelling", "causal-lm",
                 "text-generation", "generation", "text"),
    "images": ("image", "image-classification", "vision"),
    "nodes": ("node-classification", "graph"),
}  # fmt: skip
#: Keys, by what other libraries call them.
_KEYS = {
    "run": ("output_dir", "out_dir", "out", "save_dir", "folder"),
    "max_steps": ("steps", "num_steps", "n_steps", "total_steps", "iterations"),
    "max_epochs": ("epochs", "num_epochs", "n_epochs", "num_train_epochs"),
    "max_minutes": ("minutes", "time", "max_time"),
    "peak_learning_rate": ("lr", "learning_rate"),
    "warmup": ("warmup_steps", "num_warmup_steps"),
    "schedule": ("scheduler", "lr_scheduler", "lr_scheduler_type"),
    "optimiser": ("optimizer", "optim"),
    "seed": ("random_state", "random_seed"),
    "validate_every": ("eval_every", "eval_steps", "val_every"),
    "checkpoint_every": ("save_every", "save_steps"),
    "patience": ("early_stopping", "early_stopping_patience"),
    "accumulate": ("gradient_accumulation_steps", "grad_accum"),
    "clip_norm": ("max_grad_norm", "grad_clip", "gradient_clip_val"),
    "width": ("d_model", "hidden_size", "embed_dim", "dim", "n_embd"),
    "heads": ("n_heads", "num_heads", "nhead", "n_head", "num_attention_heads"),
    "layers": ("n_layers", "num_layers", "n_layer", "num_hidden_layers", "depth"),
    "feed_forward": ("d_ff", "dim_feedforward", "intermediate_size"),
    "block": ("block_size", "context_length", "seq_len"),
    "vocabulary": ("vocab_size",),
    "text": ("text_column", "text_col"),
    "label": ("label_column", "label_col", "labels"),
    "valid_share": ("validation_split", "val_split", "test_size"),
}
_NAMES = {other: key for key, others in _KEYS.items() for other in others}
SECTIONS = ("task", "model", "training")


def sections_of(content: Mapping[str, Any]) -> JsonObject:
    """A configuration whose sections are dicts; a section that is a text is its kind.

    >>> sections_of({"task": "classification", "model": "classifier"})
    {'task': {'kind': 'labels'}, 'model': {'kind': 'classifier'}}
    """
    result: JsonObject = {}
    for name, section in content.items():
        if isinstance(section, BaseModel):
            section = section.model_dump(mode="json", exclude_unset=True)
        if isinstance(section, str) and name == "model" and section not in kinds("model"):
            section = {"kind": "pretrained", "folder": section}
        elif isinstance(section, str):
            section = {"kind": section}
        result[name] = dict(section) if isinstance(section, Mapping) else section
        kind = section.get("kind") if isinstance(section, Mapping) else None
        if name == "task" and isinstance(kind, str):
            word = kind.lower().replace("_", "-").replace(" ", "-")
            result[name]["kind"] = next((k for k, all_ in _KINDS.items() if word in all_), kind)
    return result


def habitual(settings: Mapping[str, object]) -> dict[str, Any]:
    """Settings by the names of headloom's keys. Raises: InputError: one is there twice."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        key = _NAMES.get(name, name)
        if key in result:
            raise InputError(f"train: {name} is {key}, which is there already. Leave one out.")
        if key == "max_minutes" and isinstance(value, str):
            value = _minutes(value)
        if key == "patience" and isinstance(value, bool):
            value = 3 if value else None
        item = getattr(value, "item", None)  # of a number of NumPy
        result[key] = item() if callable(item) and getattr(value, "ndim", 0) == 0 else value
    return result


def _minutes(text: str) -> float:
    """A time as people write it.

    >>> _minutes("30s"), _minutes("2 min"), _minutes("1.5h")
    (0.5, 2.0, 90.0)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*(s|m|h)[a-z]*\s*", text)
    if match is None:
        raise InputError(f"max_minutes {text!r}: expected a number of minutes, as 0.5, or '30s'.")
    return float(match[1]) * {"s": 1 / 60, "m": 1, "h": 60}[match[2]]


def routed(content: JsonObject, settings: Mapping[str, Any]) -> JsonObject:
    """A configuration with settings in it, each in the section that has its key.

    Args:
        content: sections as dicts; the kind of the task is known.
        settings: by headloom's names; "section.key" names the section.

    Raises: InputError: a key that no section has, or two.
    """
    if not settings:
        return content
    result = {**content, **{name: dict(content.get(name, {})) for name in SECTIONS}}
    task = kinds("task").get(str(result["task"].get("kind")), TaskSection)
    usual = task.models[0] if issubclass(task, TaskSection) else BaseModel
    own = "pretrained" if "folder" in result["model"] else None
    model = kinds("model").get(str(result["model"].get("kind", own)), usual)
    known = {"task": task.model_fields, "model": model.model_fields,
             "training": TrainingConfig.model_fields}  # fmt: skip
    for name, value in sorted(settings.items(), key=lambda item: item[0] == "batch_size"):
        section, dot, key = name.partition(".")
        if dot and section in known:
            result[section][key] = value
            continue
        if name == "layers" and "layers" not in model.model_fields:
            layers = ("decoder_layers", "encoder_layers")[
                : 1 if task is kinds("task")["language"] else 2
            ]
            result["model"] |= dict.fromkeys(layers, value)
            continue
        if name == "batch_size":
            name, value = "batch_tokens", _batch_tokens(result["task"], value)
        places = [section for section in known if name in known[section] and name != "kind"]
        if len(places) > 1:
            ways = " or ".join(f"{s}={{..., {name!r}: {value!r}}}" for s in places)
            raise InputError(f"train: {name} is a key of {' and of '.join(places)}. Say {ways}.")
        if not places:
            raise _unknown(name, known)
        result[places[0]][name] = value
    return {name: section for name, section in result.items() if section}


def _batch_tokens(task: JsonObject, size: Any) -> int:
    if task.get("kind") == "language" and isinstance(size, int):
        return size * int(task.get("block") or BLOCK)
    raise InputError(
        "train: batch_size counts examples; a batch is as many as fill batch_tokens, padding "
        "included (of images, pixels). Give that, as batch_tokens=2048."
    )


def _unknown(name: str, known: Mapping[str, Mapping[str, object]]) -> InputError:
    keys = {key: f"{section}.{key}" for section, own in known.items() for key in own}
    words = {**{other: keys.get(key, key) for other, key in _NAMES.items()}, **keys}
    near = difflib.get_close_matches(name, list(words), 1, 0.6)
    hint = (
        f"did you mean {near[0]} ({words[near[0]]})?"
        if near
        else (
            f"[task] has {', '.join(known['task'])}; [model] {', '.join(known['model'])}; "
            f"[training] {', '.join(known['training'])}."
        )
    )
    return InputError(f"train: no section of the configuration has a key {name!r}; {hint}")
