"""The only place where text becomes markup: everything that was not built here is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from spotrun.units import shown

TEXT_MAX = 2000


@dataclass(frozen=True)
class Markup:
    """Text that is markup already."""

    text: str


Content = Markup | str


def literal(content: Content) -> str:
    """Markup as it is; text escaped, with control and direction characters made visible."""
    return content.text if isinstance(content, Markup) else escape(shown(content, TEXT_MAX), quote=True)


def join(*parts: Content) -> Markup:
    return Markup("".join(literal(part) for part in parts))


def element(name: str, *content: Content, **attributes: object) -> Markup:
    """
    `<name attributes>content</name>`. `_` in an attribute's name becomes `-`; a trailing one is dropped (`class_`).
    """
    written = "".join(f' {_dashed(key)}="{_quoted(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{written}>{join(*content).text}</{name}>")


def _dashed(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _quoted(value: object) -> str:
    return literal(value if isinstance(value, Markup) else str(value))


def section(title: str, *content: Content) -> Markup:
    return element("section", element("h2", title), *content)


def picture(label: str, height: float, *content: Content) -> Markup:
    """A drawing 1000 units wide, with its content as a label; on a narrow screen it scrolls alone."""
    drawing = element("svg", *content, viewBox=f"0 0 1000 {height:g}", role="img", aria_label=label)
    return element("div", drawing, class_="wide", tabindex="0", role="region", aria_label=label)


def bar(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    return element("rect", x=f"{x:.1f}", y=f"{y:g}", width=f"{max(width, 0):.1f}", height=f"{height:g}", class_=class_)


def bars(x: float, y: float, height: float, parts: Iterable[tuple[float, str]]) -> Markup:
    """Bars side by side, each with its width and its class."""
    drawn = []
    for width, class_ in parts:
        drawn.append(bar(x, y, width, height, class_))
        x += width
    return join(*drawn)


def label(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    """`anchor` is the part of the text that stands at `x`: start, middle or end."""
    return element("text", text, x=f"{x:.1f}", y=f"{y:g}", text_anchor=anchor)


def baseline(left: float, right: float, y: float) -> Markup:
    """The zero line of a drawing."""
    return element("line", x1=f"{left:g}", x2=f"{right:g}", y1=f"{y:g}", y2=f"{y:g}", class_="axis")


def legend(entries: list[tuple[str, str]]) -> Markup:
    """Explains marks: the class and the meaning of each."""
    swatch = (join(_swatch(class_), element("span", meaning)) for class_, meaning in entries)
    return element("ul", *(element("li", one) for one in swatch), class_="legend")


def _swatch(class_: str) -> Markup:
    return element("svg", bar(0, 0, 12, 12, class_), viewBox="0 0 12 12", class_="swatch", aria_hidden="true")


def figure(text: str, value: object) -> Markup:
    """A cell. Its `data-value` is the exact figure, by which the buttons in the heads sort."""
    return element("td", text, data_value="-Infinity" if value is None else value)


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
