"""What `headloom view` opens: traces, a run, or a model that reads texts while somebody types
them.
"""

from __future__ import annotations

import threading
from pathlib import Path

from headloom.api.model import Model, TraceChoices, check_text
from headloom.api.opening import open_model
from headloom.api.trained_head import LayerCalled, layer_calls, projected
from headloom.errors import InputError
from headloom.formats.folders import was_interrupted
from headloom.formats.run import RunFolder, is_run
from headloom.formats.trace import TraceData
from headloom.studio.asking import Asking
from headloom.studio.collection import Collection
from headloom.studio.neuron import LayerNumbers
from headloom.studio.page import collect
from headloom.studio.runs import open_collection, open_traces
from headloom.tracing.arguments import token_limit
from headloom.tracing.locating import PACKAGED, is_gguf

__all__ = ["Reader", "is_model", "open_studio"]

#: What a model reads first.
TEXT = "The animal didn't cross the street because it was too tired."


class Reader:
    """A model as a function from a text to its trace in memory; opened when it is first asked.

    Of one text at a time: `Asking` sees to it.
    """

    def __init__(self, name: str, model: Model | None = None) -> None:
        self._name, self._model = name, model
        self._opening = threading.Lock()
        self._calls: tuple[str, dict[str, LayerCalled]] | None = None

    def model(self) -> Model:
        """The model, once it is open."""
        with self._opening:
            if self._model is None:
                self._model = open_model(self._name, quiet=True)
            return self._model

    def __call__(self, text: str) -> TraceData:
        """Trace a text. Raises: HeadloomError: it cannot be read."""
        check_text(text)
        options = TraceChoices(keep=32, verify=False)
        model = self.model()
        if unknown := model.unknown_parts(text):
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
        written = None
        if not isinstance(inputs, str) and "target" in inputs and model.tokenizer is not None:
            # What a translator of headloom wrote, and then read.
            written = {"wrote": model.tokenizer.decode(inputs["target"][0].tolist()[1:])}
        return model.trace(inputs, None, options, description=written)

    def through(self, text: str, layer: str) -> LayerNumbers:
        """What a layer, by its path, read and made on a text, on which the model runs once.

        Raises: InputError: its learned matrices, or what enters it, could not be told.
        """
        model = self.model()
        if self._calls is None or self._calls[0] != text:
            inputs = model.inputs(text, TraceChoices(verify=False))
            self._calls = text, layer_calls(model, inputs)
        call = self._calls[1].get(layer)
        if call is None:
            raise InputError(
                f"layer {layer}: its learned matrices, or what enters it, could not be told."
            )
        heads, W_O = call.call, call.matrices.W_O
        before, bias, turned = projected(call.X[0], call.matrices.W_Q, heads.queries[0])
        return LayerNumbers(
            call.X[0].detach().cpu(),
            heads.values[0].detach().cpu(),
            call.output[0].detach().cpu(),
            None if W_O is None else W_O.detach().cpu(),
            b_O=call.b_O is not None,
            biases=bias is not None,
            turned=turned,
            projected=before if turned else None,
            relative=heads.relative,
        )


def open_studio(path: Path, text: str | None = None, *others: Path) -> Collection:
    """What there is to see at a path: see `headloom.studio.runs.open_collection`; or a model.

    Args:
        path: of a trace, a run, a folder of traces; or a model of Hugging Face, by its folder, GGUF
            file or name, which is shown on a text. A run can be asked, if it reads text.
        text: what a model of Hugging Face reads first.
        others: more traces beside that of `path`, to compare.

    Raises: DataError: nothing, or something damaged; InputError: the model reads no text.
    """
    name = str(path)
    if text is not None and (others or is_run(path) or not is_model(path)):
        raise InputError(f"--text: {path} is no model, which would read it. Leave it out.")
    if others:
        return open_traces([path, *others])
    if is_run(path):
        collection = open_collection(path)
        run = RunFolder.open(path)
        # Others see images or graphs, have no weights yet, or are of a watched training.
        if run.vocabulary.exists() and run.best.exists():
            reader = Reader(name)
            title = path.resolve().name
            collection.asking = Asking(title, reader, reader.through)
        return collection
    if not is_model(path):
        return open_collection(path)
    reader = Reader(name, open_model(name))
    text = TEXT if text is None else text
    title = name if not path.exists() else path.resolve().name
    collection = collect([reader(text)], title, names=[text])
    collection.examples[0].text = text
    collection.asking = Asking(title, reader, reader.through)
    return collection


def is_model(path: Path) -> bool:
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
