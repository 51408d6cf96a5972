"""
Formats figures for people to read, and defines how all tables look. No meaning depends on colour alone. Texts are
printed literally: rich markup in them has no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from spotrun.report.folding import WIDE, fold, terminal_width
from spotrun.units import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

NOTHING = "-"
FOLDED_MIN = 12
"""Usual minimum width of a text column. It is narrowed further only if no other column can be narrowed any more."""


def plain(text: str, limit: int = 2000) -> str:
    """Return the text as one line that is safe on a terminal. Control and direction characters are made visible."""
    return shown(text, limit)


def dollars(amount_usd: Decimal | None) -> str:
    """
    Format an amount as `$0.0123` or `$12.35`. Zero and None become a dash. In a table with sums, use `report.amounts`
    instead, so that the rounded amounts add up.
    """
    if not amount_usd:
        return NOTHING
    if abs(amount_usd) < Decimal("0.00005"):
        return "<$0.0001"
    sign = "-" if amount_usd < 0 else ""
    return f"{sign}${abs(amount_usd):.{decimals(amount_usd)}f}"


def decimals(amount_usd: Decimal) -> int:
    """
    Return the number of decimal places to show for an amount: four below ten dollars, none from ten thousand dollars
    on, otherwise two.
    """
    return 4 if abs(amount_usd) < 10 else 2 if abs(amount_usd) < 10_000 else 0


def short_duration(duration: timedelta) -> str:
    """
    Format a duration. Up to ten years, the text has at most six characters: `4.2s`, `45s`, `3m05s`, `2h10m`, `5d03h`.
    """
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
    """Format a duration like `short_duration`, but return `otherwise` for None, and `0s` for zero."""
    if duration is None:
        return otherwise
    return short_duration(duration) if duration >= timedelta(seconds=0.05) else "0s"


def percent(share: float | None) -> str:
    """
    Format a share as a percentage. None becomes a dash, and so does a share below -1000 %, which would tell the reader
    nothing.
    """
    return NOTHING if share is None or share < -10 else f"{round(share * 100)}%"


def scale_mark(time_scale: float) -> str:
    """Return ` (20×)` if run time passed 20 times as fast as the wall clock; "" if it passed equally fast."""
    return "" if time_scale == 1 else f" ({time_scale:g}×)"


def count(number: int) -> str:
    return str(number) if number else NOTHING


class Row(NamedTuple):
    """
    A row of a table. `style` is a rich style. `ends` is True for the last row of a section: an empty line follows it,
    unless it is the last row of the table.
    """

    cells: tuple[str, ...]
    style: str = ""
    ends: bool = False


class Block(NamedTuple):
    """Columns that are shown side by side, each with its width."""

    widths: dict[int, int]
    gap: int


class FiguresTable:
    """
    A table whose cells are never cut off.

    `texts` contains the indices of the text columns. They are aligned left, all other columns right. If the terminal is
    too narrow, the contents of the text columns are wrapped. If the table is still too wide, it is divided into blocks
    of columns, one below the other. Each block begins with the first `repeated` columns. A column's heading can have
    several lines.
    """

    def __init__(
        self,
        title: str,
        heads: Sequence[str],
        *,
        texts: Collection[int] = (0,),
        repeated: int = 1,
        gap: int = 1,
    ) -> None:
        self.title = title
        self.heads = tuple(heads)
        self._texts = frozenset(texts)
        self._repeated = repeated
        self._gap = gap
        self.rows: list[Row] = []

    def add_row(self, cells: Sequence[str], style: str = "") -> None:
        assert len(cells) == len(self.heads)
        self.rows.append(Row(tuple(plain(cell) for cell in cells), style))

    def add_section(self) -> None:
        if self.rows:
            self.rows[-1] = self.rows[-1]._replace(ends=True)

    def lines(self, width: int | None, rule: str = "─") -> Iterator[tuple[str, str]]:
        """
        Yield each line with its style. If `width` is not None, no line is wider than `width`. A line of `rule` is drawn
        below the column headings.
        """
        if self.title:
            yield from ((line, "bold") for line in fold(self.title, width))
        for number, block in enumerate(self._blocks(width)):
            if number:
                yield "", ""
            yield from ((line, "bold") for line in self._lines_of(self.heads, block, bottom=True))
            yield rule * _total(block.widths.values(), block.gap), ""
            for at, row in enumerate(self.rows):
                yield from ((line, row.style) for line in self._lines_of(row.cells, block))
                if row.ends and at + 1 < len(self.rows):
                    yield "", ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for line, style in self.lines(options.max_width, "-" if options.ascii_only else "─"):
            yield Text(line, style, no_wrap=True, overflow="ignore")

    def _blocks(self, width: int | None) -> list[Block]:
        natural = [
            max(cell_len(line) for text in column for line in text.split("\n"))
            for column in zip(self.heads, *(row.cells for row in self.rows), strict=True)
        ]
        if width is None:
            return [Block(dict(enumerate(natural)), self._gap)]
        for gap in range(self._gap, 0, -1):
            if _total(natural, gap) <= width:
                return [Block(dict(enumerate(natural)), gap)]
        least = [min(each, FOLDED_MIN) if at in self._texts else each for at, each in enumerate(natural)]
        return [Block(self._narrowed(natural, least, group, width), 1) for group in self._groups(least, width)]

    def _groups(self, least: Sequence[int], width: int) -> list[list[int]]:
        """
        Divide the columns into groups that fit into `width`. Each group has the repeated columns and at least one other
        column.
        """
        leading = list(range(self._repeated))
        groups = [leading]
        for column in range(self._repeated, len(least)):
            wider = [*groups[-1], column]
            if groups[-1] != leading and _total([least[each] for each in wider], 1) > width:
                groups.append([*leading, column])
            else:
                groups[-1] = wider
        return groups

    def _narrowed(self, natural: Sequence[int], least: Sequence[int], group: list[int], width: int) -> dict[int, int]:
        """
        Return widths with which the columns in `group` fit into `width`. The widest column is narrowed first. Columns
        that are not text are narrowed only if the text columns cannot be narrowed any further.
        """
        widths = {column: natural[column] for column in group}
        while _total(widths.values(), 1) > width:
            giving = [column for column in group if widths[column] > least[column]] or group
            widths[max(giving, key=lambda column: widths[column])] -= 1
        return widths

    def _lines_of(self, texts: Sequence[str], block: Block, *, bottom: bool = False) -> Iterator[str]:
        """Yield the lines of a row. If `bottom` is True, shorter cells are aligned with the bottom of the row."""
        cells = {
            column: [line for part in texts[column].split("\n") for line in fold(part, width)]
            for column, width in block.widths.items()
        }
        height = max(map(len, cells.values()))
        for column, lines in cells.items():
            missing = [""] * (height - len(lines))
            cells[column] = missing + lines if bottom else lines + missing
        for number in range(height):
            aligned = (self._aligned(cells[column][number], column, width) for column, width in block.widths.items())
            yield (" " * block.gap).join(aligned).rstrip()

    def _aligned(self, text: str, column: int, width: int) -> str:
        space = " " * (width - cell_len(text))
        return text + space if column in self._texts else space + text


def _total(widths: Collection[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def print_figures(what: RenderableType, console: Console | None = None) -> None:
    """
    Print `what`. Markup in it has no effect, and no line is cut off. Lines are wrapped only if the output goes to
    a terminal, because programs read whole lines.
    """
    from rich.console import Console

    shown_on = console or Console(width=terminal_width() or WIDE)
    shown_on.print(what, markup=False, highlight=False, emoji=False, crop=False)


def print_table(table: FiguresTable) -> None:
    """Print a table without styles. This does not use rich's console, which takes a while to import."""
    for line, _ in table.lines(terminal_width()):
        print(line)


def figures_table(
    title: str,
    first: str,
    others: Sequence[str],
    *,
    texts: Collection[int] = (0,),
    repeated: int = 1,
) -> FiguresTable:
    """Return an empty table, which will be only as wide as its rows need."""
    return FiguresTable(title, [first, *others], texts=texts, repeated=repeated)


def add_row(table: FiguresTable, cells: Sequence[str], style: str = "") -> None:
    table.add_row(cells, style)
