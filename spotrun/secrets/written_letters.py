"""
Regular expressions for characters that a program has encoded (backslash escapes, `%41`, `&#65;`), and for what may
stand between the characters of a secret, such as spaces and colour codes.
"""

from __future__ import annotations

import re
from html.entities import html5

COLOUR = r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[ -/]*[0-~]?)"
"""
A terminal colour, of which the end may be missing:
ecma-international.org/publications-and-standards/standards/ecma-48/, 5.4.
"""
WRITTEN_COLOUR = r"(?<!\\)\\++(?:x1[bB]|u001[bB]|033|e)\[[0-?]*[ -/]*[@-~]?"
BLANKS = "".join(chr(code) for code in (*range(0x1B), *range(0x1C, 0x21), 0x7F))
BLANK = rf"[{re.escape(BLANKS)}]+"
WRITTEN_BLANK = r"(?<!\\)\\++(?:[nrt]|u000[9aAdD]|x0[9aAdD]|(?=[\r\n]))"
_HEX = "[0-9a-fA-F]"
_NUMBERS = rf"""
      u(?P<u>{_HEX}{{4}}) | U(?P<U>{_HEX}{{8}}) | u\{{(?P<braced>{_HEX}{{1,6}})\}}
    | x(?P<x>{_HEX}{{2}}) | (?P<octal>[0-3][0-7]{{2}}) | (?P<blank>[bfnrt])
"""
_SIGNS = rf"""
      %(?:(?P<quoted>{_HEX}{{2}}) | u(?P<quoted_u>{_HEX}{{4}}))
    | &(?:\#(?P<decimal>\d{{1,7}}) | \#[xX](?P<hexadecimal>{_HEX}{{1,6}}) | (?P<name>[A-Za-z][A-Za-z0-9]{{1,31}}));
"""
LETTER = re.compile(
    rf"""
      \\++(?: u(?P<high>[dD][89abAB]{_HEX}{{2}})\\++u(?P<low>[dD][c-fC-F]{_HEX}{{2}}) | {_NUMBERS} | )
    | {_SIGNS}
    """,
    re.VERBOSE | re.ASCII,
)
BEGUN = re.compile(
    rf"""
      (?<!\\)\\++(?:
          u[dD][89abAB]{_HEX}{{2}}\\*+(?:u{_HEX}{{0,3}})? | u{_HEX}{{0,3}} | u\{{{_HEX}{{0,6}} | U{_HEX}{{0,7}}
        | x{_HEX}? | [0-3][0-7]? | u001[bB] | x1[bB] | 033 | e | )\Z
    | %(?:{_HEX}? | u{_HEX}{{0,3}})\Z
    | &(?:\#[xX]?{_HEX}{{0,7}} | [A-Za-z][A-Za-z0-9]{{0,31}})?\Z
    | [\xc2\xc3]\Z
    """,
    re.VERBOSE | re.ASCII,
)
"""
Matches characters at the end of a text that could be the beginning of an encoded character or of a break, such as the
code of the first byte of a two-byte letter.
"""

SIGNS = ("\\", "%", "&")
"""The characters with which an encoded character begins."""
SIGNS_CUT = tuple(f"\\{each}" for each in "\n\r\t \x1b")
"""
A backslash followed by a line end, a blank or the start of a colour. Such a pair in a text may mean that a program has
inserted a break between a backslash and the character code that belongs to it.
"""


def utf8(character: str) -> str:
    """Return a string with one character for each byte of the character's UTF-8 form."""
    return character.encode("utf-8", "surrogatepass").decode("latin-1")


def _numbered(code: int) -> str:
    return utf8(chr(code)) if code <= 0x10FFFF else ""


def letter_of(found: re.Match[str]) -> str:
    """Decode a match of LETTER. The result has one character for each byte of the decoded character's UTF-8 form."""
    match found.lastgroup:
        case None:
            return ""  # backslashes before a letter that stands for itself
        case "low":
            pair = bytes.fromhex(found["high"] + found["low"]).decode("utf-16-be")
            return utf8(pair)
        case "u" | "U" | "braced" | "quoted_u" | "hexadecimal" as kind:
            return _numbered(int(found[kind], 16))
        case "x" | "quoted" as kind:
            return chr(int(found[kind], 16))
        case "octal":
            return chr(int(found["octal"], 8))
        case "decimal":
            return _numbered(int(found["decimal"]))
        case "name":
            known = html5.get(f"{found['name']};")
            return found[0] if known is None else utf8(known)
    return "\n"
