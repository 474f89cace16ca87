"""The widget in a real JupyterLab and in a real marimo, driven by a browser, without a network."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headloom.api.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 240
CODE = 'import headloom\ntrace = headloom.open("pair.loom")\ntrace'
APP = """import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import headloom

    trace = headloom.open("pair.loom")
    trace
    return


if __name__ == "__main__":
    app.run()
"""
#: What of the studio stands out of the place it has, or is cut off within.
CUT = """studio => {
    const place = studio.getBoundingClientRect();
    const boxes = "main, header, .panel, .stage, button, p, kbd, .word, .token";
    return [...studio.querySelectorAll(boxes)]
        .filter((of) => of.checkVisibility() && !of.closest(".unseen, .skip, dialog"))
        .map((of) => [of, of.getBoundingClientRect()])
        .filter(([, box]) => box.right > place.right + 1 || box.left < place.left - 1)
        .map(([of]) => `${of.className} ${of.textContent.trim().slice(0, 30)}`);
}"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


@pytest.fixture
def folder(pair_trace: Trace, tmp_path: Path) -> Path:
    pair_trace.save(tmp_path / "pair.loom")
    return tmp_path


def served(command: list[str], folder: Path, health: str) -> Iterator[None]:
    """A server in a folder that is also its home; it ends with the test."""
    home = {
        name: str(folder / "home")
        for name in ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "XDG_CONFIG_HOME")
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env={**os.environ, **home, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(4 * SECONDS):
            try:
                urllib.request.urlopen(health, timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.25)
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture
def jupyterlab(folder: Path) -> Iterator[str]:
    pytest.importorskip("jupyterlab", reason="needs jupyterlab: scripts/setup-tests --slow")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "source": CODE}
    notebook = {
        "cells": [cell | {"outputs": [], "execution_count": None}],
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "pair.ipynb").write_text(json.dumps(notebook))
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}",
        "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    for _ in served(command, folder, f"{address}/api"):
        yield f"{address}/doc/tree/pair.ipynb?reset"


@pytest.fixture
def marimo(folder: Path) -> Iterator[str]:
    pytest.importorskip("marimo", reason="needs marimo: scripts/setup-tests --slow")
    (folder / "app.py").write_text(APP)
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        "marimo", "--yes", "edit", "app.py", "--headless", "--no-token", "--host", "127.0.0.1",
        "--port", str(port), "--skip-update-check",
    ]  # fmt: skip
    for _ in served(command, folder, f"{address}/health"):
        yield f"{address}/"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that reaches this machine alone."""
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(1000 * SECONDS)
    page.route(
        lambda url: not url.startswith(("http://127.0.0.1", "data:", "blob:")),
        lambda route: route.abort(),
    )
    yield page
    context.close()


def widen(page: Any, studio: Any, width: int) -> None:
    """Change the window until the studio's place is so wide."""
    for _ in range(4):
        there = studio.bounding_box()["width"]
        if abs(there - width) < 2:
            return
        size = page.viewport_size
        page.set_viewport_size(
            {"width": round(size["width"] + width - there), "height": size["height"]}
        )
        page.wait_for_timeout(700)
    assert abs(studio.bounding_box()["width"] - width) < 20


def check_the_widget(page: Any) -> None:
    """It fits into its cell, narrow or wide, and answers the hand and the keyboard."""
    studio = page.locator(".studio")
    studio.locator(".stage .tile").first.wait_for()
    assert studio.locator(".stage .tile").count() == 12
    for width in (600, 1000):
        widen(page, studio, width)
        assert studio.evaluate(CUT) == [], width
        below = studio.locator(".panel").bounding_box()["y"]
        stage = studio.locator(".stage").bounding_box()
        assert (below >= stage["y"] + stage["height"]) is (width == 600)
    studio.locator("[data-cell='2.1']").click()
    studio.locator(".short-threads").wait_for()
    assert studio.evaluate(CUT) == []
    keys = studio.locator(".keys-column .word")
    assert keys.count() == 7
    box, place = keys.first.bounding_box(), studio.bounding_box()
    assert box["x"] + box["width"] <= place["x"] + place["width"]
    studio.locator(".queries .word").nth(2).click()
    page.keyboard.press("m")  # in JupyterLab's own keys: turn the cell into Markdown
    studio.locator(".stage.matrix").wait_for()
    page.keyboard.press("ArrowRight")
    studio.locator(".cell-value", has_text="row 2, column 0").wait_for()
    page.keyboard.press("h")
    studio.locator(".stage.heads").wait_for()
    page.keyboard.press("ArrowDown")
    studio.locator(".panel h2", has_text="L2 (cross 0) H1").or_(
        studio.locator(".panel h2", has_text="L0 H1")
    ).first.wait_for()


def test_in_jupyterlab(page: Any, jupyterlab: str) -> None:
    page.goto(jupyterlab)
    page.locator(".jp-CodeCell .cm-content").first.wait_for()
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+Enter")
    check_the_widget(page)
    assert page.locator(".jp-CodeCell").count() == 1
    assert page.locator(".jp-MarkdownCell").count() == 0
