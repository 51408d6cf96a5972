"""Reads the last output of an instance that ended before its agent took over, from its startup log or its console."""

from __future__ import annotations

import re

from spotrun.clouds.cloud import Cloud
from spotrun.errors import CloudError, ObjectMissing
from spotrun.instance import Instance
from spotrun.run.bounds import LOG_CHUNK_BYTES
from spotrun.run.reasons import reason_in
from spotrun.store.port import Store

_OWN_LINE = re.compile(r"\bspotrun: .*")
"""
Lines that spotrun wrote to a console. Only these lines are entered in the ledger, because other programs' lines may
contain anything, even a secret.
"""


class LastWords:
    def __init__(self, cloud: Cloud, store: Store) -> None:
        self._cloud = cloud
        self._store = store

    def of(self, launch: int, instance: Instance | None) -> str:
        """
        Return the last output of a launch, as text for the ledger; "" if there is no output, or if this cloud has no
        startup logs. `instance` is the launch's instance; None if the cloud no longer lists it.

        Raises:
            StoreUnavailable: the log cannot be read yet.
        """
        if not self._cloud.failed_starts:
            return ""
        if words := reason_in(self._log(launch)):
            return f"its log says: {words}"
        if instance is None:
            return ""
        try:
            console = self._cloud.console(instance)
        except CloudError as error:
            return f"its console cannot be read: {error.message}"
        if not console:
            return ""
        own = "\n".join(_OWN_LINE.findall(console))
        return f"its console says: {reason_in(own)}" if own else "spotrun wrote no line to its console"

    def _log(self, launch: int) -> str:
        try:
            data = self._store.get(f"{self._cloud.failed_starts}{launch}.log", 0, LOG_CHUNK_BYTES)
        except ObjectMissing:
            return ""
        return data.decode(errors="replace")
