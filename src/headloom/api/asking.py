"""What `headloom view` opens: traces, a run, or a model that reads what somebody types."""

from __future__ import annotations

from functools import cached_property
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
from headloom.tracing.locating import PACKAGED, is_gguf

#: What a model reads first.
TEXT = "The animal didn't cross the street because it was too tired."


class Reader:
    """A model as a function from a text to its trace in memory; opened when it is first asked.

    Of one text at a time: `Asking` sees to it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: tuple[str, dict[str, LayerCalled]] | None = None

    @cached_property
    def model(self) -> Model:
        """The model, once it is open."""
        return open_model(self._name)

    def __call__(self, text: str) -> TraceData:
        """Trace a text. Raises: HeadloomError: it cannot be read."""
        check_text(text)
        options = TraceChoices(keep=32, verify=False)
        if unknown := self.model.unknown_parts(text):
            parts = ", ".join(repr(part) for part in unknown[:5])
            raise InputError(f"{self._name} does not know {parts}. Type what it was trained on.")
        inputs, tokenizer = self.model.inputs(text, options), self.model.tokenizer
        written = None
        if not isinstance(inputs, str) and "target" in inputs and tokenizer is not None:
            # What a translator of headloom wrote, and then read.
            written = {"wrote": tokenizer.decode(inputs["target"][0].tolist()[1:])}
        return self.model.trace(inputs, None, options, description=written)

    def through(self, text: str, layer: str) -> LayerNumbers:
        """What a layer, by its path, read and made on a text, on which the model runs once.

        Raises: InputError: its learned matrices, or what enters it, could not be told.
        """
        if self._calls is None or self._calls[0] != text:
            inputs = self.model.inputs(text, TraceChoices(verify=False))
            self._calls = text, layer_calls(self.model, inputs)
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
            shifted=heads.relative is not None and not heads.relative.only_bias,
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
    if text is not None and (others or is_run(path) or not is_model(path)):
        raise InputError(f"--text: {path} is no model, which would read it. Leave it out.")
    if others:
        return open_traces([path, *others])
    reader = Reader(str(path))
    title = path.resolve().name if path.exists() else str(path)
    if is_run(path):
        collection, run = open_collection(path), RunFolder.open(path)
        # Others see images or graphs, have no weights yet, or are of a watched training.
        if not run.vocabulary.exists() or not run.best.exists():
            return collection
    elif is_model(path):
        text = TEXT if text is None else text
        collection = collect([reader(text)], title, names=[text])
        collection.examples[0].text = text
    else:
        return open_collection(path)
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
