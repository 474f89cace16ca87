"""What MkDocs needs to know of this project: see mkdocs.yml.

Pages of docs/ link to files that stand outside of it: sources, examples, benchmarks. Each such file
comes along as text, and the links lead there, so that the site is whole without the repository.
Decisions are in no menu; they are found by the links of other pages, and by the search.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import quote

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.main import get_command

import headloom
from headloom.cli.advice import EXAMPLES
from headloom.cli.commands import VERBS, app
from keys import filled

ROOT = Path(__file__).parents[1]
#: A link of a Markdown page: text, then an address, of which a part behind # stays.
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
#: A link whose text is the name of a page's file: right in a folder of files, odd on a site.
NAMED = re.compile(r"\[(?:[\w./]+/)?(\w+)\.md\](?=\()")
#: A name of the face on a page of the reference.
REFERENCE = re.compile(r"^::: headloom\.(\w+)$", re.MULTILINE)
#: A dialog without a name, as the theme has it.
SEARCH = '<div class="md-search" data-md-component="search" role="dialog"'
#: A script that pages which are opened from a disk need for their search, and where it is here.
SHIM, SHIM_HERE = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
#: Files that other programs run are shown as text.
SHOWN_AS = ".txt"
#: A link of a notebook's page to a Markdown page, which MkDocs leaves as it is written.
LINK_TO_SOURCE = re.compile(r"(<a [^>]*href=\"(?!\w+:)[^\"#]*)\.md(?=[\"#])")

#: Signs of a help text that Markdown would take for its own.
SIGNS = re.compile(r"[|<*_\[\]]")
#: A picture of a Markdown page, which may be too large for it.
PICTURE = re.compile(r'<img [^>]*?src="([^"]+)"[^>]*>')

#: A section of a docstring that begins in the line of its name.
IN_LINE = re.compile(r"^(Args|Returns|Raises|Sources?): (?=\S)")
#: An attribute of a class and what it is, "name: text" or in two columns.
ATTRIBUTE = re.compile(r"^([a-z_]+(?:, [a-z_]+)*)(?:: | {2,})(?=\S)")


class Docstrings(griffe.Extension):  # type: ignore[misc]
    """Examples as code, and sections of one line by their names, as our docstrings write them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Write the docstring of a module, a class or a function as Markdown has it."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring with fenced examples, bold names of sections, and lists of attributes."""
    lines, fenced, listed = [], False, False
    for line in text.splitlines():
        if line.startswith(">>> ") and not fenced:
            lines.append("```pycon")
            fenced = True
        elif not line.strip() and fenced:
            lines.append("```")
            fenced = False
        begins = not fenced and (listed or not lines[-1:] or not lines[-1])
        if begins and ATTRIBUTE.match(line):
            line = ATTRIBUTE.sub(r"- `\1`: ", line)
            listed = True
        elif listed and (not line.strip() or IN_LINE.match(line)):
            listed = False
            lines.append("")
        elif listed and not line.startswith("  "):
            line = f"  {line}"
        if not fenced and IN_LINE.match(line):
            lines.append("")
            line = IN_LINE.sub(r"**\1:** ", line)
        lines.append(line)
    return "\n".join(lines + ["```"] * fenced)


def _outside(page: Path, address: str) -> Path | None:
    """Return the file outside of docs that a link of a page leads to; None: it leads elsewhere."""
    if "://" in address or address.startswith("mailto:"):
        return None
    target = (page.parent / address).resolve()
    docs = ROOT / "docs"
    if target.is_relative_to(ROOT) and not target.is_relative_to(docs) and target.exists():
        return target.relative_to(ROOT)
    return None


