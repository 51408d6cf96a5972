"""
Makes drawings that adapt to the screen's width: marks are placed at percentages of the width, and texts keep their
size.

A drawing consists of rows. The name of a row is to the left of its marks or, on a narrow screen, above them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotrun.report.html.markup import Markup, element, join

ROW = 18
"""Height of a row that contains bars, in pixels."""
TOP, HEIGHT = 20, 220
"""Positions of the largest and the smallest value of a plot, in pixels from its upper edge."""


def picture(said: str, *rows: Markup) -> Markup:
    """Return a drawing that consists of `rows`. Screen readers read `said` instead of it."""
    return element("div", *rows, class_="drawing", role="img", aria_label=said)


def lane(name: str, *marks: Markup, value: str = "", height: float = ROW) -> Markup:
    """Draw a row: its name, its marks, and the figure `value`."""
    figure = [element("span", value, class_="value")] if value else []
    return element("div", element("span", name, class_="name"), *figure, strip(height, *marks), class_="lane")


def plot(high: str, low: str, *marks: Markup) -> Markup:
    """
    Draw a plot: its marks, and a line each for the largest and the smallest value. `axis` draws the row below the plot.
    """
    lines = [
        element("line", x1="0", x2="100%", y1=f"{at:g}", y2=f"{at:g}", class_="axis") for at in (TOP - 2, HEIGHT + 1)
    ]
    texts = [label(0, TOP - 7, high), label(0, HEIGHT - 6, low)]
    return strip(HEIGHT + 2, *lines, *texts, *marks)


def axis(texts: Sequence[str]) -> Markup:
    """
    Draw evenly spaced labels: the first at the left edge of the marks, the last at the right edge. A narrow screen
    shows only every other label.
    """
    last = max(len(texts) - 1, 1)
    ends = {0: "start", last: "end"}
    return strip(
        ROW,
        *(
            label(100 * number / last, 14, text, ends.get(number, "middle"), number % 2 == 1 and number not in ends)
            for number, text in enumerate(texts)
        ),
    )


def strip(height: float, *marks: Markup) -> Markup:
    """Draw a row without a name."""
    return element("svg", *marks, width="100%", height=f"{height:g}", class_="marks")


def bar(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """
    Return a bar. `x` and `width` are percentages, `y` and `height` are in pixels. If `width` is not 0, the bar is at
    least a pixel wide.
    """
    wide = "1" if 0 < width < 0.1 else f"{max(width, 0):.2f}%"
    return element("rect", x=f"{x:.2f}%", y=f"{y:g}", width=wide, height=f"{height:g}", class_=class_)


def bars(y: float, height: float, parts: Iterable[tuple[float, str]]) -> Markup:
    """Draw bars side by side from the left, each with its width and its CSS class."""
    drawn, x = [], 0.0
    for width, class_ in parts:
        drawn.append(bar(x, y, width, height, class_))
        x += width
    return join(*drawn)


def tick(x: float, y: float, pixels: float, height: float, class_: str) -> Markup:
    """Draw a mark for one moment in time, at `x`. The mark has the same width in pixels on every screen."""
    return element("rect", x=f"{x:.2f}%", y=f"{y:g}", width=f"{pixels:g}", height=f"{height:g}", class_=class_)


def label(x: float, y: float, text: str, anchor: str = "start", spare: bool = False) -> Markup:
    """
    Draw a label. `anchor` (start, middle or end) is the part of the label that is placed at `x`. A `spare` label is
    hidden on a narrow screen.
    """
    hidden = {"class_": "spare"} if spare else {}
    return element("text", text, x=f"{x:.2f}%", y=f"{y:g}", text_anchor=anchor, **hidden)


def level(part: float) -> float:
    """Convert a value to its `y` in a plot. `part` is 0 for the smallest value and 1 for the largest."""
    return HEIGHT - part * (HEIGHT - TOP)


def curve(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """
    Draw a line through the points of a plot. The x of a point is a percentage of the width, and its height is from 0 to
    1 (see `level`).
    """
    placed = " ".join(f"{x:.2f},{level(part):.1f}" for x, part in points)
    line = element("polyline", points=Markup(placed), class_=class_)  # markup: too long for `literal`
    box = {"viewBox": f"0 0 100 {HEIGHT}", "preserveAspectRatio": "none"}
    return element("svg", line, width="100%", height=HEIGHT, **box)


def dot(x: float, part: float, class_: str) -> Markup:
    """Draw a dot in a plot. Its coordinates are as in `curve`."""
    return element("circle", cx=f"{x:.2f}%", cy=f"{level(part):.1f}", r="3", class_=class_)


def legend(entries: list[tuple[str, str]]) -> Markup:
    """Draw the legend. Each entry has the CSS class of a mark, and the mark's meaning."""
    swatch = (join(_swatch(class_), element("span", meaning)) for class_, meaning in entries)
    return element("ul", *(element("li", one) for one in swatch), class_="legend")


def _swatch(class_: str) -> Markup:
    return element("svg", bar(0, 0, 100, 12, class_), width=12, height=12, class_="swatch", aria_hidden="true")
