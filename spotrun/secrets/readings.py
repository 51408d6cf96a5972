"""
Undoes the changes that programs make to a text when they print it, so that a secret value in the text can be
recognised.

For example, a program may wrap a line in the middle of a value, or write a character as its code. A text from which
such changes are removed is a *reading* of the original text. There are three readings. The first is the text as it is.
In the second, *breaks* are removed: terminal colours, line ends and blanks between characters. In the third, *encoded
characters* are also decoded: those that a program wrote with a backslash or as a number.

Breaks occur because programs colour their output, wrap it at a window's width, and write base64 in lines of 76
characters. Encoded characters occur because a logger may encode that output as JSON, and a server may then encode the
JSON as HTML or in a URL. So one character may have been encoded several times, and decoding is repeated.

Before a secret value is compared with a reading of the text, the value is changed in the same way. So a value that
itself contains a backslash or a `%` still matches.
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
"""
Minimum length of a value that is looked for across line ends. A shorter value is looked for only within lines, because
the end of one line and the beginning of the next could form it by chance.
"""
PART = 4
"""
Minimum number of letters before a break that count as the beginning of a value. Fewer do not count, because a line
could end with them by chance.
"""
DECODED_MIN = 4
"""
Minimum letters that remain of a value after decoding. If fewer remain, the value is looked for only without decoding.
"""
LEVELS = 5
"""Maximum number of times that a letter is decoded. The removal of several backslashes in a row counts as one time."""
WRITTEN_MAX = 16
"""Maximum characters with which programs write one byte, as in `&amp;#xe9;`, or `\\\\u0041` in JSON within JSON."""

Letters = Callable[[re.Match[str]], str]


class Step(NamedTuple):
    """
    One replacement in a text. Each match of `pattern` is replaced by the result of `letters`, or removed if `letters`
    is None.
    """

    pattern: re.Pattern[str]
    letters: Letters | None = None

    def of(self, found: re.Match[str]) -> str:
        return "" if self.letters is None else self.letters(found)


def _breaks(*patterns: str) -> Step:
    return Step(re.compile("|".join(patterns), re.ASCII))


_AS_BYTES = Step(re.compile(r"[^\x00-\x7f]"), lambda found: utf8(found[0]))
_LETTERS = Step(LETTER, letter_of)
_LATIN = Step(re.compile(r"[\xc2\xc3][\x80-\xbf]"), lambda found: found[0].encode("latin-1").decode())
"""
A step that replaces the two bytes of a letter by one byte, the letter's Latin-1 code. It is needed because `\\xe9` in a
text can mean a byte or a letter. To make both meanings compare as equal, every letter up to \\xff is read as one byte.
"""


class RedactionForm(NamedTuple):
    """
    A way to read a text. First, the steps in `once` are applied. Then the steps in `turn` are applied up to `levels`
    times.

    The form is skipped for a text that contains none of the `signs`, because the steps would not change it. Only values
    of at least `least` characters are searched for. At the end of a text, the beginning of a value counts only if it
    has at least `part` characters.

    `decodes` is True if the steps decode characters. Then a value is not searched for if fewer than DECODED_MIN
    characters of it remain after decoding. `silent` are characters that `SpelledValues` ignores.
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
        """Return this form's reading of the text; None if it would not differ from the text itself."""
        if not self._may_differ(text):
            return None
        reading = self._reading(text)
        return None if self.turn and reading.left == text else reading

    def cut(self, text: str) -> Iterator[Reading]:
        """
        Yield readings of a text that may end in the middle of an encoded character (such as `\\u00` of `\\u00e9`) or of
        a break (such as half of a terminal colour). The first reading lacks the characters at the end that look
        incomplete. If the remaining text again ends with such characters, the second reading lacks these too, and so
        on. There may be several readings, because characters that look incomplete may also belong to a value.
        """
        for cuts in count(1) if self._may_differ(text) else ():
            reading = self._reading(text, cuts)
            if reading.cuts < cuts:
                return
            yield reading

    def turns(self, text: str, cuts: int = 0) -> Iterator[Reading]:
        """
        Apply the steps in `turn` up to `levels` times, and stop early if they change nothing. Yield the reading before
        the first round, and after each round.
        """
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
        """
        Return this form's reading of a secret value. Return "" if the value or its reading is too short to look for.
        """
        left = self._reading(value).left
        if len(value) < self.least or (self.decodes and len(left) < DECODED_MIN):
            return ""
        return left

    def breaks(self, value: str) -> bool:
        """Return True if this form's reading removes or decodes any character of the value that is not a blank."""
        reading = self._reading(value)
        kept = {*reading.places(0, len(reading.left))} if reading.left else set()
        return any(at not in kept and not letter.isspace() for at, letter in enumerate(value))

    def _reading(self, text: str, cuts: int = 0) -> Reading:
        *_, reading = self.turns(text, cuts)
        return reading


class Ways(NamedTuple):
    """
    The forms in which a text is read. Each form in `read` produces a reading of the whole text, which is then searched
    for values. `SpelledValues` instead decodes the text character by character. It uses `spelled`, or `spelled_short`
    for values shorter than SHORT.
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
"""The ways to read a text in which each character stands for one byte."""


class Reading:
    """
    A text after some replacements. `left` is the changed text, and `places` returns the positions that its characters
    had in the original text. `cuts` counts how often incomplete characters were cut off at the end.
    """

    def __init__(self, left: str, before: Reading | None = None, step: Step | None = None) -> None:
        self.left = left
        self.cuts: int = 0 if before is None else before.cuts + (step is None)
        self._before, self._step = before, step

    def after(self, step: Step) -> Reading:
        left = step.pattern.sub(step.letters or "", self.left)
        return Reading(left, self, step) if left != self.left else self

    def until_begun(self, cuts: int) -> Reading:
        """
        Cut off what may be an incomplete letter at the end. Return the reading unchanged if it has no such end, or if
        this was already done `cuts` times.
        """
        begun = BEGUN.search(self.left) if self.cuts < cuts else None
        return self if begun is None else Reading(self.left[: begun.start()], self)

    def places(self, start: int, end: int) -> Sequence[int]:
        """
        Return where the characters `start` to `end` of this reading come from: their positions in the original text.
        """
        starts, ends = self._spans
        if isinstance(starts, range):
            return range(starts[start], ends[end - 1])
        return [place for at in range(start, end) for place in range(starts[at], ends[at])]

    def start(self, at: int) -> int:
        return self._spans[0][at]

    @cached_property
    def _spans(self) -> tuple[Sequence[int], Sequence[int]]:
        """
        Two sequences of positions in the original text: where each character of this reading begins and where it ends.
        """
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
    """
    Divide a text into the parts that a step replaces and the parts between them. Yield the start and end of each part,
    and the length of its replacement, or None if the part is not replaced.
    """
    done = 0
    for found in step.pattern.finditer(text):
        yield done, found.start(), None
        yield found.start(), found.end(), len(step.of(found))
        done = found.end()
    yield done, len(text), None
