"""`headloom.Trace`: a trace with its analyses and views.

Lower modules use `headloom.formats.trace.TraceData`; this subclass for users adds the analyses and
the studio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self

import torch

from headloom.errors import Hints, InputError
from headloom.formats.head import Head
from headloom.formats.trace import TraceData, TraceLayer
from headloom.mechanism.drawn import Drawn
from headloom.mechanism.shapes import in_words, whole_number
from headloom.tracing import given, given_edges
from headloom.tracing import watch as watching
from headloom.tracing.watch import Watched

if TYPE_CHECKING:
    from pathlib import Path

    import networkx
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image
    from torch import Tensor

    from headloom.analysis.eviction.evict import Eviction
    from headloom.analysis.eviction.policies import Rule
    from headloom.analysis.image_map import ImageMap
    from headloom.studio.serving import Viewer

Parameters = ParamSpec("Parameters")


class Trace(Drawn, Hints, TraceData):
    """Tokens and layers of one input through one model, with its analyses and its views.

    The fields are those of `headloom.formats.trace.TraceData`: ``sequences``, ``layers``,
    ``model``, ``positions`` and ``images``.
    """

    @classmethod
    def of(cls, data: TraceData) -> Self:
        """Convert trace data to a Trace."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, TraceData):
            raise InputError(f"Trace.of: {type(data).__name__}; expected a trace.")
        return cls(**{name: getattr(data, name) for name in data.__dataclass_fields__})

    _elsewhere: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("attention", "matrix"), "weights(layer, head)"),
        **dict.fromkeys(("to_frame", "to_dataframe", "df"), "to_pandas(), or trace[layer, head]"),
        **dict.fromkeys(("show", "draw", "heatmap"), "plot() or view()"),
        "compare": "headloom.compare(trace, other)",
        "text": "tokens",
    }

    def __getitem__(self, place: Any) -> Any:
        """Return a layer or a head.

        Layers: ``trace[5]``, ``trace["cross", 1]``, ``trace["encoder.layer.0"]``, see `layer`;
        heads: ``trace[5, 2]``, ``trace["cross", 1, 2]``.

        Raises: InputError: no such layer, or head.
        """
        if not isinstance(place, tuple):
            return self.layer(place)
        of_kind = any(layer.kind == place[0] for layer in self.layers)
        layer = self.layer(*place[: 1 + of_kind])
        heads = place[1 + of_kind :]
        if len(heads) > 1:
            raise InputError(
                f"trace[{in_words(place)}]: expected a layer and a head; slice the head as in "
                "trace[5, 2][:10, :10]."
            )
        return layer[heads[0]] if heads else layer

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    def __iter__(self) -> Iterator[TraceLayer]:
        return iter(self.layers)

    def __bool__(self) -> bool:
        """Return True, also without layers."""
        return True

    def head(self, layer: int | str, head: int) -> Head:
        """Return a head of a layer: ``trace[layer, head]``."""
        return self.layer(layer)[head]

    def weights(self, layer: int | str, head: int) -> Tensor:
        """Return the weights of a head, (queries, keys); see `Head.weights`."""
        return self.head(layer, head).weights

    @property
    def attentions(self) -> tuple[Tensor, ...]:
        """Weights of every layer, (1, heads, queries, keys), in the form of Transformers.

        As exact as `Head.weights`: from the kept edges where a layer has no queries and keys.
        """
        return tuple(torch.stack([head.weights for head in layer])[None] for layer in self)

    def to_networkx(
        self, layer: int | str, head: int, threshold: float = 0.0
    ) -> networkx.DiGraph | networkx.Graph:
        """Return a head as a NetworkX graph; see `Head.to_networkx`."""
        return self.head(layer, head).to_networkx(threshold)

    def heads(
        self,
        *,
        role: str | None = None,
        layer: str | int | None = None,
        sort: str | None = None,
        limit: int | None = None,
        exact: bool | None = None,
        needle: str | None = None,
    ) -> pandas.DataFrame:
        """Return the role and the measures of each head; see `headloom.heads`."""
        from headloom.api.heads import heads

        return heads(
            self, role=role, layer=layer, sort=sort, limit=limit, exact=exact, needle=needle
        )

    def rollout(self, *, kind: str | None = None, exact: bool | None = None) -> Tensor:
        """Return the share of each input position in each output position, (queries, keys).

        The product over layers of ``1/2 W + 1/2 I``, with W the mean of weights over heads. See
        `headloom.analysis.graphs.rollout.rollout`, which is cheaper for single rows and columns.
        """
        from headloom.analysis.graphs.rollout import rollout

        return rollout(self, kind=kind, exact=exact)

    def image_map(
        self,
        layer: int | str,
        head: int | None = None,
        token: int | str = -1,
        *,
        image: Path | str | Image | None = None,
        number: int = 0,
        size: tuple[int, int] | None = None,
    ) -> ImageMap:
        """Map the attention of a word to an image of its text; see `headloom.image_map`."""
        from headloom.analysis.image_map import image_map

        return image_map(self, layer, head, token, image=image, number=number, size=size)

    def evict(
        self,
        *,
        budget: float | str | Sequence[float | str] = ("5%", "20%", "50%"),
        policy: Rule | Sequence[Rule] | None = None,
        prompt_tokens: int | None = None,
    ) -> Eviction:
        """Measure what a cache of fewer keys would lose; see `headloom.evict`."""
        from headloom.analysis.eviction.evict import evict

        return evict(self, budget=budget, policy=policy, prompt_tokens=prompt_tokens)

    def query(self, sql: str) -> pandas.DataFrame:
        """Query the trace in SQL; see `headloom.query`."""
        from headloom.analysis.sql.query import query

        return query(self, sql)

    def view(self, *, port: int | None = None, browser: bool = True) -> Viewer:
        """Open the studio in a browser, served in the background until the program ends.

        port: 0: any free one; None: the first free one from 8137 on. browser: open one.
        See `headloom.studio.serving.view`.

        Raises: InputError: no such port.
        """
        from headloom.mechanism.shapes import check_flag
        from headloom.studio.serving import view

        check_flag("view", "browser", browser)
        if port is not None:
            port = whole_number("view", "port", port, 0, 65_535)
        return view(self, port=port, browser=browser)

    def plot(
        self,
        layer: int | str | None = None,
        head: int | None = None,
        *,
        ax: Axes | Figure | None = None,
        width: float | None = None,
        **imshow: object,
    ) -> Any:
        """Draw every head at a glance; the heads of a layer; or one, tokens on both axes.

        layer, head: None: all. The other arguments: see `headloom.TraceLayer.plot`.

        Returns: the axes of one head; an array of them, (heads,) or (layers, heads), of several.
        Raises: InputError: no such layer or head; a head without a layer.
        """
        if layer is not None:
            return self[layer].plot(head, ax=ax, width=width, **imshow)
        if head is not None:
            raise InputError(f"plot: head={head} without a layer; give its layer too: layer=0.")
        return self._plot("heads", self, ax=ax, width=width, **imshow)


