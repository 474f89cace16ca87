"""`serve` and `view`: the studio's server on a port of this machine, in the foreground or not."""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import socket
import sys
import threading
import time
import warnings
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from headloom.errors import InputError, installing, optional_package
from headloom.formats.trace import TraceData
from headloom.studio.collection import Collection
from headloom.studio.page import collect, script

if TYPE_CHECKING:
    import uvicorn

#: Ports that are tried, in order, where none is asked for.
_PORTS = range(8137, 8147)
_HOST = "127.0.0.1"


class Viewer:
    """A studio that is being served.

    address   what a browser opens
    """

    def __init__(self, collection: Collection, port: int | None = None) -> None:
        self._server = _server(collection)
        self._socket = _bound(port)
        self._collection = collection
        self.address = f"http://{_HOST}:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._warming = threading.Thread(target=self._warm, daemon=True)

    def run(self) -> None:
        """Serve until interrupted: what still computes or waits then is left alone."""
        self._thread.start()
        try:
            # Half a second at a time: on Windows a wait without an end hears no Ctrl-C.
            while self._thread.is_alive():
                self._thread.join(timeout=0.5)
        except KeyboardInterrupt:
            # In a thread, since uvicorn would not return before every request is answered.
            self.close(patience=1)
            raise

    def _serve(self) -> None:
        self._warming.start()
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve in the background; returns once it answers."""
        self._thread.start()
        atexit.register(self._end)
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.01)

    def close(self, patience: float = 10) -> None:
        """Stop serving. patience: seconds for requests that still wait."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=patience)
        self._socket.close()

    def _end(self) -> None:
        """Close, and let the threads that compute come to an end while Python is still whole.

        One that is in a native kernel when Python is taken down would abort the process.
        """
        self.close()
        if self._warming.is_alive():
            self._warming.join()
        self._collection.settle()

    def _warm(self) -> None:
        """Read what the first view needs before it is asked for."""
        try:
            first = self._collection.examples[0]
            first.read_ahead()
            first.heads()
        except Exception:
            # Whoever asks for it is told.
            logging.getLogger(__name__).debug("reading ahead failed", exc_info=True)

    def __repr__(self) -> str:
        return f"Viewer({self.address!r})"


def serve(
    collection: Collection, port: int | None = None, browser: bool = True, start: str = ""
) -> None:
    """Serve a collection until interrupted; prints the address on one line, and to a person at a
    terminal what to do with it.

    Args:
        collection: what to show.
        port: 0: any that is free; None: the first free one from 8137 on.
        browser: whether to open one.
        start: how the address ends: the view it starts with, "#view=threads&layer=3".

    Raises: InputError: the port is in use, or Starlette or uvicorn is missing.
    """
    viewer = Viewer(collection, port)
    address = viewer.address + start
    print(address, flush=True)
    if sys.stderr.isatty():
        opened = "A browser opens it" if browser else "Open it in a browser"
        print(f"headloom: {opened}; Ctrl-C here ends it.", file=sys.stderr)
    if browser:
        # The socket listens already: the browser waits until it is answered.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    viewer.run()


def view(
    trace: TraceData | Collection | Path | str, *, port: int | None = None, browser: bool = True
) -> Viewer:
    """Show a trace, or what lies at a path, in a browser; the studio is served in the background.

    Args:
        trace: a trace, a collection, or the path of a trace, a run, or a folder of traces.
        port, browser: as for `serve`.

    Returns: the viewer: its `address`, and `close()`. It ends with the program.

    Raises: DataError: nothing can be read there; InputError: the port is in use, or Starlette or
    uvicorn is missing.
    """
    from headloom.studio.runs import open_collection

    if isinstance(trace, TraceData):
        trace = collect([trace])
    collection = trace if isinstance(trace, Collection) else open_collection(Path(trace))
    for problem in collection.damaged:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    viewer = Viewer(collection, port)
    viewer.start()
    if browser:
        webbrowser.open(viewer.address)
    return viewer


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log tells more than that a studio was ended.

    A request that still waits then is cancelled, and uvicorn logs its traceback as an error.
    """
    cause = record.exc_info[0] if record.exc_info else None
    cancelled = cause is not None and issubclass(cause, asyncio.CancelledError)
    return not (cancelled or record.getMessage().startswith("Cancel "))


def _server(collection: Collection) -> uvicorn.Server:
    with optional_package("view", installing("studio")):
        import uvicorn

        from headloom.studio.server import create_app
    script()  # Where it was not built, say so now.
    config = uvicorn.Config(
        create_app(collection), log_level="error", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_is_news)

    class Server(uvicorn.Server):
        """Leaves no connection open: one that came while others were being closed would stay, and
        a browser would wait on it for ever, though another server has the port by now.
        """

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            await asyncio.sleep(0.01)  # What was accepted becomes a connection.
            await super().shutdown(sockets)
            while self.server_state.connections:
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
                await asyncio.sleep(0.01)

    return Server(config)


def _bound(port: int | None) -> socket.socket:
    """A socket that listens on a port of this machine alone."""
    for wanted in [*_PORTS, 0] if port is None else [port]:
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_HOST, wanted))
            listening.listen(512)
            return listening
        except OSError as error:
            listening.close()
            if port is not None or error.errno != errno.EADDRINUSE:
                in_use = error.errno == errno.EADDRINUSE
                reason = "is in use" if in_use else f"cannot be had: {error.strerror}"
                raise InputError(
                    f"view: port {wanted} {reason}. Choose another, or --port 0 for any."
                ) from None
    raise AssertionError("port 0 is always free")
