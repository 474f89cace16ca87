"""What `headloom view` opens: traces, a run, or a model that reads texts while somebody types
them.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor, nn

from headloom.analysis.matrices.projections import LayerMatrices, matrices_of
from headloom.api.model import Inputs, Model, TraceChoices, check_text
from headloom.api.opening import open_model
from headloom.api.relevance import relevance_of_levels
from headloom.api.trained_head import (
    LayerCalled,
    after_projection,
    before_turn,
    layer_calls,
    output_module,
)
from headloom.errors import InputError
from headloom.formats.files import JsonObject
from headloom.formats.folders import was_interrupted
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData
from headloom.studio.asking import Asking
from headloom.studio.collection import Collection
from headloom.studio.flows import RelevanceShown
from headloom.studio.neuron import LayerNumbers
from headloom.studio.page import collect
from headloom.studio.runs import open_collection, open_traces
from headloom.tracing.inputs import token_limit
from headloom.tracing.locating import is_gguf
from headloom.tracing.packaged import PACKAGED
from headloom.tracing.pretrained import predicts

__all__ = ["Reader", "open_studio"]


#: What a model reads first.
TEXT = "The animal didn't cross the street because it was too tired."


class Reader:
    """A model as a function from a text to its trace in memory; opened when it is first asked."""

    def __init__(self, name: str, model: Model | None = None) -> None:
        self._name, self._model = name, model
        self._predicting: Model | None = None
        self._opening = threading.Lock()
        self._layers = ModelLayers()

    def through(self, text: str, layer: str) -> LayerNumbers:
        """What a layer, by its path, read and made on a text. Raises: HeadloomError: it is not
        known.

        Of one text at a time: `Asking` sees to it.
        """
        return self._layers.numbers(self.model(), text, layer)

    def relevance(self, text: str, position: int) -> RelevanceShown:
        """See `headloom.api.relevance.relevance_of_levels`. Raises: HeadloomError: there is none.

        Of one text at a time, as `through`.
        """
        with self._opening:
            # A model that reads texts may have been opened without what predicts.
            if self._predicting is None and not is_run(self._name):
                self._predicting = open_model(
                    self._name, predicting=True, labelling=True, quiet=True
                )
        return relevance_of_levels(self._predicting or self.model(), text, position)

    def __call__(self, text: str) -> TraceData:
        """Trace a text. Raises: HeadloomError: it cannot be read."""
        check_text(text)
        options = TraceChoices(keep=32, verify=False)
        model = self.model()
        unknown = model.unknown_parts(text)
        if unknown:
            parts = ", ".join(repr(part) for part in unknown[:5])
            raise InputError(f"{self._name} does not know {parts}. Type what it was trained on.")
        inputs = model.inputs(text, options)
        if isinstance(inputs, str) and model.tokenizer is not None:
            limit = token_limit(model.network)
            count = len(model.tokenizer(inputs, verbose=False)["input_ids"])
            if limit is not None and count > limit:
                raise InputError(
                    f"This text has {count:,} tokens; {self._name} reads {limit:,} at most. "
                    "Shorten it."
                )
        return model.trace(inputs, None, options, description=_written(model, inputs))

    def model(self) -> Model:
        """The model, once it is open."""
        with self._opening:
            if self._model is None:
                self._model = open_model(self._name, quiet=True)
            return self._model


def _written(model: Model, inputs: Inputs) -> JsonObject | None:
    """What a translator of headloom wrote, and then read, as an entry of its trace's
    description.
    """
    if isinstance(inputs, str) or "target" not in inputs or model.tokenizer is None:
        return None
    _, *ids = inputs["target"][0].tolist()
    return {"wrote": model.tokenizer.decode(ids)}


def open_studio(path: Path, text: str | None = None, *others: Path) -> Collection:
    """What there is to see at a path: see `headloom.studio.runs.open_collection`; or a model.

    others: more traces beside that of `path`, to compare.

    A run can be asked, if it reads text; a model of Hugging Face, by its folder, GGUF file or name,
    is shown on a text.

    text: what a model of Hugging Face reads first.

    Raises: DataError: nothing, or something damaged; InputError: the model reads no text.
    """
    name = str(path)
    if others:
        if text is not None:
            raise InputError("--text: several traces are opened, and no model. Leave it out.")
        return open_traces([path, *others])
    if is_run(path):
        collection = open_collection(path)
        run = RunFolder.open(path)
        # Others see images or graphs, have no weights yet, or are of a watched training.
        if run.vocabulary.exists() and run.best.exists():
            reader = Reader(name)
            title = path.resolve().name
            collection.asking = Asking(title, reader, reader.through, reader.relevance)
        return collection
    if not _is_model(path):
        if text is not None:
            raise InputError(f"--text: {path} is no model, which would read it. Leave it out.")
        return open_collection(path)
    reader = Reader(name, open_model(name))
    text = TEXT if text is None else text
    title = name if not path.exists() else path.resolve().name
    collection = collect([reader(text)], title, names=[text])
    collection.examples[0].text = text
    relevance = reader.relevance if predicts(reader.model().network.config) else None
    collection.asking = Asking(title, reader, reader.through, relevance)
    return collection


def _is_model(path: Path) -> bool:
    """Whether a path is a model of Hugging Face, or the name of one."""
    if path.is_dir():
        return (path / "config.json").exists() or any(path.glob("*.gguf"))
    if path.exists():
        return is_gguf(path)
    if str(path) in PACKAGED:
        return True
    # name, or owner/name; where the owner is a folder here, or a trace was being written, a path.
    return (
        len(path.parts) <= 2
        and path.suffix != ".loom"
        and not Path(path.parts[0]).exists()
        and not was_interrupted(path)
    )


class ModelLayers:
    """The layers of a model on the text it was last asked for: it runs once a text."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._calls: dict[str, LayerCalled] = {}

    def numbers(self, model: Model, text: str, layer: str) -> LayerNumbers:
        """What a layer, by its path, read and made.

        Raises: InputError: its learned matrices, or what enters it, could not be told.
        """
        if text != self._text:
            inputs = model.inputs(text, TraceChoices(verify=False))
            with torch.no_grad():
                self._calls = layer_calls(model, inputs)
            self._text = text
        matrices = {each.name: each for each in matrices_of(model.network)}.get(layer)
        call = self._calls.get(layer)
        if matrices is None or call is None:
            raise InputError(
                f"layer {layer}: its learned matrices, or what enters it, could not be told."
            )
        return _numbers(model.network, layer, matrices, call)


def _numbers(
    network: nn.Module, layer: str, matrices: LayerMatrices, call: LayerCalled
) -> LayerNumbers:
    heads, holder = call.reached.heads, output_module(network, layer, matrices.heads)
    bias, turned = after_projection(call.queries_from[0], matrices.W_Q, heads.queries[0])
    projected: Tensor | None = None
    if turned:
        projected, bias = before_turn(call.queries_from[0], matrices.W_Q, heads.queries[0])
    scoring = call.reached.scoring
    return LayerNumbers(
        call.queries_from[0].detach().cpu(),
        heads.values[0].detach().cpu(),
        heads.output[0].detach().cpu(),
        None if matrices.W_O is None else matrices.W_O.detach().cpu(),
        b_O=getattr(holder, "bias", None) is not None,
        biases=bias is not None,
        turned=turned,
        projected=projected,
        relative=None if scoring is None else scoring.relative,
    )
