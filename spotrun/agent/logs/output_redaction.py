"""
Replaces the secrets in a program's output with stars, before the output leaves the instance. Each byte becomes one
star, so every byte of shipped output has the same offset as in the file.

It finds two kinds of secret:
- exact values: the run's secrets, also quoted or escaped as programs print them, and the values of variables whose
  names sound secret. A multi-line value is searched for line by line.
- values after a name that sounds secret (`--password X`, `api_key: X`)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotrun.secrets import named_values
from spotrun.secrets.exact_values import ExactValues
from spotrun.secrets.readings import WAYS_OF_BYTES
from spotrun.secrets.redaction import forms_of, sounds_secret

ONE_BYTE_EACH = "latin-1"
"""An encoding in which each byte of any text is read as one character."""
STAR = ord("*")
VALUE_MIN = 8
"""Minimum length of a secret, in characters. A shorter value would occur in any output by chance."""


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """
    Return the values of variables whose names sound secret. A path does not count as a secret, even if it leads to a
    file with secrets.
    """
    values = [value for name, value in environment.items() if sounds_secret(name) and not value.startswith("/")]
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    return {line for line in lines if len(line) >= VALUE_MIN}


def forms_of_all(secrets: Iterable[str]) -> set[str]:
    """Return each secret in all its forms: as it is, quoted for a URL, quoted for JSON, and encoded in base64."""
    return {form for secret in secrets for form in forms_of(secret)}


def _one_byte_each(name: str) -> str:
    return name.encode(errors="surrogateescape").decode(ONE_BYTE_EACH)


class OutputRedaction:
    """
    Replaces `secrets` with stars, and also the output's first `sealed` bytes: this part was written before this agent
    started, and may contain secrets that this agent does not know.
    """

    def __init__(self, secrets: Iterable[str] = (), sealed: int = 0) -> None:
        self.sealed = sealed
        self._secrets = [secret.encode() for secret in secrets]
        self._exact = ExactValues((secret.decode(ONE_BYTE_EACH) for secret in self._secrets), WAYS_OF_BYTES)

    @property
    def reach(self) -> int:
        """
        Number of bytes that a reader must also read before its position in the output, so that it finds every secret
        that begins before the position and ends after it.
        """
        return max(named_values.REACH, self._exact.reach)

    def hide(self, data: bytes) -> bytes:
        """
        Return `data` with each complete secret replaced by as many stars. A secret is not replaced if only its end or
        only its beginning is in `data`.
        """
        return named_values.hide(self._without_exact(data)).encode(ONE_BYTE_EACH)

    def _without_exact(self, data: bytes) -> str:
        text = data.decode(ONE_BYTE_EACH)
        hidden = bytearray(data)
        for places in self._exact.found(text):
            for place in places:
                hidden[place] = STAR
        return hidden.decode(ONE_BYTE_EACH)

    def finds(self, data: bytes) -> bool:
        """
        Return True if `data` contains the exact value of a secret. Ignore values that are recognised only by the
        secret-sounding name before them: many files contain such values legitimately.
        """
        return any(secret in data for secret in self._secrets)

    def is_in(self, name: str) -> bool:
        """Return True if the name of a file contains the exact value of a secret, quoted or not."""
        return any(True for _ in self._exact.found(_one_byte_each(name)))

    def hide_in(self, name: str) -> str:
        return self.hide(name.encode(errors="surrogateescape")).decode(errors="replace")

    def unfinished(self, data: bytes) -> int:
        """
        Return how many bytes at the end of `data` might be the beginning of a secret that continues in later output.
        `data` must be the original output, not the redacted one. In redacted output, a name that announces a secret
        value (such as `--password`) may itself have been replaced with stars.
        """
        end = data[-self.reach :]
        return max(named_values.unfinished(self._without_exact(end)[-named_values.REACH :]), self.begun(end))

    def begun(self, data: bytes, least: int = 1) -> int:
        """
        Return how many bytes at the end of `data` are the beginning of a secret's exact value; 0 if they are fewer than
        `least`.
        """
        return self._exact.begun(data[-self.reach :].decode(ONE_BYTE_EACH), least)
