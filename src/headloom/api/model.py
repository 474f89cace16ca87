"""`headloom.Model`: a network and its tokenizer, with one interface for all sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from headloom.api.effects import ablate, relevance
from headloom.api.evaluation import Evaluation, HeldOut, evaluate_models, results_of_model
from headloom.api.questions import (
    Inputs,
    PredictOptions,
    Progress,
    Questions,
    cannot,
    check_output,
    check_text,
    predictions,
    tell_unknown,
)
from headloom.api.trace import Trace
from headloom.errors import Hints, InputError, no_keyword
from headloom.formats.images import open_image
from headloom.mechanism.graph import KeepLike, as_keep
from headloom.mechanism.received import LastQueries
from headloom.models.dense import Products
from headloom.tracing.llama_cpp import trace_by_llama_cpp
from headloom.tracing.options import TraceOptions, Verify
from headloom.training.resampling import Resampling

if TYPE_CHECKING:
    from PIL.Image import Image


#: Keywords of other libraries' `generate`, and the names to use here.
_NOT_OF_GENERATE = {
    **dict.fromkeys(
        ("output_attentions", "return_attention", "return_dict_in_generate", "trace"),
        "model.trace(prompt, generate=8), which has the weights of each new token",
    ),
    "do_sample": "temperature=0 for greedy decoding, or a temperature to sample",
    **dict.fromkeys(("max_length", "length", "max_tokens", "num_tokens"), "max_new_tokens="),
    "num_beams": "translate(lines, beam=5) of a translator",
}
_OF_GENERATE = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")


class Model(Hints, Questions):
    """Network and its tokenizer, as `headloom.load` returns it.

    This class traces any `torch.nn.Module`; runs (`Run`) and models of Transformers also read texts
    and predict.

    name: of the run, folder, file or model, or of the module's class.
    """

    _elsewhere = dict.fromkeys(
        ("save_pretrained", "push_to_hub"),
        "the same of .module; the folder of a run is whole, and headloom.load opens it anywhere",
    )

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {type(self.module).__name__})"

    def trace(
        self,
        inputs: Inputs | Tensor | Sequence[str] | None = None,
        *,
        target: str | None = None,
        image: Path | str | Image | None = None,
        generate: int | Mapping[str, object] | None = None,
        keep: KeepLike = 32,
        layers: Sequence[int | str] | None = None,
        save: Path | str | None = None,
        overwrite: bool = False,
        verify: Verify = None,
        tokenizer: object = None,
        queries_keys: bool = True,
        dtype: torch.dtype | None = None,
        received: bool | LastQueries = False,
        engine: Literal["llama.cpp"] | None = None,
        progress: Progress | None = None,
    ) -> Trace | list[Trace]:
        """Run the model once and keep the attention graph of every layer.

        The model runs in evaluation mode, without gradients, and is not changed. Padding (the id
        ``model.padding``; in a model of Transformers the masked tokens) at either end of a sequence
        is removed from its graphs.

        `headloom.trace(x, inputs, ...)` is ``headloom.load(x).trace(inputs, ...)``. x may be any
        module of torch whose attention is computed by torch's functions
        (scaled_dot_product_attention, nn.MultiheadAttention, flex_attention), by
        `headloom.attention`, or by headloom's layers, also those of graphs; or any model of Hugging
        Face Transformers that uses its attention interface. It needs no changes.

        Args:
            inputs: a text, or several in a list, of a run or a model of Transformers. Token ids,
                (length,) or (batch, length), or images, (batch, channels, rows, columns): a tensor
                (the model's first argument), or a tensor for each argument: {"source": ids,
                "target": ids}. Of any other module: its arguments, the first ones in a tuple, or
                all by name. Of a model of Transformers also the output of its tokenizer or
                processor. None: the image alone; or the graph of a graph run.
            target: the output text of an encoder-decoder; None: of a run, its own translation.
            image: an input image, or its PNG, JPEG or FILE.npz:NUMBER; perhaps with a text.
            generate: number of tokens to generate after the inputs, greedily, with a cache; each
                adds its row to one trace. For a model of Transformers also a dict, the options of
                its `generate`. None: no generation.
            keep: edges kept of each query: its strongest, or "all".
            layers: layers to keep, by their number in the order of the run, or by their path, with
                ``*`` as a wildcard; None: all.
            save: a folder to write the trace to. A model of Transformers is written layer by layer
                while it runs, so that memory holds one layer at most; the returned trace reads the
                folder on demand.
            overwrite: replace an existing trace, and nothing else.
            verify: number of input tokens that the model reads again without headloom, to check
                that its output is the same; or "all"; None or True: 64; False: none. See
                `headloom.tracing.recording.verification`.
            tokenizer: names the ids, instead of the model's own: a `tokenizers.Tokenizer`, a
                tokenizer of Transformers or a headloom vocabulary; or one for each sequence,
                {"source": ..., "target": ...}. Without any, the name of id 17 is "#17".
            queries_keys: whether to keep the queries and keys of each layer too.
            dtype: of saved queries and keys: float32, bfloat16 or float16; None: unchanged.
            received: True: also keep the attention received by each key, as in `headloom.attend`:
                ``trace.layers[i].graph.received`` and ``received_most``; ``LastQueries(n)``:
                ``received_last`` as well, of the last n queries without padding. None in a layer
                whose queries and keys are unknown.
            engine: "llama.cpp": it runs a GGUF file on one text, in its few bits and with flash
                attention and a float16 cache; the model is named by its path or name. None: torch.
            progress: called with path and number of each finished layer, and their total.

        Returns: a Trace; for several texts, or a batch of inputs, a list with a Trace for each.

        Raises:
            InputError: the model calls no supported attention function, or its inputs do not fit.
            VerificationError: the model's output changes while it is traced.
            DataError: the folder exists, or cannot be written.
        """
        if save is not None:
            check_output(Path(save), overwrite)
        model: Questions = self
        description = None
        if image is not None:
            if isinstance(image, str | Path):
                description, image = {"image": str(image)}, open_image(Path(image))
            if not isinstance(inputs, str | None):
                raise InputError("trace: with an image the inputs are a text, or None.")
            model, inputs = self._image_inputs(image, inputs)
        options = TraceOptions(
            model.tokenizer if tokenizer is None else tokenizer,
            as_keep("trace", keep),
            queries_keys, layers, save, dtype, overwrite, verify, received=received,
        )  # fmt: skip
        if engine is not None:
            others = target is not None or image is not None or tokenizer is not None
            if engine != "llama.cpp" or others or not isinstance(inputs, str):
                raise InputError(
                    f'trace: engine={engine!r}; expected "llama.cpp", which reads one text by the '
                    "tokenizer of a GGUF file: without target, image and tokenizer."
                )
            check_text(inputs)
            return Trace.of(trace_by_llama_cpp(self.name, inputs, options, generate, progress))
        several = isinstance(inputs, list) and all(isinstance(text, str) for text in inputs)
        if several and save is not None:
            raise InputError("trace: save= takes one text. Trace several in a loop, or without it.")
        traces: list[Trace] = []
        read: object
        for read in cast(list[object], inputs if several else [inputs]):
            text = read + (target or "") if isinstance(read, str) else ""
            if isinstance(read, str):
                check_text(read)
                read = self._inputs(read, target, generates=generate is not None)
            elif target is not None:
                raise InputError("trace: target= goes with a text; give ids as {name: ids}.")
            made = model._traced(
                read, options, generate, description=description, progress=progress
            )
            tell_unknown("the text", self._unknown_parts(text) if text else ())
            traces += map(Trace.of, made if isinstance(made, list) else [made])
        return traces[0] if len(traces) == 1 and not several else traces

    def evaluate(
        self,
        data: object = None,
        *,
        split: str | None = None,
        beam: int = 5,
        seed: int = 1,
        against: object = None,
        progress: Callable[..., None] = lambda done, total, what: None,
    ) -> Evaluation:
        """Measure the model on held-out data, with intervals; or two on the same, with a test.

        Args:
            data: None: the run's own; their new path, of its task.folder, task.file or task.graph;
                or other examples, as `headloom.train` takes them: pairs, two lists, a DataFrame,
                texts, a file.
            split: of a run's own data, "valid" or "test"; None: test if it has such data.
            beam: of a translator's decoding; 1: greedy.
            seed: of the resampling.
            against: another run, or its folder, to compare on the same data.
            progress: called with the amount done, its total or None, and a description.

        Returns: an Evaluation: a dict from the names of measures to their values, with a table.

        Raises: HeadloomError: no data, options that do not fit; two models with different data.
        """
        models = (self,) if against is None else (self, self._like(against))
        first, *second = [model._held_out(data, split) for model in models]
        settings = Resampling(seed=seed)
        return evaluate_models(first, second[0] if second else None, beam, settings, progress)

    def _like(self, other: object) -> Model:
        """Return the other model of a comparison."""
        if isinstance(other, Model):
            return other
        raise InputError("evaluate: against must be a model: headloom.load(...).")

    def _held_out(self, data: object, split: str | None) -> HeldOut:
        """Return the model with held-out data."""
        if self._predicts is None:
            raise cannot(self, "text", "translation", "label")
        if data is None or split is not None:
            raise InputError(f"evaluate: {self.name} has no data of its own. Give some: data=...")
        return HeldOut(self.name, partial(results_of_model, self, data))

    ablate = ablate
    relevance = relevance

    def predict(
        self,
        lines: str | Iterable[str],
        *,
        beam: int = 5,
        length_penalty: float | None = None,
        n_best: int = 1,
        max_new_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
        products: Products = "float32",
        described: bool = False,
    ) -> Any:
        """Translate, continue or classify texts, as the model does.

        Args:
            lines: a text, several, or an iterator such as a file: then the results are yielded one
                by one, in constant memory.
            beam: of a translator, the hypotheses kept at every step; 1: greedy.
            length_penalty: of a translator; higher values prefer long translations; None: the
                run's, or the model's own.
            n_best: number of translations per line with `described`.
            max_new_tokens: of a language model, the maximum of generated tokens.
            temperature: of the sampling; 0: greedy.
            top_k: sample among this many of the most probable tokens only.
            top_p: sample among the most probable tokens with this total probability.
            seed: of the sampling.
            products: of a run's linear layers: "float32", or "bfloat16", faster with hardware
                support.
            described: return dicts instead, as ``headloom predict --json`` prints them.

        Returns: of a text, a text; a classifier gives a dict of ``label``, ``score`` (its
        probability) and ``probabilities`` of all classes. Of several texts a list.

        Raises: InputError: a model without predictions from text, or a text that is too long.
        """
        options = PredictOptions(
            beam, length_penalty, n_best, max_new_tokens, temperature, top_k, top_p, seed, products
        )
        if isinstance(lines, Iterator):
            return predictions(self, lines, options, described)
        texts = [lines] if isinstance(lines, str) else list(lines)
        results = list(predictions(self, texts, options, described))
        return results[0] if isinstance(lines, str) else results

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        max_new_tokens: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 1,
        **others: object,
    ) -> Any:
        """Continue a text by a language model, and return both; of several texts a list.

        See `predict`. ``trace(prompt, generate=8)`` has the weights of each generated token.
        """
        for name in (*_NOT_OF_GENERATE, *others):
            if name in others:
                raise no_keyword("generate", name, _OF_GENERATE, _NOT_OF_GENERATE)
        if self._predicts != "text":
            raise cannot(self, "text")
        return self.predict(
            prompt, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k,
            top_p=top_p, seed=seed,
        )  # fmt: skip

    def translate(
        self, lines: str | Sequence[str], *, beam: int = 5, length_penalty: float | None = None
    ) -> Any:
        """Translate a text; of several a list. See `predict`."""
        if self._predicts != "translation":
            raise cannot(self, "translation")
        return self.predict(lines, beam=beam, length_penalty=length_penalty)

    def classify(self, texts: str | Sequence[str]) -> Any:
        """Classify a text: a dict of label, score and probabilities; of several a list of them.

        ``pandas.DataFrame(model.classify(texts))`` is a table. See `predict`.
        """
        if self._predicts != "label":
            raise cannot(self, "label")
        return self.predict(texts)
