r"""Text for a terminal: its control characters are shown, never obeyed.

Names of tokens, models and files are other people's text. An escape sequence in them could clear
the screen or change what stands there; a bidirectional override turns the direction of what comes
after it. While a command runs, everything that it writes passes through here. In JSON, such
characters stand in strings only, where `\u001b` means the same: what is printed stays valid.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["exact_output", "safe", "safe_console", "safe_output"]

#: Control characters but tab and line feed, marks that embed, override or isolate the direction of
#: writing, separators of lines, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str, encoding: str | None = None) -> str:
    r"""A text in which nothing commands a terminal; what its encoding lacks is escaped likewise.

    >>> safe("red \x1b[31m, \u202egnorw")
    'red \\u001b[31m, \\u202egnorw'
    """
    text = _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)
    if encoding is None or text.isascii():
        return text
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(
            character if _has(encoding, character) else json.dumps(character)[1:-1]
            for character in text
        )
    except LookupError:
        pass
    return text


def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


class _SafeStream:
    """A stream of text through `safe`; rich, whose own control sequences must pass, goes past it.

    `rich_proxied_file` is where rich looks for the stream to write to; see `safe_console` for what
    keeps its text safe.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(safe(text, self.rich_proxied_file.encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class _Closed:
    """In place of a standard output that was closed: what is written there is an error."""

    encoding = "utf-8"
    closed = False

    def write(self, text: str) -> int:
        if text:
            raise OSError(errno.EBADF, "it is closed")
        return 0

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "it is closed")


class _Nowhere(_Closed):
    """In place of a standard error that was closed: nobody wants to hear."""

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def safe_output() -> Iterator[None]:
    """Standard output and standard error through `safe`, while the block runs."""
    before = sys.stdout, sys.stderr
    sys.stdout = cast(TextIO, _SafeStream(sys.stdout or cast(TextIO, _Closed())))
    sys.stderr = cast(TextIO, _SafeStream(sys.stderr or cast(TextIO, _Nowhere())))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def exact_output() -> TextIO:
    """Where data go, as comma-separated values: to another program as they are, else as `safe`."""
    stream = sys.stdout
    if isinstance(stream, _SafeStream) and not stream.isatty():
        return stream.rich_proxied_file
    return stream


def safe_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console of rich on standard output, or on standard error, whose text is `safe`."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class SafeConsole(Console):
        def on_broken_pipe(self) -> None:
            # Called where rich has caught the error: headloom.cli.endings says how a command ends.
            raise

        def render_str(self, text: str, **options: Any) -> Text:
            # Before the layout, which counts the characters.
            return super().render_str(safe(text), **options)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(safe(segment.text, self.encoding), segment.style)

    # Named, for while rich shows a bar it puts streams of its own in the place of ours, and would
    # then write its control sequences through `safe`.
    stream = sys.stderr if stderr else sys.stdout
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    # Bars are drawn anew where somebody watches. For FORCE_COLOR, which notebooks set for what they
    # start, rich takes a pipe for a terminal: colours are right there, hundreds of bars are not.
    try:
        watched = stream.isatty()
    except (AttributeError, ValueError):  # a stream of somebody else's; a closed one
        watched = False
    return SafeConsole(
        file=stream, stderr=stderr, highlight=False, width=width, force_interactive=watched
    )
