"""
Secrets of all kinds, however programs write them down and whatever then breaks them apart; and what a person who looks
at a text can still read of one. Nothing here uses what spotrun recognises them by.
"""

from __future__ import annotations

import base64
import html
import json
import re
import string
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple
from urllib.parse import quote, quote_plus

READABLE = 8
"""So many letters in a row of a written secret give it away."""


class Written(NamedTuple):
    """A secret as a program writes it: what is the secret's alone, and what stands around it."""

    before: str
    secret: str
    behind: str

    def __str__(self) -> str:
        return f"{self.before}{self.secret}{self.behind}"


def _in_base64(before: bytes, secret: str, behind: bytes, write: Callable[[bytes], bytes]) -> Written:
    """Each letter of base64 holds six bits; those at the ends of the secret may hold some of its neighbours'."""
    data = secret.encode()
    text = write(before + data + behind).decode().rstrip("=")
    first, last = len(before) * 8 // 6, -(-(len(before) + len(data)) * 8 // 6)
    return Written(text[:first], text[first:last], text[last:])


FORMS: dict[str, Callable[[str], Written]] = {
    "plain": lambda secret: Written("it is ", secret, ", says the log"),
    "JSON": lambda secret: Written('{"value": "', json.dumps(secret)[1:-1], '"}'),
    "JSON with letters as they are": lambda secret: Written('["', json.dumps(secret, ensure_ascii=False)[1:-1], '"]'),
    "a literal of Python": lambda secret: Written("['", repr(secret)[1:-1], "']"),
    "a literal of Python in ASCII": lambda secret: Written("'", ascii(secret)[1:-1], "'"),
    "a URL": lambda secret: Written("https://host/?x=", quote(secret, safe=""), "&y=1"),
    "a path of a URL": lambda secret: Written("https://host/", quote(secret), "?y"),
    "a form": lambda secret: Written("x=", quote_plus(secret), "&y=1"),
    "HTML": lambda secret: Written("<b>", html.escape(secret), "</b>"),
    "hexadecimal": lambda secret: Written("0x", secret.encode().hex(), ";"),
    "HEXADECIMAL": lambda secret: Written("0x", secret.encode().hex().upper(), ";"),
    "base64": lambda secret: _in_base64(b"", secret, b"", base64.b64encode),
    "base64 for a URL": lambda secret: _in_base64(b"", secret, b"", base64.urlsafe_b64encode),
    "HTTP Basic": lambda secret: _in_base64(b"me:", secret, b"", base64.b64encode),
    "the first half of HTTP Basic": lambda secret: _in_base64(b"", secret, b":x", base64.b64encode),
    "within a text in base64": lambda secret: _in_base64(b"a", secret, b", and more", base64.b64encode),
    "within a text in base64 for a URL": lambda secret: _in_base64(b"to", secret, b"!", base64.urlsafe_b64encode),
}
COLOURS = ("\x1b[31m", "\x1b[0m", "\x1b[1;38;5;208m", "\x1b[38;2;255;128;0m", "\x1b(B\x1b[m", "\x1b[K")
LINE_ENDS = ("\n", "\r\n", "\n    ", "  \n\t")


def _within(text: str, random: Random, breaks: tuple[str, ...]) -> str:
    """With one to three breaks between its letters."""
    for at in sorted(random.sample(range(1, len(text)), random.randint(1, 3)), reverse=True):
        text = text[:at] + random.choice(breaks) + text[at:]
    return text


def _by_backslash(text: str, random: Random, breaks: tuple[str, ...]) -> str:
    """With one that begins with a backslash: not beside one of the secret's own, which would be another text."""
    free = [at for at in range(1, len(text)) if "\\" not in text[at - 1 : at + 1]]
    at = random.choice(free)
    return text[:at] + random.choice(breaks) + text[at:]


def _wrapped(text: str, random: Random) -> str:
    width = random.randint(4, 30)
    end = random.choice(("\n", "\r\n", "\n  "))
    return end.join(text[at : at + width] for at in range(0, len(text), width))


BREAKS: dict[str, Callable[[str, Random], str]] = {
    "whole": lambda text, random: text,
    "a colour in it": lambda text, random: _within(text, random, COLOURS),
    "a colour on each letter": lambda text, random: "".join(f"\x1b[3{random.randint(1, 6)}m{each}" for each in text),
    "a colour, written as JSON": lambda text, random: _by_backslash(text, random, ("\\u001b[31m", "\\u001b[1;31m")),
    "a colour, written by Python": lambda text, random: _by_backslash(text, random, ("\\x1b[31m", "\\x1b[0m")),
    "the end of a line in it": lambda text, random: _within(text, random, LINE_ENDS),
    "wrapped": _wrapped,
    "a line end, written as JSON": lambda text, random: _by_backslash(text, random, ("\\n", "\\r\\n", "\\n  ")),
    "a line that goes on": lambda text, random: _by_backslash(text, random, ("\\\n", "\\\r\n")),
    "a line end and colours": lambda text, random: _within(text, random, ("\x1b[0m\n\x1b[31m", "\n\x1b[2m  ")),
}

_LETTERS = string.ascii_letters + string.digits
_KINDS = (
    _LETTERS,
    _LETTERS + "_-.",
    "0123456789abcdef",
    _LETTERS + string.punctuation,
    _LETTERS + string.punctuation + "éß€ñ漢",
    _LETTERS + '"\\/+=&<>%',
    _LETTERS + "    ",
)


def random_value(random: Random) -> str:
    """A password, a token, a passphrase, or a key of several lines."""
    if random.random() < 0.05:
        return "\n".join("".join(random.choices(_LETTERS + "+/", k=64)) for _ in range(random.randint(2, 5)))
    while True:
        letters, size = random.choice(_KINDS), random.choice((8, 12, 20, 32, 40, 64))
        value = "".join(random.choices(letters, k=size))
        if value == " ".join(value.split()) and len(value.replace(" ", "")) >= READABLE and len(set(value)) > 5:
            return value


def all_of(secret: str, random: Random) -> Iterator[tuple[str, str]]:
    """Every form of each line of a secret, broken in every way; each with what it is called."""
    for line in {secret, *secret.splitlines()}:
        for form, write in FORMS.items():
            written = write(line)
            for how, break_up in BREAKS.items():
                broken = break_up(written.secret, random)
                yield f"{form}, {how}", f"{written.before}{broken}{written.behind}"


class Reader:
    """Somebody who looks for a secret in texts, and sees through colours, line ends and blanks."""

    def __init__(self, secret: str) -> None:
        lines = {secret, *secret.splitlines()}
        # of HTML the letters are looked for: its quotation marks are on each page
        forms = [write for name, write in FORMS.items() if name != "HTML"]
        known = {_seen(write(line).secret) for line in lines for write in forms}
        self._known = {each[at : at + READABLE] for each in known for at in range(len(each) - READABLE + 1)}

    def reads(self, text: str) -> str:
        """The first piece of the secret that can be read; "" if there is none."""
        unescaped = html.unescape(text)
        for each in {text, unescaped, html.unescape(unescaped), _ESCAPES.sub("", text), _ESCAPES.sub("", unescaped)}:
            seen = _seen(each)
            for at in range(len(seen) - READABLE + 1):
                if seen[at : at + READABLE] in self._known:
                    return seen[max(0, at - 20) : at + 40]
        return ""


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\(B")
_ESCAPES = re.compile(r"\\(?:x1b|u001b)\[[0-9;]*[A-Za-z]|\\[nr]|\\(?=\r?\n)")


def _seen(text: str) -> str:
    return "".join(_COLOUR.sub("", text).split())
