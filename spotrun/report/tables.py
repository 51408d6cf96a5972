"""How figures are written for people, and how all tables look. No colour carries meaning, and no markup is read."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spotrun.units import shown

NOTHING = "-"
_UNBOUNDED = 10_000


def plain(text: str, limit: int = 2000) -> str:
    """One line that is safe on a terminal: control and direction characters are made visible."""
    return shown(text, limit)


def dollars(amount_usd: Decimal | None) -> str:
    """`$0.0123`, `$12.35`: four places below ten dollars, two above, none above ten thousand; a dash for none."""
    if not amount_usd:
        return NOTHING
    if abs(amount_usd) < Decimal("0.00005"):
        return "<$0.0001"
    places = 4 if abs(amount_usd) < 10 else 2 if abs(amount_usd) < 10_000 else 0
    sign = "-" if amount_usd < 0 else ""
    return f"{sign}${abs(amount_usd):.{places}f}"


def short_duration(duration: timedelta) -> str:
    """At most six characters up to ten years: `4.2s`, `45s`, `3m05s`, `2h10m`, `5d03h`."""
    seconds = duration.total_seconds()
    if seconds < 0.05:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 100 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    days, hours = divmod(whole // 3600, 24)
    return f"{days}d{hours:02d}h" if days < 1000 else f"{days}d"


def optional_duration(duration: timedelta | None, otherwise: str) -> str:
    """The same, or `otherwise` for None. A duration of zero is `0s`."""
    if duration is None:
        return otherwise
    return short_duration(duration) if duration >= timedelta(seconds=0.05) else "0s"


def percent(share: float | None) -> str:
    """A dash for none, and where ten times as much was lost as there was to save: that compares nothing."""
    return NOTHING if share is None or share < -10 else f"{round(share * 100)}%"


def scale_mark(time_scale: float) -> str:
    """` (20×)` where run time passed 20 times as fast as the wall clock: such figures may stand beside others."""
    return "" if time_scale == 1 else f" ({time_scale:g}×)"


def count(number: int) -> str:
    return str(number) if number else NOTHING


class FiguresTable(Table):
    """Never cuts off a figure: on a narrow terminal its lines wrap. See `print_figures`."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=_UNBOUNDED), self).maximum
        yield from super().__rich_console__(console, options.update(max_width=max(options.max_width, needed)))


def print_figures(what: RenderableType, console: Console | None = None) -> None:
    """Print it as it is, without reading markup and without cropping lines."""
    (console or Console()).print(what, markup=False, highlight=False, emoji=False, crop=False)


def figures_table(title: str, first: str, others: list[str]) -> FiguresTable:
    """An empty table as narrow as its contents, with labels aligned left and figures aligned right."""
    table = FiguresTable(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    for index, header in enumerate([first, *others]):
        justify: JustifyMethod = "right" if index else "left"
        table.add_column(Text(header), justify=justify, no_wrap=True, vertical="bottom")
    return table


def add_row(table: Table, cells: list[str], style: str = "") -> None:
    """Add a row; rich reads no markup in its cells."""
    table.add_row(*(Text(plain(cell)) for cell in cells), style=style)
