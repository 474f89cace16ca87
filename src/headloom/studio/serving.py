"""`serve` and `view`: the studio's server on a local port, in the foreground or background."""

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
from typing import TYPE_CHECKING

from headloom.errors import InputError, installing, optional_package
from headloom.formats.trace import TraceData
from headloom.studio.collection import Collection
from headloom.studio.page import collect, script

if TYPE_CHECKING:
    import uvicorn

#: Ports that are tried in order where none is chosen.
_PORTS = range(8137, 8147)
_HOST = "127.0.0.1"


class Viewer:
    """Studio that is being served.

    address   its URL
    """

    def __init__(self, collection: Collection, port: int | None = None) -> None:
        self._server = _server(collection)
        self._socket = _bound(port)
        self._collection = collection
        self.address = f"http://{_HOST}:{self._socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._warming = threading.Thread(target=self._warm, daemon=True)

    def run(self) -> None:
        """Serve until interrupted; running computations are then abandoned."""
        self._thread.start()
        try:
            # Half a second at a time: on Windows Ctrl-C does not interrupt an endless wait.
            while self._thread.is_alive():
                self._thread.join(timeout=0.5)
        except KeyboardInterrupt:
            # The server runs in a thread: uvicorn returns only when every request is answered.
            self.close(patience=1)
            raise

    def _serve(self) -> None:
        self._warming.start()
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve in the background; return once it answers."""
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
        """Close, and wait for the computing threads before Python shuts down.

        A thread in a native kernel at shutdown would abort the process.
        """
        self.close()
        if self._warming.is_alive():
            self._warming.join()
        self._collection.settle()

    def _warm(self) -> None:
        """Load the data of the first view ahead of its request."""
        try:
            first = self._collection.examples[0]
            first.read_ahead()
            first.heads()
        except Exception:
            # The request for it reports the error.
            logging.getLogger(__name__).debug("reading ahead failed", exc_info=True)

    def __repr__(self) -> str:
        return f"Viewer({self.address!r})"


def serve(
    collection: Collection, port: int | None = None, browser: bool = True, start: str = ""
) -> Viewer:
    """Serve a collection until interrupted; print the address, and at a terminal a hint.

    Args:
        collection: to show.
        port: 0: any that is free; None: the first free one from 8137 on.
        browser: whether to open a browser.
        start: end of the address, the view it starts with: "#view=threads&layer=3".

    Raises: InputError: the port is in use, or Starlette or uvicorn is missing.
    """
    for problem in collection.damaged:
        print(f"headloom: skipped: {problem}", file=sys.stderr)
    viewer = Viewer(collection, port)
    address = viewer.address + start
    print(address, flush=True)
    if sys.stderr.isatty():
        hint = "Opening it in a browser" if browser else "Open it in a browser"
        print(f"headloom: {hint}; press Ctrl-C here to stop.", file=sys.stderr)
    if browser:
        # The socket listens already: the browser waits for the answer.
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    viewer.run()
    return viewer


def view(
    trace: TraceData | Collection, *, port: int | None = None, browser: bool = True, start: str = ""
) -> Viewer:
    """Show a trace or a collection in a browser; serve the studio in the background.

    port, browser, start: as for `serve`.

    Returns: the viewer, with its `address` and `close()`. It ends with the program.
    Raises: InputError: the port is in use, or Starlette or uvicorn is missing.
    """
    collection = trace if isinstance(trace, Collection) else collect([trace])
    for problem in collection.damaged:
        warnings.warn(f"skipped: {problem}", stacklevel=2)
    viewer = Viewer(collection, port)
    viewer.start()
    if browser:
        webbrowser.open(viewer.address + start)
    return viewer


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn's log is more than the end of a studio.

    Waiting requests are then cancelled, which uvicorn logs as an error with a traceback.
    """
    cause = record.exc_info[0] if record.exc_info else None
    cancelled = cause is not None and issubclass(cause, asyncio.CancelledError)
    return not (cancelled or record.getMessage().startswith("Cancel "))


def _server(collection: Collection) -> uvicorn.Server:
    with optional_package("view", installing("studio")):
        import uvicorn

        from headloom.studio.server import create_app
    script()  # Raises where the front end is not built.
    config = uvicorn.Config(
        create_app(collection), log_level="error", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(_is_relevant)

    class Server(uvicorn.Server):
        """Server that leaves no connection open.

        A browser would wait forever on a connection that arrived during shutdown.
        """

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            await asyncio.sleep(0.01)  # Let accepted sockets become connections.
            await super().shutdown(sockets)
            while self.server_state.connections:
                for connection in list(self.server_state.connections):
                    connection.transport.abort()
                await asyncio.sleep(0.01)

    return Server(config)


def _bound(port: int | None) -> socket.socket:
    """Return a socket that listens on a local port."""
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
                reason = "is in use" if in_use else f"cannot be opened: {error.strerror}"
                raise InputError(
                    f"view: port {wanted} {reason}. Choose another, or --port 0 for any free one."
                ) from None
    raise AssertionError("port 0 is always free")
