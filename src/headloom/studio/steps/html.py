"""A lesson as HTML: a fragment for a notebook, or a page of its own. It needs nothing else.

Light or dark as the notebook or the system is. Whatever comes from a user is escaped.
"""

from __future__ import annotations

from html import escape

from headloom.studio.steps.lesson import Ledger, Lesson, Row, Step, Table, number, shortened

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
.headloom-steps{{{_LIGHT};color-scheme:light;background:var(--ground);color:var(--ink);
padding:1em 1.2em;font:15px/1.5 system-ui,sans-serif;max-width:72em}}
@media (prefers-color-scheme:dark){{.headloom-steps{{{_DARK};color-scheme:dark}}}}
[data-jp-theme-light="true"] .headloom-steps,.vscode-light
.headloom-steps{{{_LIGHT};color-scheme:light}} [data-jp-theme-light="false"]
.headloom-steps,.vscode-dark .headloom-steps{{{_DARK};color-scheme:dark}} .headloom-steps
h2{{font-size:1.25em;margin:0 0 .2em}} .headloom-steps h3{{font-size:1.05em;margin:1.6em 0 .1em}}
.headloom-steps p{{margin:.2em 0;max-width:46em}}
.headloom-steps .faint{{color:var(--faint)}}
.headloom-steps .formula{{color:var(--formula);font-family:ui-monospace,monospace;font-size:.9em;
font-weight:400;margin-left:.8em}}
.headloom-steps .row{{display:flex;flex-wrap:wrap;gap:.6em 1.4em;align-items:center;margin:.7em 0}}
.headloom-steps .scroll{{overflow-x:auto;max-width:100%}}
.headloom-steps .sign{{color:var(--sign);font-size:1.3em;margin:0 -.4em}}
.headloom-steps table{{border-collapse:collapse;margin:0;font:13px/1.35 ui-monospace,monospace;
font-variant-numeric:tabular-nums;width:auto;border:0;color:inherit;background:none}}
.headloom-steps caption{{text-align:left;color:var(--faint);font-weight:600;caption-side:top;
white-space:nowrap;padding:0 0 .2em}}
.headloom-steps tr{{background:none}}
.headloom-steps td,.headloom-steps th{{padding:.15em .5em;text-align:right;border:1px solid
var(--line); white-space:pre;font-weight:400;color:var(--ink);background:none}}
.headloom-steps th{{border:0;color:var(--faint)}}
.headloom-steps th[scope=row]{{text-align:left}}
.headloom-steps td.hidden{{color:var(--faint);background:repeating-linear-gradient(135deg,
transparent 0 4px,var(--line) 4px 5px)}}
.headloom-steps td.most{{font-weight:700}}
.headloom-steps .ledger td{{border:0;text-align:right}}
.headloom-steps .ledger td.left{{text-align:left}}
.headloom-steps .ledger tr:last-child td{{border-top:1px solid var(--line);font-weight:700}}
.headloom-steps .result{{font-weight:700}}
@media (max-width:520px){{.headloom-steps .ledger td,.headloom-steps .ledger th{{padding:.15em
.25em; font-size:12px}}.headloom-steps .ledger td.left{{white-space:normal}}}}
"""


def page(lesson: Lesson) -> str:
    """A whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_safe(lesson.title)}</title>\n"
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        "<style>body{margin:0}@media (prefers-color-scheme:dark){body{background:#101317}}"
        f"</style></head>\n<body>{fragment(lesson)}</body></html>\n"
    )


def fragment(lesson: Lesson) -> str:
    """What a notebook shows."""
    about = "".join(f'<p class="faint">{_safe(line)}</p>\n' for line in lesson.about)
    steps = "\n".join(_step(step, lesson.digits) for step in lesson.steps)
    return (
        f'<div class="headloom-steps"><style>{_STYLE}</style>\n<h2>{_safe(lesson.title)}</h2>\n'
        f"{about}{steps}\n</div>\n"
    )


def _step(step: Step, digits: int) -> str:
    formula = f"{step.formula}   {step.shapes}".rstrip()
    parts = [
        f'<h3>{_safe(step.title)}<span class="formula">{_safe(formula)}</span></h3>',
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
    height, width = table.values.shape
    columns = shortened(width, width if table.columns else _MOST)
    rows = shortened(height, height if table.rows or table.columns else _MOST)
    name = f"{table.name} ({height}×{width})" if None in rows or None in columns else table.name
    corner = "<th></th>" if table.rows else ""
    lines = [f"<caption>{_safe(name) or '&nbsp;'}</caption>"]
    if table.columns:
        cells = "".join(f'<th scope="col">{_safe(column)}</th>' for column in table.columns)
        lines.append(f"<tr>{corner}{cells}</tr>")
    for row in rows:
        if row is None:
            lines.append(f"<tr>{corner}<th>⋮</th></tr>")
            continue
        label = f'<th scope="row">{_safe(table.rows[row])}</th>' if table.rows else ""
        cells = "".join(_cell(table, row, column, digits) for column in columns)
        lines.append(f"<tr>{label}{cells}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _cell(table: Table, row: int, column: int | None, digits: int) -> str:
    if column is None:
        return "<th>…</th>"
    value, extra = float(table.values[row, column]), ""
    if value == float("-inf"):
        extra = ' class="hidden"'
    elif table.kind == "weights":
        most = ' class="most"' if value and value == float(table.values[row].max()) else ""
        extra = f'{most} style="background:rgba(var(--weight),{0.75 * value:.3f})"'
    if table.made is not None:
        extra += f' title="{table.made.written(row, column, digits)}"'
    return f"<td{extra}>{number(value, digits)}</td>"


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
