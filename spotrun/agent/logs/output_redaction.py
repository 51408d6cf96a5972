"""
Replaces the secrets that a program prints by stars, before its output leaves the instance. Each byte becomes one star,
so shipped output has as many bytes as the file.

It finds two kinds of secret:
- exact values: the run's secrets, also in the forms in which programs quote them, and the values of variables whose
  names sound secret. A value of several lines is searched line by line.
- values after a name that sounds secret (`--password X`, `api_key: X`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotrun.secrets import named_values
from spotrun.secrets.exact_values import ExactValues
from spotrun.secrets.readings import WAYS_OF_BYTES
from spotrun.secrets.redaction import forms_of, sounds_secret

ONE_BYTE_EACH = "latin-1"
"""Encoding that reads each byte of any text as one character."""
STAR = ord("*")
VALUE_MIN = 8
"""Minimum length of a secret, in characters. A shorter value occurs in any output by chance."""


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """Return the values of variables whose names sound secret. A path is not a secret, even of a file with secrets."""
    values = [value for name, value in environment.items() if sounds_secret(name) and not value.startswith("/")]
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    return {line for line in lines if len(line) >= VALUE_MIN}


def forms_of_all(secrets: Iterable[str]) -> set[str]:
    """Return the secrets as they are, and quoted for a URL, in JSON and in base64."""
    return {form for secret in secrets for form in forms_of(secret)}


def _one_byte_each(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(ONE_BYTE_EACH)


class OutputRedaction:
    """
    Replaces `secrets` by stars. Also replaces the first `sealed` bytes of the output, which were written when other
    secrets may have been in use.
    """

    def __init__(self, secrets: Iterable[str] = (), sealed: int = 0) -> None:
        self.sealed = sealed
        self._secrets = [secret.encode() for secret in secrets]
        self._exact = ExactValues((secret.decode(ONE_BYTE_EACH) for secret in self._secrets), WAYS_OF_BYTES)

    @property
    def reach(self) -> int:
        """Maximum number of bytes before a position that may belong to a secret that continues after that position."""
        return max(named_values.REACH, self._exact.reach)

    def hide(self, data: bytes) -> bytes:
        """Return `data`, in the same length, with every whole secret replaced. A secret cut off at an end stays."""
        return named_values.hide(self._without_exact(data)).encode(ONE_BYTE_EACH)

    def _without_exact(self, data: bytes) -> str:
        text = data.decode(ONE_BYTE_EACH)
        hidden = bytearray(data)
        for places in self._exact.found(text):
            for place in places:
                hidden[place] = STAR
        return hidden.decode(ONE_BYTE_EACH)

    def finds(self, data: bytes) -> bool:
        """Return True if `data` contains an exact value. Named values do not count: a file may need to hold them."""
        return any(secret in data for secret in self._secrets)

    def is_in(self, name: str) -> bool:
        """Return True if the name of a file contains an exact value in any form."""
        return any(True for _ in self._exact.found(_one_byte_each(name)))

    def hide_in(self, name: str) -> str:
        return self.hide(name.encode(errors="surrogateescape")).decode(errors="replace")

    def unfinished(self, data: bytes) -> int:
        """
        Return the number of bytes at the end that may begin a secret whose remainder is still to come. `data` is the
        original output, because even a redacted value may be the name before another value.
        """
        end = data[-self.reach :]
        return max(named_values.unfinished(self._without_exact(end)[-named_values.REACH :]), self.begun(end))

    def begun(self, data: bytes, least: int = 1) -> int:
        """Return how many bytes at the end begin an exact value; 0 if they are fewer than `least` characters of it."""
        return self._exact.begun(data[-self.reach :].decode(ONE_BYTE_EACH), least)
