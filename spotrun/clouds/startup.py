"""
Builds the script that an instance executes first. It begins with lines that assign values to variables; the rest is the
same for every launch. spotrun checks each value before it writes it into the script.

The script contains no secret, because every process on the instance can read it. The shell never interprets text from
the user: the run's address is encoded in base64, and the other values consist of digits and letters that spotrun chose.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from spotrun.instance import LaunchRequest

_UID_PATTERN = re.compile(r"[a-z0-9]{1,64}")


def startup(request: LaunchRequest, script: str, more: Mapping[str, int] | None = None) -> str:
    """Return `script`, preceded by the values of `request` that the script needs and by the numbers in `more`."""
    assert _UID_PATTERN.fullmatch(request.run_uid), request.run_uid
    values = {
        "SPOTRUN_TIME_TO_LIVE_S": str(int(request.time_to_live.total_seconds())),
        "SPOTRUN_RUN_UID": request.run_uid,
        "SPOTRUN_LAUNCH": str(int(request.launch)),
        "SPOTRUN_RUN_URI_BASE64": base64.b64encode(request.run_uri.encode()).decode(),
        **{name: str(int(value)) for name, value in (more or {}).items()},
    }
    return "\n".join(["#!/bin/bash", *(f"{name}={text}" for name, text in values.items()), script])
