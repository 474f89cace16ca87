"""Families of Transformers equivalent to headloom's models: settings in both directions.

Sources: Devlin et al. 2019 (BERT); Radford et al. 2019 (GPT-2); Touvron et al. 2023 (Llama);
Black et al. 2022 (GPT-NeoX); Junczys-Dowmunt et al. 2018 (Marian); Zhang et al. 2020 (Pegasus).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.mechanism.rotary import RotaryScaling, ScalingKind
from headloom.models.configuration import ActivationKind, Architecture
from headloom.models.huggingface import layouts
from headloom.models.huggingface.folder import Settings
from headloom.models.huggingface.layouts import Layout

#: Activations by their names in Transformers; of several names, the last is written.
_ACTIVATIONS: Mapping[str, ActivationKind] = {
    "relu": "relu", "gelu_python": "gelu", "gelu": "gelu", "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "swish": "silu", "silu": "silu",
}  # fmt: skip
#: Choices of an architecture that affect no weight, or only other kinds of positions.
_FREE = {
    "encoder_layers", "decoder_layers", "dropout", "attention_dropout", "max_length", "clip",
    "buckets", "max_distance", "positions", "rotary_base", "rotary_scaling", "depth",
}  # fmt: skip


_Value = int | float | bool | str
_Default = _Value | Callable[[dict[str, _Value]], _Value]


@dataclass(frozen=True)
class Family:
    """Meaning of one family's config.json.

    model: the class of Transformers.
    layout: names of its weights.
    sizes: keys and defaults by our names; a function receives the preceding choices.
    fixed: choices of the whole family that differ from our defaults.
    positions: kinds that it has, or that a table of learned positions can represent.
    written: our choices that it lacks and that the weights can express.
    """

    model: str
    layout: Layout
    sizes: Mapping[str, tuple[str, _Default]]
    fixed: Mapping[str, object]
    positions: tuple[str, ...] = ("learned", "sinusoidal", "none")
    written: tuple[str, ...] = ("kv_heads", "biases", "scaled_embeddings", "tied")

    def read(self, settings: Settings, **more: object) -> Architecture:
        """Return the architecture described by a folder's settings."""
        choices: dict[str, _Value] = {}
        for name, (key, default) in self.sizes.items():
            usual: _Value = default(choices) if callable(default) else default
            value = settings.get(key, usual)  # type: ignore[type-var]
            if type(value) is int and value < 1:
                raise settings.wrong(key, "a whole number from 1 on")
            if name == "activation":
                if value not in _ACTIVATIONS:
                    raise settings.refused(key)
                value = _ACTIVATIONS[str(value)]
            choices[name] = value
        try:
            known = {"positions": self.positions[0], **self.fixed, **choices, **more}
            return Architecture(**known)  # type: ignore[arg-type]
        except InputError as error:
            raise settings.damaged(str(error)) from error

    def settings(self, architecture: Architecture) -> JsonObject:
        """Return the config.json of an architecture.

        Raises: InputError: the family lacks one of its choices.
        """
        depth = architecture.width // architecture.heads
        if architecture.positions not in self.positions:
            raise _no_counterpart("positions", architecture)
        if architecture.depth not in (None, depth) and "depth" not in self.sizes:
            raise _no_counterpart("depth", architecture)
        for choice in fields(Architecture):
            name, expected = choice.name, self.fixed.get(choice.name, choice.default)
            if name in _FREE or name in self.sizes or name in self.written:
                continue
            if getattr(architecture, name) != expected:
                raise _no_counterpart(name, architecture)
        whole = {"depth": depth, "kv_heads": architecture.heads}
        content: JsonObject = {}
        for name, (key, _) in self.sizes.items():
            value = getattr(architecture, name)
            content[key] = whole.get(name) if value is None else value
            if name == "activation":
                content[key] = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[value]
        return content


def _no_counterpart(name: str, architecture: Architecture) -> InputError:
    value = getattr(architecture, name)
    shown = f'"{value}"' if isinstance(value, str) else str(value).lower()
    return InputError(
        f"export: no architecture of Transformers has model.{name} = {shown} with this model's "
        "other choices; see docs/export.md for those that exist, or export --to onnx."
    )