def _as_traces(
    function: Callable[Parameters, TraceData | list[TraceData]],
) -> Callable[Parameters, Trace | list[Trace]]:
    """Convert a function's results to Trace."""

    @wraps(function)
    def traced(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Trace | list[Trace]:
        made = function(*args, **kwargs)
        return [Trace.of(data) for data in made] if isinstance(made, list) else Trace.of(made)

    return traced


from_edges = _as_traces(given_edges.from_edges)
from_queries_keys = _as_traces(given.from_queries_keys)
from_weights = _as_traces(given.from_weights)


class WatchedModel:
    """Traces recorded in a block of `headloom.watch`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    @property
    def traces(self) -> list[Trace]:
        """Traces of all texts so far, in order; a batch gives one for each text."""
        return [Trace.of(data) for data in self._watched.traces]

    @property
    def trace(self) -> Trace:
        """Only trace of the block.

        Raises: InputError: there is none, or there are several.
        """
        return Trace.of(self._watched.trace)


def _watching(
    function: Callable[Parameters, AbstractContextManager[Watched]],
) -> Callable[Parameters, AbstractContextManager[WatchedModel]]:
    """Convert a context manager's traces to Trace."""

    @wraps(function)
    @contextmanager
    def watched(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Iterator[WatchedModel]:
        with function(*args, **kwargs) as block:
            yield WatchedModel(block)

    return watched


watch = _watching(watching.watch)
