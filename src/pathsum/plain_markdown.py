"""MyST, as the chapters use it, turned into the plain Markdown that every notebook shows.

A notebook viewer knows headings, lists, tables, `$`-maths and links, and shows every other MyST
form as raw text. This module reads Markdown with a real parser (markdown-it), finds the forms by
their tokens, and replaces just those pieces of the source. A form it has no plain version for is
an error, so that nothing raw can slip into a notebook.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin

DIRECTIVE = re.compile(r"^\{([\w:.-]+)\}\s*(.*)$")
ROLE = re.compile(r"\{([A-Za-z][\w:.+-]*)\}(`+)(.+?)(?<!`)\2(?!`)", re.DOTALL)
WITH_TARGET = re.compile(r"^(.*?)\s*<([^<>]+)>$", re.DOTALL)
BOXES = ("note", "tip", "hint", "important", "warning", "caution", "attention", "seealso", "margin")


class PlainMarkdownError(ValueError):
    """A MyST form that has no plain version, or that points at nothing."""


@dataclass(frozen=True)
class Label:
    """Something that other places refer to: its text when referred to, and the page it is on."""

    text: str
    page: str


@dataclass
class Book:
    """What references resolve to, over all pages of the book."""

    labels: dict[str, Label] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    citations: dict[str, tuple[str, str, str, str]] = field(default_factory=dict)
    folder: Path = Path("book")


def _role_rule(state: StateInline, silent: bool) -> bool:
    """The inline rule for {role}`text`; the raw source of the role goes into the token."""
    match = ROLE.match(state.src, state.pos)
    if not match or match.end() > state.posMax:
        return False
    if not silent:
        token = state.push("role", "", 0)
        token.meta = {"name": match[1]}
        token.content, token.markup = match[3], match[0]
    state.pos = match.end()
    return True


def parser() -> MarkdownIt:
    """A parser for the forms that Jupyter Book enables in `_config.yml`."""
    md = MarkdownIt("commonmark").enable("table")
    for plugin in (myst_block_plugin, colon_fence_plugin, amsmath_plugin, deflist_plugin):
        md.use(plugin)
    md.use(dollarmath_plugin, allow_labels=True, double_inline=False)
    md.inline.ruler.before("backticks", "role", _role_rule)
    return md


def directive(token: Token) -> tuple[str, str, dict[str, str], str] | None:
    """(name, argument, options, body) of a directive fence; None for any other token."""
    if token.type not in ("fence", "colon_fence"):
        return None
    match = DIRECTIVE.match(token.info.strip())
    if not match:
        return None
    lines = token.content.splitlines()
    options: dict[str, str] = {}
    if lines and lines[0].strip() == "---":
        end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), len(lines))
        options = yaml.safe_load("\n".join(lines[1:end])) or {}
        lines = lines[end + 1 :]
    else:
        while lines and (option := re.match(r"^:([\w-]+):\s*(.*)$", lines[0])):
            options[option[1]] = option[2]
            lines.pop(0)
    return match[1], match[2].strip(), options, "\n".join(lines).strip("\n")


class Page:
    """One page's Markdown on its way to plain Markdown."""

    def __init__(self, book: Book, name: str):
        self.book, self.name = book, name

    def fail(self, what: str) -> PlainMarkdownError:
        return PlainMarkdownError(f"book/{self.name}.md: {what}")

    # ---- references ----

    def label(self, name: str) -> Label:
        if name not in self.book.labels:
            raise self.fail(f"nothing is labelled {name!r}; labels are {sorted(self.book.labels)}")
        return self.book.labels[name]

    def linked(self, text: str, page: str) -> str:
        """The text, as a link when it refers to another page's notebook."""
        return text if page == self.name else f"[{text}]({page}.ipynb)"

    def reference(self, content: str) -> str:
        match = WITH_TARGET.match(content)
        label = self.label(match[2] if match else content)
        if not match:
            return self.linked(label.text, label.page)
        number = label.text.split()[-1]
        return self.linked(match[1].replace("%s", number).replace("{number}", number), label.page)

    def document(self, content: str) -> str:
        match = WITH_TARGET.match(content)
        page = Path(match[2] if match else content).name.removesuffix(".md")
        if page not in self.book.titles:
            raise self.fail(f"there is no page {page!r} in the table of contents")
        return f"[{match[1] if match else self.book.titles[page]}]({page}.ipynb)"

    def citation(self, keys: str, textual: bool) -> str:
        parts = []
        for key in (k.strip() for k in keys.split(",")):
            if key not in self.book.citations:
                raise self.fail(f"references.bib has no entry {key!r}")
            authors, year, url, _ = self.book.citations[key]
            parts.append(f"{authors} ([{year}]({url}))" if textual else f"{authors}, [{year}]({url})")
        return ", ".join(parts) if textual else f"({'; '.join(parts)})"

    def role(self, name: str, content: str) -> str:
        """The plain form of one role."""
        forms: dict[str, Callable[[], str]] = {
            "eq": lambda: self.linked(f"({self.label(content).text})", self.label(content).page),
            "numref": lambda: self.reference(content),
            "ref": lambda: self.reference(content),
            "doc": lambda: self.document(content),
            "math": lambda: f"${content}$",
            "cite": lambda: self.citation(content, textual=False),
            "cite:p": lambda: self.citation(content, textual=False),
            "cite:t": lambda: self.citation(content, textual=True),
        }
        if name not in forms:
            raise self.fail(f"the role {{{name}}} has no plain form; use one of {sorted(forms)}")
        return forms[name]()

    # ---- blocks ----

    def box(self, title: str, body: str, folded: bool = False) -> str:
        body = self.plain(body)
        if folded:
            return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
        lines = [f"**{self.plain(title)}**", "", *body.split("\n")] if title else body.split("\n")
        return "\n".join(f"> {line}".rstrip() for line in lines)

    def image(self, source: str, alt: str) -> str:
        """A picture inside the notebook itself, so that it shows wherever the file is opened."""
        path = self.book.folder / source
        kind = {".png": "png", ".svg": "svg+xml", ".jpg": "jpeg"}.get(path.suffix)
        if kind is None or not path.is_file():
            raise self.fail(f"the picture {source!r} is not a .png, .svg or .jpg file in book/")
        return f"![{alt}](data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()})"

    def block(self, name: str, argument: str, options: dict[str, str], body: str) -> str:
        """The plain form of one directive."""
        number = self.book.labels.get(options.get("name", ""), Label("", self.name)).text
        caption = f"**{number}.** " if number else ""
        if name == "admonition":
            return self.box(argument, body, folded="dropdown" in str(options.get("class", "")))
        if name == "dropdown":
            return self.box(argument, body, folded=True)
        if name in BOXES:
            return self.box("" if name == "margin" else name.capitalize(), body)
        if name == "math":
            tag = f" \\tag{{{self.label(options['label']).text}}}" if "label" in options else ""
            return f"$$\n{body or argument}{tag}\n$$"
        if name == "image":
            return self.image(argument, options.get("alt", ""))
        if name == "figure":
            return f"{self.image(argument, options.get('alt', ''))}\n\n{caption}{self.plain(body)}"
        if name == "table":
            return f"{caption}{self.plain(argument)}\n\n{self.plain(body)}"
        if name in ("code-block", "code"):
            return f"```{argument}\n{body}\n```"
        if name == "bibliography":
            return "\n".join(sorted(f"- {entry}" for *_, entry in self.book.citations.values()))
        raise self.fail(f"the directive {{{name}}} has no plain form")

    def inline(self, token: Token, text: str) -> str:
        """The lines of one inline token with its roles and links between pages replaced."""
        done, rest = "", text
        for child in token.children or []:
            if child.type == "role":
                old, new = child.markup, self.role(child.meta["name"], child.content)
            elif child.type == "code_inline":
                old = new = child.content
            elif child.type == "link_open" and re.match(r"^[\w/-]+\.md(#.*)?$", child.attrs["href"]):
                href = str(child.attrs["href"])
                page = href.split("#")[0].removesuffix(".md")
                if page not in self.book.titles:
                    raise self.fail(f"a link to {href!r}, which is not in the table of contents")
                old, new = f"]({href}", f"]({page}.ipynb"
            else:
                continue
            before, found, after = rest.partition(old)
            if found:
                done, rest = done + before + new, after
            elif old != new:
                raise self.fail(f"keep {old!r} on one line")
        return done + rest

    def plain(self, text: str) -> str:
        """The whole text, with every MyST form replaced by plain Markdown."""
        lines = text.split("\n")
        edits: list[tuple[int, int, str]] = []
        reached: dict[int, int] = {}
        for token in parser().parse(text):
            if token.map is None:
                continue
            start, end = token.map
            old = "\n".join(lines[start:end])
            if form := directive(token):
                if token.level:
                    raise self.fail(f"take {{{form[0]}}} out of the list or quote that it is in")
                edits.append((start, end, self.block(*form)))
            elif token.type in ("myst_target", "myst_line_comment"):
                edits.append((start, end, ""))
            elif token.type == "math_block_label":
                tag = f" \\tag{{{self.label(token.info).text}}}\\1$$"
                tag = tag.replace("\\tag", "\\\\tag")
                edits.append((start, end, re.sub(r"(\s*)\$\$\s*\([^()]*\)\s*$", tag, old)))
            elif token.type == "inline" and start in reached:  # a further cell of one table row
                at, (first, last, sofar) = reached[start], edits[reached[start]]
                edits[at] = (first, last, self.inline(token, sofar))
            elif token.type == "inline":
                reached[start] = len(edits)
                edits.append((start, end, self.inline(token, old)))
        for start, end, new in sorted(edits, reverse=True):
            lines[start:end] = new.split("\n")
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
