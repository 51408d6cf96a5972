"""
Finds secret values by the names that precede them.

    --password X    HF_TOKEN=X    "api_key": "X"    X-Api-Key: X    Authorization: Bearer X    https://me:X@host/?sig=X

The end of a name decides whether the value after it is a secret. `hub_token` is the name of a secret; `max_tokens`,
`token-count` and `pad_token` are not.

Some values are never secrets, whatever their name is: a variable (`$HF_TOKEN`), a placeholder (`<token>`), a word like
`None`, a path, a number after `token`, an expression (`token=self.token`), and a value of fewer than four characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

NAME_MAX, VALUE_MAX = 64, 4096
"""Maximum characters of a name, and maximum characters of a value. No password or token is longer."""
REACH = NAME_MAX + VALUE_MAX + 64
"""
Number of preceding characters that are enough to decide whether a character belongs to a secret. It is the maximum
length of a name, the signs after it, and a value.
"""
UNDECIDED_MAX = 64
"""
Minimum length at which a value counts as a secret although its end has not arrived yet. Whether a shorter value is a
secret is decided only when all of it has arrived.
"""
SECRET_MIN, BEARER_MIN = 4, 16
NUMBER_MAX = 11
"""
Maximum length of a number that does not count as a secret after the name `token`. Such a number is probably a count of
tokens, or a price per token.
"""

_KEY = r"(?:api|access|secret|private|auth|account|signing|encryption)[_-]?keys?"
_CORE = rf"(?P<core>secrets?|passw(?:or)?ds?|passphrase|token|credentials?|{_KEY})(?:[_-]?\d{{1,3}})?"
_SIGN = r"""\\*["']?\]?[ \t]{0,8}(?::=|=>|[=:](?![=:]))[ \t]{0,8}"""
_NAME = re.compile(rf"{_CORE}(?![\w-])(?:(?P<sign>{_SIGN})|[ ](?![\s-]))", re.IGNORECASE | re.ASCII)
_WHOLE_NAME = re.compile(rf"{_CORE}$", re.IGNORECASE | re.ASCII)
_FLAG = re.compile(rf"(?<![\w-])--?[\w.-]{{0,{NAME_MAX}}}$", re.ASCII)
"""
Matches the beginning of a flag, such as `--hub-` in `--hub-token`. Flags differ from other names in what separates the
name from its value: after a flag, a blank is enough. After any other name, there must be a sign such as `=` or `:`.
"""
_VALUE = re.compile(
    rf"""
      (?P<quote>\\*["'])(?P<quoted>(?:(?!(?P=quote))\\.|(?!(?P=quote))[^\\\r\n]){{0,{VALUE_MAX}}})
    | (?P<bare>[^\s"']{{1,{VALUE_MAX}}})
    """,
    re.VERBOSE | re.ASCII,
)
_BY_PLACE = re.compile(
    rf"""
      authorization\\*["']?[ \t]{{0,8}}[:=][ \t]{{0,8}}\\*["']?
      (?:bearer|basic|digest|token|negotiate|api-?key|aws4-hmac-sha256)[ ](?P<header>[^\r\n"'\\]{{1,{VALUE_MAX}}})
    | \bbearer[ ](?P<bearer>[\w.~+/=-]{{{BEARER_MIN},{VALUE_MAX}}})
    | [?&](?:[\w.-]{{0,{NAME_MAX}}}[_.-])?(?:sig|signature|auth|code|key)=(?P<query>[^\s&\#"']{{1,{VALUE_MAX}}})
    | ://[^\s/:@"']{{0,{NAME_MAX}}}:(?P<login>[^\s/@$"']{{1,{VALUE_MAX}}})@
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_HINTS = ("secret", "passw", "passphrase", "token", "credential", "key", "auth", "bearer", "sig", "code=", "://")
"""
Texts of which at least one occurs in every text with a named secret. To save time, a text that contains none of them is
not searched.
"""
_OF_TEXT = re.compile(
    r"pad|eos|bos|unk|sep|cls|mask|special|start|end|stop|begin|image|img|video|audio|vision|class|prompt|per|each|next|new"
    r"|prev|previous|current|first|last|generated|sampled|predicted|input|output|word|dummy|empty|extra|placeholder|initializer|separator",
    re.IGNORECASE,
)
"""
Words that, right before `token`, show that the name is about a token of text, as in `pad_token`. Such a token is not a
secret.
"""
_WORD = re.compile(
    r"none|null|true|false|yes|no|on|off|undefined|unset|missing|required|optional|redacted|hidden|text|string|bytes|bool|value",
    re.IGNORECASE,
)
_EXPRESSION = re.compile(
    r"(?:self|cls|os|args|cfg|config|settings|environ|kwargs|hparams|opts?)[.\[(]|(?:list|optional)\[|[a-z_][\w.]*\($"
    r"|\$\(|\$\{\w+\}?$|(?-i:\$[A-Z_][A-Z0-9_]*$)|<[^<>]*>$|\[[a-z_]+$|\{\w*$|\*+$|\.\.\.$",
    re.IGNORECASE | re.ASCII,
)
_NUMBER = re.compile(r"[-+]?\d[\d.,_]*(?:e[-+]?\d+)?[a-z%/]{0,6}", re.IGNORECASE | re.ASCII)
_PATH = re.compile(r"[~.]{0,2}/[\w.-]*(?:/[\w.-]*)*", re.ASCII)
_LAST_WORD = re.compile(r"(?:[a-z]+|[A-Z][a-z]+|[A-Z]+)$")


class NamedValue(NamedTuple):
    """
    The position of a value that follows a name. `secret` is True if the value looks like a secret. `ends` is True if
    the text ends with the value, so that more of it may follow.
    """

    start: int
    end: int
    secret: bool
    ends: bool


def names_secret(name: str) -> bool:
    """Return True if the value of a flag, a key or a variable with this name is a secret."""
    found = _WHOLE_NAME.search(name)
    return found is not None and not _is_of_text(found["core"], name[: found.start()])


def is_secret(name: str, value: str, at_least: int = SECRET_MIN) -> bool:
    """
    Return True if `value` is a secret, as a word of a command after the word `name`, such as `--password`, or as the
    value of a variable with this name. A secret has `at_least` this many characters.
    """
    found = _WHOLE_NAME.search(name)
    return found is not None and names_secret(name) and _is_secret(value, found["core"].casefold(), at_least)


def hide(text: str, hidden: str | None = None) -> str:
    """
    Replace each secret value in `text` with `hidden`. Without `hidden`, replace each character of the value with an
    asterisk.
    """
    kept: list[str] = []
    done = 0
    for start, end, secret, _ in sorted(values_in(text)):
        if secret and end > done:
            first = max(start, done)
            kept += text[done:first], "*" * (end - first) if hidden is None else hidden
            done = end
    return "".join([*kept, text[done:]])


def unfinished(text: str) -> int:
    """
    Return the length of the value at the very end of the text. More text could continue this value, so it is not yet
    clear whether it is a secret. Return 0 if the text does not end with a value.
    """
    begun = (len(text) - found.start for found in values_in(text) if found.ends)
    return max((size for size in begun if size < UNDECIDED_MAX), default=0)


def values_in(text: str) -> Iterator[NamedValue]:
    """
    Yield the values that follow names of secrets, in no particular order. A value ends at the end of its line. If a
    value contains another name with a value, that inner value is yielded too.
    """
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return
    for name in _NAME.finditer(text):
        before = text[max(0, name.start() - NAME_MAX) : name.start()]
        value = _VALUE.match(text, name.end()) if name["sign"] or _FLAG.search(before) else None
        if value is not None and not _is_of_text(name["core"], before):
            yield _judged(value, "quoted" if value["bare"] is None else "bare", name["core"].casefold())
    for place in _BY_PLACE.finditer(text):
        yield _judged(place, str(place.lastgroup), "")


def _judged(match: re.Match[str], group: str, core: str) -> NamedValue:
    start, end = match.span(group)
    value = match[group].rstrip(",;)}]") if group == "bare" else match[group]
    return NamedValue(start, start + len(value), _is_secret(value, core), end == len(match.string))


def _is_of_text(core: str, before: str) -> bool:
    """Return True if the token in the name is a tokenizer's, as in `pad_token` and `eosToken`, and not a secret."""
    word = _LAST_WORD.search(before.rstrip("_.-"))
    return core.casefold() == "token" and word is not None and bool(_OF_TEXT.fullmatch(word[0]))


def _is_secret(value: str, core: str, at_least: int = SECRET_MIN) -> bool:
    if len(value) < at_least or _WORD.fullmatch(value):
        return False
    if _EXPRESSION.match(value) or _PATH.fullmatch(value) or _is_passed_on(value, core):
        return False
    return not (core == "token" and len(value) <= NUMBER_MAX and _NUMBER.fullmatch(value))


def _is_passed_on(value: str, core: str) -> bool:
    """
    Return True if the value is itself the name of a variable that holds the secret, as in `token=hub_token` and
    `--api-key API_KEY`.
    """
    written, name = value.casefold().replace("-", "_"), core.replace("-", "_")
    return bool(core) and (written == name or written.endswith(f"_{name}"))
