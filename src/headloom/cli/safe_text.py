r"""Text for a terminal: its control characters are shown, never obeyed.

Names of tokens, models and files are other people's text. An escape sequence in them could clear
the screen; a bidirectional override turns the direction of what comes after it. While a command
runs, everything that it writes passes through here. In JSON, such characters stand in strings only,
where `\u001b` means the same: what is printed stays valid.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


#: Control characters but tab and line feed, marks that embed, override or isolate the direction of
#: writing, separators of lines, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    r"""Escape what would command a terminal.

    >>> safe("red \x1b[31m, \u202egnorw")
    'red \\u001b[31m, \\u202egnorw'
    """
    return _UNSAFE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


class _SafeStream:
    """A stream of text through `safe`.

    `rich_proxied_file` is where rich, whose own control sequences must pass, looks for the stream
    to write to; `safe_console` keeps its text safe.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        encoding = self.rich_proxied_file.encoding or "utf-8"
        known = safe(text).encode(encoding, "backslashreplace").decode(encoding)
        self.rich_proxied_file.write(known)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Pass standard output and standard error through `safe` while the block runs."""
    before = sys.stdout, sys.stderr
    nowhere = io.StringIO()  # in the place of a stream that was closed
    sys.stdout = cast(TextIO, _SafeStream(sys.stdout or nowhere))
    sys.stderr = cast(TextIO, _SafeStream(sys.stderr or nowhere))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def exact_output() -> TextIO:
    """Where data go, as comma-separated values: to another program as they are, else as `safe`."""
    stream = sys.stdout
    if isinstance(stream, _SafeStream) and not stream.rich_proxied_file.isatty():
        return stream.rich_proxied_file
    return stream


def safe_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console of rich on standard output, or on standard error, whose text is `safe`."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # called where rich has caught the error: `commands` says how a command ends

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else safe(segment.text)
                yield Segment(text, segment.style, segment.control)

    # Named, for while rich shows a bar it puts streams of its own in the place of ours, and would
    # then write its control sequences through `safe`.
    stream = sys.stderr if stderr else sys.stdout
    while (below := getattr(stream, "rich_proxied_file", None)) is not None:
        stream = below
    # For FORCE_COLOR, which notebooks set for what they start, rich takes a pipe for a terminal:
    # colours are right there, hundreds of bars are not.
    return SafeConsole(
        file=stream, stderr=stderr, highlight=False, width=width,
        force_interactive=stream.isatty(),
    )  # fmt: skip
