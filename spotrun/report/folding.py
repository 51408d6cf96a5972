"""
Wraps long lines at the terminal's width. Output that does not go to a terminal is not wrapped, because programs may
read it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator

from rich.cells import cell_len

from spotrun.units import shown_lines

WIDE = 100_000
"""A width that is greater than any line."""
_NARROWEST = 20
_WORD = re.compile(r"(\s*)(\S+)")


def terminal_width() -> int | None:
    """
    Return the width of the terminal that shows the output, or the value of `COLUMNS` if that is set. Return None if
    there is no terminal.
    """
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted):
        return max(int(wanted), _NARROWEST)
    return max(shutil.get_terminal_size().columns, _NARROWEST) if sys.stdout.isatty() else None


def say(text: str, indent: int = 0) -> None:
    """
    Print lines after making their control characters visible. On a terminal, long lines are wrapped between words, and
    their continuation lines are indented by `indent` columns.
    """
    width, lines = terminal_width(), shown_lines(text).split("\n")
    print("\n".join(folded for line in lines for folded in fold(line, width, indent)), flush=True)


def fold(line: str, width: int | None, indent: int = 0) -> list[str]:
    """
    Split one line into parts of at most `width` columns, between words. If `width` is None, return the line unchanged.

    A word that is wider than `width` is split too, after a dash if it has one. A wide character counts as two columns.
    """
    return [line] if width is None or cell_len(line) <= width else list(_folded(line, width, min(indent, width // 2)))


def _folded(text: str, width: int, indent: int) -> Iterator[str]:
    line = ""
    for space, word in _WORD.findall(text):
        longer = line + space + word
        if line.strip() and cell_len(longer) > width:
            yield line
            longer = " " * indent + word
        line = longer
        while cell_len(line) > width:
            end = _end(line, width)
            yield line[:end]
            line = " " * indent + line[end:]
    yield line


def _end(line: str, width: int) -> int:
    """
    Return the number of characters of `line` that fit into `width` columns, up to the last dash among them if there is
    one, as in a run's id. The result always includes the first character after the leading spaces, even if it does not
    fit.
    """
    first = end = len(line) - len(line.lstrip()) + 1
    while end < len(line) and cell_len(line[: end + 1]) <= width:
        end += 1
    return line.rfind("-", first, end) + 1 or end
