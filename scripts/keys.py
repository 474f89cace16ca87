"""Print docs/reference/configuration.md with its tables, from the descriptions of the keys."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel

from headloom.training import config, model_sections, sections
from headloom.training.model_sections import described

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "configuration.md"
#: A table: of a class, perhaps without the keys that are as another class has them.
TABLE = re.compile(r"(<!-- keys of (\w+)(?: beside (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def _section(name: str) -> type[BaseModel]:
    (section,) = {vars(m)[name] for m in (config, sections, model_sections) if name in vars(m)}
    assert issubclass(section, BaseModel)
    return section


def table(name: str, other: str | None = None) -> str:
    """Return the keys of a class of a section as a table of Markdown."""
    known = described(_section(other)) if other else []
    texts = {(key, what) for key, _, what in known}
    rows = [row for row in described(_section(name)) if row not in known]
    changed = [f"`{key} = {default}`" for key, default, what in rows if (key, what) in texts]
    rows = [row for row in rows if (row[0], row[2]) not in texts]
    lines = [f"| `{key}` | {'' if v == 'none' else f'`{v}`'} | {what} |" for key, v, what in rows]
    before = ["", f"Other defaults: {', '.join(changed)}."] if changed else []
    return "\n".join([*before, "", "| key | default | |", "|---|---|---|", *lines, "", ""])


def filled(text: str) -> str:
    """Return a page with its tables as the sections have them."""
    return TABLE.sub(lambda match: match[1] + table(match[2], match[3]) + match[4], text)


if __name__ == "__main__":
    print(filled(PAGE.read_text("utf-8")))
