"""
The pin of a night: a variable in the environment of the night's function. A process that can write only to the store
cannot change the pin.

The store has the night's record, its work folder and its numbers. The pin contains the digest of the record, and the
record contains the digest of the work folder. The function signs everything that it stores with the pin's key. It
trusts nothing that is not secured in one of these ways.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from spotrun.errors import SpotrunError
from spotrun.folder.keys import Signer
from spotrun.folder.night_record import AGAIN, Night, NightRecord, encoded, sha256_of
from spotrun.run.bounds import OutOfBounds, decode

VARIABLE = "SPOTRUN_NIGHT_PIN"


class NotPinned(SpotrunError):
    """
    The function has no valid pin: an earlier spotrun installed the function, or another program changed the function's
    environment.
    """


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """
    The pin of a night. `sha256` is the digest of the night's record. `key` is a private Ed25519 key in hex (see
    Signer), which stays the same when the night is installed a second time. `night` is the night with a job that
    contains only its webhooks. With it, the function can send notifications even if the stored record was replaced.
    """

    sha256: str
    key: str
    night: Night

    @property
    def text(self) -> str:
        """The value of the variable. It contains the key, so it is never printed."""
        return msgspec.json.encode(self).decode()

    @property
    def signer(self) -> Signer:
        return Signer(self.key)


def pin_for(night: Night, before: Pin | None) -> Pin:
    """Make the pin for a night. If the night has a previous pin, `before`, the new pin keeps its key."""
    return Pin(
        sha256=sha256_of(encoded(night)),
        key=secrets.token_hex(32) if before is None else before.key,
        night=replace(night, spec=_telling(night)),
    )


def pinned(environment: Mapping[str, str]) -> Pin | None:
    """
    Read the pin from the environment of a function. Return None if an earlier spotrun installed the function.

    Raises:
        NotPinned: the pin cannot be read.
    """
    text = environment.get(VARIABLE)
    try:
        return None if text is None else decode(text.encode(), Pin)
    except OutOfBounds:
        raise NotPinned(f"{VARIABLE} in the function's environment is not what was installed", hint=AGAIN) from None


def require_pin(environment: Mapping[str, str]) -> Pin:
    """
    Read the pin from the environment of this function.

    Raises:
        NotPinned: the pin is missing, or cannot be read.
    """
    found = pinned(environment)
    if found is None:
        what = f"the function has no {VARIABLE} in its environment, so it cannot recognize its own record"
        raise NotPinned(what, hint=AGAIN)
    return found


def record_of(store: str, name: str, pin: Pin | None) -> NightRecord:
    """Return the record of the nights called `name`. The record accepts only what `pin` allows."""
    return NightRecord(store, name) if pin is None else NightRecord(store, name, pin.sha256, pin.signer)


def _telling(night: Night) -> dict[str, Any]:
    """
    Return a job that contains only a night's webhooks and the places of their addresses: Lambda allows only 4 KB of
    environment. On Google Cloud, the project is the one of the function's login.
    """
    job = night.spec
    notify = job.get("notify") or []
    variables = {str(each.get("webhook")).removeprefix("$") for each in notify}
    return {
        "name": night.name,
        "workdir": "/",
        "train": {"run": "true"},
        "resources": {"cloud": night.cloud},
        "checkpoint": {"uri": (job.get("checkpoint") or {}).get("uri")},
        "notify": notify,
        "secrets": {name: place for name, place in (job.get("secrets") or {}).items() if name in variables},
    }
