"""
Ways to read a text: unchanged; without *breaks* (terminal colours, line ends and blanks between letters); and with
*written letters* decoded (letters that a program has written as a character code or after a backslash).

Programs colour their output, wrap it at a window's width, and write base64 in lines of 76 letters. A logger may then
encode that output as JSON, and a server may encode the JSON as HTML or in a URL. So letters are decoded repeatedly, in
any order. A secret value is read in the same ways as the text, so a value with a backslash or a `%` still matches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

from spotrun.secrets.written_letters import (
    BEGUN,
    BLANK,
    BLANKS,
    COLOUR,
    LETTER,
    SIGNS,
    SIGNS_CUT,
    WRITTEN_BLANK,
    WRITTEN_COLOUR,
    letter_of,
    utf8,
)

SHORT = 8
"""Minimum characters of a value that is sought across line ends: by chance, two lines may contain a shorter one."""
PART = 4
"""Minimum letters before a break that count as the beginning of a value: by chance, a line may end with fewer."""
DECODED_MIN = 4
"""Minimum letters of a value after decoding. A value that decodes to fewer is sought only undecoded."""
LEVELS = 5
"""Maximum number of times that one letter is decoded. Removing a row of backslashes counts as once."""
WRITTEN_MAX = 16
"""Maximum characters that stand for one byte, as in `&amp;#xe9;`, or `\\\\u0041` in JSON within JSON."""

Letters = Callable[[re.Match[str]], str]


class Step(NamedTuple):
    """Replaces each match of `pattern` by the result of `letters`; removes the match if `letters` is None."""

    pattern: re.Pattern[str]
    letters: Letters | None = None

    def of(self, found: re.Match[str]) -> str:
        return "" if self.letters is None else self.letters(found)


def _breaks(*patterns: str) -> Step:
    return Step(re.compile("|".join(patterns), re.ASCII))


_AS_BYTES = Step(re.compile(r"[^\x00-\x7f]"), lambda found: utf8(found[0]))
_LETTERS = Step(LETTER, letter_of)
_LATIN = Step(re.compile(r"[\xc2\xc3][\x80-\xbf]"), lambda found: found[0].encode("latin-1").decode())
"""`\\xe9` may mean a byte or a letter; so each letter up to \\xff is read as one byte, its Latin-1 code."""


class RedactionForm(NamedTuple):
    """
    A way to read a text: apply the steps in `once`, and then the steps in `turn` up to `levels` times. A text that
    contains none of the `signs` has no reading of this kind. Only values of at least `least` letters are sought; at a
    text's end, `part` or more letters count as the beginning of a value. `decodes`: a value that is too short after
    decoding is not sought. `silent`: characters that `SpelledValues` ignores.
    """

    turn: tuple[Step, ...] = ()
    once: tuple[Step, ...] = ()
    levels: int = 1
    signs: tuple[str, ...] = ()
    least: int = 1
    part: int = 1
    decodes: bool = False
    silent: str = ""

    def read(self, text: str) -> Reading | None:
        """Return the reading of a text; None if it would not differ from the text."""
        if not self._may_differ(text):
            return None
        reading = self._reading(text)
        return None if self.turn and reading.left == text else reading

    def cut(self, text: str) -> Iterator[Reading]:
        """
        Yield readings whose end was cut off where an incomplete letter or break may begin. The readings are cut once,
        twice, and so on: what looks like such a beginning may also be characters of a value.
        """
        for cuts in count(1) if self._may_differ(text) else ():
            reading = self._reading(text, cuts)
            if reading.cuts < cuts:
                return
            yield reading

    def turns(self, text: str, cuts: int = 0) -> Iterator[Reading]:
        """Yield the reading before the first turn, after the first, after the second, and so on, while it changes."""
        reading = Reading(text)
        for step in self.once:
            reading = reading.after(step)
        yield reading
        for _ in range(self.levels):
            before = reading.left
            reading = reading.until_begun(cuts)
            for step in self.turn:  # removing a break from within a letter may leave an incomplete letter at the end
                reading = reading.after(step).until_begun(cuts)
            if reading.left == before:
                return
            yield reading

    def _may_differ(self, text: str) -> bool:
        return not self.signs or any(sign in text for sign in self.signs)

    def without(self, value: str) -> str:
        """Return the reading of `value`; "" if the value or its reading is too short to look for."""
        left = self._reading(value).left
        if len(value) < self.least or (self.decodes and len(left) < DECODED_MIN):
            return ""
        return left

    def breaks(self, value: str) -> bool:
        """Return whether this reading of a value drops more than blanks."""
        reading = self._reading(value)
        kept = {*reading.places(0, len(reading.left))} if reading.left else set()
        return any(at not in kept and not letter.isspace() for at, letter in enumerate(value))

    def _reading(self, text: str, cuts: int = 0) -> Reading:
        *_, reading = self.turns(text, cuts)
        return reading


class Ways(NamedTuple):
    """
    The ways to `read` a whole text, and the ways in which `SpelledValues` reads it letter by letter: `spelled`, or
    `spelled_short` for values shorter than SHORT.
    """

    read: tuple[RedactionForm, ...]
    spelled: RedactionForm
    spelled_short: RedactionForm


def _ways(*once: Step) -> Ways:
    colours, raw_breaks = _breaks(COLOUR, WRITTEN_COLOUR), _breaks(COLOUR, BLANK)
    raw_colours, breaks = _breaks(COLOUR), _breaks(COLOUR, WRITTEN_COLOUR, WRITTEN_BLANK, BLANK)
    decoded = (breaks, _LETTERS, _LATIN)
    whole = (
        RedactionForm(),
        RedactionForm((colours,), signs=("\x1b", "\\")),
        RedactionForm((raw_breaks,), least=SHORT, part=PART),
        RedactionForm((breaks,), signs=("\\",), least=SHORT, part=PART),
        RedactionForm((colours, _LETTERS, _LATIN), once, LEVELS, SIGNS, decodes=True),
        RedactionForm(decoded, once, LEVELS, SIGNS, least=SHORT, part=PART, decodes=True),
        RedactionForm(decoded, (*once, raw_breaks), LEVELS, SIGNS_CUT, least=SHORT, part=PART, decodes=True),
    )
    return Ways(
        whole,
        RedactionForm(
            (raw_breaks, _LETTERS, _LATIN), (*once, raw_breaks), LEVELS, SIGNS, part=PART, silent=BLANKS + "\\"
        ),
        RedactionForm((raw_colours, _LETTERS, _LATIN), (*once, raw_colours), LEVELS, SIGNS, silent="\\"),
    )


WAYS_OF_TEXT = _ways(_AS_BYTES)
WAYS_OF_BYTES = _ways()
"""The ways to read a text that was made from bytes, with one character for each byte."""


class Reading:
    """The letters that are `left` of a text, and their positions in it. `cuts`: how often the end was cut off."""

    def __init__(self, left: str, before: Reading | None = None, step: Step | None = None) -> None:
        self.left = left
        self.cuts: int = 0 if before is None else before.cuts + (step is None)
        self._before, self._step = before, step

    def after(self, step: Step) -> Reading:
        left = step.pattern.sub(step.letters or "", self.left)
        return Reading(left, self, step) if left != self.left else self

    def until_begun(self, cuts: int) -> Reading:
        """
        Return the reading without an end that may be the beginning of a letter. If the reading was already cut `cuts`
        times, return it unchanged.
        """
        begun = BEGUN.search(self.left) if self.cuts < cuts else None
        return self if begun is None else Reading(self.left[: begun.start()], self)

    def places(self, start: int, end: int) -> Sequence[int]:
        """Return the positions of all characters that write the letters from `start` to `end`."""
        starts, ends = self._spans
        if isinstance(starts, range):
            return range(starts[start], ends[end - 1])
        return [place for at in range(start, end) for place in range(starts[at], ends[at])]

    def start(self, at: int) -> int:
        return self._spans[0][at]

    @cached_property
    def _spans(self) -> tuple[Sequence[int], Sequence[int]]:
        """The positions where each letter begins, and where each ends."""
        if self._before is None:
            return range(len(self.left)), range(1, len(self.left) + 1)
        if self._step is None:
            return self._before._spans
        starts, ends = self._before._spans
        of_letters: tuple[list[int], list[int]] = [], []
        for begin, end, size in _pieces(self._step, self._before.left):
            if size is None:
                of_letters[0].extend(starts[begin:end])
                of_letters[1].extend(ends[begin:end])
            elif size:
                of_letters[0].extend([starts[begin]] * size)
                of_letters[1].extend([ends[end - 1]] * size)
        return of_letters


def _pieces(step: Step, text: str) -> Iterator[tuple[int, int, int | None]]:
    """Yield the start and end of each stretch of a text, and the length of its replacement (None: it stays)."""
    done = 0
    for found in step.pattern.finditer(text):
        yield done, found.start(), None
        yield found.start(), found.end(), len(step.of(found))
        done = found.end()
    yield done, len(text), None
