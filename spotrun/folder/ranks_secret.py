"""
The shared secret by which the ranks of a gang recognise each other.

The secret is an object in the run's folder. It needs no better protection: a process that can read this folder has the
run's code and data anyway. A process that cannot read it is unable to pose as a rank, even if it is on the members'
network. The run's private key cannot serve as the secret, because instances must not have that key.
"""

from __future__ import annotations

import re
import secrets

from spotrun.errors import StoreError
from spotrun.store.port import Store
from spotrun.store.retrying import persist

NAME = "ranks-secret"
_BYTES = 32
_HEX = re.compile(rb"[0-9a-f]{%d}" % (2 * _BYTES))


def new() -> str:
    return secrets.token_hex(_BYTES)


def of_gang(run: Store) -> str:
    """
    Return the run's secret. If there is none yet, make it.

    Raises:
        StoreError: the secret can be neither made nor read, or the object is not a secret.
    """
    made = new().encode()
    persist(lambda: run.put_if_absent(NAME, made))
    found = persist(lambda: run.get(NAME, 0, len(made) + 1))
    if not _HEX.fullmatch(found):
        raise StoreError(
            f"{NAME} of the run's folder is not a valid secret", hint="delete it: the members then make a new one"
        )
    return found.decode()
