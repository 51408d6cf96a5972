r"""
Finds secret values in a text, if the values contain a `\`, a `%` or a `&`. Each of these three characters can be read
in two ways, so these values are compared with the text character by character.

In the text, `\t` may be an encoded tab, or a backslash and a `t` of a value. `%41` may be an encoded `A`, or three
characters of a value. So both readings are tried, and the characters that follow decide.

A program may have added or doubled backslashes. So the comparison ignores backslashes in both the values and the text.
But where a backslash may begin an encoded character, such as `\t`, the comparison also tries the decoded character.

The text is read only once, from its beginning to its end. At each character, the reader keeps a list of all prefixes of
values with which the text up to this character could end. Each prefix is in the list at most once, so the length of the
list is at most the total length of the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from spotrun.secrets.readings import DECODED_MIN, LEVELS, Reading, RedactionForm, Step
from spotrun.secrets.written_letters import BEGUN, LETTER, SIGNS, WRITTEN_BLANK, WRITTEN_COLOUR, letter_of, utf8

AHEAD = 48
"""Maximum characters that are read ahead to find the end of an encoded character, or of the beginning of a colour."""
_COLOUR = re.compile(WRITTEN_COLOUR)
_WITHIN = Step(re.compile(rf"(?!\A)(?:{WRITTEN_COLOUR}|{WRITTEN_BLANK}|\\++(?!u[dD][c-fC-F]))"))
"""
A step that joins the parts of an encoded character. It removes what a program may have inserted between them, such as a
terminal colour, or a backslash at the end of a line. It does not remove line ends.
"""


def spelled(values: Iterable[str], way: RedactionForm) -> list[str]:
    """
    Return the values that contain one of SIGNS, after removing the characters that the comparison ignores. A value is
    left out if it decodes to the same text as a value without SIGNS, because searching for the latter finds both.
    """
    known = [*values]
    sure = {_decoded(each, way) for each in known if not _has_signs(each)}
    letters = {_spelled(each, way) for each in known if _has_signs(each) and _decoded(each, way) not in sure}
    return sorted(each for each in letters if len(each) >= DECODED_MIN)


def _has_signs(value: str) -> bool:
    return any(sign in value for sign in SIGNS)


def _decoded(value: str, way: RedactionForm) -> str:
    *_, reading = way.turns(value)
    return reading.left


def _spelled(value: str, way: RedactionForm) -> str:
    return "".join(letter for letter in next(way.turns(value)).left if letter not in way.silent)


class ValuePrefix:
    """A prefix of one or more values. It is `size` characters long. `whole` is True if the prefix is itself a value."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.whole = False
        self.followed_by: dict[str, ValuePrefix] = {}

    def add(self, value: str) -> None:
        here = self
        for letter in value:
            here = here.followed_by.setdefault(letter, ValuePrefix(here.size + 1))
        here.whole = True

    def then(self, letters: str, silent: str) -> ValuePrefix | None:
        """
        Return the prefix with `letters` added; None if no value begins with that longer prefix. Ignore letters in
        `silent`.
        """
        here: ValuePrefix | None = self
        for letter in letters:
            if here is None:
                return None
            if letter not in silent:
                here = here.followed_by.get(letter)
        return here


