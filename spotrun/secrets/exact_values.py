"""
Finds known secret values in a text. A value is found even if line ends or other characters separate its characters, or
if they are written as character codes. The module `readings` describes how such changes are undone before the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from spotrun.secrets.readings import SHORT, WAYS_OF_TEXT, WRITTEN_MAX, RedactionForm, Ways
from spotrun.secrets.spelled_values import SpelledValues, spelled

BREAKS_MAX = 4096
"""
Maximum number of characters, such as line ends and terminal colours, that can separate the letters of one value. A text
that arrives in parts is the reason for the limit: the end of the text has to be kept until the next part arrives, and
the limit says how much of it.
"""


def letters_of(value: str) -> int:
    """
    Return the number of characters of `value` that remain when line ends and the like are removed and encoded
    characters are decoded. If the ways of reading a text (`readings`) leave different numbers, return the smallest.
    """
    return min(len(way.without(value)) or len(value) for way in WAYS_OF_TEXT.read)


class ExactValues:
    """Secret values to look for in texts. `reach` is the maximum length that one value may have in a text."""

    def __init__(self, values: Iterable[str], ways: Ways = WAYS_OF_TEXT) -> None:
        known = {each for each in values if each}
        self._ways = [(way, _written(way, known)) for way in ways.read if known]
        self._broken = {way.without(each) for way in ways.read for each in known if way.breaks(each)}
        """
        Values that themselves contain a break, for example a line end. They are stored here without their breaks,
        because the breaks are also removed from a text before it is searched. If such a value is found, its breaks are
        part of the secret. So everything from its first to its last letter is hidden.
        """
        longest = max((len(each) for way, values in self._ways for each in values if way.decodes), default=0)
        self.reach = max([*map(len, known), longest * WRITTEN_MAX]) + BREAKS_MAX if known else 0
        short = {each for each in known if len(each) < SHORT}
        self._spelled = [
            SpelledValues(spelled(short, ways.spelled_short), ways.spelled_short),
            SpelledValues(spelled(known - short, ways.spelled), ways.spelled),
        ]

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """
        Yield, for each value found in the text, the positions of its characters. The values come in no particular
        order, and may overlap.
        """
        for way, values in self._ways:
            reading = way.read(text)
            if reading is not None:
                for value in values:
                    places = (reading.places(start, end) for start, end in _occurrences(reading.left, value))
                    yield from map(_all_between, places) if value in self._broken else places
        for each in self._spelled:
            yield from each.found(text)

    def begun(self, text: str, least: int = 1) -> int:
        """
        Return the number of characters at the text's end that could be the beginning of a value. The text arrives in
        parts, so the rest of the value may be in the next part. A beginning of fewer than `least` characters does not
        count.
        """
        spelled = (each.begun(text, least) for each in self._spelled)
        return len(text) - min(chain(self._starts(text, least), *spelled), default=len(text))

    def _starts(self, text: str, least: int) -> Iterator[int]:
        """
        Yield, for each way of reading the text, the earliest position at which a value may begin whose rest is missing
        at the text's end.
        """
        for way, values in self._ways:
            for reading in (way.read(text), *way.cut(text)):
                if reading is None:
                    continue
                enough = max(1, max(least, way.part) - (reading.cuts > 0))  # what was cut off begins one more letter
                size = max((_begun(reading.left, value, enough) for value in values), default=0)
                if size:
                    yield reading.start(len(reading.left) - size)


class ValueFragments:
    """Fragments of secret values to look for in texts. Each fragment is `size` characters long."""

    def __init__(self, values: Iterable[str], size: int) -> None:
        self._size = size
        known = [*values]
        self._ways = [(way, _pieces(_written(way, known), size)) for way in WAYS_OF_TEXT.read if known]
        self._spelled = SpelledValues(_pieces(spelled(known, WAYS_OF_TEXT.spelled), size), WAYS_OF_TEXT.spelled)

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """Yield, for each fragment found in the text, the positions of its characters, in order."""
        for way, pieces in self._ways:
            reading = way.read(text)
            if reading is None:
                continue
            for start in range(len(reading.left) - self._size + 1):
                if reading.left[start : start + self._size] in pieces:
                    yield reading.places(start, start + self._size)
        yield from self._spelled.found(text)


def _written(way: RedactionForm, values: Iterable[str]) -> list[str]:
    return sorted({way.without(each) for each in values} - {""})


def _pieces(values: Iterable[str], size: int) -> frozenset[str]:
    return frozenset(each[start : start + size] for each in values for start in range(len(each) - size + 1))


def _occurrences(text: str, value: str) -> Iterator[tuple[int, int]]:
    """
    Yield the start and end of each occurrence of `value` in `text`. If an occurrence overlaps the one before it, yield
    only the part of it that follows the overlap.
    """
    start, done = text.find(value), 0
    while start >= 0:
        yield max(start, done), start + len(value)
        done = start + len(value)
        start = text.find(value, start + 1)


def _all_between(places: Sequence[int]) -> Sequence[int]:
    return range(places[0], places[-1] + 1)


def _begun(text: str, value: str, least: int) -> int:
    """
    Return the length of the longest proper prefix of `value` that `text` ends with; 0 if it is shorter than `least`.
    """
    if not text:
        return 0
    size = value.rfind(text[-1], 0, len(value) - 1) + 1
    while size >= least:
        if text.endswith(value[:size]):
            return size
        size = value.rfind(text[-1], 0, size - 1) + 1
    return 0
