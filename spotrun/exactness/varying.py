"""Finds the parts of a file in which two uninterrupted trainings differ, and leaves them out of a comparison."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from spotrun.exactness.pickled import SHOWN_MAX, Parts
from spotrun.exactness.places import Indices, Pattern, VaryingPlaces, family, indices, pattern_of

LEFT_OUT = "…"
"""The text that replaces each varying part."""
_LINE = re.compile(r"(?:^| )(?:line|statement) (?:\d+|#)$")
_WORD = re.compile(r"[^\s,;:=(){}\[\]\"'|<>\\]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NUMBERED, _ESCAPE = re.compile(r"\w*\d\w*"), re.compile(r"\\.")


def unnumbered(name: str) -> str:
    """Return the name with each word that contains a digit, such as a process number or a date, replaced by `#`."""
    return _NUMBERED.sub("#", name)


class Varying:
    """
    The parts of one file in which two uninterrupted trainings differ. These parts, and parts similar to them, are left
    out when the file is compared with that of an interrupted training. These rules define what is left out:

    - If a field of a record differs, such as a cell of a table, then this field is left out in all records.
    - If a word of a line differs, then this word is left out in all similar lines. Lines are similar if they have the
      same words and separators apart from their numbers.
    - If the two versions of a line are not similar, the words that differ are left out in this line only. If its
      separators differ too, the whole line is left out.
    - If a part exists in only one of the trainings, this part is left out, and so are all parts whose names differ from
      its name only in numbers.
    """

    def __init__(self, straight: Parts, again: Parts) -> None:
        one, other = dict(straight), dict(again)
        self._places: dict[str, set[int]] = {}
        """
        The positions of the varying words in the text at each place. An empty set means that the whole text varies.
        """
        self._absent = _absent(one, other)
        fields: set[str] = set()
        words: dict[tuple[str, str], dict[str, set[int]]] = {}
        for place in one.keys() & other.keys():
            here, there = one[place], other[place]
            if here == there:
                continue
            if not _LINE.search(place) and (_is_one_word(here) or _is_one_word(there)):
                fields.add(place)
            elif _WORD.sub("", here) != _WORD.sub("", there):
                self._places[place] = set()
            else:
                differing = _differing(here, there)
                if (shape := _shape(here)) == _shape(there):
                    words.setdefault((family(place), shape), {})[place] = differing
                else:
                    self._places[place] = differing
        self._fields = VaryingPlaces(fields, one)
        known = _of_shapes(one) if words else {}
        self._words = {key: _Words(*key, by_place, known[key]) for key, by_place in words.items()}
        """
        The words that vary. The key is the family of a place (its name without numbers) and the shape of the text there
        (its words and separators, with `#` for each word that has a digit).
        """
        self.is_whole = not self._leaves_something(one)

    def __bool__(self) -> bool:
        return bool(self._absent or self._fields or self._words or self._places)

    def steady(self, parts: Parts) -> Parts:
        """Yield the file's `parts` from one training, with everything that varies left out."""
        for place, text in parts:
            if not self._is_absent(place):
                yield place, LEFT_OUT if place in self._fields else self._masked(place, text)

    def _is_absent(self, place: str) -> bool:
        if not self._absent or (prefixes := self._absent.get(unnumbered(family(place)))) is None:
            return False
        numbers = indices(place)
        return any(numbers[: len(prefix)] == prefix for prefix in prefixes)

    def _masked(self, place: str, text: str) -> str:
        of_line = self._places.get(place, set())
        if place in self._places and not of_line:
            return LEFT_OUT
        of_shape = self._words.get((family(place), _shape(text))) if self._words else None
        numbers = of_line if of_shape is None else of_line | of_shape.of(place)
        return _replaced(text, numbers) if numbers else text

    def _leaves_something(self, parts: dict[str, str]) -> bool:
        """
        Return True if anything in the file can still be compared after the varying parts are left out. Even if the
        texts of all parts vary, the number of parts (of rows, for example) can be compared, unless there is only one.
        """
        left = [text for _, text in self.steady(iter(parts.items()))]
        return len(left) > 1 or any(_WORD.search(_ESCAPE.sub("", text.replace(LEFT_OUT, ""))) for text in left)

    def names(self) -> Iterator[str]:
        """Yield the names of the parts that are left out."""
        yield from sorted((*self._absent, *self._fields.names()))
        shown = (
            f"{name}: {_replaced(shape, words.numbers)}"
            for (kind, shape), words in self._words.items()
            for name in words.pattern.names(kind)
        )
        yield from sorted(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…" for text in shown)
        yield from sorted(self._places)


class _Words:
    """
    The words that vary in texts of one shape. They are at the positions `numbers` in the texts whose places in the file
    match `pattern`.
    """

    def __init__(self, kind: str, shape: str, differing: dict[str, set[int]], known: set[Indices]) -> None:
        self.numbers = set[int]().union(*differing.values())
        places, words = {indices(place) for place in differing}, _WORD.findall(_ESCAPE.sub("", shape))
        is_line, is_bare = _LINE.search(kind) is not None, len(self.numbers) == len(words) == words.count("#")
        named_by_words = is_line and not is_bare
        self.pattern = Pattern((), [()]) if named_by_words else pattern_of(kind, places, known, is_record=is_line)

    def of(self, place: str) -> set[int]:
        return self.numbers if self.pattern.has(indices(place)) else set()


def _differing(here: str, there: str) -> set[int]:
    words = zip(_WORD.findall(here), _WORD.findall(there), strict=True)
    return {number for number, (one, other) in enumerate(words) if one != other}


def _of_shapes(parts: dict[str, str]) -> dict[tuple[str, str], set[Indices]]:
    found: dict[tuple[str, str], set[Indices]] = {}
    for place, text in parts.items():
        found.setdefault((family(place), _shape(text)), set()).add(indices(place))
    return found


def _absent(one: dict[str, str], other: dict[str, str]) -> dict[str, set[Indices]]:
    """
    Find the lists whose lengths differ between the two files. Return the indices of these lists, keyed by the family of
    their items. If this is more than half of the lists of a family, the value is {()}, which stands for all lists of
    the family.
    """
    found: dict[str, set[Indices]] = {}
    for these, those in ((one, other), (other, one)):
        there: set[tuple[str, Indices]] | None = None
        for place in these.keys() - those.keys():
            there = _prefixes(those) if there is None else there
            kind, numbers = family(place), indices(place)
            size = next((n for n in range(len(numbers)) if (kind, numbers[: n + 1]) not in there), 0)
            found.setdefault(unnumbered(kind), set()).add(numbers[:size])
    if any(map(any, found.values())):
        lists: dict[tuple[str, int], set[Indices]] = {}
        for kind, numbers in _prefixes(one) | _prefixes(other):
            lists.setdefault((unnumbered(kind), len(numbers)), set()).add(numbers)
        for kind, prefixes in found.items():
            if any(2 * count > len(lists[kind, size]) for size, count in Counter(map(len, prefixes)).items()):
                prefixes.clear()
                prefixes.add(())
    return found


def _prefixes(parts: dict[str, str]) -> set[tuple[str, Indices]]:
    found = ((family(place), indices(place)) for place in parts)
    return {(kind, numbers[:size]) for kind, numbers in found for size in range(len(numbers) + 1)}


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
