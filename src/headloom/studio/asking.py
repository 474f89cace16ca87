"""`Asking`: a loaded model that traces texts as they are typed."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from headloom.formats.trace import TraceData
from headloom.studio.collection import Example
from headloom.studio.neuron import LayerNumbers, Through

#: Characters of a text at most.
LONGEST = 20_000
#: The number of the first text, above those of all examples; and the number of texts in memory.
FIRST, _HELD = 100_000_000, 6
#: Windows whose last turn is remembered.
_WINDOWS = 256


class SupersededError(Exception):
    """Error: a newer text of the same window replaced this one."""


@dataclass
class Asking:
    """Model that traces texts.

    name: of the model.
    read: traces a text; raises a HeadloomError where that fails.
    through: returns the inputs and outputs of a layer, given a text and the layer's path; None: not
        available.
    """

    name: str
    read: Callable[[str], TraceData]
    through: Callable[[str, str], LayerNumbers] | None = None
    _held: OrderedDict[int, Example] = field(default_factory=OrderedDict, repr=False)
    _latest: OrderedDict[str, int] = field(default_factory=OrderedDict, repr=False)
    #: Random start: a page of an earlier server must not receive another window's text.
    _count: int = field(default_factory=lambda: secrets.randbelow(800_000_000), repr=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def ask(self, window: str, turn: int, text: str) -> tuple[int, Example]:
        """Trace a text.

        window: id of the browser window; of its waiting texts only the last is traced.
        turn: the number of the text in its window: requests may arrive out of order.

        Returns: the number of the new example, and the example. Only the last few stay in memory.
        Raises: SupersededError: a newer text of the window arrived; HeadloomError: it cannot be
        read.
        """
        with self._counting:
            self._count += 1
            number = FIRST + self._count
            self._latest[window] = max(turn, self._latest.pop(window, 0))
            while len(self._latest) > _WINDOWS:
                self._latest.popitem(last=False)
        with self._reading:
            if self._latest.get(window, 0) > turn:
                raise SupersededError
            example = self._held[number] = Example(text, self.read(text), text)
            while len(self._held) > _HELD:
                self._held.popitem(last=False)
        return number, example

    def example(self, number: int) -> Example | None:
        """Return the example of a text that is still in memory, else None."""
        return self._held.get(number)

    def of_text(self, text: str | None) -> Through | None:
        """Return a function from a layer to its inputs and outputs on a text; None: not available.

        The model runs one text at a time.
        """
        through = self.through
        if text is None or through is None:
            return None

        def numbers(layer: str) -> LayerNumbers:
            with self._reading:
                return through(text, layer)

        return numbers
