"""
The secret that all ranks of a gang know, by which they recognise each other.

It is an object of the run's folder: a process that can read there has the code and the data of the run, and no other on
the network of its members can pose as one. The private key of the run would not do, as instances must not have it.
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
    Return the secret of the run, which the first member that asks for it makes.

    Raises:
        StoreError: it can be neither made nor read, or is no such secret.
    """
    made = new().encode()
    persist(lambda: run.put_if_absent(NAME, made))
    found = persist(lambda: run.get(NAME, 0, len(made) + 1))
    if not _HEX.fullmatch(found):
        raise StoreError(f"{NAME} of the run's folder is no secret of ranks", hint="delete it: members make a new one")
    return found.decode()