class SpelledValues:
    """Values to look for, in the form that `spelled` returns."""

    def __init__(self, values: Iterable[str], way: RedactionForm) -> None:
        self._way = way
        self._none = ValuePrefix()
        for value in values:
            self._none.add(value)
        self._begins = re.compile(f"[{re.escape(''.join([*self._none.followed_by, *SIGNS]))}]")

    def found(self, text: str) -> Iterator[Sequence[int]]:
        """
        For each value found in the text, yield the positions of its characters, in increasing order. The positions of
        line ends and other breaks within the value are left out.
        """
        if self._may_be_in(text):
            for reading in self._way.turns(text):
                for beginning, start, end in self._read(reading.left):
                    if beginning.whole:
                        yield reading.places(_with_backslashes(reading.left, start), end)

    def begun(self, text: str, least: int) -> Iterator[int]:
        """
        Yield each position at which a value may begin whose rest is cut off by the end of the text. At least `least`
        characters of the value must be in the text; the last of them can be incomplete.
        """
        if self._may_be_in(text):
            for cuts in (0, 2 * LEVELS * len(self._way.turn)):
                for reading in self._way.turns(text, cuts):
                    yield from self._begun(reading, max(least, self._way.part))

    def _begun(self, reading: Reading, least: int) -> Iterator[int]:
        text = reading.left
        for beginning, start, end in self._read(text):
            part = _is_begun(text, end)
            enough = max(1, least - (part or reading.cuts > 0))
            if beginning.followed_by and (part or end == len(text)) and beginning.size >= enough:
                yield reading.start(_with_backslashes(text, start))

    def _may_be_in(self, text: str) -> bool:
        return bool(self._none.followed_by) and _has_signs(text)

    def _read(self, text: str) -> Iterator[tuple[ValuePrefix, int, int]]:
        """
        Yield each prefix of a value that occurs in the text, with the start and end of the occurrence. If several
        occurrences of a prefix end at the same position, yield only the one that starts first.
        """
        read: dict[int, dict[ValuePrefix, int]] = {}
        at = self._next(text, 0)
        while at < len(text) or read:
            here = read.pop(at, {})
            yield from ((beginning, start, at) for beginning, start in here.items())
            if at < len(text):
                self._read_on(text, at, {**here, self._none: at}, read)
            at = at + 1 if read else self._next(text, at + 1)

    def _next(self, text: str, at: int) -> int:
        """
        Return the first position, not before `at`, at which a value could begin; the text's length if there is none.
        """
        found = self._begins.search(text, at)
        return len(text) if found is None else found.start()

    def _read_on(
        self, text: str, at: int, here: dict[ValuePrefix, int], read: dict[int, dict[ValuePrefix, int]]
    ) -> None:
        for end, letters in _written_at(text, at):
            for beginning, start in here.items():
                then = beginning.then(letters, self._way.silent)
                if then is not None and then is not self._none:
                    there = read.setdefault(end, {})
                    there[then] = min(start, there.get(then, start))


def _written_at(text: str, at: int) -> Iterator[tuple[int, str]]:
    """
    Yield each way to read the text at position `at`, as (end of what was read, its meaning). There are several ways if
    the character there can stand for itself or begin an encoded character. A decoded character may in turn begin
    another encoded character, which gives one more way.
    """
    end, letters = at + 1, text[at]
    yield end, letters
    if letters == "\\" and (colour := _COLOUR.match(text, at)):
        yield colour.end(), ""
    for _ in range(LEVELS if letters in SIGNS else 0):
        size, following = _letter_first(letters + text[end : end + AHEAD])
        if not size:
            break
        end, letters = end + size - len(letters), following
        yield end, letters
    if len(letters) == 1 and not letters.isascii():
        yield end, utf8(letters)  # a character above 127 may mean a byte, or a Latin-1 letter


def _letter_first(text: str) -> tuple[int, str]:
    """
    Decode the encoded character with which the text begins. Return the length of its encoded form, and the decoded
    character; (0, "") if the text does not begin with an encoded character.
    """
    if found := _letter(text):
        return found.end(), letter_of(found)
    broken = text.find("\\", 1)
    if broken > 0 and BEGUN.match(text[:broken]):
        reading = Reading(text).after(_WITHIN)
        if found := _letter(reading.left):
            return reading.places(0, found.end())[-1] + 1, letter_of(found)
    return 0, ""


def _letter(text: str) -> re.Match[str] | None:
    found = LETTER.match(text)
    return None if found is None or found.lastgroup is None else found


def _is_begun(text: str, at: int) -> bool:
    """Return True if the text from `at` on may be the beginning of an encoded character or of a break."""
    if not 0 < len(text) - at <= AHEAD:
        return False
    ends = (letters + text[end:] for end, letters in _written_at(text, at))
    return any(BEGUN.match(each) or BEGUN.match(_WITHIN.pattern.sub("", each)) for each in ends)


def _with_backslashes(text: str, start: int) -> int:
    """
    Return the position at which the backslashes up to position `start` begin; `start` if there is no backslash before
    it. JSON within JSON has several backslashes before a character.
    """
    while text[start] == "\\" and text[start - 1 : start] == "\\":
        start -= 1
    return start
