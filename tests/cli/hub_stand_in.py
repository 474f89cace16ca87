"""A stand-in for the Hub of Hugging Face: the paths of its HTTP that sending and fetching use.

Kept in memory. `TOKEN` may write, everybody may read what is not private.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_secretSECRETsecret"
Files = dict[str, bytes]


class Hub:
    """The repositories, by "datasets/OWNER/NAME" and "models/OWNER/NAME", and what was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Files] = {}
        self.private: set[str] = set()
        self.asked: list[str] = []
        self.url = ""

    def commit(self, name: str) -> str:
        """A name of the present content, as that of a commit."""
        content = sorted((path, data) for path, data in self.repositories[name].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()


def _sha(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, content: Any = None, status: int = 200, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _files(self, name: str) -> Files | None:
            may = name not in hub.private or self._may_write()
            return hub.repositories.get(name) if may else None

        def _may_write(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def _missing(self) -> None:
            self._answer({"error": TOKEN}, 404, X_Error_Code="RepoNotFound")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = urlsplit(self.path).path
            hub.asked.append(f"POST {path}")
            if not self._may_write():
                # An unkind answer: what it says must not be repeated.
                self._answer({"error": f"no {self.headers.get('Authorization')} {TOKEN}"}, 401)
                return
            if path == "/api/validate-yaml":
                head = json.loads(body)["content"].split("---\n")[1]
                yaml.safe_load(head)
                self._answer({"errors": [], "warnings": []})
                return
            if path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked.get('type', 'model')}s/{asked.get('organization')}/{asked['name']}"
                if name in hub.repositories:
                    self._answer({"url": self._page(name)}, 409)
                    return
                if asked["name"] == "theirs":
                    self._answer({"error": TOKEN}, 403)
                    return
                hub.repositories[name] = {".gitattributes": b""}
                if asked.get("private") or asked.get("visibility") == "private":
                    hub.private.add(name)
                self._answer({"url": self._page(name), "name": name})
                return
            found = re.fullmatch(r"/api/(\w+/[\w.-]+/[\w.-]+)/(preupload|commit)/(\w+)", path)
            assert found, path
            files = hub.repositories[found[1]]
            if found[2] == "preupload":
                self._answer(
                    {
                        "files": [
                            {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                            for file in json.loads(body)["files"]
                        ]
                    }
                )
                return
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    assert value["encoding"] == "base64"
                    files[value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "deletedFile":
                    del files[value["path"]]
            commit = hub.commit(found[1])
            url = f"{self._page(found[1])}/commit/{commit}"
            self._answer({"success": True, "commitUrl": url, "commitOid": commit})

        def _page(self, name: str) -> str:
            return f"{hub.url}/{name.removeprefix('models/')}"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            found = re.fullmatch(r"/api/(\w+/[\w.-]+/[\w.-]+)(/revision/\w+)?", path)
            if found:
                files = self._files(found[1])
                if files is None:
                    self._missing()
                    return
                name = found[1].split("/", 1)[1]
                self._answer(
                    {
                        "id": name, "modelId": name, "sha": hub.commit(found[1]), "private": False,
                        "siblings": [{"rfilename": name} for name in files], "tags": [],
                        "downloads": 0, "likes": 0, "disabled": False, "gated": False,
                    }
                )  # fmt: skip
                return
            found = re.fullmatch(r"/api/(\w+/[\w.-]+/[\w.-]+)/tree/\w+(/.*)?", path)
            if found:
                files = self._files(found[1]) or {}
                self._answer(
                    [
                        {"type": "file", "oid": _sha(data), "size": len(data), "path": name}
                        for name, data in files.items()
                    ]
                )
                return
            found = re.fullmatch(r"/(datasets/)?([\w.-]+/[\w.-]+)/resolve/\w+/(.+)", path)
            files = found and self._files(f"{found[1] or 'models/'}{found[2]}")
            if not found or files is None:
                self._missing()
                return
            data = files.get(found[3])
            commit = hub.commit(f"{found[1] or 'models/'}{found[2]}")
            if data is None:
                self._answer(None, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
                return
            self._answer(data, ETag=f'"{_sha(data)}"', X_Repo_Commit=commit)

        do_HEAD = do_GET

    return Handler


@contextmanager
def stand_in() -> Iterator[Hub]:
    """The Hub, at its `url` on this machine, while the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
