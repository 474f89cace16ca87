"""A walk as HTML: a fragment for a notebook, or a page of its own. It needs nothing else.

Light or dark as the notebook or the system is. Whatever comes from a user is escaped.
"""

from __future__ import annotations

from html import escape

from torch import Tensor

from weft.formats.tokens import visible
from weft.walkthrough.explain import SOURCES, explain
from weft.walkthrough.parts import Ledger, Row, Step, Table, number
from weft.walkthrough.walk import Kinds, Walk, title_of

__all__ = ["fragment", "page"]

#: Rows, and columns, of a matrix without tokens that are shown; the rest is an ellipsis.
_MOST = 12
_LIGHT = (
    "--ground:#ffffff;--ink:#1c2126;--faint:#5f6670;--line:#dcdad3;--formula:#0a716e;"
    "--weight:226,84,29;--sign:#945407"
)
_DARK = (
    "--ground:#101317;--ink:#e9e7e2;--faint:#9aa1ab;--line:#2c323a;--formula:#5cc8c2;"
    "--weight:255,122,66;--sign:#f2b05e"
)
_STYLE = f"""
.weft-steps{{{_LIGHT};color-scheme:light;background:var(--ground);color:var(--ink);
padding:1em 1.2em;font:15px/1.5 system-ui,sans-serif;max-width:72em}}
@media (prefers-color-scheme:dark){{.weft-steps{{{_DARK};color-scheme:dark}}}}
[data-jp-theme-light="true"] .weft-steps,.vscode-light .weft-steps{{{_LIGHT};color-scheme:light}}
[data-jp-theme-light="false"] .weft-steps,.vscode-dark .weft-steps{{{_DARK};color-scheme:dark}}
.weft-steps h2{{font-size:1.25em;margin:0 0 .2em}}
.weft-steps h3{{font-size:1.05em;margin:1.6em 0 .1em}}
.weft-steps p{{margin:.2em 0;max-width:46em}}
.weft-steps .faint{{color:var(--faint)}}
.weft-steps .formula{{color:var(--formula);font-family:ui-monospace,monospace;font-size:.9em;
font-weight:400;margin-left:.8em}}
.weft-steps .row{{display:flex;flex-wrap:wrap;gap:.6em 1.4em;align-items:center;margin:.7em 0}}
.weft-steps .scroll{{overflow-x:auto;max-width:100%}}
.weft-steps .sign{{color:var(--sign);font-size:1.3em;margin:0 -.4em}}
.weft-steps table{{border-collapse:collapse;margin:0;font:13px/1.35 ui-monospace,monospace;
font-variant-numeric:tabular-nums;width:auto;border:0;color:inherit;background:none}}
.weft-steps caption{{text-align:left;color:var(--faint);font-weight:600;caption-side:top;
white-space:nowrap;padding:0 0 .2em}}
.weft-steps tr{{background:none}}
.weft-steps td,.weft-steps th{{padding:.15em .5em;text-align:right;border:1px solid var(--line);
white-space:pre;font-weight:400;color:var(--ink);background:none}}
.weft-steps th{{border:0;color:var(--faint)}}
.weft-steps th[scope=row]{{text-align:left}}
.weft-steps td.hidden{{color:var(--faint);background:repeating-linear-gradient(135deg,
transparent 0 4px,var(--line) 4px 5px)}}
.weft-steps td.most{{font-weight:700}}
.weft-steps .ledger td{{border:0;text-align:right}}
.weft-steps .ledger td.left{{text-align:left}}
.weft-steps .ledger tr:last-child td{{border-top:1px solid var(--line);font-weight:700}}
.weft-steps .result{{font-weight:700}}
@media (max-width:520px){{.weft-steps .ledger td,.weft-steps .ledger th{{padding:.15em .25em;
font-size:12px}}.weft-steps .ledger td.left{{white-space:normal}}}}
.weft-steps td.lit{{outline:2px solid var(--formula);outline-offset:-2px}}
.weft-steps:has(+output.sum){{padding-bottom:5em}}
.weft-steps+output.sum{{{_LIGHT};position:fixed;left:0;right:0;bottom:0;padding:.5em 1.2em;
background:var(--ground);color:var(--ink);border-top:1px solid var(--line);
font:14px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}}
@media (prefers-color-scheme:dark){{.weft-steps+output.sum{{{_DARK}}}}}
"""


