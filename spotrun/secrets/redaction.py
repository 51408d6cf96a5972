"""
Removes secrets from the texts of notifications.

A secret is recognised by its value or by its shape. The known values are those of the run's own variables and of the
variables in the runner's environment with names like PASSWORD, and webhook URLs. A log line may begin or
end within a secret, so twelve characters of a value are enough to recognise it.

The known shapes are the keys and tokens of well-known services, and values after a name that denotes a secret
(`--password X`, `api_key: X`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

from spotrun.secrets.exact_values import ExactValues, ValueFragments, letters_of
from spotrun.secrets.named_values import hide

HIDDEN = "***"
PIECE = 12
"""Number of characters of a secret that are enough to recognise it. A shorter secret is recognised only as a whole."""
TEXT_MAX = 4096
"""Maximum characters of a text that is sent. A longer text is cut first, and then searched for secrets."""
AT_THE_CUT = 256
"""
Number of characters that are dropped at the end of a text that was cut. If the cut went through a secret, the part
before the cut may not be recognised as one.
"""
VALUE_MIN, SECRET_MIN = 8, 4
"""
Minimum length of a value that counts as a secret: `SECRET_MIN` if its name sounds secret, otherwise `VALUE_MIN`. A
shorter value is probably a word like `true` or a number like `0.1`.
"""
_OF_TEXT = re.compile(
    r"TOKENI[SZ][A-Z]*|(?:MAX|MIN|NUM|PAD|EOS|BOS|UNK)_(?:NEW_)?TOKENS?"
    r"|TOKENS?_(?:COUNT|IDS?|LEN|LENGTH|LIMIT|SIZE)(?![A-Z])",
    re.IGNORECASE,
)
"""Names of variables that are about tokens of text, and are therefore not secret."""
SOUNDS_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|WEBHOOK|DSN|COOKIE|PRIVATE", re.IGNORECASE)
WELL_KNOWN = r"""
      \b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|pk_live_|sk_live_|rk_live_|npm_|pypi-|dop_v1_)[\w-]{8,}
    | \bxox[abeoprs]-[\w-]{8,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}
    | \bAIza[\w-]{20,}
    | (?<![\w-])eyJ[\w-]{8,4096}+\.[\w-]{8,}(?:\.[\w-]*)?
    | -----BEGIN[^-]{0,64}PRIVATE\ KEY-----.*?(?:-----END[^-]*-----|$)
    | (?<=hooks\.slack\.com/)[^\s$"']+
    | (?<=discord\.com/api/webhooks/)[^\s$"']+
    | (?<=://)[^\s/@$]++@
"""
"""
The shapes of keys and tokens of well-known services. An address with a variable in it (`https://$USER@…`) is no match.
"""
_WELL_KNOWN = re.compile(WELL_KNOWN, re.VERBOSE | re.DOTALL)


def holds_credential(text: str) -> bool:
    """Return True if `text` contains a key, a token or the address of a webhook."""
    return _WELL_KNOWN.search(text) is not None


class Redactor:
    """Hides the given secrets, and all text that looks like a secret."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {form for secret in secrets for form in forms_of(secret)}
        paths = {each for each in known if each.startswith("/")}  # parts of these occur in harmless paths too
        whole = {each for each in known if letters_of(each) < PIECE}
        self._whole, self._pieces = ExactValues(paths | whole), ValueFragments(known - paths, PIECE)

    def clean(self, text: str) -> str:
        return hide(_WELL_KNOWN.sub(HIDDEN, self._without_exact(text)), HIDDEN)

    def clean_short(self, text: str) -> str:
        """Clean a text and cut it to TEXT_MAX characters. No part of a secret remains at the cut."""
        if len(text) <= TEXT_MAX:
            return self.clean(text)
        return self.clean(text[:TEXT_MAX])[:-AT_THE_CUT] + " …"

    def clean_all(self, value: Any) -> Any:
        """Return a copy of plain data in which all strings, including keys, are cleaned and shortened."""
        if isinstance(value, str):
            return self.clean_short(value)
        if isinstance(value, dict):
            return {self.clean_short(key): self.clean_all(item) for key, item in value.items()}
        return [self.clean_all(item) for item in value] if isinstance(value, list | tuple) else value

    def _without_exact(self, text: str) -> str:
        """
        Replace each known value in the text with HIDDEN, together with the breaks within the value. Values that overlap
        are replaced with a single HIDDEN.
        """
        stretches = sorted((each[0], each[-1] + 1) for each in [*self._whole.found(text), *self._pieces.found(text)])
        kept: list[str] = []
        done = 0
        for start, end in stretches:
            if start > done or not kept:
                kept += text[done:start], HIDDEN
            done = max(done, end)
        return "".join([*kept, text[done:]])


def forms_of(secret: str) -> Iterator[str]:
    """
    Yield each line of the secret in every form in which programs write it: unchanged, in a URL, in JSON, in HTML, as a
    Python literal, in hexadecimal, and in base64. In base64, the secret may be part of a longer text, such as
    `user:secret`.
    """
    for line in {each.strip() for each in (secret, *secret.splitlines())}:
        if len(line) < SECRET_MIN:
            continue
        data = line.encode("utf-8", "surrogatepass")
        yield from (line, quote(data, safe=""), quote(data), quote_plus(data))
        yield from (json.dumps(line)[1:-1], json.dumps(line, ensure_ascii=False)[1:-1], repr(line)[1:-1], escape(line))
        yield from (line.encode("unicode_escape").decode(), ascii(line)[1:-1])
        yield from (data.hex(), data.hex().upper())
        for written in (base64.b64encode, base64.urlsafe_b64encode):
            yield written(data).decode().rstrip("=")
            yield from (found for found in _within(data, written) if len(found) >= VALUE_MIN)


def _within(data: bytes, written: Callable[[bytes], bytes]) -> Iterator[str]:
    """
    Yield three texts. The base64 of any text that contains the secret contains one of them. There are three because
    base64 encodes three bytes at a time, and the secret can begin at the first, second or third of them.
    """
    for before in range(3):  # number of bytes before the secret, modulo three: base64 encodes groups of three
        whole = len(data) + before
        yield written(bytes(before) + data).decode()[-(-before * 8 // 6) : whole * 8 // 6]


def secrets_in(own: Mapping[str, str], environment: Mapping[str, str], addresses: Iterable[str]) -> set[str]:
    """Return the secrets in the run's own variables, in the environment, and in webhook addresses."""
    values = {value for name, value in own.items() if len(value) >= _least(name)}
    values |= {value for name, value in environment.items() if sounds_secret(name) and len(value) >= SECRET_MIN}
    return values | {part for address in addresses for part in _secret_parts(address)}


def _least(name: str) -> int:
    return SECRET_MIN if sounds_secret(name) else VALUE_MIN


def sounds_secret(name: str) -> bool:
    """Return True if a variable with this name probably holds a secret."""
    return SOUNDS_SECRET.search(_OF_TEXT.sub("", name)) is not None


def _secret_parts(address: str) -> Iterable[str]:
    """Yield the parts of an address that may be secret: all but its scheme and host."""
    parts = urlsplit(address)
    userinfo, at, _ = parts.netloc.rpartition("@")
    yield from (part for part in (userinfo if at else "", parts.query, parts.fragment) if len(part) >= SECRET_MIN)
    yield from (part for part in parts.path.split("/") if len(part) >= VALUE_MIN)
    yield parts.path
