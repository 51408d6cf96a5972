"""
Refuses secrets in a job's `envs`. Whatever `envs` contains is written into the ledger, and anyone who can read the
ledger can read it forever.

A value that has the form of a credential is a secret, whatever its variable's name is. If a variable has a name like
PASSWORD, its value is a secret too, however short it is, unless it is a number, a path, a word such as `true`, or a
reference such as `$DB_PASSWORD`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spotrun.secrets.named_values import is_secret
from spotrun.secrets.redaction import holds_credential
from spotrun.spec.problems import Problem
from spotrun.units import shown

SHORTENED = re.compile(r"(?:^|_)(?:PASS|PWD)$", re.IGNORECASE)
"""Matches names that end with a short form of PASSWORD."""
NAMED = re.compile(r"(?:^|_)(?:DSN|WEBHOOK)$", re.IGNORECASE)
KEY = re.compile(r"(?:^|_)KEY$", re.IGNORECASE)
"""
Matches names that end with KEY. Such a name is ambiguous: its value can be a secret, or an ordinary key such as the
name of a column (`SORT_KEY: timestamp`). The value counts as a secret only if it is long and has digits.
"""
NAMED_MIN, KEY_MIN = 8, 16
"""
Minimum lengths, in characters, of a value that counts as a secret because its variable's name matches `NAMED` or `KEY`.
"""
MESSAGE = "looks like a secret, and envs are written into the ledger as they are"


def plain_secrets(envs: Mapping[str, str], instead: str) -> Iterator[Problem]:
    """
    Yield a problem for each variable that contains a secret. `instead` is the advice on where to put the secret, with
    NAME for the variable's name. The problems never quote a value.
    """
    for name, value in envs.items():
        if _is_secret(name, value):
            yield Problem(("envs", name), MESSAGE, instead.replace("NAME", shown(name)))


def _is_secret(name: str, value: str) -> bool:
    if holds_credential(value):
        return True
    if value.startswith(("/", "~", "./")) or value.replace(".", "", 1).isdigit():
        return False
    if is_secret(SHORTENED.sub("_PASSWORD", name), value, at_least=1):
        return True
    if NAMED.search(name):
        return len(value) >= NAMED_MIN
    return bool(KEY.search(name)) and len(value) >= KEY_MIN and any(character.isdigit() for character in value)
