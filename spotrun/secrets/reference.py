"""Where the value of a secret is: a specification names it and never holds it."""

from __future__ import annotations

import re
from typing import NamedTuple

from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.units import Unreadable

ENVIRONMENT, PARAMETER = "env", "ssm"
REFERENCE_PATTERN = r"^(env:[A-Za-z_][A-Za-z0-9_]*|ssm:(/[A-Za-z0-9_.-]+)+)$"
PARAMETERS = "/spotrun/"
"""What the role of instances may read in the Parameter Store (infra/aws/account.yaml)."""


class Reference(NamedTuple):
    """
    `env`: a variable of whoever launches. `ssm`: a SecureString of that path in AWS's Parameter Store, in the region of
    the instance.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class SecretUnreadable(SpotrunError):
    """A secret that a run names is not there, or may not be read from here."""

    exit_code = SpecInvalid.exit_code


def parse(text: object) -> Reference:
    """
    Raises:
        Unreadable: it is no reference. What was written is not quoted, for it may be the secret itself.
    """
    if not isinstance(text, str) or not re.fullmatch(REFERENCE_PATTERN, text, re.ASCII):
        raise Unreadable(
            "is no reference; a value does not belong into a file",
            "write ssm:/spotrun/NAME, or env:NAME on the local cloud, or nothing for where it is by its own name",
        )
    kind, _, name = text.partition(":")
    return Reference(kind, name)


def resolved(name: str, text: str, cloud: str) -> Reference:
    """Of the secret `name`; where `text` is empty it is found by its own name."""
    if text:
        return parse(text)
    return Reference(PARAMETER, PARAMETERS + name) if cloud == "aws" else Reference(ENVIRONMENT, name)
