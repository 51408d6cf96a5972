"""
With this folder in PYTHONPATH, what an instance of the local cloud starts is logged in to Google as that instance: by
the file that INSTANCE_LOGIN names, as soon as it is there.

A Python imports this before its first line; spotrun's own `sitecustomize` runs it after itself.
"""

import os
import time

GIVE_UP_S = 60.0


def main() -> None:
    login = os.environ["INSTANCE_LOGIN"]
    give_up_at = time.monotonic() + GIVE_UP_S
    while not os.path.exists(login) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = login


if "SPOTRUN_INSTANCE_ID" in os.environ:
    main()
