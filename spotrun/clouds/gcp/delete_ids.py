"""
Makes the ids of the calls that delete an instance. Google keeps such an id as part of the delete operation.

An id contains the time at which the machine was switched off, if that time is known. The bill needs this time. After
the deletion, the id may be the only place that still has it, because Google may have forgotten the operation that
switched the machine off.

    the id is sent as clientOperationId: https://cloud.google.com/compute/docs/reference/rest/v1/zoneOperations
    a UUID of version 8 has 122 bits of free content: https://www.rfc-editor.org/rfc/rfc9562#section-5.8
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from secrets import randbits
from uuid import UUID, uuid4

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OWN = 0x5B0720FF
"""A number that marks the ids in which spotrun has stored a time. The time is stored in milliseconds."""
_LATEST_MS = 1 << 48


def delete_id(off_since: datetime | None = None) -> str:
    """
    Return a new id. A call that is repeated keeps its id. `off_since` is the time at which the machine was switched
    off; None if unknown.
    """
    if off_since is None:
        return str(uuid4())
    milliseconds = ((off_since - _EPOCH) // _MILLISECOND) % _LATEST_MS
    return str(UUID(int=milliseconds << 80 | 8 << 76 | randbits(12) << 64 | 2 << 62 | _OWN << 30 | randbits(30)))


def off_since(told: object) -> datetime | None:
    """
    Read the time at which the machine was switched off from the id of the call that deleted it. Return None if the id
    does not contain a time.
    """
    try:
        found = UUID(str(told))
    except ValueError:
        return None
    if found.version != 8 or (found.int >> 30) & 0xFFFFFFFF != _OWN:
        return None
    return _EPOCH + _MILLISECOND * (found.int >> 80)
