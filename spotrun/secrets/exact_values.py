"""
Finds values that are known, letter by letter, and also where something stands between their letters: the colours of a
terminal, the end of a line, blanks.

Programs colour what they print, wrap it at the width of a window, and write base64 in lines of 76 letters; a logger
may write all that down as JSON. So a text is read in several ways, each without some of these breaks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

SHORT = 8
"""Characters. Two lines of any output hold a shorter value by chance, if the end between them does not count."""
PART = 4
"""So many letters of a value before a break may be its beginning. Fewer are the end of any line."""
BREAKS_MAX = 4096
"""Characters that may stand between the letters of one value, where a text comes in parts."""

_COLOUR = r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)"
"""https://ecma-international.org/publications-and-standards/standards/ecma-48/, 5.4. Its end may still be to come."""
_WRITTEN_COLOUR = r"(?<!\\)\\++(?:x1[bB]|u001[bB]|033|e)\[[0-?]*[ -/]*[@-~]?"
_BLANK = r"[\x00-\x1a\x1c-\x20\x7f]+"
_WRITTEN_BLANK = r"(?<!\\)\\++(?:[nrt]|u000[9aAdD]|x0[9aAdD]|(?=[\r\n]))"
_WRITTEN_BEGINNING = re.compile(r"(?<!\\)\\++\w{0,5}\Z", re.ASCII)


class Way(NamedTuple):
    """
    To read a text without `breaks`, of which none is there without one of the `signs`. Values of `least` letters are
    looked for, and at the end of a text `part` letters of one count as its beginning.
    """

    breaks: re.Pattern[str] | None = None
    signs: str = ""
    least: int = 1
    part: int = 1

    def read(self, text: str) -> Reading | None:
        """None if there are no breaks."""
        if self.breaks is None:
            return Reading(text, text, None)
        if self.signs and not any(sign in text for sign in self.signs):
            return None
        left = self.without(text)
        return Reading(left, text, self.breaks) if len(left) < len(text) else None

    def without(self, text: str) -> str:
        return text if self.breaks is None else self.breaks.sub("", text)


def _way(*breaks: str, signs: str = "", least: int = 1, part: int = 1) -> Way:
    return Way(re.compile("|".join(breaks), re.ASCII), signs, least, part)


WAYS = (
    Way(),
    _way(_COLOUR, _WRITTEN_COLOUR, signs="\x1b\\"),
    _way(_COLOUR, _BLANK, least=SHORT, part=PART),
    _way(_COLOUR, _WRITTEN_COLOUR, _WRITTEN_BLANK, _BLANK, signs="\\", least=SHORT, part=PART),
)


def letters_of(value: str) -> int:
    """How many are left of a value, however it is read."""
    return min(len(way.without(value)) for way in WAYS)


class Reading:
    """What is `left` of a text, and where each letter of that stands."""

    def __init__(self, left: str, text: str, breaks: re.Pattern[str] | None) -> None:
        self.left = left
        self._text, self._breaks = text, breaks

    @cached_property
    def places(self) -> Sequence[int]:
        if self._breaks is None:
            return range(len(self._text))
        found: list[int] = []
        done = 0
        for each in self._breaks.finditer(self._text):
            found += range(done, each.start())
            done = each.end()
        return [*found, *range(done, len(self._text))]


class ExactValues:
    """Values to look for. `longest` is the size of the longest, in characters."""

    def __init__(self, values: Iterable[str]) -> None:
        known = {each for each in values if each}
        self.longest = max(map(len, known), default=0)
        self._ways = [(way, _written(way, known)) for way in WAYS if known]

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """The places of the letters of each value that is there, in no order. They may overlap."""
        for way, values in self._ways:
            reading = way.read(text)
            if reading is not None:
                yield from (reading.places[start:end] for start, end in _occurrences(reading.left, values))

    def begun(self, text: str, least: int = 1) -> int:
        """How many characters at the end are the beginning of a value, of which at least so many letters are there."""
        break_begins = _WRITTEN_BEGINNING.search(text)
        ends = {len(text), len(text) if break_begins is None else break_begins.start()}
        starts = [start for end in ends for start in self._starts(text[:end], least)]
        return len(text) - min(starts, default=len(text))

    def _starts(self, text: str, least: int) -> Iterator[int]:
        """In each way to read it: where the value begins that the text ends with a part of, if it does."""
        for way, values in self._ways:
            reading = way.read(text)
            if reading is None:
                continue
            size = max((_begun(reading.left, value, max(least, way.part)) for value in values), default=0)
            if size:
                yield reading.places[-size]


class Pieces:
    """Stretches of `size` letters of values to look for."""

    def __init__(self, values: Iterable[str], size: int) -> None:
        self._size = size
        known = [*values]
        self._ways = [(way, _pieces(_written(way, known), size)) for way in WAYS if known]

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """The places of the letters of each piece that is there, in their order in each reading."""
        for way, pieces in self._ways:
            reading = way.read(text)
            if reading is None:
                continue
            for start in range(len(reading.left) - self._size + 1):
                if reading.left[start : start + self._size] in pieces:
                    yield reading.places[start : start + self._size]


def _written(way: Way, values: Iterable[str]) -> list[str]:
    """The values as they are read in that way."""
    return sorted({way.without(each) for each in values if len(each) >= way.least} - {""})


def _pieces(values: Iterable[str], size: int) -> frozenset[str]:
    return frozenset(each[start : start + size] for each in values for start in range(len(each) - size + 1))


def _occurrences(text: str, values: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Where each of the values begins and ends; of occurrences that overlap, what the one before has not covered."""
    for value in values:
        start, done = text.find(value), 0
        while start >= 0:
            yield max(start, done), start + len(value)
            done = start + len(value)
            start = text.find(value, start + 1)


def _begun(text: str, value: str, least: int) -> int:
    """The size of the longest beginning of `value`, but not all of it, that `text` ends with; 0 if it is too short."""
    if not text:
        return 0
    size = value.rfind(text[-1], 0, len(value) - 1) + 1
    while size >= least:
        if text.endswith(value[:size]):
            return size
        size = value.rfind(text[-1], 0, size - 1) + 1
    return 0
