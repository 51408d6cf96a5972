"""
Ways to read a text: as it is, without what stands between letters (the colours of a terminal, the end of a line,
blanks), and with each letter that a program has written by a number or behind a backslash as that letter.

Programs colour what they print, wrap it at the width of a window, and write base64 in lines of 76 letters. A logger may
write all that down as JSON, and a server that as HTML or in a URL. So letters are decoded again and again, whatever the
order was. A value is read in the same way, so that one which has a backslash or a `%` of its own stays the same as
itself.
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
"""Characters. Two lines of any output hold a shorter value by chance, if the end between them does not count."""
PART = 4
"""So many letters of a value before a break may be its beginning. Fewer are the end of any line."""
DECODED_MIN = 4
"""Letters. Of a value that has fewer once it is decoded, only what it is itself is looked for."""
LEVELS = 5
"""A letter is decoded so many times at most. Backslashes before backslashes count once."""
WRITTEN_MAX = 16
"""Characters in which a program writes one byte down: `&amp;#xe9;`, and `\\\\u0041` within JSON within JSON."""

Letters = Callable[[re.Match[str]], str]


class Step(NamedTuple):
    """Puts `letters` in the place of all that fits `pattern`; nothing, if there are none."""

    pattern: re.Pattern[str]
    letters: Letters | None = None

    def of(self, found: re.Match[str]) -> str:
        return "" if self.letters is None else self.letters(found)


def _breaks(*patterns: str) -> Step:
    return Step(re.compile("|".join(patterns), re.ASCII))


_AS_BYTES = Step(re.compile(r"[^\x00-\x7f]"), lambda found: utf8(found[0]))
_LETTERS = Step(LETTER, letter_of)
_LATIN = Step(re.compile(r"[\xc2\xc3][\x80-\xbf]"), lambda found: found[0].encode("latin-1").decode())
"""`\\xe9` may be a byte or a letter; so the letters up to \\xff are read as the one byte that Latin-1 has for them."""


class Way(NamedTuple):
    """
    The steps are taken `once` and then in turn, `levels` times at most. There is nothing to read in that way where none
    of the `signs` is. Values of `least` letters are looked for, and at the end of a text `part` letters of one count as
    its beginning. `decodes`: what is short after it is no value any more. `silent`: characters that count for nothing
    where each letter is read by itself.
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
        """None if nothing is another in that way."""
        if not self._may_differ(text):
            return None
        reading = self._reading(text)
        return None if self.turn and reading.left == text else reading

    def cut(self, text: str) -> Iterator[Reading]:
        """
        Without what may be the beginning of a letter, or of a break, at the end: cut once, twice, and so on, as a value
        may have of its own what looks like such a beginning.
        """
        for cuts in count(1) if self._may_differ(text) else ():
            reading = self._reading(text, cuts)
            if reading.cuts < cuts:
                return
            yield reading

    def turns(self, text: str, cuts: int = 0) -> Iterator[Reading]:
        """The text before the first turn, after it, after the second, and so on, as long as each changes something."""
        reading = Reading(text)
        for step in self.once:
            reading = reading.after(step)
        yield reading
        for _ in range(self.levels):
            before = reading.left
            reading = reading.until_begun(cuts)
            for step in self.turn:  # a break may stand within a letter of which the rest is still to come
                reading = reading.after(step).until_begun(cuts)
            if reading.left == before:
                return
            yield reading

    def _may_differ(self, text: str) -> bool:
        return not self.signs or any(sign in text for sign in self.signs)

    def without(self, value: str) -> str:
        """A value as it is read in that way; "" if nothing is left of it that could be looked for."""
        left = self._reading(value).left
        if len(value) < self.least or (self.decodes and len(left) < DECODED_MIN):
            return ""
        return left

    def breaks(self, value: str) -> bool:
        """Whether more than blanks is lost of a value that is read in that way."""
        reading = self._reading(value)
        kept = {*reading.places(0, len(reading.left))} if reading.left else set()
        return any(at not in kept and not letter.isspace() for at, letter in enumerate(value))

    def _reading(self, text: str, cuts: int = 0) -> Reading:
        *_, reading = self.turns(text, cuts)
        return reading


class Ways(NamedTuple):
    """
    To `read` a text as a whole, and letter by letter: `spelled`, or `spelled_short` if a value has fewer characters
    than SHORT.
    """

    read: tuple[Way, ...]
    spelled: Way
    spelled_short: Way


def _ways(*once: Step) -> Ways:
    colours, raw_breaks = _breaks(COLOUR, WRITTEN_COLOUR), _breaks(COLOUR, BLANK)
    raw_colours, breaks = _breaks(COLOUR), _breaks(COLOUR, WRITTEN_COLOUR, WRITTEN_BLANK, BLANK)
    decoded = (breaks, _LETTERS, _LATIN)
    whole = (
        Way(),
        Way((colours,), signs=("\x1b", "\\")),
        Way((raw_breaks,), least=SHORT, part=PART),
        Way((breaks,), signs=("\\",), least=SHORT, part=PART),
        Way((colours, _LETTERS, _LATIN), once, LEVELS, SIGNS, decodes=True),
        Way(decoded, once, LEVELS, SIGNS, least=SHORT, part=PART, decodes=True),
        Way(decoded, (*once, raw_breaks), LEVELS, SIGNS_CUT, least=SHORT, part=PART, decodes=True),
    )
    return Ways(
        whole,
        Way((raw_breaks, _LETTERS, _LATIN), (*once, raw_breaks), LEVELS, SIGNS, part=PART, silent=BLANKS + "\\"),
        Way((raw_colours, _LETTERS, _LATIN), (*once, raw_colours), LEVELS, SIGNS, silent="\\"),
    )


WAYS_OF_TEXT = _ways(_AS_BYTES)
WAYS_OF_BYTES = _ways()
"""For bytes as text in which each is one character."""


class Reading:
    """What is `left` of a text, and where each letter of that stands. `cuts`: how often its end was cut."""

    def __init__(self, left: str, before: Reading | None = None, step: Step | None = None) -> None:
        self.left = left
        self.cuts: int = 0 if before is None else before.cuts + (step is None)
        self._before, self._step = before, step

    def after(self, step: Step) -> Reading:
        left = step.pattern.sub(step.letters or "", self.left)
        return Reading(left, self, step) if left != self.left else self

    def until_begun(self, cuts: int) -> Reading:
        """Without what may be the beginning of a letter at its end, unless it was cut so often."""
        begun = BEGUN.search(self.left) if self.cuts < cuts else None
        return self if begun is None else Reading(self.left[: begun.start()], self)

    def places(self, start: int, end: int) -> Sequence[int]:
        """Those of the letters from `start` to `end`: each character that a letter is written with."""
        starts, ends = self._spans
        if isinstance(starts, range):
            return range(starts[start], ends[end - 1])
        return [place for at in range(start, end) for place in range(starts[at], ends[at])]

    def start(self, at: int) -> int:
        return self._spans[0][at]

    @cached_property
    def _spans(self) -> tuple[Sequence[int], Sequence[int]]:
        """Where each letter begins, and where it ends."""
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
    """Each stretch of a text, with the number of letters that stand for it; None if it stays as it is."""
    done = 0
    for found in step.pattern.finditer(text):
        yield done, found.start(), None
        yield found.start(), found.end(), len(step.of(found))
        done = found.end()
    yield done, len(text), None
