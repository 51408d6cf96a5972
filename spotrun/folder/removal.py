"""Permanently deletes the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from spotrun.store.port import Store, StoredObject
from spotrun.store.retrying import persist

WORKERS = 8
"""
Maximum objects that are deleted at the same time. Parallel deletions are faster, because each deletion mostly waits for
the store.
"""


def objects_of(store: Store, folder: str) -> Sequence[StoredObject]:
    """Return all objects in the run folder `folder` of `store`."""
    return persist(lambda: store.list(f"{folder}/"))


def remove(store: Store, folder: str) -> None:
    """
    Delete all objects of a run's folder.

    The ledger is deleted last, beginning with its first entry. If the deletion is interrupted before it reaches the
    ledger, the run still exists, and a second try can remove it. If the deletion is interrupted later, entry 0 is
    already missing, so no command mistakes the remaining entries for a run.

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
