"""
The user-data of an instance: a constant script, with three checked values before it.

Everybody on the instance can read it, so it holds no secret. No text of the user's reaches its shell: the run's address
is base64, and the other values are numbers and letters that spotrun made.
"""

from __future__ import annotations

import base64
import re
from importlib.resources import files

from spotrun.instance import LaunchRequest

USER_DATA_MAX_BYTES = 16 * 1024
"""Before base64: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""
_UID_PATTERN = re.compile(r"[a-z0-9]{1,64}")


def user_data(request: LaunchRequest) -> str:
    """What runs first on the instance, as root. It arms the time-to-live before anything else."""
    assert _UID_PATTERN.fullmatch(request.run_uid), request.run_uid
    values = {
        "SPOTRUN_TIME_TO_LIVE_S": str(int(request.time_to_live.total_seconds())),
        "SPOTRUN_RUN_UID": request.run_uid,
        "SPOTRUN_LAUNCH": str(int(request.launch)),
        "SPOTRUN_RUN_URI_BASE64": base64.b64encode(request.run_uri.encode()).decode(),
    }
    lines = ["#!/bin/bash", *(f"{name}={text}" for name, text in values.items()), script()]
    return "\n".join(lines)


def script() -> str:
    return files(__package__).joinpath("bootstrap.sh").read_text("utf-8")
