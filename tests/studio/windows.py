"""What asks a server of the studio, and how long a test waits for what is seen in a window."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any

from headloom.studio.serving import Viewer


class Client:
    """Asks a viewer, with any Host and any path, as a browser would not."""

    def __init__(self, viewer: Viewer) -> None:
        self.port = int(viewer.address.rsplit(":", 1)[1].strip("/"))

    def get(
        self, path: str, host: str | None = None, method: str = "GET", body: bytes = b"",
        **headers: str,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        if body:
            connection.putheader("Content-Length", str(len(body)))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, content

    def json(self, path: str) -> dict[str, Any]:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)


def ask(viewer: Viewer, path: str) -> tuple[int, Any]:
    """What a server answers: the status, and its object."""
    status, _, body = Client(viewer).get(path)
    return status, json.loads(body)


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Wait until something holds, however busy the machine is; a minute at most."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(20)
