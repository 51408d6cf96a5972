"""
Stores the code of night runners as archives. A night is a job that a cloud starts at a time of day; its runner is a
function in that cloud, made from such an archive. The archives lie in the store, next to the records of the nights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial

from spotrun import address
from spotrun.clock import Clock
from spotrun.errors import CloudError, StoreError
from spotrun.folder.night_record import FOLDER, names
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist

_ARCHIVES = f"{FOLDER}/function-"
_YOUNG = timedelta(days=1)


class NightArchives:
    """The archives in one store. Instances do not have the right to write them."""

    def __init__(self, store: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._runs = open_store(store)

    def upload(self, data: bytes) -> tuple[str, str]:
        """
        Upload an archive, and return its bucket and its object name. The name contains the digest of the content, so
        equal archives share one object. Overwrite the object if it exists, because another process may have stored
        different content under that name.
        """
        place = address.parse(self._store)
        assert isinstance(place, address.BucketAddress), self._store
        key = f"{_ARCHIVES}{hashlib.sha256(data).hexdigest()[:32]}.zip"
        persist(lambda: self._runs.put(key, data))
        return place.bucket, f"{place.root}{key}"

    def has(self, name: str) -> bool:
        """Return True if the store has an archive of this file name."""
        found = persist(lambda: self._runs.list(_ARCHIVES))
        return name in {each.key.rpartition("/")[2] for each in found}

    def forget(self, needed: Callable[[], Collection[str]], say: Callable[[str], None], removed: str = "") -> None:
        """
        Delete the archives that no night needs; `needed()` returns the file names of the needed ones. `removed` is the
        night that is being removed, if any.

        Keep archives younger than a day, because another process may be installing a night from them. If the store has
        no other night than `removed`, there is no such process: an installation stores the night's record first.

        If a deletion fails, only report that with `say`: keeping an archive costs less than a cent a year, and the next
        installation tries again to delete it.
        """
        young = self._clock.now() - _YOUNG
        try:
            found = persist(lambda: self._runs.list(_ARCHIVES))
            is_last = bool(found) and not {*names(self._store)} - {removed}
            old = [each.key for each in found if is_last or each.modified_at < young]
            kept = needed() if old else ()
            for key in old:
                if key.rpartition("/")[2] not in kept:
                    persist(partial(self._runs.delete, key))
        except (CloudError, StoreError) as error:
            say(f"note: archives that no night needs may stay in {self._store}/{FOLDER}: {error.one_line}")