#: Of the cell under the pointer, or that is tapped: its sum, and the row and column it is made of.
_SUMS = """<output class="sum">Point at a cell of Q, K, V, S, Z or the output: its sum, written out,
and the numbers it is made of.</output><script>
const bar = document.querySelector("output.sum")
const table = (name) => [...document.querySelectorAll("table[data-name]")]
  .find((one) => one.dataset.name === name)
function show(event) {
  document.querySelectorAll(".lit").forEach((cell) => cell.classList.remove("lit"))
  const cell = event.target.closest?.("td[title]")
  if (!cell) return
  const product = cell.closest("table"), row = cell.parentElement.dataset.row
  const { left, right, across } = product.dataset, column = cell.dataset.column
  const ofRow = (name, number) =>
    table(name)?.querySelectorAll(`tr[data-row="${number}"] td`) ?? []
  const ofColumn = (name, number) =>
    table(name)?.querySelectorAll(`td[data-column="${number}"]`) ?? []
  const parts = across === undefined ? ofColumn(right, column) : ofRow(right, column)
  for (const one of [cell, ...ofRow(left, row), ...parts]) one.classList.add("lit")
  bar.textContent = `${product.dataset.name}: ${cell.title}`
}
document.addEventListener("pointerover", show)
document.addEventListener("click", show)
</script>"""


def page(what: Walk | Kinds) -> str:
    """A whole page."""
    title = _safe(title_of(what) if isinstance(what, Walk) else "Three kinds of attention")
    sums = _SUMS if isinstance(what, Walk) else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        "<style>body{margin:0}@media (prefers-color-scheme:dark){body{background:#101317}}"
        f"</style></head>\n<body>{fragment(what)}{sums}</body></html>\n"
    )


def fragment(what: Walk | Kinds) -> str:
    """What a notebook shows."""
    inner = _walk(what) if isinstance(what, Walk) else _comparison(what)
    return f'<div class="weft-steps"><style>{_STYLE}</style>\n{inner}</div>\n'


def _walk(walk: Walk) -> str:
    queries_from, keys_from, mask = SOURCES[walk.kind]
    heads, _, depth = walk.Q.shape
    about = (
        f"{walk.kind.capitalize()}: Q from {queries_from}; K, V from {keys_from}; {mask}. Width "
        f"{walk.X.shape[1]}, {heads} head{'s' * (heads > 1)} of depth {depth}; {walk.origin}. "
        f"Shown to {walk.digits} decimals, computed in float64."
    )
    steps = "\n".join(_step(step, walk.digits) for step in explain(walk))
    return f'<h2>{_safe(title_of(walk))}</h2>\n<p class="faint">{_safe(about)}</p>\n{steps}\n'


def _comparison(kinds: Kinds) -> str:
    columns = []
    for walk in kinds.kinds:
        queries_from, keys_from, mask = SOURCES[walk.kind]
        rows, names = (tuple(visible(token, 10) for token in words.tokens)
                       for words in (walk.queries, walk.keys))  # fmt: skip
        scores = Table("masked scores", walk.masked[walk.head], rows, names, "scores")
        weights = Table("weights", walk.weights[walk.head], rows, names, "weights")
        columns.append(
            f"<div><h3>{walk.kind}</h3>"
            f"<p><b>Q</b> from {_safe(queries_from)}</p><p><b>K, V</b> from {_safe(keys_from)}</p>"
            f'<p class="faint">{_safe(mask)}</p>'
            f"{_row((scores,), walk.digits)}{_row((weights,), walk.digits)}"
            f'<p class="result">both forms differ by {walk.difference:.1e}</p></div>'
        )
    head = f", head {kinds.encoder.head}"
    about = f"{kinds.sameness}{head}; {kinds.encoder.origin}."
    return (
        f'<h2>Three kinds of attention</h2>\n<p class="faint">{_safe(about)}</p>\n'
        f'<div class="row" style="align-items:flex-start">{"".join(columns)}</div>\n'
    )


