"""`Asking`: a loaded model that reads new texts while somebody types them."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from headloom.formats.trace import TraceData
from headloom.studio.collection import Example
from headloom.studio.neuron import LayerNumbers, Through

#: Characters of a text, at most.
LONGEST = 20_000
#: The number of the first text, above those of all examples; and texts that are held.
FIRST, _HELD = 100_000_000, 6
#: Windows whose last text is remembered.
_WINDOWS = 256


class SupersededError(Exception):
    """A newer text of the same window came while this one waited."""


@dataclass
class Asking:
    """A model that reads texts.

    name: what it is called.
    read: a text into a trace; raises a HeadloomError where it cannot.
    through: a text and the path of a layer into what that layer read and made; None: not known.
    """

    name: str
    read: Callable[[str], TraceData]
    through: Callable[[str, str], LayerNumbers] | None = None
    _held: OrderedDict[int, Example] = field(default_factory=OrderedDict, repr=False)
    _latest: OrderedDict[str, int] = field(default_factory=OrderedDict, repr=False)
    #: A page that outlives its server must not be shown what another window asked the next one.
    _count: int = field(default_factory=lambda: secrets.randbelow(800_000_000), repr=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def ask(self, window: str, turn: int, text: str) -> tuple[int, Example]:
        """Read a text.

        window: who asks; of the texts that wait, each window's last alone is read.
        turn: the number of the text in its window: requests may overtake each other on their way.

        Returns: the number of the example that it is from now on, and the example. The oldest of
        several are dropped.

        Raises: SupersededError: a newer one of the window came meanwhile; HeadloomError: it cannot
        be read.
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
        """The example of a text that is still held."""
        return self._held.get(number)

    def of_text(self, text: str | None) -> Through | None:
        """What the layers read and made on a text; None: the model did not read it, or cannot say.

        A model runs one text at a time.
        """
        through = self.through
        if text is None or through is None:
            return None

        def numbers(layer: str) -> LayerNumbers:
            with self._reading:
                return through(text, layer)

        return numbers
