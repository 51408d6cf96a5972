"""
Stars out the secrets that a program prints, before its output leaves the instance. Nothing else of it is changed.

Two kinds are looked for. Exact values: the run's secrets, and variables whose names sound secret. A value of several
lines is looked for line by line; the run's secrets also in the forms in which programs quote them. And what stands
behind a name that says it is secret (`--password X`, `api_key: X`). Each byte becomes a star, so that what was shipped
can still be counted in bytes of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from spotrun.secrets import named_values
from spotrun.secrets.redaction import forms_of, sounds_secret

ONE_BYTE_EACH = "latin-1"
"""Bytes as text in which each is one character, whatever their encoding."""
VALUE_MIN = 8
"""Characters. A shorter value occurs in any output by chance."""


def secret_values(environment: Mapping[str, str]) -> set[str]:
    """The values of variables whose names sound secret. A path is no secret, whatever it leads to."""
    values = [value for name, value in environment.items() if sounds_secret(name) and not value.startswith("/")]
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    return {line for line in lines if len(line) >= VALUE_MIN}


def forms_of_all(secrets: Iterable[str]) -> set[str]:
    """The secrets as they are, and quoted for a URL, in JSON and in base64."""
    return {form for secret in secrets for form in forms_of(secret)}


class OutputRedaction:
    """
    Stars out the secrets that it was made with, and all of the first `sealed` bytes of what it is shown: they were
    written when other secrets may have been known.
    """

    def __init__(self, secrets: Iterable[str] = (), sealed: int = 0) -> None:
        self.sealed = sealed
        self._secrets = sorted((secret.encode() for secret in secrets), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets))) if self._secrets else None

    @property
    def reach(self) -> int:
        """How many bytes before a position may belong to a secret that continues there."""
        return max(named_values.REACH, len(self._secrets[0]) - 1 if self._secrets else 0)

    def hide(self, data: bytes) -> bytes:
        """`data`, as long as it was, without any whole secret."""
        return named_values.hide(self._without_exact(data).decode(ONE_BYTE_EACH)).encode(ONE_BYTE_EACH)

    def _without_exact(self, data: bytes) -> bytes:
        return data if self._pattern is None else self._pattern.sub(lambda found: b"*" * len(found[0]), data)

    def finds(self, data: bytes) -> bool:
        """Whether an exact value is in it: what a file says behind a name may be its purpose."""
        return any(secret in data for secret in self._secrets)

    def unfinished(self, data: bytes) -> int:
        """
        How many bytes at the end may be the beginning of a secret of which the rest is still to come. `data` as it was
        written: what is hidden may be a name before another value.
        """
        named = named_values.unfinished(self._without_exact(data)[-named_values.REACH :].decode(ONE_BYTE_EACH))
        return max([named, *(self._begun(data, secret) for secret in self._secrets)])

    @staticmethod
    def _begun(data: bytes, secret: bytes) -> int:
        longest = min(len(secret) - 1, len(data))
        return next((size for size in range(longest, 0, -1) if data.endswith(secret[:size])), 0)
