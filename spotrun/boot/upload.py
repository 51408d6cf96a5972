"""Uploads a start script, this version of spotrun and its lock file to a run's folder. This happens before the run's
ledger gets its first entry."""

from __future__ import annotations

from importlib.resources import files

from spotrun.boot.wheel import own_wheel
from spotrun.store.port import Store

FOLDER = "boot"


def upload(store: Store, start: bytes) -> None:
    """
    Upload three files: `start` (the script that a rented machine runs), install.sh and spotrun's wheel. `start` sources
    install.sh, which installs the wheel, and the packages that the wheel's lock file lists.

    Raises:
        StoreError: the folder cannot be written.
    """
    wheel = own_wheel()
    store.put(f"{FOLDER}/{wheel.name}", wheel.data)
    store.put(f"{FOLDER}/install.sh", files(__package__).joinpath("install.sh").read_bytes())
    store.put(f"{FOLDER}/start.sh", start)
