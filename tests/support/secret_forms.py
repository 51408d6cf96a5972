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
from itertools import islice
from random import Random
from typing import NamedTuple
from urllib.parse import quote, quote_plus

READABLE = 8
"""So many letters in a row of a written secret give it away."""


FEW = 3
"""So many letters may be seen where a text ends, as any line may end so."""


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
_NUMBERED: dict[str, Callable[[str], str]] = {
    "each byte quoted for a URL": lambda letter: "".join(f"%{byte:02X}" for byte in letter.encode()),
    "each byte quoted in small letters": lambda letter: "".join(f"%{byte:02x}" for byte in letter.encode()),
    "each byte quoted twice": lambda letter: "".join(f"%25{byte:02X}" for byte in letter.encode()),
    "numbers of HTML": lambda letter: f"&#{ord(letter)};",
    "hexadecimal numbers of HTML": lambda letter: f"&#x{ord(letter):X};",
    "HTML that was written as HTML": lambda letter: f"&amp;#{ord(letter)};",
    "letters by number in JSON": lambda letter: "".join(f"\\u{unit:04x}" for unit in _utf16(letter)),
    "letters by number in JSON in JSON": lambda letter: "".join(f"\\\\u{unit:04X}" for unit in _utf16(letter)),
    "bytes of Python by number": lambda letter: "".join(f"\\x{byte:02x}" for byte in letter.encode()),
    "bytes of C by number": lambda letter: "".join(f"\\{byte:03o}" for byte in letter.encode()),
}
"""How each letter of a secret may be written by its number."""


def _utf16(letter: str) -> Iterator[int]:
    data = letter.encode("utf-16-be")
    return (int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))


def _mixed(secret: str) -> list[str]:
    """Each letter in a form of its own; some as they are."""
    random, forms = Random(secret), [*_NUMBERED.values(), str, str]
    return [random.choice(forms)(letter) for letter in secret]


BY_LETTER: dict[str, Callable[[str], list[str]]] = {
    **{name: (lambda secret, write=write: [write(each) for each in secret]) for name, write in _NUMBERED.items()},
    "each letter in another form": _mixed,
}
FORMS |= {
    "bytes of Python": lambda secret: Written("b'", repr(secret.encode())[2:-1], "'"),
    "JSON in JSON": lambda secret: Written('"[\\"', _json(secret, 2), '\\"]"'),
    "JSON in JSON in JSON": lambda secret: Written('"[\\\\\\"', _json(secret, 3), '\\\\\\"]"'),
    "JSON four times": lambda secret: Written('"', _json(secret, 4), '"'),
    "HTML in JSON": lambda secret: Written('{"a": "', _json(html.escape(secret), 1), '"}'),
    "JSON in HTML": lambda secret: Written("<i>", html.escape(_json(secret, 1)), "</i>"),
    "JSON in a URL": lambda secret: Written("?x=", quote(_json(secret, 1), safe=""), "&y=1"),
    "a form in JSON in HTML": lambda secret: Written("<i>", html.escape(_json(quote_plus(secret), 1)), "</i>"),
    "a URL in a URL": lambda secret: Written("?x=", quote(quote(secret, safe=""), safe=""), "&y=1"),
    "HTML in HTML": lambda secret: Written("<b>", html.escape(html.escape(secret)), "</b>"),
    "a literal of Python in JSON": lambda secret: Written('["', _json(ascii(secret)[1:-1], 1), '"]'),
    "bytes of Python in JSON": lambda secret: Written('["', _json(repr(secret.encode())[2:-1], 1), '"]'),
    "base64 in a URL": lambda secret: Written("?x=", quote(base64.b64encode(secret.encode()).decode(), safe=""), "&y"),
    **{
        name: (lambda secret, write=write: Written("<", "".join(write(secret)), ">"))
        for name, write in BY_LETTER.items()
    },
}


def _json(secret: str, times: int) -> str:
    for _ in range(times):
        secret = json.dumps(secret)[1:-1]
    return secret


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


def all_of(secret: str, random: Random, breaks: int = len(BREAKS)) -> Iterator[tuple[str, str]]:
    """Every form of each line of a secret, whole and broken in so many ways, each with what it is called."""
    for line in {secret, *secret.splitlines()}:
        for form, write in FORMS.items():
            written = write(line)
            for how in ["whole", *random.sample(sorted(BREAKS.keys() - {"whole"}), min(breaks, len(BREAKS) - 1))]:
                broken = BREAKS[how](written.secret, random)
                yield f"{form}, {how}", f"{written.before}{broken}{written.behind}"


class Reader:
    """Somebody who looks for a secret in texts, and sees through colours, line ends and blanks."""

    def __init__(self, secret: str) -> None:
        lines = {secret, *secret.splitlines()}
        # of HTML the letters are looked for: its quotation marks are on each page
        forms = [write for name, write in FORMS.items() if "HTML" not in name and name not in BY_LETTER]
        known = {piece for line in lines for write in forms for piece in _pieces(line, write)}
        self._known = {each for each in known if each.count("\\") <= READABLE // 2 and len(each) == READABLE}
        letters = [write(line) for line in lines for write in BY_LETTER.values()]
        self._by_letter = {
            _seen("".join(each[at : at + READABLE])) for each in letters for at in range(len(each) - READABLE + 1)
        }
        self._by_letter |= {each for each in known if len(each) > READABLE}

    def reads(self, text: str) -> str:
        """The first piece of the secret that can be read; "" if there is none."""
        unescaped = html.unescape(text)
        without = _seen(_ESCAPES.sub("", text))
        looks = {text, unescaped, html.unescape(unescaped), _ESCAPES.sub("", text), _ESCAPES.sub("", unescaped)}
        for each in looks | {html.unescape(without), html.unescape(html.unescape(without)).replace("\\", "")}:
            seen = _seen(each)
            for at in range(len(seen) - READABLE + 1):
                if seen[at : at + READABLE] in self._known:
                    return seen[max(0, at - 20) : at + 40]
            for piece in self._by_letter:
                if piece in seen:
                    return piece
        return ""


def _pieces(secret: str, write: Callable[[str], Written]) -> Iterator[str]:
    """So many characters of it as it is written; where a letter stands by itself, more than a few letters too."""
    letters = _letters(secret, write)
    if not letters:
        seen = _seen(write(secret).secret)
        yield from (seen[at : at + READABLE] for at in range(len(seen) - READABLE + 1))
        return
    for at in range(len(letters)):
        ends = range(at + 1, len(letters) + 1)
        runs = (_seen("".join(letters[at:end])) for end in ends if _seen_of(secret[at:end]) > FEW)
        yield from islice((run for run in runs if len(run) >= READABLE), 1)


def _letters(secret: str, write: Callable[[str], Written]) -> list[str]:
    """Each letter as it is written, if by itself. Beside one quotation mark Python writes the other in another way."""
    for beside in ("", '"'):
        before = write(beside).secret
        letters = [write(beside + each).secret.removeprefix(before) for each in secret]
        if "".join(letters) == write(secret).secret:
            return letters
    return []


def _seen_of(secret: str) -> int:
    """Letters. A backslash is none: wherever it stands, it may be how the next letter is written."""
    return len(secret.replace("\\", ""))


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\(B")
_ESCAPES = re.compile(r"\\(?:x1b|u001b)\[[0-9;]*[A-Za-z]|\\[nr]|\\(?=\r?\n)")


def _seen(text: str) -> str:
    return "".join(_COLOUR.sub("", text).split())
