"""Makes the user-data of an EC2 instance, as spotrun.clouds.startup describes."""

from __future__ import annotations

from importlib.resources import files

from spotrun.clouds.startup import startup
from spotrun.instance import LaunchRequest

USER_DATA_MAX_BYTES = 16 * 1024
"""
Maximum bytes of the user-data before it is encoded in base64:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html
"""


def user_data(request: LaunchRequest) -> str:
    """
    Return the script that runs first on the instance, as root. Before anything else it starts the timer that ends the
    instance after its time-to-live.
    """
    return startup(request, script())


def script() -> str:
    return files(__package__).joinpath("bootstrap.sh").read_text("utf-8")