GPT2 = Family(
    "GPT2LMHeadModel",
    layouts.GPT2,
    {
        "width": ("n_embd", 768), "heads": ("n_head", 12),
        "feed_forward": ("n_inner", lambda choices: 4 * int(choices["width"])),
        "decoder_layers": ("n_layer", 12), "max_length": ("n_positions", 1024),
        "norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation_function", "gelu_new"), "dropout": ("resid_pdrop", 0.1),
        "attention_dropout": ("attn_pdrop", 0.1), "tied": ("tie_word_embeddings", True),
    },
    {"scaled_embeddings": False},
)  # fmt: skip
_BLOCKS: dict[str, tuple[str, _Default]] = {
    "width": ("hidden_size", 768), "heads": ("num_attention_heads", 12),
    "feed_forward": ("intermediate_size", 3072), "activation": ("hidden_act", "gelu"),
    "max_length": ("max_position_embeddings", 512),
}  # fmt: skip
BERT = Family(
    "BertModel",
    layouts.BERT,
    {
        **_BLOCKS, "encoder_layers": ("num_hidden_layers", 12),
        "norm_epsilon": ("layer_norm_eps", 1e-12), "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "tied": ("tie_word_embeddings", True),
    },
    {"norm": "post", "scaled_embeddings": False},
)  # fmt: skip
NEOX = Family(
    "GPTNeoXForCausalLM",
    layouts.GPT_NEOX,
    {
        **_BLOCKS, "decoder_layers": ("num_hidden_layers", 12),
        "norm_epsilon": ("layer_norm_eps", 1e-5), "attention_dropout": ("attention_dropout", 0.0),
        "dropout": ("hidden_dropout", 0.0), "tied": ("tie_word_embeddings", False),
    },
    {"scaled_embeddings": False},
    ("rotary",),
)  # fmt: skip
LLAMA = Family(
    "LlamaForCausalLM",
    layouts.LLAMA,
    {
        "width": ("hidden_size", 4096), "heads": ("num_attention_heads", 32),
        "kv_heads": ("num_key_value_heads", lambda choices: choices["heads"]),
        "depth": ("head_dim", lambda choices: int(choices["width"]) // int(choices["heads"])),
        "feed_forward": ("intermediate_size", 11008), "decoder_layers": ("num_hidden_layers", 32),
        "max_length": ("max_position_embeddings", 2048), "norm_epsilon": ("rms_norm_eps", 1e-6),
        "activation": ("hidden_act", "silu"), "attention_dropout": ("attention_dropout", 0.0),
        "tied": ("tie_word_embeddings", False),
    },
    {
        "normalisation": "rms", "feed_forward_kind": "gated", "dropout": 0.0,
        "scaled_embeddings": False,
    },
    ("rotary",),
)  # fmt: skip
MARIAN = Family(
    "MarianMTModel",
    layouts.BART,
    {
        "width": ("d_model", 1024), "heads": ("encoder_attention_heads", 16),
        "feed_forward": ("encoder_ffn_dim", 4096), "encoder_layers": ("encoder_layers", 12),
        "decoder_layers": ("decoder_layers", 12), "max_length": ("max_position_embeddings", 1024),
        "activation": ("activation_function", "gelu"), "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.0),
        "scaled_embeddings": ("scale_embedding", False),
    },
    {"norm": "post"},
    ("sinusoidal",),
    ("kv_heads", "biases", "output_bias"),
)  # fmt: skip
_CLOSING = {"model.encoder.layer_norm": "encoder_norm", "model.decoder.layer_norm": "decoder_norm"}
PEGASUS = replace(
    MARIAN, model="PegasusForConditionalGeneration", fixed={}, positions=GPT2.positions,
    layout=Layout({**layouts.BART.names, **_CLOSING}),
)  # fmt: skip


#: Kinds of scaling that both have, with their numbers by headloom's and Transformers' names.
#: Without "dynamic", which changes earlier positions as a text grows, and "longrope", which has a
#: learned number for each pair.
_SCALINGS: dict[ScalingKind, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor", "original_length": "original_max_position_embeddings",
        "slow": "low_freq_factor", "fast": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor", "original_length": "original_max_position_embeddings",
        "slow": "beta_slow", "fast": "beta_fast", "temperature": "attention_factor",
    },
}  # fmt: skip


def read_rotary(settings: Settings) -> tuple[float, RotaryScaling | None]:
    """Return base and scaling of rotary positions.

    Transformers 5 has both in rope_parameters, earlier versions rope_theta and rope_scaling.
    """
    key = "rope_parameters" if settings.raw("rope_parameters") is not None else "rope_scaling"
    rope, base = settings.raw(key), settings.get("rope_theta", 10_000.0)
    if not isinstance(rope, dict):
        return base, None
    kind = rope.get("rope_type", rope.get("type", "default"))
    whole = rope.get("truncate", True) is True and rope.get("partial_rotary_factor", 1.0) == 1.0
    if not whole or kind not in ("default", *_SCALINGS):
        raise settings.refused(key)
    try:
        base = float(rope.get("rope_theta", base))
        if kind == "default":
            return base, None
        names = _SCALINGS[kind]
        numbers = {ours: rope[theirs] for ours, theirs in names.items() if rope.get(theirs)}
        if kind != "linear":
            numbers.setdefault("original_length", settings.size("max_position_embeddings", 2048))
        first, second = (float(rope.get(name) or 0) for name in ("mscale", "mscale_all_dim"))
        if kind == "yarn" and "temperature" not in numbers and first and second:
            grows = 0.1 * math.log(max(float(numbers["factor"]), 1))
            numbers["temperature"] = (first * grows + 1) / (second * grows + 1)
        return base, RotaryScaling(kind, **numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise settings.wrong(key, f"consistent numbers ({error})") from error


def rope_parameters(architecture: Architecture) -> JsonObject:
    """Return the entries of config.json for rotary positions."""
    scaling, base = architecture.rotary_scaling, architecture.rotary_base
    if scaling is None:
        return {"rope_type": "default", "rope_theta": base}
    if scaling.kind == "ntk":
        depth = architecture.depth or architecture.width // architecture.heads
        return {"rope_type": "default", "rope_theta": scaling.other_base(depth, base)}
    numbers: JsonObject = {
        "factor": scaling.factor,
        "original_length": scaling.original_length,
        "temperature": scaling.size,
    }
    if scaling.kind != "linear":
        numbers["slow"], numbers["fast"] = scaling.turns
    names = _SCALINGS[scaling.kind]
    written = {theirs: numbers[ours] for ours, theirs in names.items()}
    return {"rope_type": scaling.kind, "rope_theta": base, **written}
