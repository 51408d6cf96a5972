"""Finds the parts of a file that differ in two trainings without interruptions, and leaves them out of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from spotrun.exactness.pickled import SHOWN_MAX, Parts

LEFT_OUT = "…"
"""Stands in a text for what varies."""
_INDEX, _COUNTED = re.compile(r"\[\d+\]"), re.compile(r"\b(row|line|step|statement|object) \d+")
_LINE = re.compile(r"(?:^| )(?:line|statement) \d+$")
_WORD = re.compile(r"[^\s,;:=(){}\[\]\"'|<>\\]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBERED, _ESCAPE = re.compile(r"\w*\d\w*"), re.compile(r"\\.")


def family(place: str) -> str:
    """Return the place without the numbers of items and rows: what varies in one varies in the others."""
    return _COUNTED.sub(r"\1 #", _INDEX.sub("[]", place))


def unnumbered(name: str) -> str:
    """Return the name of a file or a place without what has digits in it, such as a process number or a date."""
    return _NUMBERED.sub("#", name)


class Varying:
    """
    The parts of one file that differ in two trainings that nothing interrupts.

    A field of a record, such as a column of a table, varies in all records. A word of a line varies in all lines that
    have the same words and separators, whatever their numbers. If it has a number in one training alone, it varies in
    this line alone; and so does a line with other separators. What only one of the two trainings has, of whatever
    number, is left out.
    """

    def __init__(self, straight: Parts, again: Parts) -> None:
        one, other = dict(straight), dict(again)
        self._absent: set[str] = set()
        self._fields: set[str] = set()
        self._words: dict[tuple[str, str], set[int]] = {}
        """Numbers of words, by the family and the shape of the text."""
        self._places: dict[str, set[int]] = {}
        """Numbers of words by place, none for the whole text."""
        for place in {**one, **other}:
            here, there = one.get(place), other.get(place)
            if here is None or there is None:
                self._absent.add(unnumbered(family(place)))
            elif here != there:
                self._note(place, here, there)
        self.is_whole = not self._leaves_something(one)

    def _note(self, place: str, here: str, there: str) -> None:
        if not _LINE.search(place) and (_is_one_word(here) or _is_one_word(there)):
            self._fields.add(family(place))
        elif _WORD.sub("", here) != _WORD.sub("", there):
            self._places[place] = set()
        else:
            words = zip(_WORD.findall(here), _WORD.findall(there), strict=True)
            differing = {number for number, (one, other) in enumerate(words) if one != other}
            if (shape := _shape(here)) == _shape(there):
                self._words.setdefault((family(place), shape), set()).update(differing)
            else:
                self._places[place] = differing

    def __bool__(self) -> bool:
        return bool(self._absent or self._fields or self._words or self._places)

    def steady(self, parts: Parts) -> Parts:
        """Give the parts of this file, of any training, without what varies."""
        for place, text in parts:
            kind = family(place)
            if not self._absent or unnumbered(kind) not in self._absent:
                yield place, LEFT_OUT if kind in self._fields else self._masked(place, kind, text)

    def _masked(self, place: str, kind: str, text: str) -> str:
        of_line = self._places.get(place, set())
        if place in self._places and not of_line:
            return LEFT_OUT
        of_shape = self._words.get((kind, _shape(text)), set()) if self._words else set[int]()
        return _replaced(text, of_line | of_shape) if of_line or of_shape else text

    def _leaves_something(self, parts: dict[str, str]) -> bool:
        """Return whether a file holds anything without what varies; the number of its rows is something, too."""
        left = [text for _, text in self.steady(iter(parts.items()))]
        return len(left) > 1 or any(_WORD.search(_ESCAPE.sub("", text.replace(LEFT_OUT, ""))) for text in left)

    def names(self) -> Iterator[str]:
        """Name what is left out."""
        yield from sorted(self._absent | self._fields)
        shown = (f"{kind}: {_replaced(shape, numbers)}" for (kind, shape), numbers in self._words.items())
        yield from sorted(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…" for text in shown)
        yield from sorted(self._places)


def _is_one_word(text: str) -> bool:
    return _DIGEST.search(text) is not None or len(_WORD.findall(text)) < 2


def _shape(text: str) -> str:
    return _WORD.sub(lambda word: "#" if any(map(str.isdigit, word[0])) else word[0], text)


def _replaced(text: str, numbers: Iterable[int]) -> str:
    chosen, at = set(numbers), -1

    def replace(word: re.Match[str]) -> str:
        nonlocal at
        at += 1
        return LEFT_OUT if at in chosen else word[0]

    return _WORD.sub(replace, text)
