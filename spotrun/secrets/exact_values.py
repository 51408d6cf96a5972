"""
Finds known values in each reading of a text (see `readings`), even if other characters separate a value's letters, or a
program has written the letters as character codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from spotrun.secrets.readings import SHORT, WAYS_OF_TEXT, WRITTEN_MAX, RedactionForm, Ways
from spotrun.secrets.spelled_values import SpelledValues, spelled

BREAKS_MAX = 4096
"""Maximum characters between two letters of one value, for a text that arrives in parts."""


def letters_of(value: str) -> int:
    """Return the number of letters of `value` in its shortest reading."""
    return min(len(way.without(value)) or len(value) for way in WAYS_OF_TEXT.read)


class ExactValues:
    """Values to look for. `reach` is the maximum number of characters that one value can take up in a text."""

    def __init__(self, values: Iterable[str], ways: Ways = WAYS_OF_TEXT) -> None:
        known = {each for each in values if each}
        self._ways = [(way, _written(way, known)) for way in ways.read if known]
        self._broken = {way.without(each) for way in ways.read for each in known if way.breaks(each)}
        """Readings of values that themselves contain break characters. In such a value, these are hidden too."""
        longest = max((len(each) for way, values in self._ways for each in values if way.decodes), default=0)
        self.reach = max([*map(len, known), longest * WRITTEN_MAX]) + BREAKS_MAX if known else 0
        short = {each for each in known if len(each) < SHORT}
        self._spelled = [
            SpelledValues(spelled(short, ways.spelled_short), ways.spelled_short),
            SpelledValues(spelled(known - short, ways.spelled), ways.spelled),
        ]

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """Yield, for each value found in the text, its letters' positions. The values are unordered and may overlap."""
        for way, values in self._ways:
            reading = way.read(text)
            if reading is not None:
                for value in values:
                    places = (reading.places(start, end) for start, end in _occurrences(reading.left, value))
                    yield from map(_all_between, places) if value in self._broken else places
        for each in self._spelled:
            yield from each.found(text)

    def begun(self, text: str, least: int = 1) -> int:
        """Return the length of the text's longest end that may begin a value, with at least `least` of its letters."""
        spelled = (each.begun(text, least) for each in self._spelled)
        return len(text) - min(chain(self._starts(text, least), *spelled), default=len(text))

    def _starts(self, text: str, least: int) -> Iterator[int]:
        """Yield, for each reading, the start of the longest value that the text's end cuts off, if it cuts one off."""
        for way, values in self._ways:
            for reading in (way.read(text), *way.cut(text)):
                if reading is None:
                    continue
                enough = max(1, max(least, way.part) - (reading.cuts > 0))  # what was cut off begins one more letter
                size = max((_begun(reading.left, value, enough) for value in values), default=0)
                if size:
                    yield reading.start(len(reading.left) - size)


class ValueFragments:
    """Parts of values to look for, each `size` letters long."""

    def __init__(self, values: Iterable[str], size: int) -> None:
        self._size = size
        known = [*values]
        self._ways = [(way, _pieces(_written(way, known), size)) for way in WAYS_OF_TEXT.read if known]
        self._spelled = SpelledValues(_pieces(spelled(known, WAYS_OF_TEXT.spelled), size), WAYS_OF_TEXT.spelled)

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """Yield, for each part found in the text, the positions of its letters, in the order of the reading."""
        for way, pieces in self._ways:
            reading = way.read(text)
            if reading is None:
                continue
            for start in range(len(reading.left) - self._size + 1):
                if reading.left[start : start + self._size] in pieces:
                    yield reading.places(start, start + self._size)
        yield from self._spelled.found(text)


def _written(way: RedactionForm, values: Iterable[str]) -> list[str]:
    """Return the non-empty readings of the values in `way`, sorted."""
    return sorted({way.without(each) for each in values} - {""})


def _pieces(values: Iterable[str], size: int) -> frozenset[str]:
    return frozenset(each[start : start + size] for each in values for start in range(len(each) - size + 1))


def _occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Yield each occurrence's start and end. If two overlap, the later is given as starting at the earlier's end."""
    start, done = text.find(value), 0
    while start >= 0:
        yield max(start, done), start + len(value)
        done = start + len(value)
        start = text.find(value, start + 1)


def _all_between(places: Sequence[int]) -> Sequence[int]:
    return range(places[0], places[-1] + 1)


def _begun(text: str, value: str, least: int) -> int:
    """Return the length of the longest proper prefix of `value` with which `text` ends; 0 if shorter than `least`."""
    if not text:
        return 0
    size = value.rfind(text[-1], 0, len(value) - 1) + 1
    while size >= least:
        if text.endswith(value[:size]):
            return size
        size = value.rfind(text[-1], 0, size - 1) + 1
    return 0
