"""
Refuses secrets in `envs` of a job, because all readers of the ledger could read them forever.

A value with the form of a credential counts as a secret, whatever the variable's name is. The value of a variable with
a name like PASSWORD counts too, unless this value is a short word, a number or a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spotrun.secrets.named_values import names_secret
from spotrun.secrets.redaction import holds_credential
from spotrun.spec.problems import Problem

NAMED = re.compile(r"(?:^|_)(?:DSN|WEBHOOK)$", re.IGNORECASE)
KEY = re.compile(r"(?:^|_)KEY$", re.IGNORECASE)
"""
The end of names whose value may also be the key of a mapping (`SORT_KEY: timestamp`). So such a value counts as a
secret only if it is long and has digits.
"""
SECRET_MIN, KEY_MIN = 8, 16
"""Minimum lengths, in characters, of a value that counts as a secret because of its name."""
MESSAGE = "looks like a secret, and envs are written into the ledger as they are"


def plain_secrets(envs: Mapping[str, str], instead: str) -> Iterator[Problem]:
    """
    Yield a problem for each variable that holds a secret, with the advice `instead`. The problems never quote a value.
    """
    for name, value in envs.items():
        if _is_secret(name, value):
            yield Problem(("envs", name), MESSAGE, instead)


def _is_secret(name: str, value: str) -> bool:
    if holds_credential(value):
        return True
    if value.startswith(("/", "~", "./")) or value.replace(".", "", 1).isdigit():
        return False
    if names_secret(name) or NAMED.search(name):
        return len(value) >= SECRET_MIN
    return bool(KEY.search(name)) and len(value) >= KEY_MIN and any(character.isdigit() for character in value)
