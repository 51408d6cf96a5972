"""Tables of the pages. A cell's `data-value` is its exact figure, by which the buttons in the heads sort."""

from __future__ import annotations

from collections.abc import Sequence

from spotrun.report.html.markup import Content, Markup, element, join


def figure(text: str, value: object) -> Markup:
    return element("td", text, data_value=value)


def optional_figure(text: str, value: object) -> Markup:
    """A figure that may be unknown; unknown sorts below every figure."""
    return figure(text, "-Infinity" if value is None else value)


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