def _step(step: Step, digits: int) -> str:
    head = step.name if step.number is None else f"{step.number}. {step.name}"
    formula = f"{step.formula}   {step.shapes}".rstrip()
    parts = [
        f'<h3>{_safe(head)}<span class="formula">{_safe(formula)}</span></h3>',
        f"<p>{_safe(step.sentence)}</p>",
        *(_row(row, digits) for row in step.rows),
        *(_ledger(ledger) for ledger in step.ledgers),
    ]
    if step.result:
        parts.append(f'<p class="result">{_safe(step.result)}</p>')
    return "\n".join(parts)


def _row(row: Row, digits: int) -> str:
    parts = []
    for table in row:
        if table.before:
            parts.append(f'<span class="sign">{_safe(table.before)}</span>')
        parts.append(f'<div class="scroll">{_table(table, digits)}</div>')
    return f'<div class="row">{"".join(parts)}</div>'


def _table(table: Table, digits: int) -> str:
    rows = list(range(len(table.values)))
    columns = list(range(table.values.shape[1]))
    name, gap_row, gap_column = table.name, -1, -1
    if not table.columns and len(columns) > _MOST:
        columns, gap_column = [*range(_MOST - 1), columns[-1]], _MOST - 1
    if not table.rows and not table.columns and len(rows) > _MOST:
        rows, gap_row = [*range(_MOST - 1), rows[-1]], _MOST - 1
    if gap_row >= 0 or gap_column >= 0:
        name = f"{name} ({table.values.shape[0]}×{table.values.shape[1]})"
    lines = [f"<caption>{_safe(name) or '&nbsp;'}</caption>"]
    if table.columns:
        cells = "".join(f'<th scope="col">{_safe(column)}</th>' for column in table.columns)
        lines.append(f"<tr>{'<th></th>' if table.rows else ''}{cells}</tr>")
    for place, row in enumerate(rows):
        label = f'<th scope="row">{_safe(table.rows[row])}</th>' if table.rows else ""
        if place == gap_row:
            lines.append(f"<tr>{'<th></th>' if table.rows else ''}<th>⋮</th></tr>")
        cells = _cells(table, row, columns, gap_column, digits)
        lines.append(f'<tr data-row="{row}">{label}{cells}</tr>')
    made = table.made
    parts = "" if made is None else (
        f' data-left="{_safe(made.left)}" data-right="{_safe(made.right)}"'
        f"{' data-across' * made.across}"
    )  # fmt: skip
    return f'<table data-name="{_safe(table.name)}"{parts}>{"".join(lines)}</table>'


def _cells(table: Table, row: int, columns: list[int], gap: int, digits: int) -> str:
    values: Tensor = table.values[row]
    largest = float(values.max())
    cells = []
    for place, column in enumerate(columns):
        if place == gap:
            cells.append("<th>…</th>")
        value, extra = float(values[column]), ""
        if value == float("-inf"):
            extra = ' class="hidden"'
        elif table.kind == "weights":
            most = ' class="most"' if value == largest and value > 0 else ""
            extra = f'{most} style="background:rgba(var(--weight),{0.75 * value:.3f})"'
        if table.made is not None:
            extra += f' title="{table.made.sum_of(row, column, digits)}" data-column="{column}"'
        elif table.name:
            extra += f' data-column="{column}"'
        cells.append(f"<td{extra}>{number(value, digits)}</td>")
    return "".join(cells)


def _ledger(ledger: Ledger) -> str:
    lines = [f"<tr>{''.join(f'<th>{_safe(name)}</th>' for name in ledger.header)}</tr>"]
    left = ' class="left"'
    for cells in ledger.lines:
        shown = "".join(
            f"<td{left * (place < ledger.left)}>{_safe(cell)}</td>"
            for place, cell in enumerate(cells)
        )
        lines.append(f"<tr>{shown}</tr>")
    table = f'<table class="ledger">{"".join(lines)}</table>'
    return f'<div class="row"><div class="scroll">{table}</div></div>'


def _safe(text: str) -> str:
    """Text as HTML; halves of surrogate pairs, which no file may hold, as their numbers."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return escape(whole, quote=True)