def _address(path: Path) -> str:
    name = str(path) if (ROOT / path).is_file() else f"{path}/index"
    return f"source/{name}{SHOWN_AS}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs that pages link to."""
    pages = Path(config.docs_dir).rglob("*.md")
    links = ((page, link[1]) for page in pages for link in LINK.findall(page.read_text("utf-8")))
    wanted = {_outside(page, address) for page, address in links} - {None}
    packages = ROOT / "build" / "docs" / "node_modules"
    copied = {SHIM_HERE: packages / "iframe-worker" / "shim" / "index.js"}
    copied["demo.html"] = ROOT / "build" / "docs" / "demo" / "demo.html"
    katex = packages / "katex" / "dist"
    for path in [*katex.glob("katex.min.*"), *katex.glob("fonts/*.woff2")]:
        copied[f"assets/katex/{path.relative_to(katex)}"] = path
    for name, path in copied.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted(wanted):
        whole = ROOT / path
        names = "\n".join(sorted(file.name for file in whole.iterdir())) if whole.is_dir() else ""
        content = names or whole.read_text("utf-8")
        files.append(File.generated(config, _address(path), content=content))
    return files


def commands() -> str:
    """Return the options of every verb of the command line, as Markdown."""
    verbs = get_command(app).commands
    lines = []
    for name in (name for names in VERBS.values() for name in names):
        hints = get_type_hints(verbs[name].callback)
        lines += [f"## {name}", "", SIGNS.sub(r"\\\g<0>", verbs[name].help), ""]
        lines += ["```console", f"$ {EXAMPLES[name]}", "```", ""]
        lines += ["| | value | default | |", "|---|---|---|---|"]
        for parameter in verbs[name].params:
            names = [*parameter.opts, *parameter.secondary_opts]
            default = "" if parameter.default in (None, False, []) else f"`{parameter.default}`"
            value, named = value_of(hints[parameter.name]), "-" in names[0]
            cells = [
                f"`{' / '.join(names) if named else parameter.metavar or names[0]}`",
                SIGNS.sub(r"\\\g<0>", parameter.metavar or value) if named else value,
                "required" if parameter.required else default,
                SIGNS.sub(r"\\\g<0>", parameter.help or ""),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def value_of(hint: Any) -> str:
    """Return what an option takes, from its type: choices, "path", "number"; nothing of a flag."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if get_origin(hint) is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    words = {bool: "", str: "text", int: "number", float: "number", Path: "path"}
    return value_of(parts[0]) if parts else words[hint]


def source_of(name: str) -> str:
    """Where a name of headloom's face is written, behind the functions that wrap it."""
    thing = inspect.unwrap(getattr(headloom, name))
    own = isinstance(thing, ModuleType)
    return thing.__name__ if own else f"{thing.__module__}.{thing.__qualname__}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Resolve links to files outside of docs, and names of the reference; write the commands."""
    here = Path(config.docs_dir) / page.file.src_path
    up = "../" * (len(Path(page.file.src_path).parts) - 1)

    def led(match: re.Match[str]) -> str:
        found = _outside(here, match[2])
        return f"{match[1]}{up}{quote(_address(found))}{match[4]}" if found else match[0]

    if page.file.src_path == "reference/commands.md":
        markdown += commands()
    if page.file.src_path == "reference/configuration.md":
        markdown = filled(markdown)
    markdown = REFERENCE.sub(lambda match: f"::: {source_of(match[1])}", markdown)
    return LINK.sub(led, NAMED.sub(r"[\1]", markdown))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Lead a picture of a Markdown page to itself, whole: a narrow page shows it small."""
    if page.file.src_path.endswith(".py"):
        return html
    return PICTURE.sub(r'<a class="picture" href="\1">\g<0></a>', html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the script for the search from here, name its dialog, and lead links to pages."""
    up = "../" * (len(Path(page.file.dest_path).parts) - 1)
    if page.file.src_path.endswith(".py"):
        output = LINK_TO_SOURCE.sub(r"\1.html", output)
    output = output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
    return output.replace(SHIM, up + SHIM_HERE)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Return the same for the page of what is not found."""
    output_content = output_content.replace(SEARCH, f'{SEARCH} aria-label="Search"')
    return output_content.replace(SHIM, f"/{SHIM_HERE}")
