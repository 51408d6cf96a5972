"""Converts text to markup, and escapes everything that is not `Markup`. No other module makes markup from text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from html import escape

from spotrun.report.machine_readable import usd_text
from spotrun.report.tables import NOTHING
from spotrun.units import shown

TEXT_MAX = 2000


@dataclass(frozen=True)
class Markup:
    """Text that is inserted into a page as it is, without escaping."""

    text: str


Content = Markup | str


def literal(content: Content) -> str:
    """
    Return the text to insert into a page. Markup is returned unchanged. Other text is escaped, and its control and
    direction characters are made visible.
    """
    return content.text if isinstance(content, Markup) else escape(shown(content, TEXT_MAX), quote=True)


def join(*parts: Content) -> Markup:
    return Markup("".join(literal(part) for part in parts))


def element(name: str, *content: Content, **attributes: object) -> Markup:
    """
    Return `<name attributes>content</name>`. In the name of an attribute, `_` becomes `-`, and a `_` at the end is
    dropped (`class_` becomes `class`).
    """
    written = "".join(f' {_dashed(key)}="{_quoted(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join(*content).text}</{name}>")


def _dashed(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _quoted(value: object) -> str:
    return literal(value if isinstance(value, Markup) else str(value))


def section(title: str, *content: Content) -> Markup:
    return element("section", element("h2", title), *content)


def figure(text: str, value: object) -> Markup:
    """
    Return a cell of a table. Its attribute `data-value` is the exact figure; the buttons in the table's head sort by
    it.
    """
    exact = usd_text(value) if isinstance(value, Decimal) else value
    return element("td", text, data_value="-Infinity" if exact is None else exact)


def is_filled(cell: Markup) -> bool:
    """Return True if a cell shows a figure, and False if it shows a dash."""
    return not cell.text.endswith(f">{NOTHING}</td>")


def head(content: Content) -> Markup:
    return element("th", content, scope="col")


def row(name: str, cells: list[str]) -> Markup:
    return element("tr", element("th", name, scope="row"), *(element("td", cell) for cell in cells))


def table(
    caption: str, heads: list[Markup], rows: list[Markup], feet: Sequence[Markup] = (), class_: str = "figures"
) -> Markup:
    top = element("thead", element("tr", *heads))
    foot = element("tfoot", *feet) if feet else join()
    whole = element("table", element("caption", caption), top, element("tbody", *rows), foot, class_=class_)
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)
