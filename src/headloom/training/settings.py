"""Keywords of `headloom.train`: names of other libraries, and the section of each key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from pydantic import BaseModel

from headloom.errors import InputError
from headloom.formats.files import JsonMapping, JsonObject
from headloom.training.config import TrainingConfig, kinds
from headloom.training.sections import TaskSection
from headloom.training.tasks.language import BLOCK

SECTIONS = ("task", "model", "training")
#: Other names of tasks and keys.
_ALIASES = {
    "labels": "classification classify classifier text-classification sequence-classification",
    "translation": "translate seq2seq text2text text2text-generation",
    "language": "lm language-model language-modeling language-modelling causal-lm text-generation",
    "images": "image image-classification vision",
    "nodes": "node-classification",
    "run": "output_dir out_dir save_dir",
    "max_steps": "steps num_steps n_steps iterations",
    "max_epochs": "epochs num_epochs n_epochs num_train_epochs",
    "max_minutes": "minutes time max_time seconds max_seconds",
    "peak_learning_rate": "lr learning_rate",
    "warmup": "warmup_steps",
    "optimiser": "optimizer",
    "seed": "random_state random_seed",
    "validate_every": "eval_every eval_steps",
    "checkpoint_every": "save_every save_steps",
    "width": "d_model hidden_size embed_dim",
    "heads": "n_heads num_heads nhead n_head",
    "layers": "n_layers num_layers n_layer",
    "feed_forward": "d_ff dim_feedforward",
    "vocabulary": "vocab_size",
    "valid": "eval_data eval_dataset valid_data validation_data val_data",
    "test": "test_data test_dataset",
    "text": "text_column text_col",
    "label": "label_column label_col",
    "source": "source_column",
    "target": "target_column",
}
_NAMES = {other: name for name, others in _ALIASES.items() for other in others.split()}


def sections_of(content: JsonMapping) -> JsonObject:
    """Convert a configuration's sections to dicts; a text is the section's kind.

    >>> sections_of({"task": "classification", "model": "classifier"})
    {'task': {'kind': 'labels'}, 'model': {'kind': 'classifier'}}
    """
    result: JsonObject = {}
    for name, section in content.items():
        if isinstance(section, BaseModel):
            kind = {"kind": section.kind} if hasattr(section, "kind") else {}
            section = section.model_dump(mode="json", exclude_unset=True) | kind
        if isinstance(section, str):  # a model that is no kind is a folder of Transformers
            folder = name == "model" and section not in kinds("model")
            section = {"folder" if folder else "kind": section}
        result[name] = dict(section) if isinstance(section, Mapping) else section
        if name == "task" and isinstance(section, Mapping) and "kind" in section:
            word = str(section["kind"]).lower().replace("_", "-")
            result[name]["kind"] = _NAMES.get(word, section["kind"])
    return result


def canonical_names(settings: JsonMapping) -> JsonObject:
    """Rename settings to headloom's keys. Raises: InputError: a key occurs twice."""
    result: JsonObject = {}
    for name, value in settings.items():
        key = _NAMES.get(name, name)
        if key in result:
            raise InputError(f"train: {name} means {key}, which is given too. Leave one out.")
        item = getattr(value, "item", None)  # of NumPy
        result[key] = value = item() if item is not None else value
        if key == "max_minutes" and "minutes" not in name and isinstance(value, int | float):
            result[key] = value / 60  # a time without a unit is in seconds
    time = result.get("max_minutes")
    if isinstance(time, str) and (match := re.fullmatch(r"([\d.]+) ?(s|m|h)[a-z]*", time)):
        result["max_minutes"] = float(match[1]) * {"s": 1 / 60, "m": 1, "h": 60}[match[2]]
    return result


def with_settings(content: JsonObject, settings: JsonMapping) -> JsonObject:
    """Insert settings into the section that has each key, or that its name gives."""
    if not settings:
        return content
    result = {**content, **{name: dict(content.get(name, {})) for name in SECTIONS}}
    task, model = result["task"], result["model"]
    learned = kinds("task").get(str(task.get("kind")), TaskSection)
    usual = learned.models[0] if issubclass(learned, TaskSection) else TaskSection
    kind = model.get("kind", "pretrained" if "folder" in model else None)
    known = {"task": set(learned.model_fields), "training": set(TrainingConfig.model_fields)}
    known["model"] = set(kinds("model").get(str(kind), usual).model_fields)
    # batch_size comes last: it depends on other settings.
    for name, value in sorted(settings.items(), key=lambda item: item[0] == "batch_size"):
        section, dot, key = name.partition(".")
        places = [section for section in SECTIONS if name in known[section] - {"kind"}]
        if dot and section in known:
            result[section][key] = value
        elif name == "layers" and "decoder_layers" in known["model"]:
            both = ("decoder_layers", "encoder_layers")
            model |= dict.fromkeys(both[: 1 if task["kind"] == "language" else 2], value)
        elif name == "batch_size" and task.get("kind") == "language":
            result["training"]["batch_tokens"] = value * (task.get("block") or BLOCK)
        elif len(places) == 1:
            result[places[0]][name] = value
        else:
            raise _misplaced(name, value, places, known)
    return {name: section for name, section in result.items() if section}


def _misplaced(
    name: str, value: object, places: list[str], known: Mapping[str, set[str]]
) -> InputError:
    """Return the error of a key that no section has, or two."""
    if name == "batch_size":
        hint = (
            "batches are measured in tokens, padding included (of images, in pixels). Set "
            "batch_tokens, such as batch_tokens=2048."
        )
    elif places:
        ways = " or ".join(f"{section}={{..., {name!r}: {value!r}}}" for section in places)
        hint = f"it is a key of {' and of '.join(places)}. Write {ways}."
    else:
        keys = {key: f"{section}.{key}" for section, names in known.items() for key in names}
        words = {**{other: keys.get(key, key) for other, key in _NAMES.items()}, **keys}
        hint = f"no such key; there are {', '.join(sorted(keys))}."
        if re.search("snap|histor", name):
            hint = "no such key; a run keeps snapshots at steps that grow by history_growth=1.5."
            return InputError(f"train: {name}: {hint}")
        if near := difflib.get_close_matches(name, list(words), 1, 0.6):
            hint = f"no such key; did you mean {near[0]} ({words[near[0]]})?"
    return InputError(f"train: {name}: {hint}")
