"""Deletes the folder of a run, for good."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from spotrun.store.port import Store, StoredObject
from spotrun.store.retrying import persist

WORKERS = 8
"""
Maximum objects that are deleted at the same time. Several are deleted together, because each deletion mostly waits for
the store.
"""


def objects_of(store: Store, folder: str) -> Sequence[StoredObject]:
    """Return all objects in the run folder `folder` of `store`."""
    return persist(lambda: store.list(f"{folder}/"))


def remove(store: Store, folder: str) -> None:
    """
    Delete all objects of a run's folder.

    The ledger is deleted last, and of the ledger, the first entry goes first. So if the deletion stops before the
    ledger, the run still exists and can be removed by a second try. If it stops later, no command takes the rest of the
    ledger for a run.

    Raises:
        StoreError: an object could not be deleted.
    """
    keys = [stored.key for stored in objects_of(store, folder)]
    ledger = sorted(key for key in keys if key.startswith(f"{folder}/ledger/"))
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(lambda key: persist(lambda: store.delete(key)), sorted(set(keys) - set(ledger))):
            pass
    for key in ledger:
        persist(lambda key=key: store.delete(key))  # type: ignore[misc]
