"""
Defines the record of a night, which is stored, and the night's pin, which protects the record. A night is a job that a
function in the cloud starts at a certain time of day, even if the user's machine is off.

The store holds the record, the job's work folder, and a numbered list of the nights that have begun. But other
processes may be able to write to the store, so the function accepts an object from the store only if its pin confirms
it. The pin is a variable in the function's environment. It contains the digest of the record, and the record contains
the digest of the work folder. The pin also contains a key, with which the function signs the records that it writes to
the store.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from spotrun.errors import SpotrunError
from spotrun.folder.keys import Signer
from spotrun.run.bounds import Moment, OutOfBounds, decode

VARIABLE = "SPOTRUN_NIGHT_PIN"
AGAIN = "install the night again: spotrun night install"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
TimeOfDay = Annotated[str, msgspec.Meta(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
Zone = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64)]
Day = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(DAYS)})$")]
Offset = Annotated[int, msgspec.Meta(gt=-86_400, lt=86_400)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]+$", max_length=64)]
_LATE = timedelta(hours=6)
"""
A call of the function belongs to a night if it comes at most this long before the night's time, or less than 18 hours
after it. These limits are wide because calls can come up to two hours late, and because they seem to come an hour early
in summer: `due` computes with winter time.
"""


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job that is trained on certain `days` (mon, tue, …) at a time of day `at` (HH:MM), in the time zone `zone`.

    `spec` is the job as it is launched, except for its work folder. `winter_offset_s` is the zone's offset from UTC in
    seconds, without daylight saving time. The night's schedule and function are in `region` of `cloud`. `webhooks` are
    the places from which the function is allowed to read webhook addresses.
    """

    name: str
    spec: dict[str, Any]
    workdir_sha256: str
    at: TimeOfDay
    zone: Zone
    days: tuple[Day, ...]
    winter_offset_s: Offset
    cloud: _Name
    region: _Name
    installed_at: Moment
    spotrun: str
    webhooks: tuple[str, ...] = ()

    @property
    def encoded(self) -> bytes:
        """The record of the night, as it is stored."""
        return msgspec.json.encode(self)

    def due(self, called_at: datetime) -> str:
        """
        Return the date on which a night is due, for a call of the cloud function at `called_at`. All calls for a night
        give the same date, even if a call is repeated or late, or if the clock changes in that night.
        """
        hours, minutes = (int(part) for part in self.at.split(":"))
        local = called_at + timedelta(seconds=self.winter_offset_s)
        found: date = (local - timedelta(hours=hours, minutes=minutes) + _LATE).date()
        return found.isoformat()


class NotPinned(SpotrunError):
    """
    The function has no valid pin: an earlier version of spotrun installed the function, or another program changed the
    function's environment.
    """


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """
    The pin of a night. `sha256` is the digest of the night's record. `key` is a private Ed25519 key in hex (see
    Signer); if the night is installed a second time, the key stays the same. `night` is a copy of the night's record
    that keeps only the job's webhooks. With this copy, the function can notify the user even if another program has
    replaced the record in the store.
    """

    sha256: str
    key: str
    night: Night

    @property
    def text(self) -> str:
        """The pin as it is written into the function's environment. It contains the key, so it is never printed."""
        return msgspec.json.encode(self).decode()

    @property
    def signer(self) -> Signer:
        return Signer(self.key)


def pin_for(night: Night, before: Pin | None) -> Pin:
    """Make the pin for a night. If the night has a previous pin, `before`, the new pin keeps its key."""
    return Pin(
        sha256=hashlib.sha256(night.encoded).hexdigest(),
        key=secrets.token_hex(32) if before is None else before.key,
        night=replace(night, spec=_telling(night)),
    )


def pinned(environment: Mapping[str, str]) -> Pin | None:
    """
    Read the pin from the environment of a function. Return None if an earlier version of spotrun installed the
    function.

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
    Read the pin from the environment of a function that must have one.

    Raises:
        NotPinned: the pin is missing, or cannot be read.
    """
    found = pinned(environment)
    if found is None:
        what = f"the function has no {VARIABLE} in its environment, so it cannot recognize its own record"
        raise NotPinned(what, hint=AGAIN)
    return found


def _telling(night: Night) -> dict[str, Any]:
    """
    Return a copy of the night's job that keeps only its webhooks and the places of their addresses. The copy has to be
    small, because Lambda allows only 4 KB of environment variables. The job's Google Cloud project is left out, because
    the function uses the project of its credentials.
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
