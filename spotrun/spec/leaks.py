"""
Secrets that stand in `envs` of a job, where everybody who may read the ledger would read them for ever: refused.

By name, where the value is more than a word, a number or a path; and by shape, whatever the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from spotrun.secrets.credentials import holds_credential
from spotrun.spec.problems import Problem

NAMED = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|(?:ACCESS|SECRET|PRIVATE|AUTH)_KEY|CREDENTIALS?|DSN|WEBHOOK)$",
    re.IGNORECASE,
)
KEY = re.compile(r"(?:^|_)KEY$", re.IGNORECASE)
"""May as well be the key of a mapping (`SORT_KEY: timestamp`): only a long value with digits is taken for a secret."""
SECRET_MIN, KEY_MIN = 8, 16
"""Characters."""
MESSAGE = "looks like a secret, and envs are written into the ledger as they are"
BY_HAND = {
    "local": "export it where spotrun runs, and name it under secrets instead",
    "aws": "name it under secrets instead: its value is read from the Parameter Store (`spotrun doctor aws`)",
}
"""What to do instead, by cloud."""


def plain_secrets(envs: Mapping[str, str], cloud: str) -> Iterator[Problem]:
    """Each variable that holds one. No text in them is from a value."""
    for name, value in envs.items():
        if _is_secret(name, value):
            yield Problem(("envs", name), MESSAGE, BY_HAND[cloud])


def _is_secret(name: str, value: str) -> bool:
    if holds_credential(value):
        return True
    if value.startswith(("/", "~", "./")) or value.replace(".", "", 1).isdigit():
        return False
    if NAMED.search(name):
        return len(value) >= SECRET_MIN
    return bool(KEY.search(name)) and len(value) >= KEY_MIN and any(character.isdigit() for character in value)
