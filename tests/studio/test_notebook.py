from __future__ import annotations

import json
import warnings

import pytest
import torch

import headloom
from headloom.api.trace import Trace
from headloom.studio import notebook

anywidget = pytest.importorskip("anywidget", reason="needs anywidget")
VIEW = "application/vnd.jupyter.widget-view+json"


def inert(content: object) -> str:
    """JSON within a script element."""
    return json.dumps(content).replace("</", "<\\/")


@pytest.fixture(autouse=True)
def no_kernel() -> None:
    # Widgets made without a notebook warn that nobody listens.
    warnings.simplefilter("ignore", DeprecationWarning)


def test_a_trace_displays_itself(pair_trace: Trace) -> None:
    data, _ = pair_trace._repr_mimebundle_(include=None, exclude=None)
    assert data[VIEW]["model_id"]
    assert data["text/plain"] == repr(pair_trace)


def test_a_graph_displays_itself() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 5, 8)
    _, graph = headloom.attend(x, x, x)
    assert graph._repr_mimebundle_()[0] == {"text/plain": repr(graph)}  # a batch
    one = graph[0]
    assert VIEW in one._repr_mimebundle_()[0]
    trace = notebook.graph_trace(one)
    assert trace.tokens == ["0", "1", "2", "3", "4"]
    crossing = headloom.attend(x[0, :, :3], x[0], x[0])[1]
    assert notebook.graph_trace(crossing).layers[0].kind == "cross"


def test_without_anywidget_the_text_says_what_to_install(
    pair_trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "anywidget", None)
    data, _ = pair_trace._repr_mimebundle_()
    assert VIEW not in data and "image/png" in data
    assert data["text/plain"].startswith(repr(pair_trace))
    assert 'pip install ".[notebook]"' in data["text/plain"]


def test_the_widget_runs_in_a_browser(studio, pair_trace: Trace) -> None:
    """As a notebook does it: the module is imported, and its render called with a model."""
    shown = notebook.widget(pair_trace, start="#view=threads&layer=2&head=1&query=2&lock=1")
    module = inert(str(shown._esm))
    traits = inert({"pack": shown.pack, "start": shown.start})
    folder = studio.folder / "cell.html"
    folder.write_text(
        f"""<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
        <style>{shown._css}</style><p id="above">Out [1]:</p><div id="cell"></div>
        <script type="module">
        const blob = new Blob([{module}], {{type: "text/javascript"}});
        const widget = (await import(URL.createObjectURL(blob))).default;
        const traits = {traits};
        window.gone = widget.render({{model: {{get: name => traits[name]}},
            el: document.getElementById("cell")}});
        </script>""",
        "utf-8",
    )  # fmt: skip
    page = studio.open(folder.as_uri(), "file:", offline=True)
    page.locator("#cell .short-threads").wait_for()
    assert "L2 (cross 0) H1" in page.locator("#cell .panel h2").first.inner_text()
    # Keys outside of the cell are the notebook's own, and so is its address.
    page.keyboard.press("m")
    assert page.locator("#cell .short-threads").count() == 1
    page.locator("#cell nav a", has_text="Matrix").click()
    page.locator("#cell .stage.matrix").wait_for()
    assert page.url == folder.as_uri()
    page.evaluate("gone()")
    assert page.locator("#cell .studio").count() == 0
