"""Studio with a model that traces typed text."""

from __future__ import annotations

from pathlib import Path

from headloom.api.model import Model
from headloom.api.questions import check_text
from headloom.api.run_model import RunModel
from headloom.api.trained_head import LayerCalled, layer_calls, projected
from headloom.errors import InputError
from headloom.formats.run import RunFolder
from headloom.formats.trace import TraceData
from headloom.studio.asking import Asking
from headloom.studio.collection import Collection
from headloom.studio.neuron import LayerNumbers
from headloom.studio.page import collect
from headloom.studio.runs import open_collection
from headloom.tracing.options import TraceOptions

#: First text of a model.
TEXT = "The animal didn't cross the street because it was too tired."


class Reader:
    """Model as a function from a text to its trace; `Asking` serialises the calls."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._calls: tuple[str, dict[str, LayerCalled]] | None = None

    def __call__(self, text: str) -> TraceData:
        """Trace a text. Raises: HeadloomError: it cannot be read."""
        check_text(text)
        if unknown := self.model._unknown_parts(text):
            parts = ", ".join(repr(part) for part in unknown[:5])
            raise InputError(
                f"{self.model.name}: {parts} not in its vocabulary. Use what it was trained on."
            )
        inputs, tokenizer = self.model._inputs(text), self.model.tokenizer
        written = None
        if not isinstance(inputs, str) and "target" in inputs and tokenizer is not None:
            # The translation that a headloom translator has generated.
            written = {"wrote": tokenizer.decode(inputs["target"][0].tolist()[1:])}
        made = self.model._traced(
            inputs, TraceOptions(tokenizer, verify=False), description=written
        )
        assert isinstance(made, TraceData)  # of one text
        return made

    def through(self, text: str, layer: str) -> LayerNumbers:
        """Return a layer's inputs and outputs on a text; the model runs once per text."""
        if self._calls is None or self._calls[0] != text:
            self._calls = text, layer_calls(self.model, self.model._inputs(text))
        if (call := self._calls[1].get(layer)) is None:
            raise InputError(f"layer {layer}: its learned matrices or its input were not found.")
        heads, W_O = call.call, call.matrices.W_O
        before, bias, turned = projected(call.X[0], call.matrices.W_Q, heads.queries[0])
        return LayerNumbers(
            call.X[0].detach().cpu(), heads.values[0].detach().cpu(), call.output[0].detach().cpu(),
            None if W_O is None else W_O.detach().cpu(),
            b_O=call.b_O is not None, biases=bias is not None, turned=turned,
            projected=before if turned else None,
            shifted=heads.relative is not None and not heads.relative.only_bias,
        )  # fmt: skip


def studio_of(model: Model, text: str | None = None) -> Collection:
    """Return the studio's collection of a run, or of a model that reads `text` first."""
    reader = Reader(model)
    if isinstance(model, RunModel):
        if text is not None:
            raise InputError(
                f"text: {model.name} is a run, which has texts of its own. Leave text out."
            )
        collection, title = open_collection(model.path), model.path.resolve().name
        run = RunFolder.open(model.path)
        # Other runs read images or graphs, have no weights yet, or are of a watched training.
        if not run.vocabulary.exists() or not run.best.exists():
            return collection
    else:
        text, path = TEXT if text is None else text, Path(model.name)
        title = path.resolve().name if path.exists() else model.name
        collection = collect([reader(text)], title, names=[text])
        collection.examples[0].text = text
    collection.asking = Asking(title, reader, reader.through)
    return collection
