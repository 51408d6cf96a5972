"""What the stores behind HTTP have in common."""

from __future__ import annotations

CONNECT_S = 10.0
READ_S = 60.0
"""System time, for each piece of an answer. A call is tried once: its caller knows how long trying again helps."""
NO_STORE = "no-store"
"""Of everything here: a cache between us and the store would show the past (protocol 28)."""
_NEVER_PASSES = (501, 507)
"""Not implemented, and full."""


def passes(status: int) -> bool:
    """
    Whether the same request may be answered otherwise in a while; until then nothing is known of its effect.

    409 is among them: S3 says so of a conditional write that met another one, and has stored nothing of it.
    """
    return status in (408, 409, 425, 429) or (status >= 500 and status not in _NEVER_PASSES)
