"""Makes the startup script of a Google instance (see spotrun.clouds.startup)."""

from __future__ import annotations

from datetime import timedelta
from importlib.resources import files

from spotrun.clouds.gcp.notices import NOTICE_VARIABLE
from spotrun.clouds.startup import startup
from spotrun.instance import LaunchRequest


def startup_script(request: LaunchRequest, notice: timedelta) -> str:
    """
    Return the script that runs first on the instance, as root. It passes `notice` to the agent: the time between
    Google's notice and the interruption.
    """
    return startup(request, script(), {NOTICE_VARIABLE: int(notice.total_seconds())})


def script() -> str:
    return files(__package__).joinpath("bootstrap.sh").read_text("utf-8")
