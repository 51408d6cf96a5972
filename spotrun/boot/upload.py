"""What goes into a run's folder before its first entry: a start script, and this very spotrun with its lock in it."""

from __future__ import annotations

from importlib.resources import files

from spotrun.boot.wheel import own_wheel
from spotrun.store.port import Store

FOLDER = "boot"


def upload(store: Store, start: bytes) -> None:
    """
    A machine runs the script `start` to become an instance. That sources install.sh, which installs the wheel, and what
    the lock in that names.

    Raises:
        StoreError: it cannot be written.
    """
    wheel = own_wheel()
    store.put(f"{FOLDER}/{wheel.name}", wheel.data)
    store.put(f"{FOLDER}/install.sh", files(__package__).joinpath("install.sh").read_bytes())
    store.put(f"{FOLDER}/start.sh", start)
