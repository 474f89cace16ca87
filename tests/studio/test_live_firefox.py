"""A page with a model inside in Firefox, opened from the disk and driven by WebDriver BiDi."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import headloom

pytestmark = pytest.mark.slow

FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
PORT = 9399
#: Reads a text with a page's model: its tokens, a row of weights, and how many heads are drawn.
READ = """(async () => {
  while (!window.headloom) await new Promise((done) => setTimeout(done, 50));
  const read = await headloom.read("The cat sat on the mat.");
  const drawn = document.querySelectorAll(".stage canvas").length;
  return JSON.stringify([read.tokens.tokens, [...read.weights[5][11][2]], drawn]);
})()"""


async def evaluated(address: str, code: str, profile: Path) -> tuple[Any, list[str]]:
    """Open a page in Firefox; return what some code gives there, and the page's requests."""
    aiohttp = pytest.importorskip("aiohttp")
    command = [FIREFOX, "--headless", "--no-remote", "--profile", str(profile)]
    command += ["--remote-debugging-port", str(PORT), "about:blank"]
    firefox = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    requests: list[str] = []
    count = 0
    try:
        async with aiohttp.ClientSession() as client:
            for _ in range(200):
                try:
                    socket = await client.ws_connect(f"ws://127.0.0.1:{PORT}/session")
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.2)

            async def call(method: str, **parameters: object) -> Any:
                nonlocal count
                count += 1
                await socket.send_json({"id": count, "method": method, "params": parameters})
                while (answer := await socket.receive_json()).get("id") != count:
                    if answer.get("method") == "network.beforeRequestSent":
                        requests.append(answer["params"]["request"]["url"])
                return answer["result"]

            await call("session.new", capabilities={})
            await call("session.subscribe", events=["network.beforeRequestSent"])
            tree = await call("browsingContext.getTree")
            tab = tree["contexts"][0]["context"]
            await call("browsingContext.navigate", context=tab, url=address, wait="complete")
            found = await call(
                "script.evaluate", expression=code, target={"context": tab}, awaitPromise=True
            )
            return found["result"]["value"], requests
    finally:
        firefox.kill()
        firefox.wait()


@pytest.mark.skipif(FIREFOX is None, reason="needs Firefox: scripts/setup-tests --slow")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the socket
def test_a_page_reads_a_text_in_firefox(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    (page,) = headloom.export("minilm", html=tmp_path / "page.html", live=True, bits=32)
    assert page.is_dir()
    profile = tmp_path / "profile"
    profile.mkdir()
    address = (page / "index.html").as_uri()
    value, requests = asyncio.run(evaluated(address, READ, profile))
    tokens, row, drawn = json.loads(value)
    trace = headloom.trace("minilm", "The cat sat on the mat.", keep="all")
    assert tokens == trace.sequences["tokens"]
    expected = trace.layers[5].graph.to_dense()[11, 2].tolist()
    assert row == pytest.approx(expected, abs=1e-4)
    assert drawn
    assert all(url.startswith(("file:", "blob:", "data:")) for url in requests), requests
